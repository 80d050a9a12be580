"""Nothing that was acknowledged before a reader asked is above the bound that it got, however long
it slept between any two of its calls, and whatever was moved and evicted meanwhile."""

from tests.simulation.repair.oracle import Bounded, Happening, Repairs


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if not isinstance(what, Bounded) or what.bound >= what.acknowledged:
        return None
    return (
        f"{what.by} was told that nothing of ledger {what.ledger_id} was acknowledged above "
        f"{what.bound}, and {what.acknowledged} was when it asked"
    )
