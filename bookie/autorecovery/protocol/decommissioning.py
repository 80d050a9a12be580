"""Emptying one bookie for good: it gets nothing more, all it holds is copied, its name retired.

    look -> [check that there is room] -> announce -> read-only -> scan and mark, until two scans in
    a row, begun after it was quiet, find nothing -> once it is stopped: retire its name, last

*Quiet* is a bookie that is read-only or not registered: no writer can put a ledger there any more.
The bookie serves reads meanwhile, and is a source of its own copies. Everything that counts is in
the metadata store, so the command may be interrupted at any moment, and run again.

Invariants:
    a cookie is retired in the version that was seen before a scan that found nothing
    a name is retired, never free: a bookie that slept meanwhile may acknowledge entries under it
    no scan counts that began before the bookie was quiet, or met metadata that cannot be read
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from ledger.ids import LedgerId
from ledger.protocol.shared import TimePassed

PAUSE_S: Final = 5.0
CLEAN_SCANS: Final = 2


class Phase(Enum):
    NEW = "new"
    SEEING = "looking at the bookie"
    CHECKING = "looking whether there is room"
    ANNOUNCING = "announcing"
    QUIETING = "making it read-only"
    SCANNING = "scanning"
    READING_MARKS = "reading marks"
    REPORTING = "reporting"
    WAITING = "waiting"
    RETIRING = "retiring its name"
    WITHDRAWING = "ending"
    DONE = "done"


# Events.


@dataclass(frozen=True, slots=True)
class Begin:
    """Empty the bookie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieSeen:
    is_known: bool
    """It has a cookie, and is not emptied and retired already."""
    version: int
    """Of the cookie."""
    is_registered: bool
    is_read_only: bool
    is_leaving: bool
    """It was announced that it is to be emptied."""
    others_writable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersScanned:
    naming: int
    """Ledgers with a fragment that names the bookie."""
    naming_bytes: int
    """What it should hold of those that are CLOSED; see `weighing`."""
    unreadable: int
    """Ledgers whose metadata cannot be read."""
    widest: int
    """Largest ensemble of those that name it."""


@dataclass(frozen=True, slots=True)
class MarksSeen:
    naming: int
    """Marks that name the bookie."""
    hopeless: tuple[LedgerId, ...]
    """Of them, ledgers with entries that nobody gave in the last attempt."""
    idle_why: str = ""
    """Why nobody works on them; empty: somebody does, or there are none."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The bookie did not become read-only, *why*; or its cookie has changed since it was seen."""

    why: str


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """The metadata store did not do it, *why*; the outcome is not known."""

    why: str


DecommissionEvent = (
    Begin | BookieSeen | LedgersScanned | MarksSeen | Done | Refused | EffectFailed | TimePassed
)


# Effects. Each but the last is answered by one event.


@dataclass(frozen=True, slots=True)
class LookAtBookie:
    """Report BookieSeen."""


@dataclass(frozen=True, slots=True)
class ScanLedgers:
    """Read the metadata of all ledgers, and mark those that name the bookie if *mark*; report
    LedgersScanned."""

    mark: bool


@dataclass(frozen=True, slots=True)
class ReadMarks:
    """Report MarksSeen."""


@dataclass(frozen=True, slots=True)
class Announce:
    """Write down that the bookie is to be emptied; report Done."""


@dataclass(frozen=True, slots=True)
class TurnReadOnly:
    """Ask the bookie to be read-only from now on; report Done or Refused."""


@dataclass(frozen=True, slots=True)
class Retire:
    """Retire its name if its cookie is at *version*; report Done or Refused."""

    version: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the announcement back; report Done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Show how far it is; report Done."""

    ledgers_left: int
    bytes_left: int
    unreadable: int
    marked: int
    hopeless: tuple[LedgerId, ...]
    trouble: str
    """What was in the way last; empty: nothing."""


class Outcome(Enum):
    RETIRED = "nothing names it, and its name is retired: no bookie ever has it again"
    EMPTY = "nothing names it; stop it, then its name can be retired"
    UNKNOWN = "no bookie of that name is known, or its name is retired already"
    TOO_FEW = "too few other bookies"
    REFUSED = "it does not become read-only"


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: Outcome
    why: str = ""


DecommissionEffect = (
    LookAtBookie
    | ScanLedgers
    | ReadMarks
    | Announce
    | TurnReadOnly
    | Retire
    | Withdraw
    | Report
    | Finish
)


class Decommission:
    def __init__(self, *, pause_s: float = PAUSE_S) -> None:
        self.phase = Phase.NEW
        self._pause_s = pause_s
        self._resume_at: float | None = None
        self._seen: BookieSeen | None = None
        self._scanned: LedgersScanned | None = None
        self._marks = MarksSeen(0, ())
        self._clean = 0
        """Scans in a row that found nothing."""
        self._trouble = ""

    def deadline(self) -> float | None:
        return self._resume_at

    def step(self, event: DecommissionEvent, *, now: float) -> list[DecommissionEffect]:
        """Apply *event*; return what the driver must do: one thing, or nothing."""
        match event:
            case Begin() | TimePassed():
                return self._look()
            case BookieSeen():
                self._seen = event
                return self._judge_bookie(event)
            case LedgersScanned():
                self._scanned = event
                return self._judge_scan(event)
            case MarksSeen():
                self._marks = event
                return self._report()
            case Done():
                return self._done(now)
            case Refused(why):
                if self.phase is Phase.QUIETING:
                    return self._finish(Outcome.REFUSED, why)
                self._clean = 0  # its cookie has changed: it was started again
                return self._look()
            case EffectFailed(why):
                self._clean, self._trouble = 0, why
                return self._wait(now)
            case _:
                assert_never(event)

    def _look(self) -> list[DecommissionEffect]:
        self.phase, self._resume_at = Phase.SEEING, None
        return [LookAtBookie()]

    def _judge_bookie(self, seen: BookieSeen) -> list[DecommissionEffect]:
        if not seen.is_known:
            if seen.is_leaving:  # retired by a run that was interrupted then
                return self._withdraw()
            return self._finish(Outcome.UNKNOWN)
        if not seen.is_leaving:
            self.phase = Phase.CHECKING
            return [ScanLedgers(mark=False)]
        if seen.is_registered and not seen.is_read_only:
            self._clean = 0
            self.phase = Phase.QUIETING
            return [TurnReadOnly()]
        self.phase = Phase.SCANNING
        return [ScanLedgers(mark=True)]

    def _judge_scan(self, scanned: LedgersScanned) -> list[DecommissionEffect]:
        assert self._seen is not None, "the bookie was looked at"
        if self.phase is Phase.CHECKING:
            others = self._seen.others_writable
            if scanned.naming and others < scanned.widest:
                why = (
                    f"ledgers on it need {scanned.widest} bookies, and {others} others are writable"
                )
                return self._finish(Outcome.TOO_FEW, why)
            self.phase = Phase.ANNOUNCING
            return [Announce()]
        self.phase = Phase.READING_MARKS
        return [ReadMarks()]

    def _report(self) -> list[DecommissionEffect]:
        scanned = self._scanned
        assert scanned is not None, "the ledgers were scanned"
        clean = not (scanned.naming or scanned.unreadable or self._marks.naming)
        self._clean = self._clean + 1 if clean else 0
        self.phase = Phase.REPORTING
        trouble, self._trouble = self._trouble or self._marks.idle_why, ""
        return [
            Report(
                ledgers_left=scanned.naming,
                bytes_left=scanned.naming_bytes,
                unreadable=scanned.unreadable,
                marked=self._marks.naming,
                hopeless=self._marks.hopeless,
                trouble=trouble,
            )
        ]

    def _done(self, now: float) -> list[DecommissionEffect]:
        match self.phase:
            case Phase.ANNOUNCING:
                return self._look()
            case Phase.QUIETING:
                return self._wait(now)  # until its registration says so
            case Phase.REPORTING:
                if self._clean == 0:
                    return self._wait(now)
                return self._look() if self._clean < CLEAN_SCANS else self._end()
            case Phase.RETIRING:
                return self._withdraw()
            case Phase.WITHDRAWING:
                return self._finish(Outcome.RETIRED)
            case _:
                raise AssertionError(f"done, while {self.phase.value}")

    def _end(self) -> list[DecommissionEffect]:
        assert self._seen is not None, "the bookie was looked at"
        assert self._clean >= CLEAN_SCANS, "nothing is retired before that"
        if self._seen.is_registered:
            return self._finish(Outcome.EMPTY)
        self.phase = Phase.RETIRING
        return [Retire(self._seen.version)]

    def _withdraw(self) -> list[DecommissionEffect]:
        self.phase = Phase.WITHDRAWING
        return [Withdraw()]

    def _wait(self, now: float) -> list[DecommissionEffect]:
        self.phase, self._resume_at = Phase.WAITING, now + self._pause_s
        return []

    def _finish(self, outcome: Outcome, why: str = "") -> list[DecommissionEffect]:
        self.phase = Phase.DONE
        return [Finish(outcome, why)]
