"""One log that this gateway leads: batches of producers go in whole, consumers get them whole.

A batch is checked at its door by its header and checksum and becomes one entry; nothing is done for
each of its records, nor where it is fetched. What is confirmed can be fetched: the high watermark
is the writer's. Base offset and leader epoch are written as the batch goes out. A batch of an
earlier epoch carries the number of its segment as its epoch, which is not below that and below the
present one.

Opening takes the log over: whoever led it is fenced, and the state of producers is built again
before the first batch is taken (`producer_recovery`). A snapshot of it goes into the first entry,
and into one after each `SNAPSHOT_BYTES` or `SNAPSHOT_BATCHES`; it takes no offset, and no reader
sees it.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from dlog.aio.log import Log, open_as_gateway
from dlog.aio.port import Ledgers
from dlog.aio.write.append_future import AppendFuture
from dlog.errors import DamagedBatch, LogClosed, LostOwnership, NoSuchLog
from dlog.kafka.consumer_reads import ConsumerReads, Movements, check_offset
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.producer_recovery import ProducerRecovery, producer_batch
from dlog.kafka.protocol.producer_state import ProducerState
from dlog.kafka.recent_batches import RecentBatches
from dlog.kafka_batch import (
    MAGIC,
    KafkaBatchHeader,
    KafkaCodec,
    has_right_crc,
    parse_kafka_header,
    with_place,
)
from dlog.manifest import Manifest
from dlog.position import timestamp_error
from dlog.protocol.pending_batch import Outcome
from dlog.recordbatch import KAFKA_RECORDS_MAX, encode_kafka
from ledger.errors import LogError
from ledger.log_events import get_logger, now_ms

SNAPSHOT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of batches after which one carries a snapshot again; 16 times its size if that is more."""
SNAPSHOT_BATCHES: Final = 512
WATCH_RETRY_S: Final = 1.0

_UNKNOWN: Final = -1
_log = get_logger(__name__)


class Produced(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    """-1: records have the times that their producer gave them."""
    log_start_offset: int


def check_batch(batch: bytes) -> KafkaBatchHeader:
    """Return the header of *batch*, which may be appended as far as that and its checksum say.

    Raises `KafkaRefusal`, with the code that Kafka has for it."""
    try:
        header = parse_kafka_header(batch)
    except DamagedBatch as error:
        raise KafkaRefusal(ErrorCode.corrupt_message, f"{error.reason}") from None
    if header.magic != MAGIC:
        raise KafkaRefusal(
            ErrorCode.unsupported_for_message_format,
            f"a batch of format {header.magic}: use a client of Kafka 0.11 or newer",
        )
    if header.batch_bytes > len(batch):
        raise KafkaRefusal(
            ErrorCode.corrupt_message,
            f"a batch of {header.batch_bytes} bytes was cut off after {len(batch)}",
        )
    if header.batch_bytes < len(batch):
        raise KafkaRefusal(ErrorCode.invalid_record, "send one batch for each partition")
    if not has_right_crc(batch, header):
        raise KafkaRefusal(ErrorCode.corrupt_message, "the batch has another checksum than it says")
    if header.is_transactional or header.is_control:
        raise KafkaRefusal(
            ErrorCode.invalid_txn_state,
            "transactions are not supported: use an idempotent producer without a transactional id",
        )
    if not 1 <= header.count <= KAFKA_RECORDS_MAX or header.last_offset_delta != header.count - 1:
        raise KafkaRefusal(
            ErrorCode.invalid_record,
            f"a batch of {header.count} records whose last one is at {header.last_offset_delta}",
        )
    if header.codec not in KafkaCodec._value2member_map_:
        raise KafkaRefusal(
            ErrorCode.unsupported_compression_type, f"codec {header.codec} is not known"
        )
    if header.has_append_time:
        raise KafkaRefusal(
            ErrorCode.invalid_timestamp, "the time of appending is not for a producer to give"
        )
    for time_ms in (header.base_timestamp_ms, header.newest_timestamp_ms):
        if (reason := timestamp_error(time_ms)) is not None:
            raise KafkaRefusal(ErrorCode.invalid_timestamp, f"timestamp {time_ms}: {reason}")
    if header.is_idempotent and (
        header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0
    ):
        raise KafkaRefusal(
            ErrorCode.invalid_record,
            f"producer {header.producer_id} with epoch {header.producer_epoch} and sequence "
            f"{header.base_sequence}: neither is negative",
        )
    return header


class Partition:
    """Made by `open`. All methods are called on the loop that made it."""

    def __init__(
        self, log: Log, ledgers: Ledgers, manifest: Manifest, producers: ProducerState
    ) -> None:
        self.log = log.name
        self.epoch = log.epoch
        """Of the log, which is the leader epoch."""
        self.failed = log.lost
        """Set once nothing can be appended any more: close it, and open it again if need be."""
        self._own = log
        self._writer = log.writer
        self._ledgers = ledgers
        self._loop = asyncio.get_running_loop()
        self._manifest = manifest
        self._begin = self.high_watermark
        """First offset of this epoch."""
        self._producers = producers
        self._unsnapped_bytes = SNAPSHOT_BYTES
        """Of batches since the last snapshot."""
        self._unsnapped_batches = 0
        self._snapshot_bytes = 0
        self._recent = RecentBatches(self._begin)
        self._in_flight: deque[tuple[int, Outcome]] = deque()
        """Batches that are not confirmed, with the offset of each."""
        self._movements = Movements()
        self._reads = ConsumerReads(ledgers, self.log, manifest.incarnation, self.epoch)
        self._watching = self._loop.create_task(self._watch())
        self._closed = False

    @classmethod
    async def open(
        cls, log: str, ledgers: Ledgers, *, owner: str, expected_epoch: int | None = None
    ) -> Self:
        """Take *log* over, which must exist: whoever led or wrote it cannot any more.

        *expected_epoch*: only if that is its epoch still. Raises what `dlog.aio.Log.open` and
        reading raise."""
        own = await open_as_gateway(log, ledgers, owner=owner, expected_epoch=expected_epoch)
        try:
            manifest, _ = await own.writer.node.read()
            recovery = ProducerRecovery(ledgers, log, manifest, now_ms=now_ms())
            producers = await recovery.run()
            return cls(own, ledgers, manifest, producers)
        except BaseException:
            await own.abandon()
            raise

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._manifest.trim_offset

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that is confirmed."""
        return self._writer.last_offset + 1

    # Producing.

    async def produce(self, batch: bytes, *, acks: int) -> Produced:
        """Append *batch*, exactly one; return once it can never be lost, or at once if *acks* is 0.

        Calls in order are appends in order: what is refused, and the offset, is settled before
        this waits. A batch of an idempotent producer that is in the log already is not appended
        again. Raises `KafkaRefusal`."""
        header = check_batch(batch)
        if self._is_over:  # a batch before it may have been refused for that, and is no gap
            raise refusal_of(self._writer.error or LogClosed(self.log))
        appended_ms = now_ms()
        offset = self._writer.next_offset
        sent = producer_batch(header, offset, appended_ms)
        if header.is_idempotent:
            try:
                known = self._producers.duplicate_of(sent, now_ms=appended_ms)
            except KafkaRefusal:
                await self._check_leads()
                raise
            if known is not None:
                return await self._confirmed(known, acks)
        outcome = self._submit(batch, header, appended_ms)
        if header.is_idempotent:
            self._producers.add(sent)
        self._recent.add(header.count, with_place(batch, offset, self.epoch))
        self._in_flight.append((offset, outcome))
        outcome.watch(self._settled)
        if acks == 0:
            return self._produced(offset)
        return await self._outcome_of(outcome)

    async def _check_leads(self) -> None:
        """Raise `KafkaRefusal` if another process may lead by now: what this one knows of producers
        is not what counts then, and an answer on which a producer gives up would be wrong."""
        try:
            await self._look()
        except LogError as error:
            raise refusal_of(error) from error
        if self.failed.is_set():
            raise refusal_of(self._writer.error or LostOwnership(self.log))

    def _submit(self, batch: bytes, header: KafkaBatchHeader, appended_ms: int) -> Outcome:
        snapshot = b""
        least = max(SNAPSHOT_BYTES, 16 * self._snapshot_bytes)
        if self._unsnapped_bytes >= least or self._unsnapped_batches >= SNAPSHOT_BATCHES:
            snapshot = self._producers.encode(now_ms=appended_ms)
        try:
            payload = encode_kafka(batch, header, appended_ms=appended_ms, producers=snapshot)
            outcome = self._writer.submit_kafka(payload)
        except LogError as error:
            raise refusal_of(error) from error
        if snapshot:
            self._unsnapped_bytes = self._unsnapped_batches = 0
            self._snapshot_bytes = len(snapshot)
        self._unsnapped_bytes += len(batch)
        self._unsnapped_batches += 1
        return outcome

    async def _confirmed(self, offset: int, acks: int) -> Produced:
        """Return once the batch at *offset*, which is in the log or in flight, is confirmed."""
        if acks != 0:
            for begin, outcome in self._in_flight:
                if begin == offset:
                    return await self._outcome_of(outcome)
        return self._produced(offset)

    async def _outcome_of(self, outcome: Outcome) -> Produced:
        try:
            record_id = await AppendFuture(outcome, 0, self._loop)
        except LogError as error:
            raise refusal_of(error) from error
        return self._produced(record_id.offset)

    def _produced(self, offset: int) -> Produced:
        return Produced(offset, _UNKNOWN, self.start_offset)

    def _settled(self) -> None:
        while self._in_flight and self._in_flight[0][1].place is not None:
            self._in_flight.popleft()
        self._move()

    def _move(self) -> None:
        self._movements.move(self.high_watermark, over=self._is_over)

    @property
    def _is_over(self) -> bool:
        return self.failed.is_set() or self._closed

    # Fetching.

    def movement(self, after: int) -> asyncio.Future[None]:
        """Return a future that is done once the high watermark is above *after*, or the partition
        failed or was closed. Whoever does not wait for it any more cancels it."""
        return self._movements.wait(after, self.high_watermark, over=self._is_over)

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        """Return whole batches from the one with *offset* on, confirmed ones; about *bytes_max*,
        but one at least. Empty at the end of the log, or if bookies do not answer in time.

        Raises `KafkaRefusal`: OFFSET_OUT_OF_RANGE outside of what the log has."""
        end = self.high_watermark
        if offset > end:  # a consumer may have it from the leader that took the log since
            await self._check_leads()
        check_offset(self.log, offset, self.start_offset, end)
        batches = self._recent.read(offset, end, bytes_max) if offset < end else []
        if batches is None:
            batches = await self._reads.fetch(offset, end, bytes_max, begin=self._recent.begin)
        return batches[0] if len(batches) == 1 else b"".join(batches)

    # Places.

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offset and time of the first record of *timestamp_ms* or later, None: there is
        none. Raises `KafkaRefusal`."""
        return await self._reads.offset_for_time(timestamp_ms, self.high_watermark)

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return an epoch, and the offset at which it ended: of *epoch*, or -1 twice if there was
        none yet. Nothing that a consumer ever got is cut off, so of all epochs before this one the
        end of the last is returned. Raises `KafkaRefusal` if another gateway leads by now: a client
        that hears of an earlier end goes back to it."""
        if 0 <= epoch < self.epoch:
            return epoch, self._begin
        await self._check_leads()
        return (epoch, self.high_watermark) if epoch == self.epoch else (_UNKNOWN, _UNKNOWN)

    async def delete_records(self, before: int) -> int:
        """Remove the records below *before*, -1: all; return the first offset that is left.

        Raises `KafkaRefusal`."""
        target = self.high_watermark if before == _UNKNOWN else before
        if not 0 <= target <= self.high_watermark:
            raise KafkaRefusal(
                ErrorCode.offset_out_of_range,
                f"log {self.log!r} ends at {self.high_watermark}: {before} is beyond it",
            )
        try:
            await self._writer.truncate(target)
            await self._look()
        except LogError as error:
            raise refusal_of(error) from error
        return self.start_offset

    async def close(self) -> None:
        """Confirm what is pending as far as that is possible, and let the log go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._reads.close()
        self._move()
        with suppress(LogError):
            await self._own.close()
        self._recent.clear()

    # What others do to the log.

    async def _watch(self) -> None:
        """Keep the manifest; another epoch in it means that another process leads."""
        losing = self._loop.create_task(self.failed.wait())
        losing.add_done_callback(lambda _: self._move())
        try:
            while not self.failed.is_set():
                watch = self._writer.node.watch()
                try:
                    await self._look()
                    await watch.changed()
                except NoSuchLog:
                    self.failed.set()
                except LogError as error:
                    _log.warning("watch_interrupted", log=self.log, error=str(error))
                    await asyncio.sleep(WATCH_RETRY_S)
                finally:
                    watch.close()
        finally:
            losing.cancel()

    async def _look(self) -> None:
        manifest, _ = await self._writer.node.read()
        if manifest.dropped or manifest.incarnation != self._manifest.incarnation:
            self.failed.set()
        else:
            self._manifest = manifest
            if manifest.epoch != self.epoch:
                self.failed.set()
