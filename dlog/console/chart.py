"""Where lines and bars of a drawing are; templates print them as SVG. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dlog.console.series import WINDOW_S
from dlog.console.wording import seconds
from dlog.manifest import Segment

SPARK_WIDTH: Final = 150.0
SPARK_HEIGHT: Final = 28.0
LINE_WIDTH: Final = 1000.0
BAR_MIN: Final = 3.0
BARS_MAX: Final = 300
"""Segments that one drawing shows: the newest."""


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
