"""Settings of one log: chosen when it is created, kept in its manifest.

Every program that opens the log finds the same ones. A limit of 0 means "no limit".
"""

from dataclasses import dataclass, field
from typing import Final

from dlog.errors import InvalidSettings
from dlog.recordbatch import Codec
from ledger.entry import Digest
from ledger.quorum import Quorum

RECORD_BYTES_LIMIT: Final = 16 * 1024 * 1024
"""No log may allow larger records: an entry must hold at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Raises `InvalidSettings` if a value is out of its range."""

    quorum: Quorum = field(default_factory=Quorum)
    """Replication of the log's ledgers."""
    digest: Digest = Digest.CRC32C
    codec: Codec = Codec.NONE
    """Compression of record batches; zstd pays for text on slow disks or networks."""
    record_bytes_max: int = 1024 * 1024
    """Largest record, key included. Up to 16 MiB; smaller keeps latency even."""
    roll_bytes: int = 1024 * 1024 * 1024
    """Start a new segment after so many bytes: the unit in which space is freed."""
    roll_age_s: float = 2 * 3600.0
    """Start a new segment when the present one is older and not empty."""
    roll_records: int = 0
    retention_bytes: int = 0
    """Trim whole segments while those after them hold more bytes than this."""
    retention_age_s: float = 0.0
    """Trim whole segments whose last record is older."""

    def __post_init__(self) -> None:
        if not 1 <= self.record_bytes_max <= RECORD_BYTES_LIMIT:
            raise InvalidSettings(
                "record_bytes_max", self.record_bytes_max, f"use 1 to {RECORD_BYTES_LIMIT}"
            )
        for name in (
            "roll_bytes",
            "roll_age_s",
            "roll_records",
            "retention_bytes",
            "retention_age_s",
        ):
            if getattr(self, name) < 0:
                raise InvalidSettings(name, getattr(self, name), "use 0 for no limit, or more")
