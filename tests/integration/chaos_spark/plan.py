"""What the parts of a run agree upon, and which trouble comes next."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from random import Random
from typing import Final

EVENTS: Final = "events"
COPIES: Final = "copies"
BATCH_RECORDS_MAX: Final = 20_000
INLINE_BYTES_MAX: Final = 64 * 1024
"""Low, so that some batches travel and others are staged."""
BURSTS: Final = (1, 10, 200, 5_000, 30_000)
"""Records that the source appends at once."""
VALUE_BYTES: Final = 60


class Trouble(Enum):
    """What is killed."""

    DRIVER = "drivers"
    KEEPER = "keepers"
    WORKER = "workers"
    BOOKIE = "bookies"


_WEIGHTS: Final = {
    Trouble.DRIVER: 1,
    Trouble.KEEPER: 5,
    Trouble.WORKER: 4,
    Trouble.BOOKIE: 3,
}
PAUSE_S: Final = (0.5, 5.0)
BOOKIE_AWAY_S: Final = (0.5, 6.0)


@dataclass(slots=True)
class Chance:
    """The same seed, the same troubles; when each comes depends on the machine."""

    seed: str
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def trouble(self) -> Trouble:
        return self.random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]

    def pause_s(self) -> float:
        return self.random.uniform(*PAUSE_S)

    def away_s(self) -> float:
        return self.random.uniform(*BOOKIE_AWAY_S)


def value_of(row: int) -> bytes:
    return b"%0*d" % (VALUE_BYTES, row)


def differences(found: list[bytes], rows: int) -> list[str]:
    """Return what is wrong with *found*, which should be rows 0 to before *rows*, in order."""
    expected = {value_of(row) for row in range(rows)}
    counted = Counter(found)
    missing = len(expected - counted.keys())
    strange = len(counted.keys() - expected)
    repeated = sum(times - 1 for times in counted.values())
    wrong = [
        f"{count} {what}"
        for count, what in ((missing, "missing"), (strange, "strange"), (repeated, "repeated"))
        if count
    ]
    if not wrong and found != sorted(found):
        place = next(i for i, (a, b) in enumerate(pairwise(found)) if a > b)
        wrong.append(f"out of order at offset {place + 1}")
    return wrong
