"""A bookie evicts what no fragment of a CLOSED ledger names it for, and is not named afterwards
for what it evicted: whoever names it has brought the entries after that.

The second is what the invariants on copies see, as those that were evicted count no more.
"""

from ledger.metadata import LedgerState
from tests.simulation.oracle import LedgerHistory

_NAME = "eviction_takes_no_named_replica"


def broken(history: LedgerHistory) -> str | None:
    checked = history.checked.get(_NAME, 0)
    history.checked[_NAME] = len(history.evictions)
    for bookie, at in history.evictions[checked:]:
        if history.deleted:
            continue
        metadata = history.metadata[at][1]
        if metadata.state is not LedgerState.CLOSED:
            return f"{bookie} evicted it, and it is {metadata.state.name}"
        for fragment in metadata.fragments:
            if bookie in fragment.bookies:
                return f"{bookie} evicted it, and has its entries from {fragment.first_entry} on"
    return None
