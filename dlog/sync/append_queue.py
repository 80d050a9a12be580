"""Hands the appends of many threads to the loop of the writer, at one wake-up per batch.

A thread puts its record behind those of the others, into the batch that is open, and has its
future; the loop takes the batches as fast as the writer has room. Nothing is lost between the
two: what is in the queue when it ends is refused by the writer, which resolves it.

Invariants:
    appends reach the writer in the order of the calls
    while the queue is not empty the loop was woken, or waits for room
    a thread that is interrupted, wherever, has appended its record whole, or has not

A future of one append is light enough to make one per record. `concurrent.futures.Future` makes a
lock, a condition and two lists for each future, which costs more than appending the record. Here
they are made when a thread really waits for this one record. Until then the future is a batch and
an index in it, which say its entry's outcome and a slot there (`dlog.protocol.pending_batch`).
Everything else is inherited, so `concurrent.futures.wait` and `asyncio.wrap_future` work.

Its twin in `dlog.aio.write.append_future` has the same name, as the two `Log` have: who changes
from one API to the other changes an import. They share no base: what each inherits is its point.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures._base import PENDING
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar, final

from dlog.aio.write.append_future import resolve_many
from dlog.aio.write.writer import LogWriter
from dlog.columns import Row
from dlog.position import RecordId, RecordIds
from dlog.protocol.packer import ENTRY_BYTES_FULL
from dlog.protocol.pending_batch import RECORD_CHARGE, Outcome, PendingBatch
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError, TooManyPending

_LOCK: Final = threading.Lock()
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of appends that wait for the loop, beside those of the batch that is open; beyond that
the calling thread waits."""
_BATCH_CHARGE_MAX: Final = ENTRY_BYTES_FULL
"""What the records of a batch count at most, but for a first one that counts more."""
_Result = TypeVar("_Result")


class _LogOrder(Future[_Result]):
    """Its callbacks run on dlog's own thread, one after the other, in the order of the log."""

    def add_done_callback(self, fn: Callable[[Future[_Result]], object]) -> None:
        """Let *fn* be called with this future once the outcome is known, as soon as those of the
        records before it have been.

        In log order, if the callbacks of all threads are added in that order: hold a lock over
        `append_async` and this. *fn* must be quick, as nothing else goes on meanwhile, and must
        not call this log's blocking methods."""
        super().add_done_callback(partial(_on_own_thread, fn))


def _on_own_thread(call: Callable[[Future[_Result]], object], future: Future[_Result]) -> None:
    """Run *call* now on dlog's own thread, else soon: those before it may be under way there."""
    thread = LoopThread.get()
    if thread.is_current():
        call(future)
    else:
        thread.loop.call_soon_threadsafe(call, future)


class AppendFuture(_LogOrder[RecordId]):
    """An append cannot be taken back, so it cannot be cancelled."""

    __slots__ = ("_batch", "_index")

    _lazy: threading.Condition | None = None

    def __init__(self, batch: PendingBatch, index: int) -> None:
        # Instead of Future.__init__, whose work is done by `_condition`.
        self._batch = batch
        self._index = index

    @classmethod
    def refused(cls, error: LogError) -> Self:
        """Return the future of a record that was never taken."""
        return cls(PendingBatch.refused(error), 0)

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        """Return the condition; from its first use on the inherited code does everything."""
        if self._lazy is None:
            with _LOCK:
                if self._lazy is None:
                    self._state = PENDING
                    self._result: RecordId | None = None
                    self._exception: BaseException | None = None
                    self._waiters = []
                    self._done_callbacks: list[Callable[[Future[RecordId]], object]] = []
                    self._lazy = threading.Condition()
            self._batch.watch_record(self._index, self._finish)
        return self._lazy

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._found() is not None

    def result(self, timeout: float | None = None) -> RecordId:
        found = self._found()
        if found is None:
            super().exception(timeout)  # waits
            found = self._found()
            assert found is not None, "whoever waits is woken by the outcome"
        return found[0].record_id(found[1])

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = self._found()
        if found is None:
            super().exception(timeout)  # waits
            found = self._found()
            assert found is not None, "whoever waits is woken by the outcome"
        return found[0].tell(found[1])

    def wait(self) -> None:
        """Wait until the outcome is known; asks for none of it."""
        if self._found() is None:
            super().exception()

    def _found(self) -> tuple[Outcome, int] | None:
        """Return the outcome and the slot, once the outcome is known."""
        found = self._batch.find(self._index)
        return found if found[0].done else None

    def _finish(self) -> None:
        found = self._found()
        assert found is not None
        outcome, slot = found
        with suppress(InvalidStateError):  # reported twice: see `Outcome`
            error = outcome.error(slot)
            if error is None:
                self.set_result(outcome.record_id(slot))
            else:
                self.set_exception(error)


class ManyFuture(_LogOrder[RecordIds]):
    """The future of an append of many; it says so when the application is given its error."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # an append cannot be taken back
        self._told = told

    def result(self, timeout: float | None = None) -> RecordIds:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if error is None:
            return None
        self._told()
        return error.with_traceback(None)  # as in `Outcome.tell`

    def wait(self) -> None:
        """Wait until the outcome is known; asks for none of it."""
        super().exception()


@final
@dataclass(frozen=True, slots=True)
class ManyRecords:
    """One append of many records."""

    future: ManyFuture
    charge: int
    """Bytes that they count in the queue."""
    records: list[bytes | Row]
    expected_offset: int | None


class AppendQueue:
    def __init__(self, writer: LogWriter, thread: LoopThread) -> None:
        self._writer = writer
        self._thread = thread
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: deque[PendingBatch | ManyRecords] = deque()
        self._open: PendingBatch | None = None
        """The last of the queue, while records may be put into it."""
        self._open_room = 0
        """What records may still count that are put into it."""
        self._queued_bytes = 0
        """Of the queue without the open one."""
        self._draining = False
        """True while the loop was woken, or knows that the queue is not empty."""
        self._newest: AppendFuture | ManyFuture | None = None
        self._closed = False

    def put(
        self, record: bytes | Row, size: int, expected_offset: int | None
    ) -> AppendFuture | None:
        """Hand one record of *size* bytes to the loop, once there is room; return None if the queue
        is closed.

        Raises `TooManyPending` instead of waiting on the loop, which makes the room."""
        with self._lock:
            batch = self._open
            charge = size + RECORD_CHARGE
            if batch is None or charge > self._open_room or expected_offset is not None:
                batch = PendingBatch(expected_offset=expected_offset)
                if not self._enqueue(batch):
                    return None
                self._open = batch
                self._open_room = _BATCH_CHARGE_MAX if expected_offset is None else 0
            self._open_room -= charge
            batch.size_bytes += size
            # This appends it, in one step; whatever else there is to know follows from it.
            batch.records.append(record)
            future = self._newest = AppendFuture(batch, len(batch.records) - 1)
            return future

    def put_many(self, many: ManyRecords) -> bool:
        """As `put`, for one append of many records; return False if the queue is closed."""
        with self._lock:
            if not self._enqueue(many):
                return False
            self._queued_bytes += many.charge
            self._newest = many.future
            return True

    @property
    def name(self) -> str:
        """Of the log."""
        return self._writer.log

    @property
    def pending_records(self) -> int:
        """Appends that are not confirmed, in the queue and in the writer."""
        with self._lock:
            queued = sum(len(queued.records) for queued in self._queue)
        return queued + self._writer.pending_records

    async def drain(self, timeout_s: float) -> None:
        """Confirm all that was put, as far as that is done within *timeout_s*. Raises nothing."""
        with suppress(TimeoutError, LogError):
            async with asyncio.timeout(timeout_s):
                await self.hand_over(None)
                await self._writer.flush()

    def publish(self) -> None:
        """Let readers have at once what is confirmed. On the loop's thread."""
        self._writer.publish()

    def settle(self) -> None:
        """Wait until everything that was put before is resolved."""
        with self._lock:
            newest = self._newest
        if newest is not None:
            newest.wait()

    def close(self) -> bool:
        """Take nothing more; what was taken goes on. Return False if it was closed before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._shut()
            self._room.notify_all()
        return True

    # With the lock.

    def _enqueue(self, queued: PendingBatch | ManyRecords) -> bool:
        self._shut()
        while self._queued_bytes >= QUEUED_BYTES_MAX and not self._closed:
            if self._thread.is_current():
                raise TooManyPending(self._queued_bytes, QUEUED_BYTES_MAX)
            self._room.wait()
            self._shut()  # what others have begun meanwhile
        if self._closed:
            return False
        self._queue.append(queued)
        if not self._draining:
            self._thread.loop.call_soon_threadsafe(self._drain)
            self._draining = True
        return True

    def _shut(self) -> None:
        """Put nothing more into the batch that is open, if there is one."""
        if self._open is not None:
            self._open.shut()
            self._queued_bytes += self._open.charge
            self._open = None

    def _pop(self) -> PendingBatch | ManyRecords | None:
        with self._lock:
            if not self._queue:
                return None
            queued = self._queue.popleft()
            if queued is self._open:
                self._open = None
            else:
                self._queued_bytes -= queued.charge
            if self._queued_bytes < QUEUED_BYTES_MAX:
                self._room.notify_all()
            return queued

    # On the loop's thread.

    async def hand_over(self, timeout_s: float | None) -> None:
        """Give the writer all that is queued, as fast as there is room, for *timeout_s*."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._queue:
                    await self._writer.room()
                    self._drain()
        except TimeoutError:
            return  # the writer reports what was pending

    def give_up(self) -> None:
        """Let the writer, which has ended, refuse what is left."""
        self._drain()

    def _drain(self) -> None:
        has_taken = False
        while self._writer.has_room and (queued := self._pop()) is not None:
            has_taken = True
            if isinstance(queued, ManyRecords):
                self._append_many(queued)
            else:
                self._writer.submit_batch(queued)
        if has_taken:
            self._writer.send()
        with self._lock:
            is_left = bool(self._queue)
            self._draining = has_taken or is_left
        # Look again before sleeping: woken for each record, the two threads would take turns
        # of one record each. While the loop looks, the other thread has the interpreter.
        if is_left:
            self._writer.when_room(self._drain)
        elif has_taken:
            self._thread.loop.call_soon(self._drain)

    def _append_many(self, many: ManyRecords) -> None:
        try:
            parts = self._writer.submit_many(many.records, many.expected_offset)
        except LogError as error:
            many.future.set_exception(error.with_traceback(None))
        else:
            resolve_many(many.future, parts)
