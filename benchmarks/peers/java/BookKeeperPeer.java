import java.util.ArrayDeque;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** BookKeeper's client: an entry for each record. Arguments: where its metadata are, and name=value of settings. */
final class BookKeeperPeer implements Loops.Peer {
    private static final byte[] PASSWORD = "bench".getBytes();
    private static final int PENDING_MAX = 1000;
    private static final int READ_MAX = 1000;
    private static final int READS_MAX = 4;

    private final ClientConfiguration settings = new ClientConfiguration();
    private final BookKeeper client;
    private final Map<String, Long> ledgers = new ConcurrentHashMap<>();

    private BookKeeperPeer(String[] arguments) throws Exception {
        settings.setMetadataServiceUri(arguments[0]);
        for (int at = 1; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.setProperty(pair[0], pair[1]);
        }
        client = BookKeeper.newBuilder(settings).build();
    }

    public static void main(String[] arguments) throws Exception {
        Loops.serve(new BookKeeperPeer(arguments));
    }

    @Override
    public Loops.Log open(String name) throws Exception {
        Long before = ledgers.get(name);
        if (before != null) { // what a log made of ledgers does: recover the last one, begin another
            reader(name, true).close();
        }
        WriteHandle ledger = client.newCreateLedgerOp()
                .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
        ledgers.put(name, ledger.getId());
        return new Loops.Log() {
            @Override
            public void append(byte[] record, Runnable acknowledged) {
                ledger.appendAsync(record).whenComplete((at, error) -> {
                    if (error == null) {
                        acknowledged.run();
                    } else {
                        Loops.failed(error);
                    }
                });
            }

            @Override
            public int window(int size) {
                return PENDING_MAX;
            }

            @Override
            public void close() throws Exception {
                ledger.close();
            }

            @Override
            public void abandon() {
                // Nobody closes it. All that was appended is acknowledged.
            }
        };
    }

    private ReadHandle reader(String name, boolean recovering) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(ledgers.get(name)).withRecovery(recovering)
                .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
    }

    @Override
    public double read(String name, long count) throws Exception {
        long began = System.nanoTime(), found = 0, next = 0, bytes = 0;
        try (ReadHandle ledger = reader(name, false)) {
            ArrayDeque<CompletableFuture<LedgerEntries>> reads = new ArrayDeque<>();
            while (found < count) {
                while (next < count && reads.size() < READS_MAX) {
                    long last = Math.min(count, next + READ_MAX) - 1;
                    reads.add(ledger.readAsync(next, last));
                    next = last + 1;
                }
                try (LedgerEntries entries = reads.remove().get()) {
                    for (LedgerEntry each : entries) {
                        bytes += each.getEntryBytes().length;
                        found++;
                    }
                }
            }
        }
        return (System.nanoTime() - began) / 1e9;
    }

    @Override
    public void tail(String name, Loops.Seen seen) throws Exception {
        try (ReadHandle ledger = reader(name, false)) {
            long next = ledger.getLastAddConfirmed() + 1;
            for (boolean enough = false; !enough; ) {
                try (LastConfirmedAndEntry found = ledger.readLastAddConfirmedAndEntry(next, 1000, false)) {
                    if (found.hasEntry()) {
                        enough = seen.see(found.getEntry().getEntryNioBuffer());
                        next++;
                    }
                }
            }
        }
    }
}
