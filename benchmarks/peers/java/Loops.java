import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * What a client of a peer is asked to do: a command a line comes in, a line of JSON goes out. The
 * loops are those of `benchmarks/peers/serving.py`; `benchmarks/peers/clients.py` says what the
 * commands mean.
 */
final class Loops {
    interface Peer {
        /** Open the log or topic for writing, taking it over if that is what it takes. */
        Log open(String name) throws Exception;

        /** Open several, some of them at once. */
        default List<Log> open(List<String> names) throws Exception {
            ExecutorService opening = Executors.newFixedThreadPool(OPENING_MAX);
            try {
                List<Callable<Log>> calls = new ArrayList<>();
                names.forEach(name -> calls.add(() -> open(name)));
                List<Log> opened = new ArrayList<>();
                for (Future<Log> each : opening.invokeAll(calls)) {
                    opened.add(each.get());
                }
                return opened;
            } finally {
                opening.shutdown();
            }
        }

        /** Read *count* records from the first on; return how many seconds that took. */
        double read(String name, long count) throws Exception;

        /** Call *seen* with each record that is appended from now on, until *enough*. */
        void tail(String name, Seen seen) throws Exception;

        /** Return who leads, if that is a question. */
        default int leader(String name) throws Exception {
            return -1;
        }
    }

    interface Log {
        void append(byte[] record, Runnable acknowledged) throws Exception;

        /** Return how many records of *size* may be pending. */
        default int window(int size) {
            return (16 << 20) / size;
        }

        void close() throws Exception;

        /** End as a crash would. */
        void abandon() throws Exception;
    }

    interface Seen {
        /** Return whether that is enough. */
        boolean see(ByteBuffer record);
    }

    private static final int OPENING_MAX = 16;
    private static final long TICK_NS = 500_000;
    private static final int LONE_MAX = 5000;
    private static final long PATIENCE_S = 120;
    private static final int TAIL_WAITS_MAX = 4000;

    private final Peer peer;

    private Loops(Peer peer) {
        this.peer = peer;
    }

    static void serve(Peer peer) throws Exception {
        Loops loops = new Loops(peer);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("{\"ready\": 1}");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = loops.answer(line.split(" "));
            } catch (Exception error) {
                error.printStackTrace();
                answer = "{\"error\": \"" + error.toString().replaceAll("[\"\\\\\\s]+", " ") + "\"}";
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    /** End: an append failed, so nobody would count it, and who waits for it would wait in vain. */
    static void failed(Throwable error) {
        error.printStackTrace();
        System.err.println("an append failed: " + error);
        Runtime.getRuntime().halt(1);
    }

    private String answer(String[] words) throws Exception {
        String name = words[1];
        double[] more = Arrays.stream(words).skip(2).mapToDouble(Double::parseDouble).toArray();
        switch (words[0]) {
            case "throughput":
                return append(begun(name, (int) more[0], at(more, 2)), (int) more[0], more[1],
                        Long.MAX_VALUE, false);
            case "fill":
                return append(List.of(peer.open(name)), (int) more[0], PATIENCE_S, (long) more[1],
                        false);
            case "crash":
                return append(List.of(begun(name, (int) more[0])), (int) more[0], more[1],
                        Long.MAX_VALUE, true);
            case "lone":
                return lone(name, (int) more[0], more[1]);
            case "paced":
                return paced(begun(name, (int) more[0], at(more, 3)), (int) more[0], more[1],
                        more[2]);
            case "tailed":
                return tailed(name, (int) more[0], more[1], more[2], at(more, 3));
            case "read":
                return String.format("{\"seconds\": %f}", peer.read(name, (long) more[0]));
            case "takeover":
                return takeover(name);
            case "hold":
                return hold(name, (int) more[0]);
            case "release":
                return release();
            case "lead":
                return lead(name);
            case "next":
                return next();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Return how many logs or tails: one, unless a command ends with a number of them. */
    private static int at(double[] more, int index) {
        return more.length > index ? (int) more[index] : 1;
    }

    /** Open a log for writing, and append a record that nobody counts: now it is really there. */
    private Log begun(String name, int size) throws Exception {
        return begun(name, size, 1).get(0);
    }

    private List<Log> begun(String name, int size, int count) throws Exception {
        List<Log> logs = count == 1 ? List.of(peer.open(name)) : peer.open(
                IntStream.range(0, count).mapToObj(each -> name + "-" + each)
                        .collect(Collectors.toList()));
        Semaphore done = new Semaphore(0);
        for (Log log : logs) {
            log.append(marked(size, -1), done::release);
        }
        done.acquire(count);
        return logs;
    }

    private static void close(List<Log> logs) throws Exception {
        for (Log log : logs) {
            log.close();
        }
    }

    private List<Log> held = List.of();

    private String hold(String name, int count) throws Exception {
        long began = System.nanoTime();
        held = begun(name, 100, count);
        return String.format("{\"seconds\": %f}", (System.nanoTime() - began) / 1e9);
    }

    private String release() throws Exception {
        close(held);
        held = List.of();
        return "{\"released\": 1}";
    }

    private static byte[] marked(int size, long index) {
        return ByteBuffer.allocate(size).putLong(0, index).array();
    }

    private String append(List<Log> logs, int size, double seconds, long most, boolean crash)
            throws Exception {
        byte[] record = new byte[size];
        Pending pending = new Pending(logs.get(0).window(size));
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9), count = 0;
        for (int turn = 0; count < most && System.nanoTime() < end; turn++) {
            Log log = logs.get(turn % logs.size());
            long until = Math.min(count + 100, most);
            for (; count < until; count++) {
                pending.append(log, record);
            }
        }
        pending.awaitNone();
        double took = (System.nanoTime() - began) / 1e9;
        if (crash) {
            logs.get(0).abandon();
        } else {
            close(logs);
        }
        return String.format("{\"records\": %d, \"seconds\": %f}", count, took);
    }

    /** Who sends waits for half of the window, so that an acknowledgement wakes nobody up in vain. */
    private static final class Pending {
        private final AtomicLong count = new AtomicLong();
        private final Semaphore room = new Semaphore(0);
        private final Runnable acknowledged = this::acknowledged;
        private final long window;

        Pending(long window) {
            this.window = window;
        }

        void append(Log log, byte[] record) throws Exception {
            if (count.incrementAndGet() >= window) {
                room.drainPermits(); // of when nobody waited
                if (count.get() >= window) {
                    room.acquire();
                }
            }
            log.append(record, acknowledged);
        }

        private void acknowledged() {
            if (count.decrementAndGet() == window / 2) {
                room.release();
            }
        }

        void awaitNone() {
            long end = System.nanoTime() + PATIENCE_S * 1_000_000_000;
            while (count.get() > 0) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException(count + " were not acknowledged");
                }
                LockSupport.parkNanos(100_000);
            }
        }
    }

    private String lone(String name, int size, double seconds) throws Exception {
        Log log = begun(name, size);
        byte[] record = new byte[size];
        Semaphore done = new Semaphore(0);
        long[] times = new long[LONE_MAX];
        int count = 0;
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (long began; (began = System.nanoTime()) < end && count < LONE_MAX; ) {
            log.append(record, done::release);
            done.acquire();
            times[count++] = System.nanoTime() - began;
        }
        log.close();
        return told(Arrays.copyOf(times, count));
    }

    private String paced(List<Log> logs, int size, double rate, double seconds) throws Exception {
        long[] times = new long[(int) (rate * seconds)];
        Semaphore done = new Semaphore(0);
        byte[] record = new byte[size];
        send(rate, times.length, (index, due) ->
                logs.get(index % logs.size()).append(record, () -> {
                    times[index] = System.nanoTime() - due;
                    done.release();
                }));
        if (!done.tryAcquire(times.length, PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not all was acknowledged");
        }
        close(logs);
        return told(times);
    }

    private interface Sending {
        void send(int index, long due) throws Exception;
    }

    /** Send at *rate* a second: what is due of a tick of half a millisecond, or each, leaves together. */
    private static void send(double rate, int count, Sending sending) throws Exception {
        long tick = Math.max(TICK_NS, (long) (1e9 / rate)), due = System.nanoTime();
        for (int index = 0; index < count; due += tick) {
            for (long left; (left = due - System.nanoTime()) > 0; ) {
                LockSupport.parkNanos(left);
            }
            for (long burst = Math.round(rate * tick / 1e9); burst > 0 && index < count; burst--) {
                sending.send(index++, due);
            }
        }
    }

    private String tailed(String name, int size, double rate, double seconds, int tails)
            throws Exception {
        Log log = begun(name, size);
        Pending pending = new Pending(Long.MAX_VALUE);
        long[] dues = new long[(int) (rate * seconds)];
        List<Tail> all = new ArrayList<>();
        for (int each = 0; each < tails; each++) {
            all.add(new Tail(name, dues));
        }
        all.forEach(Thread::start);
        for (Tail tail : all) {
            for (int left = 1000; !tail.reads.tryAcquire(20, TimeUnit.MILLISECONDS); left--) {
                if (left == 0) {
                    throw new IllegalStateException("the tail saw nothing");
                }
                pending.append(log, marked(size, -1));
            }
        }
        send(rate, dues.length, (index, due) -> {
            dues[index] = due;
            pending.append(log, marked(size, index));
        });
        for (Tail tail : all) {
            for (int left = TAIL_WAITS_MAX; tail.isAlive() && left > 0; left--) {
                pending.append(log, marked(size, -1)); // some show a record with the next one only
                tail.join(5);
            }
            if (tail.seen.get() != dues.length) {
                throw new IllegalStateException(
                        "the tail saw " + tail.seen + " of " + dues.length);
            }
        }
        pending.awaitNone();
        log.close();
        return told(all.stream().flatMapToLong(tail -> Arrays.stream(tail.times)).toArray());
    }

    /** A reader of what is appended from now on. */
    private final class Tail extends Thread {
        final long[] times;
        final AtomicLong seen = new AtomicLong();
        final Semaphore reads = new Semaphore(0);
        private final String name;
        private final long[] dues;

        Tail(String name, long[] dues) {
            this.name = name;
            this.dues = dues;
            times = new long[dues.length];
            setDaemon(true);
        }

        @Override
        public void run() {
            try {
                peer.tail(name, record -> {
                    long now = System.nanoTime(), index = record.getLong(record.position());
                    if (index < 0) {
                        reads.release();
                        return false;
                    }
                    times[(int) index] = now - dues[(int) index];
                    return seen.incrementAndGet() == times.length;
                });
            } catch (Exception error) {
                error.printStackTrace();
            }
        }
    }

    private String takeover(String name) throws Exception {
        Semaphore done = new Semaphore(0);
        long began = System.nanoTime();
        Log log = peer.open(name);
        log.append(new byte[100], done::release);
        done.acquire();
        double took = (System.nanoTime() - began) / 1e9;
        log.close();
        return String.format("{\"seconds\": %f}", took);
    }

    private Log led;

    private String lead(String name) throws Exception {
        led = peer.open(name);
        next();
        return String.format("{\"leader\": %d}", peer.leader(name));
    }

    /** Append one record to what `lead` opened. */
    private String next() throws Exception {
        Semaphore done = new Semaphore(0);
        long began = System.nanoTime();
        led.append(new byte[100], done::release);
        if (!done.tryAcquire(PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("it was not acknowledged");
        }
        return String.format("{\"seconds\": %f}", (System.nanoTime() - began) / 1e9);
    }

    private static String told(long[] times) {
        return Arrays.stream(times)
                .mapToObj(each -> Long.toString(each / 1000))
                .collect(Collectors.joining(", ", "{\"times_us\": [", "]}"));
    }
}
