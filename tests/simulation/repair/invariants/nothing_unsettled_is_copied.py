"""A worker copies only what is settled, and to each bookie only what a place there holds.

What is behind the last fragment's first entry of a ledger that is not CLOSED is its writer's, or
its recovery's, and so is what is behind the end.
"""

from ledger.metadata import LedgerState
from ledger.quorum import holds
from tests.simulation.repair.oracle import Copied, Happening, Repairs


def broken(repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Copied):
        return None
    history = repairs.history(what.ledger_id)
    metadata = history.recorded
    where = f"{what.by} copies entry {{}} of ledger {what.ledger_id} to {what.bookie}"
    if what.recovering:
        if metadata.state is LedgerState.OPEN and not history.deleted:
            return where.format(what.entries[0]) + ", which is OPEN"
        return None
    for entry in what.entries:
        fragment = metadata.fragment_of(entry)
        end = metadata.settled_end(fragment)
        if end is None or entry > end:
            return where.format(entry) + ", which is not settled"
    fragment = metadata.fragment_of(what.entries[0])
    quorum = metadata.quorum
    # Which place it is for is not known here: another worker may have given it one since.
    places = range(quorum.ensemble)
    if not any(all(holds(place, entry, quorum) for entry in what.entries) for place in places):
        return where.format(what.entries) + ", which no place for it holds"
    return None
