"""How Spark's processes reach the cluster: blocking calls onto the process's own event loop.

An `Access` is made where it is used and nowhere earlier: Spark pickles readers and forks its
workers, and neither connections nor threads survive that. On executors one is kept per
namespace and process, because a worker serves many tasks.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from dlog.aio.connecting import connect
from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import Chunk
from dlog.aio.read.ranges import read_range
from dlog.aio.read.tails import LogTail as CommittedTail
from dlog.aio.read.tails import TailTracker
from dlog.errors import DamagedLog
from dlog.spark.arrow import to_arrow
from dlog.spark.plan import LogRange, LogTail
from dlog.sync.loop_thread import LoopThread

T = TypeVar("T")

CHUNKS_AHEAD_MAX: Final = 16
"""Chunks read before Spark asks for them; a chunk is one entry, 512 KiB at most."""
POLLS_AT_ONCE_MAX: Final = 32
POLL_OF_MANY_S: Final = 0.05
"""With several logs the news of one must not wait for the silence of the others."""


class Access:
    """Blocking access to one namespace; connects at the first call. Used by one thread."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._thread = LoopThread.get()
        self._ledgers: Ledgers | None = None
        self._trackers: dict[str, TailTracker] = {}

    def tails(
        self, logs: Sequence[str], *, after: Mapping[str, int], wait_s: float
    ) -> dict[str, LogTail]:
        """Return the tail of each of *logs*; wait up to *wait_s* for one beyond *after*."""
        return self._thread.run(self._tails(logs, after, wait_s))

    def read(self, piece: LogRange, *, include_headers: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield exactly the records of *piece*, in order, or raise."""
        chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(CHUNKS_AHEAD_MAX)
        reading = asyncio.run_coroutine_threadsafe(
            self._read_into(chunks, piece), self._thread.loop
        )
        expected = piece.first
        try:
            while (chunk := self._thread.run(chunks.get())) is not None:
                if chunk.begin != expected:
                    reason = f"offset {chunk.begin} came where {expected} should be"
                    raise DamagedLog(piece.log, reason)
                expected = chunk.end
                yield _rows(piece.log, chunk, include_headers=include_headers)
            reading.result()
        finally:
            reading.cancel()
        if expected != piece.end:
            raise DamagedLog(piece.log, f"it was read up to {expected} instead of {piece.end}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* where the connections are."""
        return self._thread.run(work)

    async def connected(self) -> Ledgers:
        """Return the client, for what `run` runs."""
        if self._ledgers is None:
            self._ledgers = await connect(self._uri)
        return self._ledgers

    def close(self) -> None:
        """Close the connections."""
        self._thread.run(self._close())

    async def _connected(self) -> Ledgers:
        if self._ledgers is None:
            self._ledgers = await connect(self._uri)
        return self._ledgers

    async def _tails(
        self, logs: Sequence[str], after: Mapping[str, int], wait_s: float
    ) -> dict[str, LogTail]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        tails = await self._poll(logs, 0.0)
        while not any(tail.next_offset > after.get(log, -1) for log, tail in tails.items()):
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            tails = await self._poll(logs, left_s if len(logs) == 1 else POLL_OF_MANY_S)
        return {
            log: LogTail(tail.incarnation, tail.first_offset, tail.next_offset, tail.record_bytes)
            for log, tail in tails.items()
        }

    async def _poll(self, logs: Sequence[str], wait_s: float) -> dict[str, CommittedTail]:
        ledgers = await self.connected()
        at_once = asyncio.Semaphore(POLLS_AT_ONCE_MAX)

        async def poll(log: str) -> CommittedTail:
            if log not in self._trackers:
                self._trackers[log] = TailTracker(ledgers, log)
            async with at_once:
                return await self._trackers[log].poll(wait_s=wait_s)

        # All are waited for, even after an error: a tracker serves one poll at a time.
        polled = await asyncio.gather(*map(poll, logs), return_exceptions=True)
        tails: dict[str, CommittedTail] = {}
        for log, tail in zip(logs, polled, strict=True):
            if isinstance(tail, BaseException):
                raise tail
            tails[log] = tail
        return tails

    async def _read_into(self, chunks: asyncio.Queue[Chunk | None], piece: LogRange) -> None:
        """Put the chunks of *piece* into the queue, and None at the end, even after an error."""
        try:
            ledgers = await self.connected()
            found = cast(
                "AsyncGenerator[Chunk, None]",
                read_range(
                    ledgers, piece.log, piece.first, piece.end, incarnation=piece.incarnation
                ),
            )
            async with aclosing(found):
                async for chunk in found:
                    await chunks.put(chunk)
        except Exception:
            await chunks.put(None)
            raise
        await chunks.put(None)

    async def _close(self) -> None:
        for tracker in self._trackers.values():
            await tracker.close()
        self._trackers.clear()
        if self._ledgers is not None:
            await self._ledgers.close()
            self._ledgers = None


_shared: dict[tuple[str, int], Access] = {}


def shared_access(uri: str) -> Access:
    """Return this process's access to *uri*, made at the first call.

    Keyed by process: what a forked worker inherits is not its own."""
    key = (uri, os.getpid())
    if key not in _shared:
        _shared[key] = Access(uri)
    return _shared[key]


def forget_shared_access(uri: str) -> None:
    """Close this process's access to *uri*, after an error: the next one starts afresh."""
    access = _shared.pop((uri, os.getpid()), None)
    if access is not None:
        access.close()


def _rows(log: str, chunk: Chunk, *, include_headers: bool) -> pa.RecordBatch:
    rows = to_arrow(
        log,
        chunk.batch,
        first_offset=chunk.first_offset,
        segment=chunk.segment,
        entry=chunk.entry,
        include_headers=include_headers,
    )
    return rows.slice(chunk.skip, chunk.take)
