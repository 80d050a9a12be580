"""What one journal has done since the start, in plain numbers."""

from typing import Final

from ledger.metering.declaration import BYTES, COUNTS, SECONDS, Buckets

_SYNC_S: Final = (0.0001, 0.0002, *SECONDS)


class JournalCounts:
    """Written by the thread of the journal."""

    def __init__(self) -> None:
        self.records = Buckets(COUNTS)
        """Records of each group."""
        self.bytes = Buckets(BYTES)
        self.sync_s = Buckets(_SYNC_S)
        """How long each group waited for the disk."""

    def synced(self, records: int, size_bytes: int, took_s: float) -> None:
        """Take note of one group."""
        self.records.observe(records)
        self.bytes.observe(size_bytes)
        self.sync_s.observe(took_s)
