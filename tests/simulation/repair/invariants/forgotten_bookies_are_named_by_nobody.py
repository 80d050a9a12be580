"""The name of a bookie is free only when no ledger counts on a copy there."""

from tests.simulation.repair.oracle import Forgotten, Happening, Repairs, held_by


def broken(repairs: Repairs, what: Happening) -> str | None:
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
