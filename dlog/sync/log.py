"""The face of the log layer for threads: the names of `dlog.aio`, calls that block.

    with Log.open("flights") as log:
        log.append(b"...")

    for record in Log.tail("flights", follow=False):
        ...

A thin facade: everything happens in `dlog.aio` on one private event-loop thread; appends go
there by `dlog.sync.append_queue`. A handle may be used by several threads, but not across a fork
(`UsedAfterFork`).
"""

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self

from dlog import aio
from dlog.aio.maintain.trim import Before
from dlog.aio.port import Leadership
from dlog.aio.read.consumer import OnTrimmed
from dlog.aio.read.handles import LAST_BYTES_MAX
from dlog.aio.read.tails import BARRIER_S
from dlog.aio.write.writer import LogWriter
from dlog.columns import Row, checked, checked_many, size_of, total_bytes
from dlog.errors import LogClosed, UsedAfterFork
from dlog.headers import HeadersGiven, Payload
from dlog.position import BeyondEnd, Record, RecordId, RecordIds, Start, Stop
from dlog.protocol.log_writer import CLOSE_S, REOPEN_TIMEOUT_S
from dlog.protocol.pending_batch import RECORD_CHARGE
from dlog.settings import LogSettings
from dlog.sync.append_queue import AppendFuture, AppendQueue, ManyFuture, ManyRecords
from dlog.sync.loop_thread import BlockingHandle, LoopThread, forks
from dlog.sync.reader import Consumer, ManyReader, Reader
from ledger.errors import LogError
from ledger.values import Duration, Size, duration_or_none


class Log(BlockingHandle[aio.Log]):
    """A log that this process writes. Made by `Log.open`; a context manager."""

    def __init__(self, log: aio.Log, writer: LogWriter, thread: LoopThread) -> None:
        super().__init__(log, thread, log.name)
        self._queue = AppendQueue(writer, thread)
        thread.unclosed[self._queue] = None

    @classmethod
    def open(  # noqa: PLR0913 - one is deprecated
        cls,
        name: str,
        *,
        uri: str | None = None,
        term: Leadership | None = None,
        create: bool = True,
        settings: LogSettings | Mapping[str, object] | None = None,
        expected_epoch: int | None = None,
        owner: str | None = None,
        take_over: bool = False,
        reopen_timeout_s: Duration = REOPEN_TIMEOUT_S,
        heal_s: Duration | None = None,
    ) -> Self:
        """See `dlog.aio.Log.open`."""
        thread = LoopThread.get()
        view = None if term is None else _LocalView(term)
        opening = aio.Log.open(
            name,
            uri=uri,
            term=view,
            create=create,
            settings=settings,
            expected_epoch=expected_epoch,
            owner=owner,
            take_over=take_over,
            reopen_timeout_s=reopen_timeout_s,
            heal_s=heal_s,
        )
        log = thread.run(opening)
        return cls(log, log.writer, thread)

    @staticmethod
    def tail(
        name: str,
        *,
        uri: str | None = None,
        start: Start = "start",
        follow: bool = True,
        stop: Stop | None = None,
        beyond_end: BeyondEnd = "raise",
    ) -> Reader:
        """See `dlog.aio.Log.tail`. The reader is an iterator of records; close it."""
        thread = LoopThread.get()
        opening = aio.Log.tail(
            name, uri=uri, start=start, follow=follow, stop=stop, beyond_end=beyond_end
        )
        reader = thread.run(opening)
        return Reader(reader, thread)

    @staticmethod
    def tail_many(
        names: Iterable[str],
        *,
        uri: str | None = None,
        start: Start | Mapping[str, Start] = "start",
        follow: bool = True,
        beyond_end: BeyondEnd = "raise",
    ) -> ManyReader:
        """See `dlog.aio.Log.tail_many`. An iterator of (log, record); close it."""
        thread = LoopThread.get()
        opening = aio.Log.tail_many(
            names, uri=uri, start=start, follow=follow, beyond_end=beyond_end
        )
        many = thread.run(opening)
        return ManyReader(many, thread)

    @staticmethod
    def consumer(
        name: str,
        log: str,
        *,
        uri: str | None = None,
        start: Start = "start",
        exclusive: bool = False,
        wait_s: Duration = 0.0,
        follow: bool = True,
        on_trimmed: OnTrimmed = "raise",
    ) -> Consumer:
        """See `dlog.aio.Log.consumer`. The consumer is an iterator of records; close it."""
        thread = LoopThread.get()
        opening = aio.Log.consumer(
            name,
            log,
            uri=uri,
            start=start,
            exclusive=exclusive,
            wait_s=wait_s,
            follow=follow,
            on_trimmed=on_trimmed,
        )
        return Consumer(thread.run(opening), thread)

    @staticmethod
    def last(
        name: str, count: int = 1, *, uri: str | None = None, bytes_max: Size = LAST_BYTES_MAX
    ) -> list[Record]:
        """See `dlog.aio.Log.last`."""
        return LoopThread.get().run(aio.Log.last(name, count, uri=uri, bytes_max=bytes_max))

    @staticmethod
    def end_of(name: str, *, uri: str | None = None, timeout_s: Duration = BARRIER_S) -> int:
        """See `dlog.aio.Log.end_of`."""
        return LoopThread.get().run(aio.Log.end_of(name, uri=uri, timeout_s=timeout_s))

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def epoch(self) -> int:
        """Grows with each takeover of this log; usable as a fencing token."""
        return self._inner.epoch

    @property
    def settings(self) -> LogSettings:
        return self._inner.settings

    @property
    def last_offset(self) -> int:
        """Offset of the last confirmed record; -1 if the log never had one."""
        return self._inner.last_offset

    @property
    def last_txid(self) -> int | None:
        """Txid of the last confirmed record that has one: where an application resumes."""
        return self._inner.last_txid

    @property
    def is_lost(self) -> bool:
        """True iff the log was lost to another writer, or this writer failed."""
        return self._inner.lost.is_set()

    def append(
        self,
        payload: Payload,
        *,
        key: Payload | None = None,
        txid: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersGiven | None = None,
        expected_offset: int | None = None,
    ) -> RecordId:
        """Append one record and wait until it can never be lost."""
        self._check_caller()
        return self.append_async(
            payload,
            key=key,
            txid=txid,
            timestamp_ms=timestamp_ms,
            headers=headers,
            expected_offset=expected_offset,
        ).result()

    def append_async(
        self,
        payload: Payload,
        *,
        key: Payload | None = None,
        txid: int | None = None,
        timestamp_ms: int | None = None,
        headers: HeadersGiven | None = None,
        expected_offset: int | None = None,
    ) -> Future[RecordId]:
        """Append one record; return a future that resolves as `dlog.aio.Log.append_async`'s.

        Blocks while very much is pending, instead of raising `TooManyPending`; but in a future's
        callback, which runs on the loop that makes room, it raises that."""
        record: bytes | Row
        if (
            type(payload) is bytes
            and key is None
            and txid is None
            and timestamp_ms is None
            and headers is None
        ):
            record, size = payload, len(payload)
        else:
            record = checked(payload, key, txid, timestamp_ms, headers)
            size = size_of(record)
        if self._thread.generation != forks.generation:  # as `_check_process`, without its calls
            raise UsedAfterFork(self.name)
        future = self._queue.put(record, size, expected_offset)
        return AppendFuture.refused(LogClosed(self.name)) if future is None else future

    def append_many(
        self,
        payloads: Iterable[Payload],
        *,
        keys: Iterable[Payload | None] | None = None,
        txids: Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[HeadersGiven | None] | None = None,
        expected_offset: int | None = None,
    ) -> RecordIds:
        """See `dlog.aio.Log.append_many`."""
        self._check_caller()
        return self.append_many_async(
            payloads,
            keys=keys,
            txids=txids,
            timestamps_ms=timestamps_ms,
            headers=headers,
            expected_offset=expected_offset,
        ).result()

    def append_many_async(
        self,
        payloads: Iterable[Payload],
        *,
        keys: Iterable[Payload | None] | None = None,
        txids: Iterable[int | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[HeadersGiven | None] | None = None,
        expected_offset: int | None = None,
    ) -> Future[RecordIds]:
        """As `append_many`, but return one future for all. Blocks as `append_async`."""
        records = checked_many(payloads, keys, txids, timestamps_ms, headers)
        self._check_process()
        future = ManyFuture(self._inner.writer.tell)
        charge = total_bytes(records) + RECORD_CHARGE * len(records)
        if not self._queue.put_many(ManyRecords(future, charge, records, expected_offset)):
            future.set_exception(LogClosed(self.name))
        return future

    def flush(self) -> None:
        """Return once every append made before is confirmed; raise if one cannot be."""
        self._check_caller()
        self._queue.settle()
        self._run(self._inner.flush())

    def roll(self) -> None:
        """Begin a new segment, unless the present one is empty."""
        self._check_caller()
        self._queue.settle()
        self._run(self._inner.roll())

    def truncate(
        self,
        *,
        before: Before | None = None,
        keep_bytes: Size | None = None,
        keep_age_s: Duration | None = None,
    ) -> None:
        """Remove the oldest records; see `dlog.aio.Log.truncate`."""
        self._check_caller()
        self._queue.settle()
        self._run(self._inner.truncate(before=before, keep_bytes=keep_bytes, keep_age_s=keep_age_s))

    def seal(self) -> None:
        """End the log for good, and close it; see `dlog.aio.Log.seal`."""
        if self._begin_to_close():
            self._queue.settle()
            self._run(self._inner.seal())

    def close(self, *, timeout_s: Duration | None = CLOSE_S) -> None:
        """See `dlog.aio.Log.close`."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        if self._begin_to_close():
            self._run(self._close(wait_s))

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._inner.writer.told:  # nothing is pending any more
            with suppress(LogError):
                self.close()
        else:
            super().__exit__(exc_type, exc, traceback)

    def _begin_to_close(self) -> bool:
        """Refuse further appends; return False if it is closed."""
        self._check_caller()
        self._thread.unclosed.pop(self._queue, None)
        return self._queue.close()

    async def _close(self, timeout_s: float | None) -> None:
        """Hand over what is queued, as fast as there is room, then close."""
        began = self._thread.loop.time()
        try:
            await self._queue.hand_over(timeout_s)
            if timeout_s is not None:
                timeout_s = max(0.0, timeout_s - (self._thread.loop.time() - began))
            await self._inner.close(timeout_s=timeout_s)
        except asyncio.CancelledError:  # the calling thread was interrupted, and will not come back
            await self._inner.abandon()
            raise
        finally:
            self._queue.give_up()


class _LocalView:
    """A term as another thread may use it: asked locally, never on its own event loop."""

    def __init__(self, term: Leadership) -> None:
        self._term = term

    def is_current(self) -> bool:
        return self._term.is_current()

    async def verify(self) -> bool:
        return self._term.is_current()
