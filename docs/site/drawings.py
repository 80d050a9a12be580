"""Draws who says what to whom, as SVG, from a few lines of text: `python -m docs.site.drawings`.

    who: application, writer, b1, b2       columns, from left to right
    writer -> b1, b2: entry 7              an arrow to each
    b1 --> writer: stored                  a dashed one: an answer
    writer -x b2: entry 8                  one that does not arrive
    b1: on disk                            what happens there
    == Later ==                            a line through all

The colours are those of the page that a drawing is in; by themselves they follow the reader's
choice of light or dark.
"""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

DRAWINGS: Final = Path(__file__).parents[1] / "drawings"
_ARROW: Final = re.compile(r"(\w[\w ]*?) (->|-->|-x) ([\w, ]+): (.+)")
_NOTE: Final = re.compile(r"(\w[\w ]*): (.+)")
_PART: Final = re.compile(r"== (.+) ==")
_COLUMN: Final = 150
_ROW: Final = 34
_TOP: Final = 56
_STYLE: Final = """\
<style>
.seq {
  --line: var(--color-foreground-primary, #1f2328); --dim: var(--color-foreground-muted, #6a737d);
  --fill: var(--color-background-secondary, #f3f4f6); --mark: var(--color-brand-content, #0a58ca);
}
@media (prefers-color-scheme: dark) {
  svg.seq:root { --line: #e6e6e6; --dim: #9da5ae; --fill: #22272e; --mark: #6cb6ff; }
}
.seq text { font: 13px system-ui, sans-serif; fill: var(--line); text-anchor: middle; }
.seq .who { font-weight: 600; } .seq .part { fill: var(--dim); font-style: italic; }
.seq .life { stroke: var(--dim); stroke-dasharray: 2 4; }
.seq rect { fill: var(--fill); stroke: var(--dim); }
.seq .arrow { stroke: var(--mark); stroke-width: 1.5; } .seq .back { stroke-dasharray: 6 4; }
.seq .head { fill: var(--mark); } .seq .lost { stroke: var(--mark); stroke-width: 2; }
</style>"""


class NotADrawing(ValueError):
    """A line that means nothing, or names who is not there."""


def drawn(text: str) -> str:
    """Return the SVG that *text* describes. Raises `NotADrawing`, which says which line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("who: "):
        raise NotADrawing("the first line says who there is: 'who: writer, b1, b2'")
    who = {name.strip(): at for at, name in enumerate(lines[0][5:].split(","))}
    body: list[str] = []
    y = _TOP
    for line in lines[1:]:
        y += _ROW
        try:
            body.extend(_row(line, who, y))
        except KeyError as error:
            raise NotADrawing(f"{line!r}: there is no {error}") from error
    width, height = len(who) * _COLUMN, y + _ROW
    head = (
        f'<svg class="seq" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" role="img">'
    )
    return "\n".join([head, _STYLE, *_columns(who, height), *body, "</svg>"]) + "\n"


def _columns(who: dict[str, int], height: int) -> Iterator[str]:
    for name, at in who.items():
        x = _x(at)
        yield f'<line class="life" x1="{x}" x2="{x}" y1="44" y2="{height - 10}"/>'
        yield f'<rect x="{x - 62}" y="12" width="124" height="30" rx="6"/>'
        yield f'<text class="who" x="{x}" y="32">{escape(name)}</text>'


def _row(line: str, who: dict[str, int], y: int) -> Iterator[str]:
    if part := _PART.fullmatch(line):
        yield f'<text class="part" x="{len(who) * _COLUMN / 2:g}" y="{y}">{escape(part[1])}</text>'
    elif arrow := _ARROW.fullmatch(line):
        begin, kind, ends, said = arrow.groups()
        targets = [who[name.strip()] for name in ends.split(",")]
        yield from _arrows(who[begin], kind, targets, said, y)
    elif note := _NOTE.fullmatch(line):
        half = max(40, 3.6 * len(note[2]) + 8)
        x = min(max(_x(who[note[1]]), half + 4), len(who) * _COLUMN - half - 4)
        yield f'<rect x="{x - half:g}" y="{y - 17}" width="{2 * half:g}" height="24" rx="4"/>'
        yield f'<text x="{x:g}" y="{y}">{escape(note[2])}</text>'
    else:
        raise NotADrawing(f"{line!r} is no arrow, no note and no part")


def _arrows(begin: int, kind: str, targets: list[int], said: str, y: int) -> Iterator[str]:
    """Yield one arrow to each of *targets*, a little apart, and the words above the first."""
    for number, end in enumerate(sorted(targets, key=lambda each: abs(each - begin))):
        to_right = 1 if end > begin else -1
        x1, x2 = _x(begin), _x(end) - 8 * to_right
        level = y + 4 * number
        if kind == "-x":
            x2 -= 40 * to_right
        style = "arrow back" if kind == "-->" else "arrow"
        yield f'<line class="{style}" x1="{x1}" x2="{x2}" y1="{level}" y2="{level}"/>'
        if kind == "-x":
            yield (f'<path class="lost" d="M{x2 - 5} {level - 5}l10 10m0 -10l-10 10"/>')
        else:
            yield f'<path class="head" d="M{x2} {level - 4}l{8 * to_right} 4l{-8 * to_right} 4z"/>'
    nearest = min(targets, key=lambda each: abs(each - begin))
    yield f'<text x="{(_x(begin) + _x(nearest)) / 2:g}" y="{y - 6}">{escape(said)}</text>'


def _x(at: int) -> int:
    return at * _COLUMN + _COLUMN // 2


def main() -> None:
    for path in sorted(DRAWINGS.glob("*.txt")):
        svg = drawn(path.read_text(encoding="utf-8"))
        path.with_suffix(".svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
