"""Sentences for people count in words that fit: "1 ledger", not "1 ledgers"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEAK = ("dlog/cli", "dlog/console", "dlog/health", "dlog/local", "bookie/tools")
PROGRESS = ("bookie/autorecovery/move_job.py",)
PLURAL = re.compile(
    r" (?:(?:more|other|damaged|good|entry|marked|further) )*(?:ledgers|entries|records|files|logs|"
    r"pages|bytes|segments|bookies|copies|lines|frames|consumers|marks|nodes|days|hours|elections|"
    r"things|notes|damages|problems|changes|checks)\b"
)
KNOWN = {
    "{lack} copies": "a verb: lacks, lack",
    "{short(status.ledgers)} ledgers": "one is told apart before",
    "{short(rate)} records": "a second: a unit",
    "{placed.length} bytes": "a column; no frame is as short as that",
    "{length} bytes": "a column; no frame is as short as that",
    "{quorum.ensemble} bookies": "of a trace, in a line of quorums",
    "{batch.count} records": "an entry of a batch; asked for beyond its end",
    "{self.survey.nodes} nodes": "said only of many",
    "{bookies} bookies": "asked for: a number that is out of its range",
    "{len(self.leaderless)} logs": "said only of several",
    "{len(missed)} bookies": "said only of several",
    "{self.sampled} ledgers": "of all that were looked at, behind 'of'",
}


def uncounted() -> Iterator[tuple[str, str]]:
    """Yield file and words where a number stands before a plural, and is no constant."""
    folders = [path for folder in SPEAK for path in (ROOT / folder).rglob("*.py")]
    for path in sorted([*folders, *(ROOT / name for name in PROGRESS)]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            for number, words in zip(node.values, node.values[1:], strict=False):
                if not isinstance(number, ast.FormattedValue) or not isinstance(
                    words, ast.Constant
                ):
                    continue
                source = ast.unparse(number.value)
                is_constant = source.rpartition(".")[2].isupper()
                found = PLURAL.match(str(words.value))
                if found is not None and not is_constant:
                    yield str(path.relative_to(ROOT)), f"{{{source}}}{found[0]}"


def test_each_number_that_people_read_has_the_word_that_fits() -> None:
    found = list(uncounted())
    assert [each for each in found if each[1] not in KNOWN] == []
    assert {words for _, words in found} == KNOWN.keys(), "what is known is still there"


def test_what_is_looked_for_is_found() -> None:
    """The net has no hole where the words are."""
    for words in (" ledgers left", " more bookies", " damaged entries come"):
        assert PLURAL.match(words)
    for words in (" ledger", " of them", " bookiesque"):
        assert not PLURAL.match(words)
