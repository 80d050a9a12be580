"""A partition that keeps its batches in memory, so that a test of the gateway needs no log."""

import asyncio
import struct
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from dlog.kafka.errors import KafkaRefusal

_COUNT_AT: Final = 57
_MAGIC_AT: Final = 16


@dataclass(frozen=True)
class Appended:
    base_offset: int
    log_start_offset: int


class MemoryPartition:
    """A `dlog.kafka.led_logs.LedPartition`; *batches* outlive it, as a log its leaders."""

    def __init__(self, log: str, batches: list[tuple[int, bytes]], epoch: int = 1) -> None:
        self.log, self.batches, self.epoch = log, batches, epoch
        self.failed = asyncio.Event()
        self.start_offset = 0
        self.closed = False
        self._moved: set[asyncio.Future[None]] = set()

    @property
    def high_watermark(self) -> int:
        return self._end()

    def _end(self) -> int:
        return self.batches[-1][0] + _count(self.batches[-1][1]) if self.batches else 0

    async def produce(self, batches: bytes, *, acks: int) -> Appended:
        if len(batches) <= _COUNT_AT or batches[_MAGIC_AT] != 2:
            raise KafkaRefusal(ErrorCode.corrupt_message, "that is no batch")
        base = self._end()
        self.batches.append((base, struct.pack(">q", base) + batches[8:]))
        self._wake()
        return Appended(base, self.start_offset)

    async def fetch(self, offset: int, bytes_max: int) -> bytes:
        if not self.start_offset <= offset <= self.high_watermark:
            raise KafkaRefusal(ErrorCode.offset_out_of_range, f"offset {offset}")
        found = b""
        for base, batch in self.batches:
            if base + _count(batch) <= offset:
                continue
            if found and len(found) + len(batch) > bytes_max:
                break
            found += batch
        return found

    def movement(self, after: int) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.high_watermark > after or self.failed.is_set():
            future.set_result(None)
            return future
        self._moved.add(future)
        future.add_done_callback(self._moved.discard)
        return future

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        for base, batch in self.batches:
            last = struct.unpack_from(">q", batch, 35)[0]
            if last >= timestamp_ms:
                return base, last
        return None

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epoch, self.high_watermark

    async def delete_records(self, before: int) -> int:
        self.start_offset = before
        return before

    async def close(self) -> None:
        self.closed = True
        self.fail()

    def fail(self) -> None:
        self.failed.set()
        self._wake()

    def _wake(self) -> None:
        for future in tuple(self._moved):
            if not future.done():
                future.set_result(None)


def _count(batch: bytes) -> int:
    return int(struct.unpack_from(">i", batch, _COUNT_AT)[0])
