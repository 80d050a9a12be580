"""How well a log's records are compressed, by a look at the newest entries that carry them.

Nobody counts what records took before their compression: a writer that dies takes its counts
along, and whoever recovers its ledger reads first and last entry alone. To read a whole log would
cost more than the answer is worth. So it is a sample, bounded in entries and bytes, and says how
large it is.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.segments import header_of, opened
from dlog.manifest import Manifest
from dlog.recordbatch import BatchHeader, Codec
from ledger.errors import NoSuchLedger
from ledger.ids import EntryId

SAMPLE_ENTRIES_MAX: Final = 32
SAMPLE_BYTES_MAX: Final = 4 << 20
"""No further entry is read once so many bytes were."""
SAMPLE_SEGMENTS_MAX: Final = 8
SAMPLE_S: Final = 3.0
"""Bookies that do not answer are not waited for longer."""


@dataclass(frozen=True, slots=True)
class CompressionSample:
    """What the newest entries of a log take, of all its segments together; at least one."""

    entries: int
    records: int
    stored_bytes: int
    """As they are stored, each copy; without frames and headers of entries."""
    uncompressed_bytes: int
    """The same columns before compression."""
    codecs: tuple[Codec, ...]
    """Those found, each once: what was set since may not be among them yet."""

    @property
    def ratio(self) -> float:
        """Bytes stored for each byte before compression: below 1 if it pays."""
        return self.stored_bytes / self.uncompressed_bytes


async def sample_compression(ledgers: Ledgers, manifest: Manifest) -> CompressionSample | None:
    """Return the sample; None if no segment has an entry. Disturbs no writer.

    Raises what reading raises, and `TimeoutError` after SAMPLE_S."""
    found: list[BatchHeader] = []
    async with asyncio.timeout(SAMPLE_S):
        for segment in manifest.segments[: -SAMPLE_SEGMENTS_MAX - 1 : -1]:
            with suppress(NoSuchLedger):  # trimmed meanwhile
                async with opened(ledgers, segment.ledger_id) as reader:
                    entry = await reader.read_last_add_confirmed()
                    while entry >= 0 and _wants_more(found):
                        found.append(await header_of(reader, entry))
                        entry = EntryId(entry - 1)
            if not _wants_more(found):
                break
    if not found:
        return None
    return CompressionSample(
        entries=len(found),
        records=sum(header.count for header in found),
        stored_bytes=sum(header.stored_bytes for header in found),
        uncompressed_bytes=sum(header.body_bytes for header in found),
        codecs=tuple(codec for codec in Codec if codec in {header.codec for header in found}),
    )


def _wants_more(found: list[BatchHeader]) -> bool:
    read_bytes = sum(header.stored_bytes for header in found)
    return len(found) < SAMPLE_ENTRIES_MAX and read_bytes < SAMPLE_BYTES_MAX
