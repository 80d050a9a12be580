"""The path of appends: given an offset, packed into entries, sent, resolved.

An append costs no task and no wake-up of its own: it joins the open group (`protocol.packer`)
and the loop's next turn sends what has gathered. Offsets are given at the append and are
final: if an entry cannot be confirmed every later append fails too.

How an append ends here: confirmed with its `RecordId`, or refused before it was sent
(`AppendRejected` and other caller errors: the log goes on). How it ends otherwise, which ledger
it goes to and when nothing may be sent is `aio.writer`'s to say, whose first half this is.

Invariants:
    confirmed offset <= sent offset <= next offset, and the same order of txids
    nothing is sent while a roll holds sends back, nor while the writer heals
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from dlog.aio.port import LedgerAppender
from dlog.aio.write.opening import OpenedLog
from dlog.columns import Columns
from dlog.errors import (
    BatchTooLarge,
    LogClosed,
    RecordTooLarge,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.outcome import Outcome
from dlog.position import NO_TXID, TXID_MAX
from dlog.protocol.packer import Group, Packer, Part
from dlog.recordbatch import encode_batch
from ledger.errors import LogError, TooManyPending
from ledger.ids import EntryId

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unconfirmed records, each counted with `packer.RECORD_CHARGE`, beyond which
`append_async` refuses."""
PENDING_BYTES_ROOM: Final = 32 * 1024 * 1024
"""Bytes of unconfirmed records below which waiting appends go on."""

APPEND_MANY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of records that one `append_many` may bring."""


class AppendPath(ABC):
    """All methods are called on the loop that made it."""

    def __init__(self, log: str, opened: OpenedLog, *, now_ms: Callable[[], int]) -> None:
        manifest = opened.manifest
        self.log = log
        self.settings = manifest.settings
        self.error: LogError | None = None
        """What ended the writer."""
        self._record_bytes_max = manifest.settings.record_bytes_max
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._ledger = opened.ledger
        self._segment = opened.segment
        self._closing = False
        self._healing: asyncio.Task[None] | None = None
        """Set while it is being found out which of what was in flight is in the log."""
        self._packer = Packer()
        self._confirmed_entry = -1
        """The last one that is confirmed of the present segment."""
        self._segment_first = manifest.sealed_end
        self._segment_bytes = 0
        self._next_offset = manifest.sealed_end
        """Offset of the next append."""
        self._sent_offset = self._confirmed_offset = manifest.sealed_end
        """Offsets of the next record to be sent, and to be confirmed."""
        self._pushed_txid = self._sent_txid = self._confirmed_txid = manifest.sealed_last_txid
        self._scheduled = False
        self._on_confirmed: Callable[[], None] | None = None
        """Set while a roll holds sends back."""
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: deque[asyncio.Future[None]] = deque()

    @abstractmethod
    def lose(self, error: LogError) -> None:
        """Appends cannot go on as they did: heal, or end the writer."""

    @abstractmethod
    def _grown(self, records: int, size_bytes: int) -> None:
        """The present segment has grown to that by what was confirmed."""

    @property
    def last_offset(self) -> int:
        """Offset of the last confirmed record; -1 if the log never had one."""
        return self._confirmed_offset - 1

    @property
    def last_txid(self) -> int | None:
        """Txid of the last confirmed record that has one."""
        return None if self._confirmed_txid == NO_TXID else self._confirmed_txid

    @property
    def pending_bytes(self) -> int:
        return self._packer.pending_bytes

    @property
    def has_room(self) -> bool:
        """True iff appends are welcome; or refused at once, which needs no room."""
        return self.pending_bytes < PENDING_BYTES_ROOM or self.error is not None

    def submit(
        self,
        payload: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        headers: bytes | None,
        expected_offset: int | None,
    ) -> tuple[Outcome, int]:
        """Append one record; return the outcome it will have, sooner or later, and its slot.

        Raises `TooManyPending` alone."""
        packer = self._packer
        if packer.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(packer.pending_bytes, PENDING_BYTES_MAX)
        size = len(payload) if key is None else len(payload) + len(key)
        if headers is not None:
            size += len(headers)
        if (
            self.error is not None
            or self._closing
            or size > self._record_bytes_max
            or txid is not None
            or expected_offset is not None
        ):
            refusal = self._refusal(size, txid, expected_offset)
            if refusal is not None:
                return Outcome.refused(refusal), 0
            if txid is not None:
                self._pushed_txid = txid
        self._next_offset += 1
        group = packer.add(payload, key, txid, timestamp_ms, headers, self._now_ms)
        if not self._scheduled:
            self._schedule()
        return group.outcome, len(group.values) - 1

    def submit_many(
        self,
        records: Columns,
        expected_offset: int | None,
    ) -> list[Part]:
        """Append records behind each other, all or none; return where they went, in order.

        Raises why they are refused, and `TooManyPending`."""
        packer = self._packer
        if packer.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(packer.pending_bytes, PENDING_BYTES_MAX)
        sizes = records.sizes()
        last_txid = self._pushed_txid
        refusal = self._refusal(max(sizes), None, expected_offset)
        if refusal is None and sum(sizes) > APPEND_MANY_BYTES_MAX:
            refusal = BatchTooLarge(self.log, sum(sizes), APPEND_MANY_BYTES_MAX)
        for txid in records.txids or ():
            if refusal is None and txid is not None:
                refusal = self._txid_refusal(txid, last_txid)
                last_txid = txid
        if refusal is not None:
            raise refusal
        self._pushed_txid = last_txid
        self._next_offset += records.count
        parts = packer.add_many(records, self._now_ms)
        if not self._scheduled:
            self._schedule()
        return parts

    async def room(self) -> None:
        """Wait until appends are welcome."""
        while not self.has_room:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    def when_room(self, call: Callable[[], None]) -> None:
        """Call *call* once appends are welcome."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiter.add_done_callback(lambda _: call())
        self._room.append(waiter)
        self._wake()

    async def flush(self) -> None:
        """Return once every append made before is confirmed. Raises what ended the writer."""
        if self._confirmed_offset < self._next_offset and self.error is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((self._next_offset, waiter))
            await waiter
        if self.error is not None:
            raise self.error

    def hold(self, on_confirmed: Callable[[], None]) -> None:
        self._on_confirmed = on_confirmed
        if not self._packer.in_flight:
            self._loop.call_soon(self._held)

    def _refusal(self, size: int, txid: int | None, expected_offset: int | None) -> LogError | None:
        if self.error is not None or self._closing:
            return LogClosed(self.log) if self._closing else self.error
        if size > self._record_bytes_max:
            return RecordTooLarge(self.log, size, self._record_bytes_max)
        if expected_offset is not None and expected_offset != self._next_offset:
            return UnexpectedOffset(self.log, expected_offset, self._next_offset)
        return None if txid is None else self._txid_refusal(txid, self._pushed_txid)

    def _txid_refusal(self, txid: int, last_txid: int) -> LogError | None:
        if max(last_txid, NO_TXID + 1) <= txid <= TXID_MAX:
            return None
        return TxidOutOfOrder(self.log, txid, last_txid)

    def _schedule(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        while self.error is None and self._on_confirmed is None and self._healing is None:
            group = self._packer.take()
            if group is None:
                return
            self._send(group)

    def _send(self, group: Group) -> None:
        payload = encode_batch(
            group,
            base_index=self._sent_offset - self._segment_first,
            base_timestamp_ms=group.base_timestamp_ms,
            previous_txid=self._sent_txid,
            codec=self.settings.codec,
        )
        try:
            future = self._ledger.add(payload)
        except LogError as error:
            self._packer.put_back(group)
            self.lose(self._ledger.error or error)
            return
        if group.txids is not None:
            present = (t for t in reversed(group.txids) if t is not None)
            self._sent_txid = next(present, self._sent_txid)
        self._sent_offset += group.count
        self._segment_bytes += len(payload)
        future.add_done_callback(partial(self._on_added, self._ledger, group, self._sent_txid))

    def _on_added(
        self,
        ledger: LedgerAppender,
        group: Group,
        last_txid: int,
        future: asyncio.Future[EntryId],
    ) -> None:
        if self.error is not None or self._healing is not None or ledger is not self._ledger:
            return  # how it ended was told, or healing finds out
        if future.cancelled() or future.exception() is not None:
            self.lose(self._ledger.error or _failure(future))
            return
        assert self._packer.confirmed() is group, "entries are confirmed in order"
        self._confirm(group, future.result())
        self._confirmed_txid = last_txid
        self._pump()
        if self._on_confirmed is not None and not self._packer.in_flight:
            self._held()
        self._wake()
        self._grown(self._confirmed_offset - self._segment_first, self._segment_bytes)

    def _held(self) -> None:
        if self._on_confirmed is not None and self.error is None:
            self._on_confirmed()

    def _wake(self) -> None:
        while self._flushing and (
            self.error is not None or self._flushing[0][0] <= self._confirmed_offset
        ):
            done(self._flushing.popleft()[1])
        while self._room and self.has_room:
            done(self._room.popleft())

    def _confirm(self, group: Group, entry: int) -> None:
        offset = self._confirmed_offset
        self._confirmed_entry = entry
        self._confirmed_offset = offset + group.count
        group.outcome.confirm(offset, self._segment, entry)

    def _begin_segment(self, ledger: LedgerAppender, segment: int) -> None:
        self._ledger = ledger
        self._segment = segment
        self._segment_first = self._sent_offset
        self._segment_bytes = 0
        self._confirmed_entry = -1
        self._on_confirmed = None
        self._pump()


def _failure(future: asyncio.Future[EntryId]) -> LogError:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, LogError) else LogClosed("the ledger")


def done(waiter: asyncio.Future[None]) -> None:
    """Let *waiter* go on, unless it was cancelled."""
    if not waiter.done():
        waiter.set_result(None)
