"""What must have happened in a long run of logs: a simulator that misses one of these proves less.

`make sim LOGS=1` over at least `tests.simulation.coverage.SEEDS_MIN` seeds fails if any never did.
"""

from collections.abc import Mapping
from typing import Final

REQUIRED_OF_LOGS: Final = ("log_opened",)


def missing_of_logs(marks: Mapping[str, int]) -> list[str]:
    """Return what never happened although it must have."""
    return [thing for thing in REQUIRED_OF_LOGS if not marks.get(thing)]
