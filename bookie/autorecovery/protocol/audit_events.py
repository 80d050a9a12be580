"""Events and effects of `audit`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ledger.ids import BookieId, LedgerId
from ledger.mark import Lack
from ledger.metadata import LedgerMetadata
from ledger.protocol.common_events import TimePassed


class CheckKind(Enum):
    """What is looked at from time to time though nothing has happened; one at a time."""

    LEDGERS = "what bookies hold"
    """All bookies are asked what they hold of all ledgers, and some entries are read."""
    PLACEMENT = "placement"
    """Whether ensembles span as many racks as they could."""
    REPLICAS = "living replicas"
    """How many ledgers have entries on bookies that are away, by their metadata."""


# Events.


@dataclass(frozen=True, slots=True)
class AuditBegun:
    """The process was elected."""


@dataclass(frozen=True, slots=True)
class BookiesChanged:
    """The list of bookies may have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookiesSeen:
    """Who there is: answer to `ReadBookies`, read after it was asked for."""

    known: frozenset[BookieId]
    """All that have a cookie, retired ones too."""
    retired: frozenset[BookieId]
    """Whose data were given up."""
    registered: frozenset[BookieId]
    leaving: frozenset[BookieId]
    """Bookies that are to be emptied."""
    delay_s: float | None
    """What an operator has set; None: nothing."""
    checked_ms: Mapping[CheckKind, int]
    """When the last check of each kind ended, by whichever auditor; none if there was none."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class LedgersRead:
    """The next ledgers of the pass; metadata None: they cannot be read."""

    ledgers: tuple[tuple[LedgerId, LedgerMetadata | None], ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class LedgersMarked:
    """All marks are written; *count* of them are new or say more than before."""

    count: int


@dataclass(frozen=True, slots=True)
class PassRecorded:
    """How the pass ended is written down."""


@dataclass(frozen=True, slots=True)
class AuditFailed:
    """What was asked for could not be done, *why*."""

    why: str


@dataclass(frozen=True, slots=True)
class LedgersChecked:
    """The check under way has ended, and that is written down."""


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """It has not, *why*."""

    why: str


AuditEvent = (
    LedgersChecked
    | CheckFailed
    | AuditBegun
    | BookiesChanged
    | BookiesSeen
    | LedgersRead
    | LedgersMarked
    | PassRecorded
    | AuditFailed
    | TimePassed
)


# Effects. Each is answered by one event, or by AuditFailed.


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Report BookiesSeen."""


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Report LedgersRead: the first ledgers of all (*begin*), or those that follow."""

    begin: bool


@dataclass(frozen=True, slots=True)
class MarkLedgers:
    """Add these lacks to the ledgers' marks; report LedgersMarked."""

    lacks: tuple[tuple[LedgerId, tuple[Lack, ...]], ...]
    """Urgent ones first."""
    urgent: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPass:
    """Write down how a pass ended; report PassRecorded."""

    ledgers: int
    marked: int
    damaged: int
    lost: tuple[BookieId, ...]
    alarm: str
    """Why nothing was marked; empty if nothing is wrong."""


@dataclass(frozen=True, slots=True)
class CheckLedgers:
    """Look at all ledgers, beside everything else, and mark what a check of *kind* finds; report
    LedgersChecked or CheckFailed."""

    kind: CheckKind = CheckKind.LEDGERS


AuditEffect = ReadBookies | ReadLedgers | MarkLedgers | RecordPass | CheckLedgers
