"""A writer heals on real bookies: most of them die, and come back."""

from dlog import Log
from dlog.testing import cluster


def test_appends_wait_for_bookies_and_are_kept_once() -> None:
    with cluster() as made, Log.open("log", uri=made.uri) as log:
        log.append(b"0", txid=0)
        made.kill_bookie(1)
        made.kill_bookie(2)
        futures = [log.append_async(b"%d" % i, txid=i) for i in range(1, 50)]
        made.restart_bookie(1)
        made.restart_bookie(2)
        futures += [log.append_async(b"%d" % i, txid=i) for i in range(50, 100)]
        assert [f.result(timeout=50).offset for f in futures] == list(range(1, 100))
        log.close()
        with Log.tail("log", uri=made.uri, follow=False) as reader:
            assert [int(record.value) for record in reader] == list(range(100))
