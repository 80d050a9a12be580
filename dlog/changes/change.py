"""One change by an operator, and its records. Pure.

A change has two records: one when it begins, and one with its outcome when it ends. Each has all
that is known by then, so that it is of use alone; both have the change's number as their key.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Final, Self

LOG: Final = "_audit"
FORMAT_VERSION: Final = 1
TEXT_MAX: Final = 1000
"""Characters of one text that are kept; of more, the first ones."""
ITEMS_MAX: Final = 100
"""Arguments, and items of one, that are kept."""

Argument = str | int | float | bool | list[str] | None


class ChangeOutcome(StrEnum):
    BEGUN = "begun"
    """No more is known: it still runs, or its process was killed."""
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    number: str
    """Drawn by chance; the same in all records of this change."""
    who: str
    """As the certificate names the operator, else USER@HOST, which nobody has checked."""
    place: str
    """The place of the operator: host and process, and more where more is known."""
    command: str
    """The order, in the words of the command line: ``log truncate``."""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    begun_ms: int
    outcome: ChangeOutcome = ChangeOutcome.BEGUN
    ended_ms: int | None = None
    error: str = ""
    """Why it failed."""

    def ended(self, outcome: ChangeOutcome, at_ms: int, error: str = "") -> Self:
        return replace(self, outcome=outcome, ended_ms=at_ms, error=error)

    def encode(self) -> bytes:
        shown = {name: _bounded(value) for name, value in [*self.arguments.items()][:ITEMS_MAX]}
        facts = {
            "version": FORMAT_VERSION,
            **asdict(self),
            "arguments": shown,
            "error": _cut(self.error),
            "command": _cut(self.command),
        }
        return json.dumps(facts, ensure_ascii=False).encode(errors="replace")

    @classmethod
    def decode(cls, value: bytes) -> Self | None:
        """Return the change; None if *value* is none that this program understands."""
        try:
            facts = json.loads(value)
            if facts.pop("version") != FORMAT_VERSION:
                return None
            texts = [facts[name] for name in ("number", "who", "place", "command", "error")]
            times = [facts["begun_ms"], facts["ended_ms"] or 0]
            if not (
                all(type(text) is str for text in texts)
                and all(type(time) is int for time in times)
                and isinstance(facts["arguments"], dict)
            ):
                return None
            return cls(**{**facts, "outcome": ChangeOutcome(facts["outcome"])})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def joined(records: Iterable[Change], *, changes_max: int) -> list[Change]:
    """Return each change once, with its outcome if there is one, in the order in which they began.

    Of more than *changes_max* the last ones."""
    found: dict[str, Change] = {}
    for record in records:
        if found.setdefault(record.number, record).outcome is ChangeOutcome.BEGUN:
            found[record.number] = record
        if len(found) > changes_max:
            del found[next(iter(found))]
    return list(found.values())


def _bounded(value: object) -> Argument:
    match value:
        case None | bool() | int() | float():
            return value
        case list() | tuple() | set() | frozenset():
            return [_cut(str(each)) for each in [*value][:ITEMS_MAX]]
        case _:
            return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."
