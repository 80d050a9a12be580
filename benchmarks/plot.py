"""The results as a picture: how far each aim is reached, and latencies, in one SVG file."""

from collections.abc import Iterable, Sequence
from html import escape
from math import log10

from benchmarks.figures import Figure

_LEFT, _WIDTH, _ROW = 430, 420, 18
_GOOD, _BAD, _PALE = "#2a7f62", "#c0392b", "#7fb3a1"


def svg(figures: Sequence[Figure]) -> str:
    """Return a drawing of *figures*."""
    aimed = [figure for figure in figures if figure.met is not None and figure.ratio]
    body, y = _bars("Reached of each aim (line: the aim; log scale)", _reached(aimed), 10)
    times = [figure for figure in figures if figure.ratio_unit == "F" and figure.ratio]
    more, y = _bars("Latencies in F, p50 and p99 (log scale)", _latencies(times), y + 20)
    size = f'width="{_LEFT + _WIDTH + 90}" height="{y + 10}"'
    style = 'font-family="sans-serif" font-size="12"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *body,
            *more,
            "</svg>\n",
        ]
    )


_Bar = tuple[str, float, str]


def _reached(figures: Iterable[Figure]) -> Iterable[_Bar]:
    """Yield value against aim, so that more than 1 is always good."""
    for figure in figures:
        wanted = figure.aim.split()
        share = figure.value / float(wanted[1].replace(",", ""))
        if len(wanted) > 2:  # the aim is one of the ratio: <= 3 F
            share = (figure.ratio or 0.0) / float(wanted[1])
        share = share if wanted[0] == ">=" else 1 / share
        yield figure.name, share, _GOOD if figure.met else _BAD


def _latencies(figures: Iterable[Figure]) -> Iterable[_Bar]:
    for figure in figures:
        yield figure.name, figure.ratio or 0.0, _GOOD if "p50" in figure.name else _PALE


def _bars(title: str, bars: Iterable[_Bar], y: int) -> tuple[list[str], int]:
    """Return the elements of one panel and where it ends."""
    rows = list(bars)
    if not rows:
        return [], y
    exponents = [log10(share) for _, share, _ in rows]
    low, high = min(-1.0, *exponents), max(1.0, *exponents)

    def x_of(exponent: float) -> float:
        return _LEFT + _WIDTH * (exponent - low) / (high - low)

    lines = [f'<text x="10" y="{y + 14}" font-weight="bold">{escape(title)}</text>']
    y += 24
    top = y
    for (name, share, colour), exponent in zip(rows, exponents, strict=True):
        begin, end = sorted((x_of(0.0), x_of(exponent)))
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(1.0, end - begin):.1f}" '
            f'height="{_ROW - 5}" fill="{colour}"/>',
            f'<text x="{end + 4:.1f}" y="{y + 12}">{share:.3g}</text>',
        ]
        y += _ROW
    at = x_of(0.0)
    lines.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{y}" stroke="black"/>')
    return lines, y
