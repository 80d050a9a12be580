"""Changes that are under way or were written down, as rows. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dlog.changes.change import Change, Outcome
from dlog.console.wording import moment


class Working(Protocol):
    """A change that was ordered here."""

    number: str
    command: str
    subject: str
    begun_ms: int
    outcome: Outcome
    ended_ms: int | None
    said: str
    permille: int | None
    warnings: list[str]

    @property
    def arguments(self) -> Mapping[str, object]: ...

    @property
    def running(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class WorkRow:
    number: str
    what: str
    subject: str
    at: str
    outcome: str
    tone: str
    """note, good or wrong."""
    said: str
    permille: int | None
    warnings: Sequence[str]
    running: bool


@dataclass(frozen=True, slots=True)
class ChangeRow:
    at: str
    who: str
    place: str
    what: str
    outcome: str


def work_row(work: Working) -> WorkRow:
    tones = {Outcome.DONE: "good", Outcome.BEGUN: "note", Outcome.INTERRUPTED: "note"}
    return WorkRow(
        number=work.number,
        what=_what(work.command, work.arguments),
        subject=work.subject,
        at=moment(work.begun_ms),
        outcome="under way" if work.running else str(work.outcome),
        tone=tones.get(work.outcome, "wrong"),
        said=work.said,
        permille=work.permille if work.running else None,
        warnings=tuple(work.warnings),
        running=work.running,
    )


def change_row(change: Change) -> ChangeRow:
    outcome = f"{change.outcome}: {change.error}" if change.error else str(change.outcome)
    what = _what(change.command, change.arguments)
    return ChangeRow(moment(change.begun_ms), change.who, change.place, what, outcome)


def _what(command: str, arguments: Mapping[str, object]) -> str:
    given = (
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in arguments.items()
    )
    return " ".join([command, *given])
