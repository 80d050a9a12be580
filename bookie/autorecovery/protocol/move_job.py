"""One job moves copies: from some bookies (*sources*), to others (*targets*), until. Pure.

    until it is ready -> a pass over all ledgers -> until it is judged to be the last one; errors of
    the metadata store and of bookies are borne, and the pass is made again

Four commands are such a job. What differs is who makes the copies, and what proves its end:

    recover        from lost bookies; the command copies. `UntilCopied`: a pass meets no ledger
                   that names them, or nothing more can be done
    replace        recover into the new bookie, then into any; then as decommission
    decommission   from a bookie that runs or is gone; the workers that run copy what the passes
                   mark. `UntilRetired`: two passes in a row, begun after it was quiet, meet nothing
    rebalance      from full bookies to empty ones; the command copies. One pass, in which
                   `rebalance.Rebalancing` chooses

A pass of the command's own repairs each ledger that names a source. What waits (for its writer, for
another worker, for a bookie that does not answer) is taken again in the next pass; what has entries
that nobody gives, or no bookie to go to, is tried in each pass and does not keep the command
running. Nothing is kept but what the metadata store and the bookies have, so each job may be
interrupted at any moment, and repeated.

A bookie is *quiet* that is read-only or not registered: no writer can put a ledger there any more.
One that is decommissioned serves reads meanwhile, and is a source of its own copies.

Invariants:
    nothing is copied for a lost bookie that is registered
    a recovery is complete only after a pass over all ledgers that met none
    a cookie is retired in the version that was seen before a pass that found nothing
    a name is retired, never free: a bookie that slept meanwhile may acknowledge entries under it
    no pass counts for that which began before the bookie was quiet, or met metadata that cannot be
        read
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from bookie.autorecovery.protocol.rebalance import Weight
from ledger.errors import AccessDenied, BookieRefused, LogError, TransportMismatch
from ledger.ids import BookieId, LedgerId
from ledger.protocol.procedure import Action, Now, Steps, Wait
from ledger.values import counted

PAUSE_S: Final = 5.0
IDLE_S_MAX: Final = 120.0
"""How long passes are made in which no ledger is repaired."""
CLEAN_PASSES: Final = 2
NAMED_MAX: Final = 100
"""Ledgers that a report names."""
NOBODY: Final[frozenset[BookieId]] = frozenset()


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Move what *sources* hold to *targets*; empty: any writable bookie."""

    sources: frozenset[BookieId]
    targets: frozenset[BookieId] = NOBODY
    survey_only: bool = False

    def __post_init__(self) -> None:
        assert self.sources, "some are named"


class MoveOutcome(Enum):
    COMPLETE = "nothing names them any more"
    SURVEYED = "this is what would be copied"
    SERVES = "still there"
    NO_TARGET = "cannot be copied to"
    INCOMPLETE = "not all could be copied"
    RETIRED = "nothing names it, and its name is retired: no bookie ever has it again"
    EMPTY = "nothing names it; stop it, then its name can be retired"
    UNKNOWN = "no bookie of that name is known, or its name is retired already"
    TOO_FEW = "too few other bookies"
    REFUSED = "it does not become read-only"


@dataclass(frozen=True, slots=True)
class MoveEnd:
    outcome: MoveOutcome
    why: str = ""
    """What to know and do about it; empty if nothing is to be done."""
    left: int = 0
    """Ledgers that still name the sources."""
    lost: tuple[LedgerId, ...] = ()


# Answers.


@dataclass(frozen=True, slots=True)
class BookiesSeen:
    known: frozenset[BookieId]
    """Who has a cookie."""
    registered: frozenset[BookieId]
    writable: frozenset[BookieId]


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
class Surveyed:
    """What the sources hold now."""

    held: Weight = field(default_factory=Weight)
    widest: int = 0
    """Largest ensemble of the ledgers that name one of them."""
    without_source: tuple[LedgerId, ...] = ()
    """Ledgers with entries that no registered bookie should have; at most `NAMED_MAX`."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded:
    named: int = 0
    """Ledgers that named one of the sources when they were read."""
    named_bytes: int = 0
    """What they should hold of those that are CLOSED; see `weight_of`."""
    repaired: int = 0
    """Of the ledgers, those that do not any more."""
    lost: tuple[LedgerId, ...] = ()
    """Of them, those with entries that nobody gave in the last attempt; at most `NAMED_MAX`."""
    stuck: int = 0
    """Of them, those that have to do without: with lost entries, or with no bookie to go to."""
    unreadable: int = 0
    marked: int = 0
    """Marks that name one of the sources, read after the ledgers, where workers copy."""
    why: str = ""
    """Why one was not repaired, or why no worker does."""

    @property
    def found_nothing(self) -> bool:
        return not (self.named or self.unreadable or self.marked)


# Actions.


@dataclass(frozen=True, slots=True)
class ReadBookies(Action[BookiesSeen]):
    """Find out which bookies are known, registered and writable."""


@dataclass(frozen=True, slots=True)
class LookAtBookie(Action[BookieSeen]):
    """Read its cookie, its registration, and what was announced of it."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Survey(Action[Surveyed]):
    """Read the metadata of all ledgers; of a store that was verified first, if *verified*."""

    bookies: frozenset[BookieId]
    verified: bool = False


@dataclass(frozen=True, slots=True)
class RepairAll(Action[PassEnded]):
    """Read the metadata of all ledgers, and repair those that name one of *bookies*."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class MarkAll(Action[PassEnded]):
    """Verify the store, read the metadata of all ledgers, mark those that name one of *bookies*;
    then read all marks."""

    bookies: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class Announce(Action[None]):
    """Record that the bookie is to be emptied."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class TurnReadOnly(Action[None]):
    """Ask the bookie to be read-only from now on. Raises `AccessDenied`, `BookieRefused` and
    `TransportMismatch` if it will not."""

    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Retire(Action[bool]):
    """Retire its name if its cookie is at *version*, and the bookie is not registered. Answer:
    whether that was so."""

    bookie: BookieId
    version: int


@dataclass(frozen=True, slots=True)
class Withdraw(Action[None]):
    """Take the announcement back."""

    bookie: BookieId


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Action[None]):
    """Show how far the workers are."""

    ledgers_left: int
    bytes_left: int
    unreadable: int
    marked: int
    hopeless: tuple[LedgerId, ...]
    trouble: str
    """What was in the way last; empty: nothing."""


# The job.


class Until(Protocol):
    """What a pass is, and when the job ends; it remembers what one job has met."""

    def ready(self) -> Steps[MoveEnd | bool]:
        """Prepare a pass. Return the end, or whether the pass may begin now."""
        ...

    def make_pass(self) -> Action[PassEnded]: ...

    def judge(self, ended: PassEnded) -> Steps[MoveEnd | bool]:
        """Return the end, or whether the next pass begins at once."""
        ...

    def failed(self, error: LogError, now: float) -> MoveEnd | None:
        """Return the end if *error* is one; None: the same is tried again."""
        ...


def move(until: Until, *, pause_s: float = PAUSE_S) -> Steps[MoveEnd]:
    """Move copies until *until* says that it ended, and how."""
    while True:
        try:
            ready = yield from until.ready()
            if isinstance(ready, MoveEnd):
                return ready
            if ready:
                ended = yield from until.make_pass()
                following = yield from until.judge(ended)
                if isinstance(following, MoveEnd):
                    return following
                if following:
                    continue
        except LogError as error:
            end = until.failed(error, (yield from Now()))
            if end is not None:
                return end
        yield from Wait(pause_s)


class UntilCopied:
    """Nothing names the sources, which are lost, any more. The command itself copies; errors are
    borne for *idle_s_max* without progress."""

    def __init__(self, request: MoveRequest, *, idle_s_max: float = IDLE_S_MAX) -> None:
        self._request, self._idle_s_max = request, idle_s_max
        self._is_surveyed = False
        self._last = PassEnded()
        self._progress_at: float | None = None
        """When a ledger was repaired last."""

    def ready(self) -> Steps[MoveEnd | bool]:
        if self._progress_at is None:
            self._progress_at = yield from Now()
        seen = yield from ReadBookies()
        refusal = self._refusal(seen)
        if refusal is not None:
            return refusal
        if not self._is_surveyed:
            surveyed = yield from Survey(self._request.sources)
            self._is_surveyed, self._progress_at = True, (yield from Now())
            end = self._end_of_survey(seen, surveyed)
            if end is not None:
                return end
        return True

    def make_pass(self) -> Action[PassEnded]:
        return RepairAll(self._request.sources, self._request.targets)

    def judge(self, ended: PassEnded) -> Steps[MoveEnd | bool]:
        before, self._last = self._last, ended
        if not ended.named:
            return _complete(ended)
        now = yield from Now()
        left = ended.named - ended.repaired
        if ended.repaired and not (before.named and ended.named >= before.named):
            self._progress_at = now
            if not left:
                return True
        if (left and left == ended.stuck) or self._is_idle(now):
            why = ended.why or "ledgers name them again and again"
            return MoveEnd(MoveOutcome.INCOMPLETE, why, left, ended.lost)
        return False

    def failed(self, error: LogError, now: float) -> MoveEnd | None:
        if not self._is_idle(now):
            return None
        return MoveEnd(MoveOutcome.INCOMPLETE, str(error), self._last.named)

    def _is_idle(self, now: float) -> bool:
        return self._progress_at is not None and now - self._progress_at >= self._idle_s_max

    def _refusal(self, seen: BookiesSeen) -> MoveEnd | None:
        """Return why nothing is copied from the sources, or to the targets."""
        sources, targets = self._request.sources, self._request.targets
        if serving := sources & seen.registered:
            names = _names(serving)
            why = f"bookie {names} is registered and serves; 'dlog bookie decommission' empties it"
            return MoveEnd(MoveOutcome.SERVES, why, self._last.named)
        if useless := targets - seen.writable | targets & sources:
            names = _names(useless)
            why = f"bookie {names} is not there, or not writable; 'dlog bookie list' shows who is"
            return MoveEnd(MoveOutcome.NO_TARGET, why, self._last.named)
        return None

    def _end_of_survey(self, seen: BookiesSeen, surveyed: Surveyed) -> MoveEnd | None:
        unknown = self._request.sources - seen.known
        if not surveyed.held.fragments and unknown:
            why = f"no ledger and no cookie names {_names(unknown)}; 'dlog bookie list' shows names"
            return MoveEnd(MoveOutcome.UNKNOWN, why)
        if self._request.survey_only:
            return MoveEnd(MoveOutcome.SURVEYED, "", surveyed.held.ledgers, surveyed.without_source)
        return None


def _complete(ended: PassEnded) -> MoveEnd:
    if ended.unreadable:
        why = f"the metadata of {counted(ended.unreadable, 'ledger')} cannot be read"
        return MoveEnd(MoveOutcome.INCOMPLETE, why)
    return MoveEnd(MoveOutcome.COMPLETE)


def _names(bookies: frozenset[BookieId]) -> str:
    return ", ".join(sorted(bookies))


class UntilRetired:
    """Nothing names *bookie* any more, and once it is stopped its name is retired.

        look -> [check that there is room] -> announce -> read-only -> passes that mark, until two
        in a row, begun after it was quiet, find nothing -> retire its name, last

    The workers that run copy; errors are reported, and tried again."""

    def __init__(self, bookie: BookieId) -> None:
        self._bookie = bookie
        self._clean = 0
        """Passes in a row that found nothing."""
        self._version = -1
        """Of its cookie, before those."""
        self._is_registered = False
        self._error_met = ""

    def ready(self) -> Steps[MoveEnd | bool]:
        while True:
            bookie = yield from LookAtBookie(self._bookie)
            if not bookie.is_known:
                return (yield from self._end_of_unknown(bookie))
            if bookie.is_leaving:
                break
            refusal = yield from self._announce(bookie.others_writable)
            if refusal is not None:
                return refusal
        if bookie.is_registered and not bookie.is_read_only:
            self._clean = 0
            refusal = yield from self._turn_read_only()
            return refusal or False  # its registration will say so
        self._version, self._is_registered = bookie.version, bookie.is_registered
        return True

    def make_pass(self) -> Action[PassEnded]:
        return MarkAll(frozenset({self._bookie}))

    def judge(self, ended: PassEnded) -> Steps[MoveEnd | bool]:
        yield from Report(
            ledgers_left=ended.named,
            bytes_left=ended.named_bytes,
            unreadable=ended.unreadable,
            marked=ended.marked,
            hopeless=ended.lost,
            trouble=self._error_met or ended.why,
        )
        self._error_met = ""
        self._clean = self._clean + 1 if ended.found_nothing else 0
        if self._clean < CLEAN_PASSES:
            return self._clean > 0
        if self._is_registered:
            return MoveEnd(MoveOutcome.EMPTY)
        if (yield from Retire(self._bookie, self._version)):
            yield from Withdraw(self._bookie)
            return MoveEnd(MoveOutcome.RETIRED)
        self._clean = 0  # its cookie has changed: it was started again
        return True

    def failed(self, error: LogError, now: float) -> None:  # noqa: ARG002
        self._clean, self._error_met = 0, str(error)

    def _end_of_unknown(self, bookie: BookieSeen) -> Steps[MoveEnd]:
        if not bookie.is_leaving:
            return MoveEnd(MoveOutcome.UNKNOWN)
        yield from Withdraw(self._bookie)  # of a run that was interrupted once it had retired it
        return MoveEnd(MoveOutcome.RETIRED)

    def _announce(self, others: int) -> Steps[MoveEnd | None]:
        """Announce that it is to be emptied; return why not, if there is no room."""
        surveyed = yield from Survey(frozenset({self._bookie}), verified=True)
        if others < surveyed.widest:
            why = f"ledgers on it need {surveyed.widest} bookies, and {others} others are writable"
            return MoveEnd(MoveOutcome.TOO_FEW, why)
        yield from Announce(self._bookie)
        return None

    def _turn_read_only(self) -> Steps[MoveEnd | None]:
        try:
            yield from TurnReadOnly(self._bookie)
        except (AccessDenied, BookieRefused, TransportMismatch) as error:
            return MoveEnd(MoveOutcome.REFUSED, str(error))
        return None
