"""TLA+ AllAckedEntriesAreReadable: whoever follows the metadata finds every acknowledged entry.

The entry must be inside the ledger if that is CLOSED, and a bookie of the recorded write set
must hold it, on a disk that was not lost: no world loses as many disks as Qa.
"""

from tests.simulation.oracle import LedgerHistory


def broken(history: LedgerHistory) -> str | None:
    if history.deleted:
        return None
    end = history.recorded.last_entry
    if end is not None and history.acknowledged > end:
        return f"entries up to {history.acknowledged} were acknowledged, closed at {end}"
    for entry_id in history.unchecked(__name__, history.acknowledged):
        if history.copies_left(entry_id) == 0:
            bookies = history.recorded.fragment_of(entry_id).bookies
            return f"acknowledged entry {entry_id} is at none of {', '.join(bookies)}"
    return None
