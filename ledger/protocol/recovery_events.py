"""Events and effects of a recovery, how patient it is, and why it may have failed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ledger.ids import NO_ENTRY, BookieId
from ledger.metadata import LedgerMetadata
from ledger.protocol.answers import Found, fence_is_certain
from ledger.protocol.common import (
    ChooseReplacements,
    MetadataEffect,
    MetadataEvent,
    ReplacementsChosen,
    TimePassed,
)
from ledger.requests import LacAnswer, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    attempts_max: int = 5
    """How often a request to a bookie, or a metadata operation, is tried."""
    retry_s: float = 0.2
    """Pause before trying again what failed."""
    busy_attempts_max: int = 200
    """How often a write-back is sent to a bookie that answers that it is too busy."""
    grace_s: float = 2.0
    """With Qw = Qa: how long a single "no" waits for the others to contradict it (rule 44)."""


# Events.


@dataclass(frozen=True, slots=True)
class RecoveryStarted:
    pass


@dataclass(frozen=True, slots=True)
class LacRead:
    """Answer to `SendFence`. *fenced*: the bookie said that its fence is durable."""

    index: int
    fenced: bool
    last_add_confirmed: int
    status: Status


@dataclass(frozen=True, slots=True)
class RecoveryEntriesRead:
    """Answer to `SendRecoveryRead`: verified entries with the length in their header, and how far
    the bookie's silence about an id is a promise that it is not there. No promise at all
    if *answered* is False: an error, a time-out, a refusal (rule 43). *unknown*: it has given
    all that it has from *first* on, but may have lost that entry; to ask again is no use."""

    index: int
    first: int
    answered: bool
    found: Mapping[int, int] = field(default_factory=dict)
    """id -> cumulative length"""
    considered: int = -1
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class BaseRead:
    """Answer to `ReadBase`: cumulative length at that entry, or None if this bookie failed."""

    index: int
    length: int | None


@dataclass(frozen=True, slots=True)
class WriteBackStored:
    index: int
    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WriteBackRefused:
    index: int
    generation: int
    first: int
    last: int
    status: Status


TailEvent = RecoveryEntriesRead | BaseRead | WriteBackStored | WriteBackRefused | ReplacementsChosen
"""About entries that may be the ledger's last: after the fence, before the close."""

RecoveryEvent = RecoveryStarted | LacRead | TailEvent | MetadataEvent | TimePassed


# Effects.


@dataclass(frozen=True, slots=True)
class SendFence:
    """Read the LAC with the fence flag."""

    index: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class SendRecoveryRead:
    """Read first..last; *fence*: with the fence flag."""

    index: int
    bookie: BookieId
    first: int
    last: int
    fence: bool


@dataclass(frozen=True, slots=True)
class ReadBase:
    """Read entry *entry_id*, which is confirmed, only for the length in its header: that decides
    nothing, so it does not fence."""

    index: int
    bookie: BookieId
    entry_id: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Send those of first..last that *index* holds as recovery adds, their bytes unchanged."""

    index: int
    bookie: BookieId
    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ForgetEntries:
    """Frames up to *last* are not needed any more."""

    last: int


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """The ledger is CLOSED, by this recovery or by somebody else."""

    metadata: LedgerMetadata
    version: int
    in_doubt: tuple[BookieId, ...] = ()
    """Members of the last fragment, if this recovery has found its end: what was in flight to them
    when the writer died, and confirmed without them, is below where the recovery began."""


class RecoveryFailure(Enum):
    NOT_COVERED = "too few of its bookies confirmed the fence"
    UNDECIDED = "too few of its bookies answered to know whether an entry exists"
    BASE_UNREADABLE = "its last confirmed entry could not be read from any replica"
    NOT_ENOUGH_BOOKIES = "too few bookies took the entries that were written back"
    WRONG_KEY = "too few of its bookies have it under its key"
    ACCESS_DENIED = "its bookies do not allow it"
    DELETED = "the ledger was deleted"
    METADATA_UNAVAILABLE = "the metadata store did not answer"


@dataclass(frozen=True, slots=True)
class FailRecovery:
    failure: RecoveryFailure
    claimed: int = NO_ENTRY
    """With BASE_UNREADABLE: the entry that is confirmed, as some say, and that nobody gives."""
    claimants: tuple[BookieId, ...] = ()
    """Who says so."""


Request = SendFence | SendRecoveryRead | ReadBase | WriteBack
"""What is asked of a bookie, and asked again."""

RecoveryEffect = (
    Request | ForgetEntries | ChooseReplacements | MetadataEffect | FinishRecovery | FailRecovery
)


def lac_read(asked: SendFence, answer: LacAnswer, proven: int) -> LacRead:
    """Return the event that *answer* means; *proven* is the LAC that its proof carries."""
    return LacRead(asked.index, fence_is_certain(answer), proven, answer.status)


def entries_read(asked: SendRecoveryRead, found: Found) -> RecoveryEntriesRead:
    """Return the event that a verified answer means.

    Only a bookie that says that its fence is durable has answered at all (rules 33, 40); then
    its never having heard of the ledger is a promise about every entry."""
    return RecoveryEntriesRead(
        asked.index,
        asked.first,
        answered=found.fenced and found.status in {Status.OK, Status.NO_SUCH_LEDGER},
        found={entry_id: header.length for entry_id, header in found.headers.items()},
        considered=asked.last if found.status is Status.NO_SUCH_LEDGER else found.considered,
        unknown=found.fenced and found.status is Status.UNKNOWN,
    )
