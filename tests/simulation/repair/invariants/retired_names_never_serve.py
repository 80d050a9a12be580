"""A name whose data were given up never serves again: it would deny what it had promised."""

from tests.simulation.repair.oracle import Happening, Repairs, Served


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if isinstance(what, Served) and what.is_retired:
        return f"{what.bookie} serves, and its name is retired"
    return None
