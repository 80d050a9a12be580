"""The user's guide: its code runs, its tables are true, its links lead somewhere."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
import dlog.errors
import dlog.testing
import leader.errors
import ledger.errors

pytest_plugins = ["dlog.testing.plugin"]

ROOT = Path(__file__).parents[2]
PATH = ROOT / "docs" / "guide.md"
GUIDE = PATH.read_text(encoding="utf-8")


def chapters() -> Iterator[tuple[str, str]]:
    """Yield title and code of each chapter, every line where it stands in the guide."""
    title, inside = "", False
    code: dict[str, list[str]] = {}
    for number, line in enumerate(GUIDE.splitlines()):
        if line.startswith("## "):
            title = line.removeprefix("## ")
        if line.startswith("```"):
            inside = line == "```python"
        elif inside:
            lines = code.setdefault(title, [])
            lines.extend([""] * (number - len(lines)))
            lines.append(line)
    for title, lines in code.items():
        yield title, "\n".join(lines)


CHAPTERS = dict(chapters())


@pytest.mark.parametrize("title", CHAPTERS)
def test_the_code_of_a_chapter_does_what_it_says(
    title: str, dlog_cluster: dlog.testing.Cluster, request: pytest.FixtureRequest
) -> None:
    names: dict[str, object] = {"__name__": "guide"}
    exec(compile(CHAPTERS[title], str(PATH), "exec"), names)
    for name, made in names.items():
        if name.startswith("test_") and inspect.isfunction(made):
            made(*map(request.getfixturevalue, inspect.signature(made).parameters))


def test_most_chapters_have_code() -> None:
    assert len(CHAPTERS) >= 6
    assert sum(code.count("assert") for code in CHAPTERS.values()) >= 15


def test_what_the_tables_say_of_errors_is_so() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| (yes|no) \|", GUIDE, re.MULTILINE)
    assert len(rows) > 12
    for name, retryable, unknown in rows:
        found = next(
            getattr(module, name)
            for module in (dlog.errors, ledger.errors, leader.errors)
            if hasattr(module, name)
        )
        said = (retryable == "yes", unknown == "yes")
        assert said == (found.retryable, found.outcome_unknown), name


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", GUIDE)
    assert [target for target in targets if not (PATH.parent / target).exists()] == []
    headings = re.findall(r"^##+ (.*)$", GUIDE, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= set(anchors)
