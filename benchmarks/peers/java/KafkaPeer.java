import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TopicExistsException;

/** Kafka's own client. Arguments: servers, and name=value for producers and topics (topic.name=value). */
final class KafkaPeer implements Loops.Peer {
    private static final String CODEC = "org.apache.kafka.common.serialization.ByteArray";

    private final Properties producing = new Properties();
    private final Map<String, String> topic = new java.util.HashMap<>();
    private final String servers;

    private KafkaPeer(String[] arguments) {
        servers = arguments[0];
        producing.put("bootstrap.servers", servers);
        producing.put("key.serializer", CODEC + "Serializer");
        producing.put("value.serializer", CODEC + "Serializer");
        for (int at = 1; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            if (pair[0].startsWith("topic.")) {
                topic.put(pair[0].substring(6), pair[1]);
            } else {
                producing.put(pair[0], pair[1]);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Loops.serve(new KafkaPeer(arguments));
    }

    @Override
    public Loops.Log open(String name) throws Exception {
        return open(List.of(name)).get(0);
    }

    /** One producer for all of them, as Kafka advises; it ends with the first that is closed. */
    @Override
    public List<Loops.Log> open(List<String> names) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(names.stream()
                    .map(name -> new NewTopic(name, 1, (short) 3).configs(topic))
                    .collect(Collectors.toList())).all().get();
        } catch (ExecutionException error) {
            if (!(error.getCause() instanceof TopicExistsException)) {
                throw error;
            }
        }
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producing);
        List<Loops.Log> logs = new ArrayList<>();
        for (String name : names) {
            for (int left = 100; producer.partitionsFor(name).get(0).leader() == null; left--) {
                if (left == 0) {
                    throw new IllegalStateException(name + " has no leader");
                }
                Thread.sleep(50);
            }
            logs.add(new Topic(producer, name));
        }
        return logs;
    }

    private static final class Topic implements Loops.Log {
        private final KafkaProducer<byte[], byte[]> producer;
        private final String name;

        Topic(KafkaProducer<byte[], byte[]> producer, String name) {
            this.producer = producer;
            this.name = name;
        }

        @Override
        public void append(byte[] record, Runnable acknowledged) {
            producer.send(new ProducerRecord<>(name, record), (metadata, error) -> {
                if (error == null) {
                    acknowledged.run();
                } else {
                    Loops.failed(error);
                }
            });
        }

        @Override
        public int window(int size) {
            return Integer.MAX_VALUE; // it blocks when its buffer is full
        }

        @Override
        public void close() {
            producer.close();
        }

        @Override
        public void abandon() {
            producer.close(Duration.ZERO);
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(TopicPartition partition) {
        Properties reading = new Properties();
        reading.put("bootstrap.servers", servers);
        reading.put("key.deserializer", CODEC + "Deserializer");
        reading.put("value.deserializer", CODEC + "Deserializer");
        reading.put("max.poll.records", "10000");
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading);
        consumer.assign(List.of(partition));
        return consumer;
    }

    @Override
    public double read(String name, long count) {
        long began = System.nanoTime(), found = 0, bytes = 0;
        TopicPartition partition = new TopicPartition(name, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(partition)) {
            consumer.seekToBeginning(List.of(partition));
            while (found < count) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    bytes += each.value().length;
                    found++;
                }
            }
            return (System.nanoTime() - began) / 1e9;
        }
    }

    @Override
    public void tail(String name, Loops.Seen seen) {
        TopicPartition partition = new TopicPartition(name, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(partition)) {
            consumer.seekToEnd(List.of(partition));
            for (boolean enough = false; !enough; ) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    enough = seen.see(ByteBuffer.wrap(each.value()));
                }
            }
        }
    }

    @Override
    public int leader(String name) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            return admin.describeTopics(List.of(name)).allTopicNames().get()
                    .get(name).partitions().get(0).leader().id();
        }
    }
}
