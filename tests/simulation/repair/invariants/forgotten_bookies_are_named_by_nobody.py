"""The name of a bookie is retired as emptied only when no ledger counts on a copy there.

No worker names it then, however long it slept since it chose the bookie.
"""

from tests.simulation.invariants.fragments_strictly_ordered import is_move
from tests.simulation.repair.oracle import Forgotten, Happening, Repairs, Written, held_by


def broken(repairs: Repairs, what: Happening) -> str | None:
    if isinstance(what, Written) and what.by_a_worker and is_move(what.before, what.after):
        for before, after in what.changed():
            named = sorted(repairs.forgotten & set(after.bookies) - set(before.bookies))
            if named:
                return f"{what.by} names {named[0]} in ledger {what.ledger_id}: it is forgotten"
    if not isinstance(what, Forgotten):
        return None
    for ledger_id, history in repairs.ledgers.ledgers.items():
        if not history.is_there:
            continue
        metadata = history.recorded
        for fragment in metadata.fragments:
            if what.bookie not in fragment.bookies or metadata.settled_end(fragment) is None:
                continue
            held = held_by(fragment, fragment.bookies.index(what.bookie), metadata)
            if any(what.bookie in history.copies.get(entry, {}) for entry in held):
                return f"{what.by} forgets {what.bookie}, and ledger {ledger_id} counts on it"
    return None
