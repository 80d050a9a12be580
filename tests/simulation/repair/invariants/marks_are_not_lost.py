"""No mark is deleted that says more than its worker has read, nor one that was
confirmed since: what that call is about, the worker may not have seen."""

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
    if what.was_confirmed:
        return f"{where}, and had read it before somebody marked the ledger again"
    return None
