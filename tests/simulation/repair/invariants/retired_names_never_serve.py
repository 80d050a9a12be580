"""No start is counted for a name that was retired: it would deny what the name had promised.

One that was counted before may serve until it reads its node; it denies nothing (decision 65).
"""

from tests.simulation.repair.oracle import Happening, Repairs, Revived


def broken(_repairs: Repairs, what: Happening) -> str | None:
    if isinstance(what, Revived):
        return f"{what.by} takes the name of {what.bookie}, which is retired"
    return None
