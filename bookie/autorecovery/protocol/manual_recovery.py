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
from typing import Final

from bookie.autorecovery.protocol.ledger_weight import Weight
from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.protocol.procedure import Action, Now, Steps, Wait
from ledger.values import counted

PAUSE_S: Final = 5.0
IDLE_S_MAX: Final = 120.0
"""How long passes are made in which no ledger is repaired."""
NAMED_MAX: Final = 100
"""Ledgers that a report names."""

NOBODY: Final[frozenset[BookieId]] = frozenset()


@dataclass(frozen=True, slots=True)
class Request:
    """Recover what *bookies* held; *into* these, empty: whoever is writable."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId] = NOBODY
    survey_only: bool = False

    def __post_init__(self) -> None:
        assert self.bookies, "some are named"


# Answers.


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


# Actions.


@dataclass(frozen=True, slots=True)
class ReadBookies(Action[BookiesSeen]):
    """Find out who is there."""


@dataclass(frozen=True, slots=True)
class Survey(Action[Surveyed]):
    """Read the metadata of all ledgers."""

    bookies: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class RepairAll(Action[PassEnded]):
    """Read the metadata of all ledgers, and repair those that name one of *bookies*."""

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


def recover(
    request: Request, *, pause_s: float = PAUSE_S, idle_s_max: float = IDLE_S_MAX
) -> Steps[Finish]:
    """Return how it ended; errors of the metadata store are borne for *idle_s_max*."""
    progress_at = yield from Now()
    """When a ledger was repaired last."""
    is_surveyed = False
    last = PassEnded()
    while True:
        try:
            seen = yield from ReadBookies()
            refusal = _refusal(request, seen, last)
            if refusal is not None:
                return refusal
            if not is_surveyed:
                surveyed = yield from Survey(request.bookies)
                is_surveyed, progress_at = True, (yield from Now())
                end = _end_of_survey(request, seen, surveyed)
                if end is not None:
                    return end
            ended = yield from RepairAll(request.bookies, request.into)
        except LogError as error:
            if (yield from Now()) - progress_at >= idle_s_max:
                return Finish(Outcome.INCOMPLETE, str(error), last.named)
        else:
            before, last = last, ended
            if not ended.named:
                return _complete(ended)
            now = yield from Now()
            left = ended.named - ended.repaired
            if ended.repaired and not (before.named and ended.named >= before.named):
                progress_at = now
                if not left:
                    continue
            if (left and left == ended.stuck) or now - progress_at >= idle_s_max:
                why = ended.why or "ledgers name them again and again"
                return Finish(Outcome.INCOMPLETE, why, left, ended.lost)
        yield from Wait(pause_s)


def _refusal(request: Request, seen: BookiesSeen, last: PassEnded) -> Finish | None:
    """Return why nothing is copied for them, or to where they are to be copied."""
    if serving := request.bookies & seen.registered:
        names = _names(serving)
        why = f"bookie {names} is registered and serves; 'dlog bookie decommission' empties it"
        return Finish(Outcome.SERVES, why, last.named)
    if useless := request.into - seen.writable | request.into & request.bookies:
        names = _names(useless)
        why = f"bookie {names} is not there, or not writable; 'dlog bookie list' shows who is"
        return Finish(Outcome.NO_TARGET, why, last.named)
    return None


def _end_of_survey(request: Request, seen: BookiesSeen, surveyed: Surveyed) -> Finish | None:
    unknown = request.bookies - seen.known
    if not surveyed.held.fragments and unknown:
        why = f"no ledger and no cookie names {_names(unknown)}; 'dlog bookie list' shows names"
        return Finish(Outcome.UNKNOWN, why)
    if request.survey_only:
        return Finish(Outcome.SURVEYED, "", surveyed.held.ledgers, surveyed.without_source)
    return None


def _complete(ended: PassEnded) -> Finish:
    if ended.unreadable:
        why = f"the metadata of {counted(ended.unreadable, 'ledger')} cannot be read"
        return Finish(Outcome.INCOMPLETE, why)
    return Finish(Outcome.COMPLETE)


def _names(bookies: frozenset[BookieId]) -> str:
    return ", ".join(sorted(bookies))
