"""Hands the appends of many threads to the loop of the writer, at one wake-up per batch.

Threads put appends into a bounded queue and get a future each; the loop takes what has
gathered as fast as the writer has room. Nothing is lost between the two: what is in the queue when
it ends is refused by the writer, which resolves it.

Invariants:
    appends reach the writer in the order of the calls
    while the queue is not empty the loop was woken, or waits for room
"""

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, final

from dlog.aio.write.append_future import resolve_many
from dlog.aio.write.writer import LogWriter
from dlog.columns import Columns
from dlog.position import RecordId, RecordIds
from dlog.sync.append_future import AppendFuture
from dlog.sync.loop_thread import LoopThread
from ledger.errors import LogError, TooManyPending

QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of appends that wait for the loop; beyond that the calling thread waits."""

OneRecord = tuple[
    AppendFuture, int, bytes, bytes | None, int | None, int | None, bytes | None, int | None
]
"""An append: its future, what it counts in the queue, payload, key, txid, timestamp, headers, the
expected offset. A bare tuple, as there is one for each record."""


@final
@dataclass(frozen=True, slots=True)
class ManyRecords:
    """One append of many records."""

    future: Future[RecordIds]
    charge: int
    """Bytes that they count in the queue."""
    records: Columns
    expected_offset: int | None


class AppendQueue:
    def __init__(self, writer: LogWriter, thread: LoopThread) -> None:
        self._writer = writer
        self._thread = thread
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._queue: deque[OneRecord | ManyRecords] = deque()
        self._queued_bytes = 0
        self._draining = False
        """True while the loop was woken, or knows that the queue is not empty."""
        self._newest: Future[RecordId] | Future[RecordIds] | None = None
        self._closed = False

    def put(
        self,
        future: Future[RecordId] | Future[RecordIds],
        charge: int,
        queued: OneRecord | ManyRecords,
    ) -> bool:
        """Hand *queued* to the loop, once there is room; return False if the queue is closed.

        Raises `TooManyPending` instead of waiting on the loop, which makes the room."""
        with self._lock:
            while self._queued_bytes >= QUEUED_BYTES_MAX and not self._closed:
                if self._thread.is_current():
                    raise TooManyPending(self._queued_bytes, QUEUED_BYTES_MAX)
                self._room.wait()
            if self._closed:
                return False
            self._queue.append(queued)
            self._queued_bytes += charge
            self._newest = future
            wake, self._draining = not self._draining, True
        if wake:
            self._thread.loop.call_soon_threadsafe(self._drain)
        return True

    def settle(self) -> None:
        """Wait until everything that was put before is resolved."""
        with self._lock:
            newest = self._newest
        if newest is not None:
            newest.exception()

    def close(self) -> bool:
        """Take nothing more; what was taken goes on. Return False if it was closed before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._room.notify_all()
        return True

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
        queue, writer = self._queue, self._writer
        drained = taken = 0
        while queue and writer.has_room:
            queued = queue.popleft()
            taken += 1
            if type(queued) is ManyRecords:  # cheaper for each record than `isinstance`
                drained += queued.charge
                self._append_many(queued)
            else:
                ticket, charge, payload, key, txid, timestamp_ms, headers, expected_offset = queued
                drained += charge
                ticket.attach(
                    *writer.submit(payload, key, txid, timestamp_ms, headers, expected_offset)
                )
        with self._lock:
            self._queued_bytes -= drained
            if self._queued_bytes < QUEUED_BYTES_MAX:
                self._room.notify_all()
            self._draining = bool(taken or queue)
        # Look again before sleeping: woken for each record, the two threads would take turns
        # of one record each. While the loop looks, the other thread has the interpreter.
        if queue:
            writer.when_room(self._drain)
        elif taken:
            self._thread.loop.call_soon(self._drain)

    def _append_many(self, many: ManyRecords) -> None:
        try:
            parts = self._writer.submit_many(many.records, many.expected_offset)
        except LogError as error:
            many.future.set_exception(error)
        else:
            resolve_many(many.future, parts)
