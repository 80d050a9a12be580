"""The reader of a log: an async iterator of records that reads ahead and heals itself.

A task of its own reads chunks ahead, up to a bounded number of bytes, so cancelling a read of
the application disturbs nothing: the next read goes on with the very next record.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from dlog import metrics
from dlog.aio.port import Ledgers
from dlog.aio.read.chunks import ChunkReader
from dlog.aio.read.tails import BARRIER_S, acknowledged_end
from dlog.aio.store import ManifestNode
from dlog.chunk import Chunk
from dlog.errors import LogClosed
from dlog.position import Position, Record
from ledger.errors import LogError
from ledger.log_events import now_ms
from ledger.values import Duration, duration_or_none, duration_s

READ_AHEAD_BYTES: Final = 8 * 1024 * 1024


class Reader:
    """Made by `Log.tail`. Used by one task at a time; an async context manager.

    After an error (`Trimmed`, `NoSuchLog`, ...) each further read raises it again."""

    def __init__(  # noqa: PLR0913 - two are for the gateway and for many logs
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        start: int,
        *,
        stop: int | None = None,
        incarnation: str | None = None,
        patience_s: float | None = None,
        owns_ledgers: bool = False,
        read_ahead_bytes: int | None = None,
        news: asyncio.Event | None = None,
        as_stored: bool = False,
    ) -> None:
        """*incarnation*: the only one to be read; None: the one that is there.

        *read_ahead_bytes*: how much to hold beyond what was read, apart from one entry.

        *news* is set whenever `is_ready` may have become true. *as_stored*: see `ChunkReader`."""
        self.log = node.log
        self._node = node
        self._ledgers = ledgers
        self._owns_ledgers = owns_ledgers
        self._ahead_bytes_max = READ_AHEAD_BYTES if read_ahead_bytes is None else read_ahead_bytes
        self._source = ChunkReader(
            ledgers,
            node,
            start,
            stop=stop,
            incarnation=incarnation,
            patience_s=patience_s,
            read_bytes_max=self._ahead_bytes_max,
            as_stored=as_stored,
        )
        self._position = start
        self._chunks: deque[Chunk] = deque()
        self._ahead_bytes = 0
        self._records: Iterator[Record] | None = None
        """Of `_chunk`, from `position` on; None: nobody has asked for one by one yet."""
        self._chunk: Chunk | None = None
        """What is read next, from `position` on."""
        self._finished = False
        self._error: LogError | None = None
        self._news = news or asyncio.Event()
        self._ready = asyncio.Event()
        """Set while there is a chunk, or no more will come."""
        self._room = asyncio.Event()
        """Set while the task may read on."""
        self._room.set()
        self._reading = asyncio.get_running_loop().create_task(self._read_ahead())
        self._closing: asyncio.Task[None] | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._given_ms: int | None = None
        """When the batch was begun that was given out last."""
        metrics.READERS.add(self)

    @property
    def incarnation(self) -> str | None:
        """Which life of the log is read; None before anything was looked at."""
        return self._source.incarnation

    @property
    def position(self) -> Position:
        """Offset of the record that is read next, and of which incarnation of the log."""
        return Position(self._position, self.incarnation)

    @property
    def at_end(self) -> bool:
        """True iff the stop was reached and every record before it was read."""
        read = self._chunk is None or self._position == self._chunk.end
        return self._finished and not self._chunks and read

    @property
    def error(self) -> LogError | None:
        """What ended the reading; raised once the records before it were read."""
        return self._error

    @property
    def is_ready(self) -> bool:
        """True iff a read returns at once: records, the end, or an error."""
        chunk = self._chunk
        return self._ready.is_set() or (chunk is not None and self._position < chunk.end)

    def lag_s(self) -> float:
        """Return how long ago the batch was begun that is given out next, or if that is not here
        yet, the last one; 0 if all that is confirmed was given out. From any thread."""
        try:
            since_ms: int | None = self._chunks[0].batch.header.base_timestamp_ms
        except IndexError:
            since_ms = None if self._source.at_tail or self._finished else self._given_ms
        return 0.0 if since_ms is None else max(0.0, (now_ms() - since_ms) / 1000)

    def limit_ahead(self, size_bytes: int) -> None:
        """Hold no more than that beyond what was read from now on, apart from one entry."""
        self._ahead_bytes_max = self._source.read_bytes_max = size_bytes
        if self._ahead_bytes < size_bytes:
            self._room.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while True:
            if self._records is None and self._chunk is not None:
                self._records = self._chunk.records()
            for record in self._records or ():
                self._position = record.offset + 1
                return record
            if not await self._next_chunk():
                raise StopAsyncIteration

    async def read_batch(self, *, timeout_s: Duration | None = None) -> Sequence[Record]:
        """Return the records that are next in line, some hundreds or thousands.

        Each is made when it is asked for: who needs one several times keeps it.

        Waits for the first up to *timeout_s* (None: for ever). Empty if none came in time, or
        if the stop was reached: `at_end` says which. Raises `InvalidValue` for a time that is
        none."""
        return await self.read_chunk(timeout_s=timeout_s) or ()

    async def read_chunk(self, *, timeout_s: Duration | None = None) -> Chunk | None:
        """As `read_batch`, with None for nothing: a `Chunk` has the records as columns, too."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        try:
            async with asyncio.timeout(wait_s):
                return await self._take()
        except TimeoutError:
            return None

    async def read_batches(self) -> AsyncIterator[Chunk]:
        """Yield what follows as chunks, without making an object per record.

        Records, batches and chunks may be read in turn: each goes on where the other stopped."""
        while (chunk := await self._take()) is not None:
            yield chunk

    async def barrier(self, *, timeout_s: Duration = BARRIER_S) -> int:
        """Return the offset after every record that was acknowledged before this call.

        All records below it are committed: `read_until` it to have read everything that
        was acknowledged to anybody by now; this reader can, even if the writer dies then. Reads
        nothing itself, and never disturbs the writer.
        `dlog.aio.read.tails` says how. Raises `BarrierNotReached` if the writer does not say
        within *timeout_s* whether its last records are committed; it may be dead. Also raises
        `LogClosed`, `NoSuchLog`, and what bookies and metadata store raise."""
        if self._closing is not None:
            raise LogClosed(self.log)
        return await acknowledged_end(
            self._ledgers,
            self._node,
            timeout_s=duration_s(timeout_s, "timeout_s"),
            incarnation=self._source.incarnation,
            learned=self._source.learn_confirmed,
        )

    async def read_until(self, offset: int) -> AsyncIterator[Record]:
        """Yield the records from here up to, not with, *offset*; wait for them if need be.

        The reader then stands at *offset* and goes on as before. Ends earlier at the stop."""
        while self._position < offset:
            try:
                record = await anext(self)
            except StopAsyncIteration:
                return
            yield record

    async def close(self) -> None:
        """Stop reading ahead and free what was opened. Idempotent."""
        if self._closing is None:
            self._error = self._error or LogClosed(self.log)
            self._chunks.clear()
            self._records = self._chunk = None
            self._wake()
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _take(self) -> Chunk | None:
        """Return what is left of the present chunk, or else the next one; None at the stop."""
        chunk = self._chunk
        if chunk is None or chunk.end == self._position:
            if not await self._next_chunk():
                return None
            chunk = self._chunk
            assert chunk is not None
        chunk = chunk.since(self._position)
        self._records = self._chunk = None
        self._position = chunk.end
        return chunk

    async def _next_chunk(self) -> bool:
        """Begin the next chunk; return False at the stop. Waits; takes nothing if cancelled."""
        await self._ready.wait()
        if not self._chunks:
            if self._error is not None:
                raise self._error
            if not self._finished:
                self._reading.result()  # raises what should not have happened
            self._chunk = None
            return False
        chunk = self._chunks.popleft()
        self._ahead_bytes -= _size(chunk)
        if self._ahead_bytes < self._ahead_bytes_max:
            self._room.set()
        if not self._chunks and not self._finished and self._error is None:
            self._ready.clear()
        self._chunk = chunk
        self._position = chunk.begin
        self._given_ms = chunk.batch.header.base_timestamp_ms
        metrics.READ_RECORDS.add(by=chunk.take)
        metrics.READ_BYTES.add(by=_size(chunk))
        self._records = None
        return True

    async def _read_ahead(self) -> None:
        try:
            await self._fill()
            self._finished = True
        except LogError as error:
            self._error = error
        finally:
            self._wake()
        await self._release()  # so that who reads to the end need not close

    async def _fill(self) -> None:
        while chunks := await self._source.read():
            for chunk in chunks:
                self._chunks.append(chunk)
                self._ahead_bytes += _size(chunk)
            self._wake()
            if self._ahead_bytes >= self._ahead_bytes_max:
                self._room.clear()
                await self._room.wait()

    def _wake(self) -> None:
        self._ready.set()
        self._news.set()

    async def _close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._release()

    async def _release(self) -> None:
        """Free what was opened, once, also if who asked for it is cancelled."""
        if self._releasing is None:
            self._releasing = asyncio.get_running_loop().create_task(self._free())
        await asyncio.shield(self._releasing)

    async def _free(self) -> None:
        metrics.READERS.remove(self)
        await self._source.close()
        if self._owns_ledgers:
            await self._ledgers.close()


def _size(chunk: Chunk) -> int:
    return chunk.batch.header.body_bytes
