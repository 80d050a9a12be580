"""What the machine of a log's writer (`protocol.log_writer`) learns, and what it asks for.

What comes with each entry is no event: `Writing.gathered` and `Writing.confirmed` are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dlog.manifest import Manifest
from dlog.protocol import roll
from dlog.protocol.pending_batch import PendingBatch
from ledger.errors import LogError
from ledger.ids import LedgerId

# Events of the appends.


@dataclass(frozen=True, slots=True)
class AddFailed:
    """The ledger confirms nothing more."""

    ledger_id: LedgerId
    error: LogError


@dataclass(frozen=True, slots=True)
class SendRefused:
    """The last *unsent* entries of a `SendEntries` were not sent: the ledger took no more."""

    ledger_id: LedgerId
    unsent: int
    error: LogError


@dataclass(frozen=True, slots=True)
class TroubleMet:
    """Somebody else found out that the writer cannot go on as it did."""

    error: LogError


@dataclass(frozen=True, slots=True)
class SiblingNamed:
    """Another process of this machine, or this one, has taken the log over: *reason* says so."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """What nobody foresaw: an invariant is broken, or an effect could not be carried out."""

    error: LogError


# Events of the callers.


@dataclass(frozen=True, slots=True)
class FlushRequested:
    """Answer once every append made before is confirmed, or cannot be."""

    ticket: int


@dataclass(frozen=True, slots=True)
class RollRequested:
    """As `FlushRequested`; then begin a new segment, and answer when the one before is sealed."""

    ticket: int


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """Take nothing more, confirm what is pending, seal; within *timeout_s* (None: for ever)."""

    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class AbandonRequested:
    """End at once, sealing nothing."""


# Events of the work that effects began.


@dataclass(frozen=True, slots=True)
class RollStepped:
    """A step of roll machine *number* is done."""

    number: int
    event: roll.RollEvent


@dataclass(frozen=True, slots=True)
class RollFailed:
    number: int
    error: LogError


@dataclass(frozen=True, slots=True)
class Reopened:
    """The log was taken over again: *manifest* says all that it holds, *segment* is new."""

    manifest: Manifest
    segment: int
    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class ReopenFailed:
    error: LogError


@dataclass(frozen=True, slots=True)
class SegmentClosed:
    """What the last `CloseSegment` asked for is done."""


@dataclass(frozen=True, slots=True)
class CloseFailed:
    error: LogError


@dataclass(frozen=True, slots=True)
class LedgersLetGo:
    """What one `LetGo` asked for is done."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`deadline` was reached."""


WritingEvent = (
    AddFailed
    | SendRefused
    | TroubleMet
    | SiblingNamed
    | Broke
    | FlushRequested
    | RollRequested
    | CloseRequested
    | AbandonRequested
    | RollStepped
    | RollFailed
    | Reopened
    | ReopenFailed
    | SegmentClosed
    | CloseFailed
    | LedgersLetGo
    | TimePassed
)


# Effects.


class SendEntries(NamedTuple):
    """Add them to the ledger, an entry each, in order: `SendRefused` if it does not take them.

    Each one that was added is answered later by `Writing.confirmed` or `AddFailed`."""

    ledger_id: LedgerId
    batches: tuple[PendingBatch, ...]
    """Each knows its place."""


class Confirm(NamedTuple):
    """The records of *batch* are in the log, the first one at *offset*."""

    batch: PendingBatch
    offset: int
    segment: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """The records of *batch* are certainly not in the log."""

    batch: PendingBatch
    error: LogError


@dataclass(frozen=True, slots=True)
class LeaveUnknown:
    """Nobody here can know whether *batch* is in the log; if so, its first record at *offset*."""

    batch: PendingBatch
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Let who has *ticket* go on; with *error*, fail."""

    ticket: int
    error: LogError | None = None


RollWork = roll.CreateSegmentLedger | roll.ListSegment | roll.CloseLedger | roll.SealSegment


@dataclass(frozen=True, slots=True)
class TakeRollStep:
    """Answer: `RollStepped` or `RollFailed`, with the same *number*."""

    number: int
    step: RollWork
    previous: LedgerId | None
    """The ledger that was switched from, while it is not sealed."""
    previous_txid: int
    """The last one of the log when it was switched from."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Take the log over within its epoch, once. Answer: `Reopened` or `ReopenFailed`."""


@dataclass(frozen=True, slots=True)
class CloseSegment:
    """Record the end of a segment; first close its ledger, if this writer has it open (*closes*).

    Answer: `SegmentClosed` or `CloseFailed`."""

    number: int
    ledger_id: LedgerId
    last_txid: int
    closes: bool


Work = TakeRollStep | TakeOver | CloseSegment
"""What takes time; never two at once."""


@dataclass(frozen=True, slots=True)
class StopWork:
    """Cancel the work that is under way, if there is some; no answer is needed.

    One that was on its way already comes before the answer of the next `LetGo`."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """Abandon these ledgers once all work that was stopped has ended. Answer: `LedgersLetGo`."""

    ledger_ids: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The writer has ended without having closed its log; whoever opens it next recovers it."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing is under way any more."""


@dataclass(frozen=True, slots=True)
class Note:
    """For whoever operates the log: *event* happened."""

    event: str
    fields: Mapping[str, object]
    warns: bool = True


WritingEffect = (
    SendEntries
    | Confirm
    | Refuse
    | LeaveUnknown
    | Answer
    | Work
    | StopWork
    | LetGo
    | Lost
    | Closed
    | Note
)
