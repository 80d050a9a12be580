import java.net.URI;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;
import org.apache.distributedlog.util.Utils;

/** DistributedLog's core library. Arguments: ZooKeeper, its path of ledgers, and name=value of its settings. */
final class DistributedLogPeer implements Loops.Peer {
    private static final int RECORDS_MAX = 1000;
    /** Pending, with an entry for each record: more of them time out while Java gets warm. */
    private static final int ENTRIES_MAX = 1000;

    private final Namespace namespace;
    private final boolean immediate;

    private DistributedLogPeer(String[] arguments) throws Exception {
        // Clients of different settings share bookies, not logs.
        URI uri = URI.create("distributedlog://" + arguments[0] + "/logs-" + ProcessHandle.current().pid());
        DLMetadata.create(new BKDLConfig(arguments[0], arguments[1])).create(uri);
        DistributedLogConfiguration settings = new DistributedLogConfiguration();
        settings.setCreateStreamIfNotExists(true);
        settings.setEnsembleSize(3).setWriteQuorumSize(3).setAckQuorumSize(2);
        for (int at = 2; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        immediate = settings.getImmediateFlushEnabled();
        namespace = NamespaceBuilder.newBuilder().conf(settings).uri(uri).clientId("bench").build();
    }

    public static void main(String[] arguments) throws Exception {
        Loops.serve(new DistributedLogPeer(arguments));
    }

    @Override
    public Loops.Log open(String name) throws Exception {
        DistributedLogManager manager = namespace.openLog(name);
        AsyncLogWriter writer = Utils.ioResult(manager.openAsyncLogWriter());
        return new Loops.Log() {
            private long txid = Math.max(0, writer.getLastTxId());

            @Override
            public void append(byte[] record, Runnable acknowledged) {
                writer.write(new LogRecord(++txid, record)).whenComplete((at, error) -> {
                    if (error == null) {
                        acknowledged.run();
                    } else {
                        Loops.failed(error);
                    }
                });
            }

            @Override
            public int window(int size) {
                return immediate ? ENTRIES_MAX : Loops.Log.super.window(size);
            }

            @Override
            public void close() throws Exception {
                Utils.ioResult(writer.asyncClose());
                manager.close();
            }

            @Override
            public void abandon() throws Exception {
                Utils.ioResult(writer.asyncAbort());
                manager.close();
            }
        };
    }

    @Override
    public double read(String name, long count) throws Exception {
        long began = System.nanoTime(), found = 0, bytes = 0;
        DistributedLogManager manager = namespace.openLog(name);
        AsyncLogReader reader = Utils.ioResult(manager.openAsyncLogReader(DLSN.InitialDLSN));
        while (found < count) {
            List<LogRecordWithDLSN> records = Utils.ioResult(reader.readBulk(RECORDS_MAX));
            for (LogRecordWithDLSN each : records) {
                bytes += each.getPayload().length;
            }
            found += records.size();
        }
        double took = (System.nanoTime() - began) / 1e9;
        Utils.ioResult(reader.asyncClose());
        manager.close();
        return took;
    }

    @Override
    public void tail(String name, Loops.Seen seen) throws Exception {
        DistributedLogManager manager = namespace.openLog(name);
        AsyncLogReader reader = Utils.ioResult(manager.openAsyncLogReader(manager.getLastDLSN()));
        for (boolean enough = false; !enough; ) {
            for (LogRecordWithDLSN each : Utils.ioResult(reader.readBulk(RECORDS_MAX))) {
                enough = seen.see(ByteBuffer.wrap(each.getPayload()));
            }
        }
        Utils.ioResult(reader.asyncClose());
        manager.close();
    }
}
