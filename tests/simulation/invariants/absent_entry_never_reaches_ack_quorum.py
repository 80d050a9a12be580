"""What recovery found absent can never be acknowledged (rules 32, 43).

The entry behind the end of a CLOSED ledger has fewer than Qa copies from its writer in the
writer's last ensemble, whatever arrives late. Whether the writer hears of them is luck.
"""

from ledger.metadata import LedgerState
from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    end = history.recorded.last_entry
    if end is None:
        return None
    added = history.added.get(end + 1)
    if not added:
        return None
    opened = [m for _, m in history.metadata if m.state is LedgerState.OPEN]
    if not opened:
        return None
    bookies = opened[-1].fragment_of(end + 1).bookies
    quorum = opened[-1].quorum
    write_set = [bookies[(end + 1 + i) % quorum.ensemble] for i in range(quorum.write)]
    holders = [bookie for bookie in write_set if bookie in added]
    if len(holders) < quorum.ack:
        return None
    return f"closed at {end}, but {', '.join(holders)} took entry {end + 1}: it may be acknowledged"
