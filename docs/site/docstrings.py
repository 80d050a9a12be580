"""Docstrings of this project as reStructuredText.

They are written for people who read the code: paragraphs, lists with dashes, names in backticks,
parameters in asterisks, and indented code. Nothing else in them is markup, whatever it looks like.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

_MARKED = re.compile(r"``[^`]+``|`[^`]+`|(?<!\w)\*{1,2}(?=\w)[^*\n]*\w\*{1,2}(?!\w)")
_BULLET = re.compile(r"(\s*)- ")


def as_rst(lines: Iterable[str]) -> list[str]:
    """Return *lines* of a docstring, without its indentation, as Sphinx reads them."""
    made: list[str] = []
    for blank, block in groupby(lines, key=lambda line: not line.strip()):
        if not blank:
            made.extend(_block(list(block)))
        made.append("")
    return made


def _block(lines: list[str]) -> Iterator[str]:
    """Yield one paragraph: as it is if it is code, else with lists apart and nothing hidden."""
    if lines[0].startswith("    "):
        yield from ("::", "", *lines)
        return
    before = ""
    for line in lines:
        if _BULLET.match(line) and not _BULLET.match(before) and before and before[0] != " ":
            yield ""
        yield _plain(line)
        before = line


def _plain(line: str) -> str:
    """Return *line* with a backslash before all that looks like markup and is none."""
    made, at = "", 0
    for marked in _MARKED.finditer(line):
        made += _escaped(line[at : marked.start()]) + marked[0]
        at = marked.end()
    return made + _escaped(line[at:])


def _escaped(text: str) -> str:
    return re.sub(r"([*`|\\]|_(?=\W|$))", r"\\\1", text)
