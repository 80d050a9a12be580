"""A recovery by hand: what bookies that are gone held is copied to others, by the command itself.

    look at the bookies -> survey what they hold -> passes over all ledgers, until one meets none
    that names them, or nothing more can be done

A pass repairs each ledger that names one of them. What waits (for its writer, for another worker,
for a bookie that does not answer) is taken again in the next pass; what has entries that nobody
gives, or no bookie to go to, is tried in each pass and does not keep the command running. Nothing
is kept but what the metadata store and the bookies have, so it may be interrupted, and repeated.

Invariants:
    nothing is copied for a bookie that is there
    it is complete only after a pass over all ledgers that met none
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, assert_never

from bookie.autorecovery.protocol.ledger_weight import Weight
from ledger.ids import BookieId, LedgerId
from ledger.protocol.common_events import TimePassed
from ledger.values import counted

PAUSE_S: Final = 5.0
IDLE_S_MAX: Final = 120.0
"""How long passes are made in which no ledger is repaired."""
NAMED_MAX: Final = 100
"""Ledgers that a report names."""

NOBODY: Final[frozenset[BookieId]] = frozenset()


# Events.


@dataclass(frozen=True, slots=True)
class Begin:
    """Recover what *bookies* held; *into* these, empty: whoever is writable."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId] = NOBODY
    survey_only: bool = False


@dataclass(frozen=True, slots=True)
class BookiesSeen:
    known: frozenset[BookieId]
    """Who has a cookie."""
    registered: frozenset[BookieId]
    writable: frozenset[BookieId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What the bookies hold now."""

    held: Weight = field(default_factory=Weight)
    without_source: tuple[LedgerId, ...] = ()
    """Ledgers with entries that no bookie which is there should have; at most `NAMED_MAX`."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded:
    named: int = 0
    """Ledgers that named one of the bookies when they were read."""
    repaired: int = 0
    """Of them, those that do not any more."""
    lost: tuple[LedgerId, ...] = ()
    """Of them, those with entries that nobody gave; at most `NAMED_MAX`."""
    stuck: int = 0
    """Of them, those that have to do without: with lost entries, or with no bookie to go to."""
    unreadable: int = 0
    why: str = ""
    """Of one that was not repaired."""


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """The metadata store did not do it, *why*."""

    why: str


RecoveryEvent = Begin | BookiesSeen | Surveyed | PassEnded | EffectFailed | TimePassed


# Effects. Each but the last is answered by one event.


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Report BookiesSeen."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Read the metadata of all ledgers; report Surveyed."""

    bookies: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class RepairAll:
    """Read the metadata of all ledgers, and repair those that name one of *bookies*; report
    PassEnded."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId]


class Outcome(Enum):
    COMPLETE = "nothing names them any more"
    SURVEYED = "this is what would be copied"
    UNKNOWN = "not known"
    SERVES = "still there"
    NO_TARGET = "cannot be copied to"
    INCOMPLETE = "not all could be copied"


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: Outcome
    why: str = ""
    """What to know and do about it; empty if nothing is to be done."""
    left: int = 0
    """Ledgers that still name them."""
    lost: tuple[LedgerId, ...] = ()


RecoveryEffect = ReadBookies | Survey | RepairAll | Finish


class Recovery:
    def __init__(self, *, pause_s: float = PAUSE_S, idle_s_max: float = IDLE_S_MAX) -> None:
        self._pause_s, self._idle_s_max = pause_s, idle_s_max
        self._begin = Begin(NOBODY)
        self._seen: BookiesSeen | None = None
        self._is_surveyed = False
        self._last = PassEnded()
        self._progress_at = 0.0
        """When a ledger was repaired last."""
        self._resume_at: float | None = None

    def deadline(self) -> float | None:
        return self._resume_at

    def step(self, event: RecoveryEvent, *, now: float) -> list[RecoveryEffect]:
        """Apply *event*; return what the driver must do: one thing, or nothing."""
        match event:
            case Begin():
                assert event.bookies, "some are named"
                self._begin, self._progress_at = event, now
                return self._look()
            case TimePassed():
                return self._look()
            case BookiesSeen():
                self._seen = event
                return self._judge_bookies(event)
            case Surveyed():
                return self._judge_survey(event, now)
            case PassEnded():
                return self._judge_pass(event, now)
            case EffectFailed(why):
                if now - self._progress_at >= self._idle_s_max:
                    return [Finish(Outcome.INCOMPLETE, why, self._last.named)]
                return self._wait(now)
            case _:
                assert_never(event)

    def _look(self) -> list[RecoveryEffect]:
        self._resume_at = None
        return [ReadBookies()]

    def _judge_bookies(self, seen: BookiesSeen) -> list[RecoveryEffect]:
        bookies, into = self._begin.bookies, self._begin.into
        if serving := bookies & seen.registered:
            names = _names(serving)
            why = f"bookie {names} is registered and serves; 'dlog bookie decommission' empties it"
            return [Finish(Outcome.SERVES, why, self._last.named)]
        if useless := into - seen.writable | into & bookies:
            names = _names(useless)
            why = f"bookie {names} is not there, or not writable; 'dlog bookie list' shows who is"
            return [Finish(Outcome.NO_TARGET, why, self._last.named)]
        if not self._is_surveyed:
            return [Survey(bookies)]
        return self._work()

    def _judge_survey(self, surveyed: Surveyed, now: float) -> list[RecoveryEffect]:
        assert self._seen is not None, "the bookies were looked at"
        self._is_surveyed, self._progress_at = True, now
        unknown = self._begin.bookies - self._seen.known
        if not surveyed.held.fragments and unknown:
            why = f"no ledger and no cookie names {_names(unknown)}; 'dlog bookie list' shows names"
            return [Finish(Outcome.UNKNOWN, why)]
        if self._begin.survey_only:
            left, lost = surveyed.held.ledgers, surveyed.without_source
            return [Finish(Outcome.SURVEYED, "", left, lost)]
        return self._work()

    def _work(self) -> list[RecoveryEffect]:
        return [RepairAll(self._begin.bookies, self._begin.into)]

    def _judge_pass(self, ended: PassEnded, now: float) -> list[RecoveryEffect]:
        before, self._last = self._last, ended
        if not ended.named:
            if ended.unreadable:
                why = f"the metadata of {counted(ended.unreadable, 'ledger')} cannot be read"
                return [Finish(Outcome.INCOMPLETE, why)]
            return [Finish(Outcome.COMPLETE)]
        left = ended.named - ended.repaired
        if ended.repaired and not (before.named and ended.named >= before.named):
            self._progress_at = now
            if not left:
                return self._look()
        if (left and left == ended.stuck) or now - self._progress_at >= self._idle_s_max:
            why = ended.why or "ledgers name them again and again"
            return [Finish(Outcome.INCOMPLETE, why, left, ended.lost)]
        return self._wait(now)

    def _wait(self, now: float) -> list[RecoveryEffect]:
        self._resume_at = now + self._pause_s
        return []


def _names(bookies: frozenset[BookieId]) -> str:
    return ", ".join(sorted(bookies))
