"""Drawings of docs/drawings are what their texts say."""

import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from docs.site.drawings import DRAWINGS, NotADrawing, drawn

TEXTS = sorted(DRAWINGS.glob("*.txt"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_each_drawing_is_what_its_text_says(path: Path) -> None:
    svg = path.with_suffix(".svg").read_text(encoding="utf-8")
    assert svg == drawn(path.read_text(encoding="utf-8")), "draw it anew: make drawings"
    Xml.fromstring(svg)


def test_each_drawing_is_shown_and_none_is_left_of_a_text_that_is_gone() -> None:
    documents = "".join(path.read_text() for path in DRAWINGS.parent.glob("*.md"))
    shown = set(re.findall(r"\]\(drawings/(\w+)\.svg\)", documents))
    assert shown == {path.stem for path in TEXTS} == {path.stem for path in DRAWINGS.glob("*.svg")}


def test_an_arrow_goes_to_each_who_is_named_and_a_lost_one_to_nobody() -> None:
    svg = drawn(
        "who: a, b, c\na -> b, c: both\nb --> a: answer\na -x c: lost\nc: <note>\n== end =="
    )
    assert svg.count('class="head"') == 3
    assert svg.count('class="lost"') == 1
    assert svg.count("arrow back") == 1
    assert "&lt;note&gt;" in svg
    assert ">end<" in svg


@pytest.mark.parametrize("text", ["", "a -> b: hello", "who: a, b\na -> d: x", "who: a\nwhat?"])
def test_a_line_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(NotADrawing):
        drawn(text)
