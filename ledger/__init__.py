"""What a ledger is, and how a client writes, reads, fences and recovers one.

Each name is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Final

from ledger.late import late_names

if TYPE_CHECKING:
    from ledger.client import ClientConfig, LedgerClient
    from ledger.entry import Digest
    from ledger.errors import LogError
    from ledger.ids import NO_ENTRY, BookieId, EntryId, LedgerId
    from ledger.metadata import Fragment, LedgerMetadata, LedgerState
    from ledger.protocol.placement import (
        PlacementPolicy,
        QuarantineConfig,
        RackAwarePlacement,
        RandomPlacement,
    )
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

_HOMES: Final = {
    "BookieId": "ledger.ids",
    "ClientConfig": "ledger.client",
    "Digest": "ledger.entry",
    "Entry": "ledger.reader",
    "EntryId": "ledger.ids",
    "Fragment": "ledger.metadata",
    "LedgerClient": "ledger.client",
    "LedgerId": "ledger.ids",
    "LedgerMetadata": "ledger.metadata",
    "LedgerReader": "ledger.reader",
    "LedgerState": "ledger.metadata",
    "LedgerWriter": "ledger.writer",
    "LogError": "ledger.errors",
    "NO_ENTRY": "ledger.ids",
    "PlacementPolicy": "ledger.protocol.placement",
    "QuarantineConfig": "ledger.protocol.placement",
    "Quorum": "ledger.quorum",
    "RackAwarePlacement": "ledger.protocol.placement",
    "RandomPlacement": "ledger.protocol.placement",
}


__getattr__ = late_names(__name__, _HOMES)
