"""Where lines and bars of a drawing are; templates print them as SVG. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dlog.manifest import Segment

SPARK_WIDTH: Final = 150.0
SPARK_HEIGHT: Final = 28.0
LINE_WIDTH: Final = 1000.0
BAR_MIN: Final = 3.0
BARS_MAX: Final = 300
"""Segments that one drawing shows: the newest."""


@dataclass(frozen=True, slots=True)
class Spark:
    """A line for each stretch without a gap, the newest value at the right."""

    lines: tuple[str, ...]
    """Points as SVG's polyline takes them."""
    top: float
    """The largest value; the line of 0 is the lower edge."""


def spark(values: Sequence[float | None], *, points_max: int) -> Spark:
    """Draw *values*, *points_max* of which fill the width."""
    known = [each for each in values if each is not None]
    top = max(known, default=0.0)
    step = SPARK_WIDTH / max(1, points_max - 1)
    begin = SPARK_WIDTH - step * (len(values) - 1)
    lines: list[list[str]] = [[]]
    for at, value in enumerate(values):
        if value is None:
            if lines[-1]:
                lines.append([])
            continue
        y = SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 2) * (value / top if top > 0 else 0.0)
        lines[-1].append(f"{begin + at * step:.1f},{y:.1f}")
    return Spark(tuple(" ".join(line) for line in lines if len(line) > 1), top)


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
