"""At the moment of a swap the new member has every entry of its place, durably.

One whose disk was lost since it had them counts as having them: nobody can know.
"""

from tests.simulation.invariants.fragments_strictly_ordered import is_move
from tests.simulation.repair.oracle import Happening, Repairs, Written, held_by


def broken(repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Written) or not is_move(what.before, what.after):
        return None
    copies = repairs.history(what.ledger_id).copies
    for before, after in what.changed():
        for index, (old, new) in enumerate(zip(before.bookies, after.bookies, strict=True)):
            if old == new:
                continue
            for entry in held_by(after, index, what.after):
                if new not in copies.get(entry, {}):
                    return (
                        f"{what.by} put {new} in the place of {old} in ledger {what.ledger_id}, "
                        f"and entry {entry} is not there"
                    )
    return None
