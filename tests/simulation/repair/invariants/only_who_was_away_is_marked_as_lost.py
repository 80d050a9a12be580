"""A bookie is marked as lost only if it was away after the ledgers were read, for the delay.

Who was registered before that, and all the time since, has all that it had: it costs a look at all
its ledgers, and was the ancestor's storm of marks in every rolling restart.
"""

from tests.simulation.repair.oracle import Happening, MarkedLost, Repairs


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, MarkedLost) or what.registered_s is None:
        return None
    if what.ledgers_read_s is None or what.registered_s >= what.ledgers_read_s:
        return None
    return (
        f"{what.by} marks ledger {what.ledger_id} for {what.bookie}, which was there from "
        f"{what.registered_s:.3f} s on; it read ledgers at {what.ledgers_read_s:.3f} s"
    )
