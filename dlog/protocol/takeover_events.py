"""What a takeover learns, and what it asks for (`protocol.takeover`)."""

from dataclasses import dataclass
from typing import Final

from dlog.manifest import Manifest, Sealed
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.protocol.shared import TimePassed

# Events.


@dataclass(frozen=True, slots=True)
class OpenRequested:
    """The first event."""


@dataclass(frozen=True, slots=True)
class ManifestRead:
    """What is stored now; None iff there is no such log."""

    manifest: Manifest | None
    version: int


@dataclass(frozen=True, slots=True)
class SegmentRecovered:
    """The segment's ledger is CLOSED, and this is what it holds."""

    number: int
    sealed: Sealed


@dataclass(frozen=True, slots=True)
class LedgerCreated:
    ledger_id: LedgerId
    created_ms: int


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    version: int


@dataclass(frozen=True, slots=True)
class ManifestConflicted:
    """The compare of the swap failed: somebody wrote before."""


@dataclass(frozen=True, slots=True)
class LeadershipChecked:
    held: bool


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """Noticed between two steps, instead of doing the next one."""


@dataclass(frozen=True, slots=True)
class LedgerDeleted:
    """Or deleting it failed: then the janitor will."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The last effect failed; *error* says whether its outcome is unknown."""

    error: LogError


TakeoverEvent = (
    OpenRequested
    | ManifestRead
    | SegmentRecovered
    | LedgerCreated
    | ManifestWritten
    | ManifestConflicted
    | LeadershipChecked
    | LeadershipLost
    | LedgerDeleted
    | StepFailed
    | TimePassed
)


# Effects, one at a time. The last two end the machine.


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """Answer: `ManifestRead`. The read must see every write that was finished before."""


@dataclass(frozen=True, slots=True)
class RecoverSegment:
    """Fence, recover and close the ledger, then report its end. Answer: `SegmentRecovered`.

    *last_txid* is the last txid before this segment, if that is known already."""

    number: int
    ledger_id: LedgerId
    last_txid: int


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Create a ledger stamped with the log and *segment*. Answer: `LedgerCreated`."""

    segment: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Answer: `ManifestWritten` or `ManifestConflicted`."""

    manifest: Manifest
    version: int


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Answer: `LedgerDeleted`, also if it could not be deleted."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class CheckLeadership:
    """Ask the election, if there is one. Answer: `LeadershipChecked`."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The log is ours: append to the ledger, as *segment*."""

    manifest: Manifest
    segment: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    error: LogError


Step = ReadManifest | RecoverSegment | CreateLedger | WriteManifest | DeleteLedger | CheckLeadership
"""What one event answers; `StepFailed` answers any."""

TakeoverEffect = Step | Opened | GiveUp


LEADERS_ONLY: Final = (ReadManifest, RecoverSegment, CreateLedger, WriteManifest)
"""If the term is over, `LeadershipLost` is the answer to these instead of doing them."""
