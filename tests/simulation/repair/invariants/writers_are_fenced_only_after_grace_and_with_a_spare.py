"""A worker recovers an OPEN ledger only after the grace, and if there is a bookie to go on with.

The grace counts from when a bookie of the last fragment was marked first, whoever repairs; and the
bookie must be outside the ensemble, writable as far as the worker knows.
"""

from ledger.metadata import LedgerState
from tests.simulation.repair.oracle import Fenced, Happening, Repairs


def broken(repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Fenced):
        return None
    history = repairs.history(what.ledger_id)
    if history.deleted or history.recorded.state is not LedgerState.OPEN:
        return None
    bookies = history.recorded.last_fragment.bookies
    since_ms = [
        repairs.first_marked[what.ledger_id, bookie]
        for bookie in bookies
        if (what.ledger_id, bookie) in repairs.first_marked
    ]
    where = f"{what.by} fences the writer of ledger {what.ledger_id}"
    if not since_ms:
        return None  # its writer has left that bookie meanwhile, and the CAS will say so
    if what.now_ms < min(since_ms) + repairs.grace_ms:
        return f"{where} {what.now_ms - min(since_ms)} ms after it was marked"
    if not any(bookie not in what.members for bookie in what.writable):
        return f"{where}, and there is no bookie to go on with"
    return None
