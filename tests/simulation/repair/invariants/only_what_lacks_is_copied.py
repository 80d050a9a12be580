"""Into its own place a bookie gets only what it had not when it was looked at.

Of one that lost something, or cannot read for a while, nobody knows from outside what it has.
"""

from tests.simulation.repair.oracle import Copied, Happening, Repairs


def broken(repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Copied) or what.recovering or repairs.disks_fail:
        return None
    history = repairs.history(what.ledger_id)
    if not history.is_there:
        return None  # a bookie that has heard of that has collected it
    fragment = history.recorded.fragment_of(what.entries[0])
    if what.bookie not in fragment.bookies or what.bookie in history.lost_disks:
        return None
    needless = [entry for entry in what.entries if entry in what.had]
    if not needless:
        return None
    return f"{what.by} copies {needless} of ledger {what.ledger_id} to {what.bookie}, which has it"
