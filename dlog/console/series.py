"""Numbers over the last minutes. Pure."""

import math
from array import array
from collections.abc import Sequence
from typing import Final

POINTS_MAX: Final = 150
"""Values of one series: at a poll every two seconds, the last five minutes."""
WINDOW_S: Final = 300.0
"""What a curve shows, up to now."""


class Series:
    """The last values of one number, and when they were seen; None where it was not known."""

    __slots__ = ("_times", "_values")

    def __init__(self) -> None:
        self._times = array("d")
        self._values = array("d")
        """NaN: it was not known."""

    def add(self, value: float | None, at: float) -> None:
        """Take in *value* as it was at *at* seconds."""
        self._times.append(at)
        self._values.append(math.nan if value is None else value)
        del self._times[:-POINTS_MAX], self._values[:-POINTS_MAX]

    @property
    def last(self) -> float | None:
        if not self._values or math.isnan(self._values[-1]):
            return None
        return self._values[-1]

    @property
    def points(self) -> Sequence[tuple[float, float | None]]:
        return [
            (at, None if math.isnan(value) else value)
            for at, value in zip(self._times, self._values, strict=True)
        ]


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
