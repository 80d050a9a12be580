"""Nobody takes the node of a candidate away that lives and listens, whatever lifelines seem to say.

Neither silence nor another process at its port means a death.
"""

from tests.simulation.logs.oracle import LogOracle


def broken(oracle: LogOracle) -> str | None:
    return oracle.deposed[0] if oracle.deposed else None
