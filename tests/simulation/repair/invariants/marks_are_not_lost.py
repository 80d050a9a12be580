"""Nobody deletes a mark that says more than who deletes it has read."""

from tests.simulation.repair.oracle import Happening, Repairs, Unmarked


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Unmarked):
        return None
    where = f"{what.by or 'somebody'} deleted the mark of ledger {what.ledger_id}"
    if what.seen is None:
        return f"{where}, and had never read it"
    lost = what.mark.bookies - what.seen.bookies
    if lost:
        return f"{where}, and had not read that it names {', '.join(sorted(lost))}"
    return None
