"""Reads of one log by consumers of Kafka, from bookies: whole batches, one fetch after the other.

A consumer asks for what follows its last batch, so a reader that has answered it is kept under the
offset that comes next, as long as somebody asks for it soon.
"""

import asyncio
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import read_range
from dlog.aio.read.places import start_offset
from dlog.aio.read.reader import Reader
from dlog.aio.store import ManifestNode
from dlog.chunk import Chunk
from dlog.errors import DamagedLog
from dlog.kafka.errors import KafkaRefusal, refusal_of
from dlog.kafka.recent_batches import EncodedEntries
from dlog.kafka_batch import KafkaRecords, with_place
from dlog.position import Timestamp
from dlog.recordbatch import KafkaRecordBatch, RecordBatch
from ledger.errors import LogError
from ledger.log_events import get_logger

CATCH_UPS_MAX: Final = 8
"""Consumers of one log that read old records at once and find their place again."""
CATCH_UP_BYTES: Final = 2 * 1024 * 1024
"""How much is read ahead for each of them."""
CATCH_UP_IDLE_S: Final = 30.0
CATCH_UP_S: Final = 5.0
"""How long a fetch waits for bookies; it returns nothing then, and is asked again."""

_native: Final = EncodedEntries()
_log = get_logger(__name__)


def check_offset(log: str, offset: int, start: int, end: int) -> None:
    """Raise `KafkaRefusal`, OFFSET_OUT_OF_RANGE, if *log*, from *start* to *end*, has no *offset*
    and does not end there."""
    if not start <= offset <= end:
        raise KafkaRefusal(
            ErrorCode.offset_out_of_range,
            f"log {log!r} has the offsets {start} to {end}, not {offset}",
        )


class Movements:
    """Callers that wait until the high watermark of one log is above an offset."""

    def __init__(self) -> None:
        self._waiting: set[tuple[int, asyncio.Future[None]]] = set()

    def wait(self, after: int, high_watermark: int, *, over: bool) -> asyncio.Future[None]:
        """Return a future that is done once the high watermark is above *after*, or nothing will
        move any more. The caller cancels it when it no longer waits."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if over or high_watermark > after:
            future.set_result(None)
        else:
            waiting = (after, future)
            self._waiting.add(waiting)
            future.add_done_callback(lambda _: self._waiting.discard(waiting))
        return future

    def move(self, high_watermark: int, *, over: bool) -> None:
        for after, future in tuple(self._waiting):
            if (over or high_watermark > after) and not future.done():
                future.set_result(None)


class ConsumerReads:
    """Of one life of a log; `close` ends it."""

    def __init__(self, ledgers: Ledgers, log: str, incarnation: str, epoch: int) -> None:
        """*epoch*: the newest that batches may carry."""
        self._ledgers, self._log, self._incarnation = ledgers, log, incarnation
        self._epoch = epoch
        self._catch_ups: dict[int, _CatchUp] = {}
        """By the offset that is read next, the one used last at the end."""
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def fetch(
        self, offset: int, end: int, bytes_max: int, *, begin: int | None = None
    ) -> list[bytes]:
        """Return whole batches from the one with *offset* on, below *end*; about *bytes_max*, but
        one at least. None of them if bookies do not answer in time.

        *begin*: from here on the caller needs no reader. Raises `KafkaRefusal`."""
        catch_up = self._catch_ups.pop(offset, None)
        if catch_up is None:
            catch_up = _CatchUp(self._reader(offset, end), offset, self._epoch)
        try:
            batches = await catch_up.read(bytes_max)
        except LogError as error:
            await catch_up.close()
            raise refusal_of(error) from error
        except BaseException:
            await catch_up.close()
            raise
        is_served = begin is not None and catch_up.position >= begin
        if catch_up.at_end or is_served or self._closed:
            await catch_up.close()
        else:
            await self._keep(catch_up)
        return batches

    async def offset_for_time(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """Return offset and time of the first record below *end* of *timestamp_ms* or later, None:
        there is none. If records are not what their batch says, the batch's first offset.

        Raises `KafkaRefusal`."""
        try:
            begin = await start_offset(self._ledgers, self._node(), Timestamp(timestamp_ms))
        except LogError as error:
            raise refusal_of(error) from error
        if begin >= end:
            return None
        incarnation = self._incarnation
        try:
            async for chunk in read_range(
                self._ledgers, self._log, begin, end, incarnation=incarnation
            ):
                times = chunk.batch.timestamps_ms()
                for slot in range(chunk.skip, chunk.skip + chunk.take):
                    if times[slot] >= timestamp_ms:
                        return chunk.place.first_offset + slot, times[slot]
                break  # one batch has it, or lies
        except DamagedLog as error:
            _log.warning("kafka_batch_damaged", log=self._log, error=str(error))
        except LogError as error:
            raise refusal_of(error) from error
        return begin, timestamp_ms

    async def close(self) -> None:
        """Idempotent."""
        self._closed = True
        while self._catch_ups:
            await self._catch_ups.popitem()[1].close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _keep(self, catch_up: "_CatchUp") -> None:
        position = catch_up.position
        replaced = self._catch_ups.pop(position, None)
        self._catch_ups[position] = catch_up
        if replaced is None and len(self._catch_ups) > CATCH_UPS_MAX:
            replaced = self._catch_ups.pop(next(iter(self._catch_ups)))
        loop = asyncio.get_running_loop()
        loop.call_later(CATCH_UP_IDLE_S, self._drop_idle, position, catch_up)
        if replaced is not None:
            await replaced.close()

    def _drop_idle(self, position: int, catch_up: "_CatchUp") -> None:
        if self._catch_ups.get(position) is catch_up:
            del self._catch_ups[position]
            closing = asyncio.get_running_loop().create_task(catch_up.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _reader(self, offset: int, end: int) -> Reader:
        return Reader(
            self._ledgers,
            self._node(),
            offset,
            stop=end,
            incarnation=self._incarnation,
            read_ahead_bytes=CATCH_UP_BYTES,
            as_stored=True,
        )

    def _node(self) -> ManifestNode:
        node = ManifestNode(self._ledgers.store, self._log)
        node.follow(self._incarnation)
        return node


class _CatchUp:
    """Reads old records for a consumer that asks for them one fetch after the other."""

    def __init__(self, reader: Reader, offset: int, epoch: int) -> None:
        self._reader = reader
        self._epoch = epoch
        self._left: bytes | None = None
        """A batch that was read and not returned."""
        self._left_end = 0
        self.position = offset
        """Offset after what was returned last."""

    @property
    def at_end(self) -> bool:
        return self._left is None and self._reader.at_end

    async def read(self, bytes_max: int) -> list[bytes]:
        """Return the next batches; none if bookies do not answer in time."""
        batches: list[bytes] = []
        size = 0
        while True:
            if self._left is None:
                wait_s = CATCH_UP_S if not batches else 0.0
                if batches and not self._reader.is_ready:
                    break
                chunk = await self._reader.read_chunk(timeout_s=wait_s)
                if chunk is None:
                    break
                self._left, self._left_end = (
                    _stored(chunk, self._epoch, self._reader.incarnation or ""),
                    chunk.end,
                )
            size += len(self._left)
            if batches and size > bytes_max:
                break
            batches.append(self._left)
            self.position, self._left = self._left_end, None
        return batches

    async def close(self) -> None:
        await self._reader.close()


def _stored(chunk: Chunk, epoch: int, incarnation: str) -> bytes:
    """Return the whole batch that *chunk* is of, for consumers of Kafka."""
    batch, place = chunk.batch, chunk.place
    if isinstance(batch, KafkaRecordBatch):
        encoded: bytes | memoryview = batch.kafka
    else:
        encode = partial(_encoded, batch)
        encoded = _native.get(incarnation, place.segment, place.entry, encode)
    return with_place(encoded, place.first_offset, min(epoch, place.segment))


def _encoded(batch: RecordBatch) -> bytes:
    records = KafkaRecords(
        values=batch.value_list(),
        keys=batch.key_list(),
        timestamps_ms=batch.timestamps_ms(),
        headers=batch.headers_list(),
    )
    return records.encode()
