"""Events and effects of `auditing`."""

from dataclasses import dataclass

from bookie.autorecovery.mark import Lack
from ledger.ids import BookieId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.protocol.shared import TimePassed

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
    checked_ms: int | None
    """When the last check of all ledgers ended, by whichever auditor; None: there was none."""
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
    """The check of all ledgers has ended, and that is written down."""


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
    """Ask all bookies what they hold, beside everything else, and mark what lacks entries; report
    LedgersChecked or CheckFailed."""


AuditEffect = ReadBookies | ReadLedgers | MarkLedgers | RecordPass | CheckLedgers
