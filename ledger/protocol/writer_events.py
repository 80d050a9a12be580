"""Events and effects of the writer of a ledger, and why it may be over.

What comes with each add is no event: `Writer.append` and `Writer.stored` are."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ledger.ids import BookieId, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.common import (
    ChooseReplacements,
    MetadataEffect,
    MetadataEvent,
    ReplacementsChosen,
    TimePassed,
)
from ledger.requests import Status

# Events.


@dataclass(frozen=True, slots=True)
class AddsRefused:
    """The bookie at *index* did not, or did not say that it did."""

    index: int
    generation: int
    first: int
    last: int
    status: Status


@dataclass(frozen=True, slots=True)
class BookiesListed:
    """The registry has changed, or was read for the first time."""

    writable: Mapping[BookieId, str]
    """Who is registered and takes adds, and as which start of its process."""


@dataclass(frozen=True, slots=True)
class LacksMarked:
    """Repair knows what the effect said."""

    marked: "MarkLacks"


@dataclass(frozen=True, slots=True)
class MarkingFailed:
    """Repair may not know."""


@dataclass(frozen=True, slots=True)
class CloseRequested:
    pass


WriterEvent = (
    AddsRefused
    | BookiesListed
    | LacksMarked
    | MarkingFailed
    | ReplacementsChosen
    | MetadataEvent
    | CloseRequested
    | TimePassed
)


# Effects.


@dataclass(slots=True)
class SendAdds:
    """Send those of first..last that *index* holds, in one go, to *bookie*."""

    index: int
    bookie: BookieId
    generation: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PublishLac:
    """Send the LAC by itself to *bookies*: the writer is idle, and a tail wants the last entry.

    Nothing is reported: a bookie that misses it is met by the next add. May be left out once an
    entry above it is on its way, which carries it."""

    last_add_confirmed: EntryId
    length: int
    bookies: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class MarkLacks:
    """Mark the ledger for repair: the fragment that begins at *fragment* is written without
    *bookies*, and those that *missed* entries lack some that are settled. Report LacksMarked or
    MarkingFailed; there is never more than one under way, but for the one behind the close."""

    bookies: tuple[BookieId, ...]
    fragment: EntryId
    missed: tuple[BookieId, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfirmAdds:
    """Resolve all adds up to *last*, in order."""

    last: EntryId


class WriterFailure(Enum):
    """Why a writer is over."""

    FENCED = "fenced"
    NOT_ENOUGH_BOOKIES = "not enough bookies"
    METADATA_UNAVAILABLE = "metadata unavailable"
    WRONG_KEY = "wrong key"
    ACCESS_DENIED = "access denied"
    CLOSED_EMPTY = "wrong key; CLOSED without an entry, so that every add's outcome is known"
    CONFLICT = "other bytes under the same id"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class FailWriter:
    """Fail every pending add, now and later; their outcome is unknown (rule 10), except that
    none is kept after `WriterFailure.CLOSED_EMPTY`."""

    failure: WriterFailure


@dataclass(frozen=True, slots=True)
class FinishClose:
    """The ledger is CLOSED at the writer's own last entry."""

    metadata: LedgerMetadata
    version: int


WriterEffect = (
    SendAdds
    | PublishLac
    | ConfirmAdds
    | MarkLacks
    | ChooseReplacements
    | MetadataEffect
    | FailWriter
    | FinishClose
)
