"""A swap changes members of one fragment that is settled, and nothing else.

Ensembles stay without duplicates. A worker changes nothing but so of a ledger that is OPEN or
CLOSED, but for the recovery that makes one of the other.
"""

from ledger.metadata import LedgerState
from tests.simulation.invariants.fragments_strictly_ordered import is_move
from tests.simulation.repair.oracle import Happening, Repairs, Written


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Written):
        return None
    where = f"{what.by} changed ledger {what.ledger_id}"
    for fragment in what.after.fragments:
        if len(set(fragment.bookies)) < len(fragment.bookies):
            return f"{where}: {', '.join(fragment.bookies)} is one bookie twice"
    if is_move(what.before, what.after):
        changed = len(list(what.changed()))
        return None if changed == 1 else f"{where} in {changed} fragments at once"
    recovers = what.before.state is not what.after.state
    recovers |= what.before.state is LedgerState.IN_RECOVERY
    if what.by_a_worker and not recovers:
        return f"{where}, which is {what.before.state.name}, and not by a move of what is settled"
    return None
