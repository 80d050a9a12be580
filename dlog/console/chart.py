"""Numbers over the last minutes, and where lines and bars of their drawings are; templates print
them as SVG. Pure.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dlog.console.wording import seconds
from dlog.manifest import Segment

POINTS_MAX: Final = 150
"""Values of one series: at a poll every two seconds, the last five minutes."""
WINDOW_S: Final = 300.0
"""What a curve shows, up to now."""
SPARK_WIDTH: Final = 150.0
SPARK_HEIGHT: Final = 28.0
LINE_WIDTH: Final = 1000.0
BAR_MIN: Final = 3.0
BARS_MAX: Final = 300
"""Segments that one drawing shows: the newest."""


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


@dataclass(frozen=True, slots=True)
class Spark:
    """A line for each stretch without a gap. The right edge is the last look, the
    left one `WINDOW_S` before."""

    lines: tuple[str, ...] = ()
    """Points as SVG's polyline takes them."""
    top: float = 0.0
    """The largest value, which the upper edge is; the lower edge is 0."""
    scale: str = ""
    """The same for people; empty if it is 0, or not known."""
    span: str = seconds(WINDOW_S)
    """From the left edge to the right one."""


def spark(points: Sequence[tuple[float, float | None]], shown: Callable[[float], str]) -> Spark:
    """Draw *points*, each a time and a value, the last of which is now; *shown* writes a value for
    people. What has not changed is drawn as before, so that nobody has to be told."""
    now = points[-1][0] if points else 0.0
    drawn = [(at, value) for at, value in points if now - at <= WINDOW_S]
    top = max((value for _, value in drawn if value is not None), default=0.0)
    lines: list[list[tuple[int, float]]] = [[]]
    for at, value in drawn:
        line = lines[-1]
        if value is None:
            if line:
                lines.append([])
            continue
        x = round(SPARK_WIDTH * (1 - (now - at) / WINDOW_S))
        y = round(SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 2) * (value / top if top > 0 else 0.0), 1)
        if len(line) > 1 and line[-1][1] == line[-2][1] == y:
            line.pop()  # it is on the way
        line.append((x, y))
    found = tuple(" ".join(f"{x},{y}" for x, y in line) for line in lines if len(line) > 1)
    return Spark(found, top, shown(top) if found and top > 0 else "")


@dataclass(frozen=True, slots=True)
class Bar:
    number: int
    x: float
    width: float
    is_open: bool
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Line:
    """Segments side by side, as wide as they have records; each at least `BAR_MIN`."""

    bars: tuple[Bar, ...]
    trim_x: float | None
    """Where the first record is that can be read; None: at the left edge."""
    left_out: int
    """Older segments that are not drawn."""


def segment_line(segments: Sequence[Segment], *, trim_offset: int, next_offset: int) -> Line:
    drawn = segments[-BARS_MAX:]
    spans: list[tuple[Segment, int, int]] = []
    for segment in drawn:
        first = segment.first_offset
        if first is None:  # a takeover has begun it and not yet learned the end before it
            first = next_offset
        end = segment.end_offset
        spans.append((segment, first, max(first, next_offset) if end is None else end))
    records = sum(end - first for _, first, end in spans)
    room = max(0.0, LINE_WIDTH - BAR_MIN * len(spans))
    bars, x, trim_x = [], 0.0, None
    for segment, first, end in spans:
        width = BAR_MIN + (room * (end - first) / records if records else room / len(spans))
        if first < trim_offset <= end:
            trim_x = x + width * (trim_offset - first) / max(1, end - first)
        bars.append(Bar(segment.number, x, width, segment.sealed is None, first, end))
        x += width
    return Line(tuple(bars), trim_x, len(segments) - len(drawn))
