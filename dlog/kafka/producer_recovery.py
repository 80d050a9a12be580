"""Builds the state of producers again when a log is taken over: backwards from its end, until an
entry has a snapshot.

A segment has one writer, so it holds batches of Kafka's or native entries alone: of a native one
the last entry is read, and no more. What was appended longer ago than producers are remembered
does not count.
"""

from typing import Final

from dlog.aio.port import Ledgers, LedgerTail
from dlog.aio.read.segments import opened_segment
from dlog.archive.segment_index import all_segments
from dlog.encryption.ledgers import Opener
from dlog.errors import DamagedBatch, DamagedLog
from dlog.kafka.protocol.producer_state import EXPIRY_MS, ProducerBatch, ProducerState
from dlog.kafka_batch import KafkaBatchHeader
from dlog.manifest import Manifest, Segment
from dlog.recordbatch import KafkaRecordBatch
from ledger.errors import NoSuchLedger

READ_BYTES: Final = 1024 * 1024
"""About how much one read brings, apart from one entry."""
READ_ENTRIES_MAX: Final = 256


def producer_batch(header: KafkaBatchHeader, offset: int, appended_ms: int) -> ProducerBatch:
    return ProducerBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count,
        offset,
        appended_ms,
    )


class ProducerRecovery:
    """Reads *manifest*'s sealed segments of *log*. Used once."""

    def __init__(self, ledgers: Ledgers, log: str, manifest: Manifest, *, now_ms: int) -> None:
        self._ledgers = ledgers
        self._log = log
        self._manifest = manifest
        self._oldest_ms = now_ms - EXPIRY_MS
        self._since: list[ProducerBatch] = []
        """The newest first."""
        self._snapshot: bytes | None = None
        self._ended = False
        """Whether nothing older counts."""

    async def run(self) -> ProducerState:
        """Return the state. Raises `DamagedLog`, and what reading a ledger raises."""
        newer_ms: int | None = None
        async for segment in all_segments(self._log, self._manifest, newest_first=True):
            if newer_ms is not None and newer_ms < self._oldest_ms:
                break  # nothing was appended to it since that one was made
            newer_ms = segment.created_ms
            if segment.sealed is None or not segment.sealed.records:
                continue
            try:
                async with opened_segment(self._ledgers, self._log, segment) as reader:
                    await self._read(segment, reader)
            except NoSuchLedger:  # trimmed meanwhile: those before it are gone too
                break
            except DamagedBatch as error:
                raise DamagedLog(self._log, f"segment {segment.number}: {error.reason}") from error
            if self._ended:
                break
        return ProducerState.rebuild(self._snapshot, reversed(self._since))

    async def _read(self, segment: Segment, reader: LedgerTail) -> None:
        assert segment.sealed is not None
        assert segment.first_offset is not None
        opener = await Opener.of(segment.ledger_id, reader.custom, self._manifest.incarnation)
        last, wanted = int(segment.sealed.last_entry), 1
        while last >= 0:
            first = max(0, last - wanted + 1)
            entries = await reader.read(first, last)
            read_bytes = 0
            for entry in reversed(entries):
                batch = opener.decode(entry.entry_id, entry.payload)
                if not isinstance(batch, KafkaRecordBatch):
                    return  # a native segment
                read_bytes += len(entry.payload)
                self._take(batch, segment.first_offset + batch.header.base_index)
                if self._ended:
                    return
            wanted = max(
                1, min(READ_ENTRIES_MAX, 2 * wanted, READ_BYTES * len(entries) // read_bytes)
            )
            last = first - 1

    def _take(self, batch: KafkaRecordBatch, offset: int) -> None:
        if batch.appended_ms < self._oldest_ms:
            self._ended = True
            return
        if batch.kafka_header.is_idempotent:
            self._since.append(producer_batch(batch.kafka_header, offset, batch.appended_ms))
        if batch.producers:
            self._snapshot = bytes(batch.producers)
            self._ended = True
