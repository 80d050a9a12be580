"""Numbers over the last minutes. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Final

POINTS_MAX: Final = 150
"""Values of one series: at a poll every two seconds, the last five minutes."""


class Series:
    """The last values of one number; None where it was not known."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: deque[float | None] = deque(maxlen=POINTS_MAX)

    def add(self, value: float | None) -> None:
        self._values.append(value)

    @property
    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    @property
    def values(self) -> Sequence[float | None]:
        return tuple(self._values)


class Rate:
    """How much a counter grew a second between two looks; not known over a restart of it."""

    __slots__ = ("_at", "_before")

    def __init__(self) -> None:
        self._at = 0.0
        self._before: float | None = None

    def of(self, count: float | None, now: float) -> float | None:
        """Take in *count* as it was at *now* seconds; return its growth a second since then."""
        before, at = self._before, self._at
        self._before, self._at = count, now
        if before is None or count is None or count < before or now <= at:
            return None
        return (count - before) / (now - at)
