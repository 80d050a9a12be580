"""Rates and lag over time as one SVG file."""

from collections.abc import Sequence
from html import escape
from typing import Final

from examples.lakehouse.report import Outcome, Sample, rates

_Line = tuple[str, str, Sequence[tuple[float, float]]]
"""A name, a colour, and (seconds, value)."""

_LEFT: Final = 80
_WIDTH: Final = 760
_HEIGHT: Final = 180
_GAP: Final = 50
_TOP: Final = 150
_EVERY_S: Final = 2.0
_COLOURS: Final = {"appended": "#555555", "Parquet": "#2a7f62", "windows": "#c0572b"}


def svg(outcome: Outcome) -> str:
    """Return a drawing of *outcome*: what came and went per second, and what was behind."""
    samples = _thinned(outcome.samples)
    totals = {
        "appended": [(each.at_s, each.appended) for each in samples],
        "Parquet": [(each.at_s, each.parquet) for each in samples],
        "windows": [(each.at_s, each.delays) for each in samples],
    }
    speed: list[_Line] = [(name, _COLOURS[name], rates(points)) for name, points in totals.items()]
    behind: list[_Line] = [
        ("Parquet", _COLOURS["Parquet"], [(s.at_s, s.appended - s.parquet) for s in samples]),
        ("windows", _COLOURS["windows"], [(s.at_s, s.appended - s.delays) for s in samples]),
    ]
    until = max(outcome.seconds, 1.0)
    lower = _TOP + _HEIGHT + _GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" '
            f'height="{lower + _HEIGHT + 50}" font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            *_marks(outcome, until, lower + _HEIGHT),
            *_panel("records per second", speed, until, _TOP),
            *_panel("records behind", behind, until, lower),
            *_seconds(until, lower + _HEIGHT),
            "</svg>\n",
        ]
    )


def _thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Keep one sample for each few seconds: a batch ends in one moment and took longer."""
    kept = [samples[0]]
    for each in samples:
        if each.at_s - kept[-1].at_s >= _EVERY_S:
            kept.append(each)
    return kept if kept[-1] is samples[-1] else [*kept, samples[-1]]


def _panel(title: str, lines: Sequence[_Line], until: float, top: int) -> list[str]:
    most = max((value for _, _, points in lines for _, value in points), default=0.0) or 1.0
    bottom = top + _HEIGHT
    parts = [
        f'<text x="{_LEFT}" y="{top - 8}" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" '
        'stroke="#999999"/>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for place, (name, colour, points) in enumerate(lines):
        path = " ".join(
            f"{_x(at, until):.1f},{bottom - _HEIGHT * max(value, 0.0) / most:.1f}"
            for at, value in points
        )
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
            f'<text x="{_LEFT + 160 + 90 * place}" y="{top - 8}" fill="{colour}">'
            f"{escape(name)}</text>",
        ]
    return parts


def _marks(outcome: Outcome, until: float, bottom: int) -> list[str]:
    """Return a line through both panels for each event, its name above them."""
    parts = []
    for row, mark in enumerate(outcome.marks):
        x, y = _x(mark.at_s, until), 16 + 13 * (row % 8)
        side = "start" if mark.at_s < until / 2 else "end"
        parts += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + 3}" y2="{bottom}" stroke="#bbbbbb" '
            'stroke-dasharray="3 3"/>',
            f'<text x="{x:.1f}" y="{y}" text-anchor="{side}" font-size="11">'
            f"{escape(mark.what)}</text>",
        ]
    return parts


def _seconds(until: float, bottom: int) -> list[str]:
    step = next(step for step in (1, 5, 10, 30, 60, 300, 3600) if until / step <= 12 or step > 999)
    return [
        f'<text x="{_x(second, until):.1f}" y="{bottom + 16}" text-anchor="middle">{second} s'
        "</text>"
        for second in range(0, int(until) + 1, step)
    ]


def _x(second: float, until: float) -> float:
    return _LEFT + _WIDTH * second / until
