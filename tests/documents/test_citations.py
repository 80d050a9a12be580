"""What code, tests and documents cite exists: rules, issues, decisions, files, tests, links."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from docs.site.pages import GENERATED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("ledger", "bookie", "leader", "dlog", "tests", "examples", "benchmarks", "docs")
HERE = Path(__file__)
DECISION_LINES_MAX = 60


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of every file of this repository that people read."""
    paths = [*ROOT.glob("*"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    for path in sorted(paths):
        if path.suffix in suffixes and path.is_file() and path != HERE:
            yield str(path.relative_to(ROOT)), read(path)


def in_one_line(text: str) -> str:
    """Return *text* without its line ends, nor what comments and docstrings begin lines with."""
    return re.sub(r"\s*\n\s*(?:# )?", " ", text)


SOURCES = dict(texts(".py", ".md", ".proto", ".toml"))
LINES = {path: in_one_line(text) for path, text in SOURCES.items()}
DOCUMENTS = dict(texts(".md"))


def numbers(listed: str) -> Iterator[int]:
    """Yield those of "3, 6", "19-25", "4, 17 and 49"."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", listed):
        yield from range(int(first), int(last or first) + 1)


def cited(word: str) -> dict[int, str]:
    """Return the numbers cited as "*word* 7" or "*word*s 7, 8 and 9", each with a file of such."""
    pattern = re.compile(rf"\b{word}s? (\d[-\d, and]*)", re.IGNORECASE)
    return {
        number: path
        for path, text in LINES.items()
        for listed in pattern.findall(text)
        for number in numbers(listed)
    }


def test_every_cited_rule_is_in_the_list_of_rules() -> None:
    listed = [int(n) for n in re.findall(r"^- \*\*(\d+)\. ", read(DOCS / "rules.md"), re.MULTILINE)]
    assert listed == sorted(set(listed))
    used = cited("rule")
    assert len(used) > 60
    assert {n: path for n, path in used.items() if n not in listed} == {}


def test_every_rule_says_where_it_is_kept() -> None:
    for rule in re.split(r"^- (?=\*\*\d)", read(DOCS / "rules.md"), flags=re.MULTILINE)[1:]:
        assert re.search(r"\*Kept\s+in\*", rule), rule


@pytest.mark.slow
def test_every_cited_issue_of_the_ancestors_is_explained() -> None:
    explained = read(DOCS / "rules.md") + read(DOCS / "testing.md")
    for path, text in SOURCES.items():
        for issue in re.findall(r"(?:BK-|DL #|pulsar#|(?<![\w#&])#)\d{2,5}\b(?!;)", text):
            assert re.search(rf"(?<![\w#]){re.escape(issue)}\b", explained), (path, issue)


def test_decisions_are_numbered_once_each_and_the_index_has_them_all() -> None:
    files = sorted((DOCS / "decisions").iterdir())
    index = read(DOCS / "decisions.md")
    for number, path in enumerate(files, 1):
        text = read(path)
        title, _, status, *_ = text.split("\n")
        assert path.name.startswith(f"{number:03d}-")
        assert re.fullmatch(r"Status: (accepted|superseded by \d+)", status), path
        assert index.count(f"[{title.removeprefix('# ')}](decisions/{path.name})") == 1, path
        assert title.startswith(f"# {number}. ")
        assert len(text.split("\n")) <= DECISION_LINES_MAX, path
    assert {n: path for n, path in cited("decision").items() if n > len(files)} == {}


def test_links_between_documents_lead_somewhere() -> None:
    for path, text in DOCUMENTS.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (ROOT / path).parent / name if name else ROOT / path
            if target.parent == DOCS and target.stem in GENERATED:
                continue  # a page of the site, made of code: tests/documents/test_site.py looks
            assert target.exists(), (path, link)
            if anchor:
                assert anchor in anchors(read(target)), (path, link)


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_files_that_are_named_exist() -> None:
    """A path in backticks in a document, and any document that a text names."""
    folders = "|".join(FOLDERS)
    for path, text in SOURCES.items():
        named = set(re.findall(r"\bdocs/[\w-]+\.md\b", text))
        if path.endswith(".md"):
            named |= set(re.findall(rf"`((?:{folders})/[\w/*.-]*)(?:::\w+)?`", text))
        for name in sorted(named):
            assert list(ROOT.glob(name.rstrip("/"))), (path, name)


def test_tests_that_documents_name_exist() -> None:
    tests = list((ROOT / "tests").rglob("*.py"))
    defined = {path.stem for path in tests}
    defined |= {name for path in tests for name in re.findall(r"def (test_\w+)\(", read(path))}
    for path, text in DOCUMENTS.items():
        named = set(re.findall(r"`(test_\w+)(?:\.py)?`", text))
        assert named <= defined, (path, sorted(named - defined))


@pytest.mark.parametrize("name", ["DESIGN", "the seeds'", "/work/"])
def test_nothing_cites_what_is_not_in_the_repository(name: str) -> None:
    assert [path for path, text in SOURCES.items() if name in text] == []


def test_the_glossary_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", read(DOCS / "glossary.md"), re.MULTILINE)
    words = sorted(word for row in rows if row != "word" for word in row.split(", "))
    assert len(words) > 60
    assert [a for a, b in pairwise(words) if a == b] == []
