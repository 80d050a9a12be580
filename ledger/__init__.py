"""What a ledger is, and how a client writes, reads, fences and recovers one."""

from ledger.client import ClientConfig, LedgerClient
from ledger.entry import Digest
from ledger.errors import LogError
from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.protocol.placement import PlacementPolicy, RackAwarePlacement, RandomPlacement
from ledger.protocol.quarantine import QuarantineConfig
from ledger.quorum import Quorum
from ledger.reader import Entry, LedgerReader
from ledger.writer import LedgerWriter

__all__ = [
    "NO_ENTRY",
    "BookieId",
    "ClientConfig",
    "Digest",
    "Entry",
    "EntryId",
    "Fragment",
    "LedgerClient",
    "LedgerId",
    "LedgerMetadata",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "LogError",
    "PlacementPolicy",
    "QuarantineConfig",
    "Quorum",
    "RackAwarePlacement",
    "RandomPlacement",
]
