"""Events and effects of `replication`, and how a replication ends."""

from dataclasses import dataclass
from enum import Enum

from bookie.autorecovery.protocol.copy_plan import Copy, Share
from ledger.ids import BookieId
from ledger.mark import Mark
from ledger.metadata import LedgerMetadata
from ledger.protocol.common_events import (
    ChooseReplacements,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReplacementsChosen,
    TimePassed,
)
from ledger.requests import Status

# Events.


@dataclass(frozen=True, slots=True)
class Begin:
    """Look after the ledger."""

    eager: bool = False
    """Now, whatever the mark says: what it waits for may be there."""
    came: frozenset[BookieId] = frozenset()
    """All bookies that are there, if some of them have come since the worker last looked: then what
    waits for one is looked after now."""


@dataclass(frozen=True, slots=True)
class LockTaken:
    """No other worker is at the ledger, as far as that can be known."""


@dataclass(frozen=True, slots=True)
class LockRefused:
    """Another worker is."""


@dataclass(frozen=True, slots=True)
class MarkRead:
    """What is marked now; None: nothing any more."""

    mark: Mark | None
    version: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """The list of bookies that are to be emptied."""

    bookies: frozenset[BookieId]
    version: int
    """Read before the list was: who is added to that changes it."""


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """Metadata as new as `ReadLedger` wants them, and who is there.

    *metadata* is None iff the ledger was deleted."""

    metadata: LedgerMetadata | None
    version: int
    registered: frozenset[BookieId]
    leaving: Leaving
    now_ms: int


@dataclass(frozen=True, slots=True)
class Looked:
    """What one bookie was found to have."""

    share: Share


@dataclass(frozen=True, slots=True)
class FramesRead:
    """The driver holds the frames of *entries*, verified. All of the copy up to *considered* that
    the bookie has are among them."""

    status: Status
    entries: tuple[int, ...]
    considered: int
    differing: tuple[int, ...] = ()
    """Of them those of which the witness gave another frame that is whole, too."""


@dataclass(frozen=True, slots=True)
class FramesStored:
    """The bookie has all that were sent, durably."""


@dataclass(frozen=True, slots=True)
class FramesRefused:
    """It has them not, or perhaps."""

    status: Status


@dataclass(frozen=True, slots=True)
class MoreLeave:
    """The metadata were not written: more bookies are to be emptied than it was known."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The ledger was CLOSED."""


@dataclass(frozen=True, slots=True)
class RecoveryRefused:
    """It could not be, *why*."""

    why: str


@dataclass(frozen=True, slots=True)
class MarkStored:
    """The mark was written, or deleted."""


@dataclass(frozen=True, slots=True)
class MarkGrew:
    """It was not: it says more than it did when it was read."""


@dataclass(frozen=True, slots=True)
class Unlocked:
    """The lock is given back, or will go with the session."""


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """What was asked for could not be done, *why*; the outcome is not known."""

    why: str


ReplicationEvent = (
    Begin
    | LockTaken
    | LockRefused
    | MarkRead
    | LedgerRead
    | Looked
    | ReplacementsChosen
    | FramesRead
    | FramesStored
    | FramesRefused
    | MetadataRead
    | MetadataWritten
    | MetadataFailed
    | MoreLeave
    | Recovered
    | RecoveryRefused
    | MarkStored
    | MarkGrew
    | Unlocked
    | EffectFailed
    | TimePassed
)


# Effects. Each but the last is answered by one event.


@dataclass(frozen=True, slots=True)
class TakeLock:
    """Report LockTaken or LockRefused."""


@dataclass(frozen=True, slots=True)
class ReadMark:
    """Report MarkRead."""


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Report LedgerRead."""

    fresh: bool = True
    """Every write that ended before this is seen; else every one that ended before the lock."""


@dataclass(frozen=True, slots=True)
class Look:
    """Find out what *bookie* has of what *index* holds of first..last; report Looked."""

    bookie: BookieId
    index: int
    first: int
    last: int
    thorough: bool
    """By reading all of it with digests; else by what the bookie says it holds."""


@dataclass(frozen=True, slots=True)
class ReadFrames:
    """Read of *copy* from *bookie* what begins at *first*, as much as fits; report FramesRead."""

    bookie: BookieId
    copy: Copy
    first: int
    witness: BookieId | None = None
    """Who is read too, to compare the bytes. What it does not give is not compared."""


@dataclass(frozen=True, slots=True)
class ChooseBetter:
    """Choose whom to exchange so that the write sets of *ensemble* span more racks; report
    ReplacementsChosen, of nobody if there is no better ensemble."""

    exclude: tuple[BookieId, ...]
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class SendFrames:
    """Recovery-add the frames of *entries* that were read to *bookie*; report FramesStored or
    FramesRefused, and forget them."""

    bookie: BookieId
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteSwap:
    """Write metadata of the ledger, which is at *version*, iff the list of who is to be emptied is
    still at *leaving_version*. Report MetadataWritten, MetadataRead, MetadataFailed, or MoreLeave.
    """

    metadata: LedgerMetadata
    version: int
    leaving_version: int


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence and close the ledger; report Recovered or RecoveryRefused."""


@dataclass(frozen=True, slots=True)
class WriteMark:
    """CAS; report MarkStored or MarkGrew."""

    mark: Mark
    version: int


@dataclass(frozen=True, slots=True)
class DeleteMark:
    """Delete the mark if it is at *version*, and the lock with it; report MarkStored or MarkGrew.

    If the lock is lost neither is deleted: another worker may be at it."""

    version: int


@dataclass(frozen=True, slots=True)
class Unlock:
    """Report Unlocked."""


class Outcome(Enum):
    DONE = "done"
    """Nothing is lacking any more."""
    DEFERRED = "deferred"
    """The mark says why, and until when."""
    BUSY = "busy"
    """Another worker has it."""
    BROKEN_OFF = "broken off"
    """The metadata store did not let the mark be changed."""


@dataclass(frozen=True, slots=True)
class Finish:
    """It is over."""

    outcome: Outcome
    why: str = ""
    until_ms: int = 0
    """Of a repair that was deferred: when the next one may begin, by the wall clock."""


ReplicationEffect = (
    TakeLock
    | ReadMark
    | ReadLedger
    | Look
    | ChooseReplacements
    | ChooseBetter
    | ReadFrames
    | SendFrames
    | WriteSwap
    | RecoverLedger
    | WriteMark
    | DeleteMark
    | Unlock
    | Finish
)
