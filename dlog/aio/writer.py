"""The writer of one open log: packs records into entries, resolves appends, rolls, closes.

An append costs no task and no wake-up of its own: it joins the open group (`protocol.packer`)
and the loop's next turn sends what has gathered. Offsets are given at the append and are
final: if an entry cannot be confirmed every later append fails too.

How an append ends: confirmed with its `RecordId`; refused before it was sent (`AppendRejected`
and other caller errors: the log goes on); `AppendOutcomeUnknown` if it was in flight when
the writer ended; `LostOwnership` or `AppendFailed` if it was certainly not sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from dlog.aio.manifests import ManifestNode, delete_listed
from dlog.aio.opening import OpenedLog
from dlog.aio.port import LedgerAppender, Ledgers
from dlog.aio.rolling import Roller
from dlog.aio.segments import seal_of
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    InvalidPosition,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    RecordTooLarge,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.position import NO_TXID, TXID_MAX, RecordId, entry_record_ids
from dlog.protocol.edits import seal_segment, trim
from dlog.protocol.packer import Group, Packer
from dlog.recordbatch import encode_batch
from ledger.errors import LedgerFenced, LogError, NoSuchLedger, TooManyPending
from ledger.ids import EntryId, LedgerId
from ledger.log_events import get_logger

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unconfirmed records beyond which `append_async` refuses."""
PENDING_BYTES_ROOM: Final = 32 * 1024 * 1024
"""Bytes of unconfirmed records below which waiting appends go on."""

_TAKEN_OVER = (LedgerFenced, LostOwnership, NoSuchLog, NoSuchLedger)

_log = get_logger(__name__)


class Ticket(Protocol):
    """What an append resolves: a future of asyncio or of concurrent.futures."""

    def done(self) -> bool: ...
    def set_result(self, result: RecordId, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class LogWriter:
    """All methods are called on the loop that made it."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        opened: OpenedLog,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        manifest = opened.manifest
        self.log = node.log
        self.epoch = opened.segment
        self.settings = manifest.settings
        self._incarnation = manifest.incarnation
        self.lost = asyncio.Event()
        """Set when this writer has ended without `close`; see `error`."""
        self.error: LogError | None = None
        self._ledgers = ledgers
        self._node = node
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._ledger = opened.ledger
        self._segment = opened.segment
        self._packer: Packer[Ticket] = Packer()
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
        self._closing = False
        self._flushing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        self._leaving: asyncio.Task[None] | None = None
        self._roller = Roller(ledgers, node, self, manifest, opened.segment, now_ms=now_ms)

    @property
    def last_offset(self) -> int:
        """Offset of the last confirmed record; -1 if the log never had one."""
        return self._confirmed_offset - 1

    @property
    def last_txid(self) -> int | None:
        """Txid of the last confirmed record that has one."""
        return None if self._confirmed_txid == NO_TXID else self._confirmed_txid

    @property
    def incarnation(self) -> str:
        """Of the log that is written, whatever its name is by now."""
        return self._incarnation

    @property
    def own_ledgers(self) -> frozenset[LedgerId]:
        """The ledger that is appended to, and the next one if a roll has made it."""
        ledgers = (self._ledger, self._roller.unsealed[1])
        return frozenset(ledger.ledger_id for ledger in ledgers if ledger is not None)

    @property
    def pending_bytes(self) -> int:
        return self._packer.pending_bytes

    @property
    def has_room(self) -> bool:
        """True iff appends are welcome; or refused at once, which needs no room."""
        return self.pending_bytes < PENDING_BYTES_ROOM or self.error is not None

    def submit(
        self,
        ticket: Ticket,
        payload: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        expected_offset: int | None,
    ) -> None:
        """Append one record; resolve *ticket* sooner or later, whatever happens.

        Raises `TooManyPending` alone, and then leaves *ticket* as it is."""
        packer = self._packer
        if packer.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(packer.pending_bytes, PENDING_BYTES_MAX)
        refusal = self._refusal(payload, key, txid, expected_offset)
        if refusal is not None:
            ticket.set_exception(refusal)
            return
        if txid is not None:
            self._pushed_txid = txid
        self._next_offset += 1
        packer.add(ticket, payload, key, txid, timestamp_ms, self._now_ms())
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

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

    async def roll(self) -> None:
        """Begin a new segment unless the present one is empty; return when the old is sealed."""
        await self.flush()
        await self._roller.roll()

    async def truncate(self, before: int) -> None:
        """Remove the records below offset *before*, which must not be beyond the end.

        They cannot be read from now on; space is freed segment by segment."""
        if self.error is not None:
            raise self.error
        if not 0 <= before <= self._confirmed_offset:
            raise InvalidPosition(
                self.log, before, f"the log ends at offset {self._confirmed_offset}"
            )
        manifest = await self._node.edit(trim(self.log, before, incarnation=self._incarnation))
        await delete_listed(self._ledgers, self._node, manifest)

    async def close(self) -> None:
        """Confirm what is pending, then close the segment. Raises what failed."""
        if self._closing:
            return
        self._closing = True
        try:
            await self.flush()
        finally:
            self._roller.stop(LogClosed(self.log))
            if self.error is None:
                await self._close_ledgers()
            else:
                await self.abandon()

    async def abandon(self) -> None:
        """Let go without closing anything; the next open recovers the log."""
        self._closing = True
        self.lose(LogClosed(self.log))
        if self._leaving is not None:
            await self._leaving

    # What the roller needs.

    def hold(self, on_confirmed: Callable[[], None]) -> None:
        self._on_confirmed = on_confirmed
        if not self._packer.in_flight:
            self._loop.call_soon(self._held)

    def switch(self, ledger: LedgerAppender, segment: int) -> LedgerAppender:
        assert not self._packer.in_flight, "adds of the ledger before are not confirmed"
        before, self._ledger = self._ledger, ledger
        self._segment = segment
        self._segment_first = self._sent_offset
        self._segment_bytes = 0
        self._on_confirmed = None
        self._pump()
        return before

    def lose(self, error: LogError) -> None:
        """End this writer: resolve everything, let the ledger go."""
        if self.error is not None:
            return
        if isinstance(error, LogSealed):
            self.error = error
        elif isinstance(error, _TAKEN_OVER):
            self.error = LostOwnership(self.log, str(error))
        else:
            self.error = (
                error if isinstance(error, LogClosed) else AppendFailed(self.log, str(error))
            )
        _log.info("writer_ended", log=self.log, epoch=self.epoch, error=str(error))
        sent, unsent = self._packer.fail()
        offset = self._confirmed_offset
        for group in sent:
            for ticket in group.tickets:
                if not ticket.done():
                    ticket.set_exception(AppendOutcomeUnknown(self.log, offset, str(error)))
                offset += 1
        for group in unsent:
            for ticket in group.tickets:
                if not ticket.done():
                    ticket.set_exception(self.error)
        self._roller.stop(self.error)
        self._leaving = self._loop.create_task(self._ledger.abandon())
        self.lost.set()
        self._wake()

    # The append path.

    def _refusal(
        self, payload: bytes, key: bytes | None, txid: int | None, expected_offset: int | None
    ) -> LogError | None:
        if self.error is not None or self._closing:
            return LogClosed(self.log) if self._closing else self.error
        size = len(payload) if key is None else len(payload) + len(key)
        if size > self.settings.record_bytes_max:
            return RecordTooLarge(self.log, size, self.settings.record_bytes_max)
        if txid is not None and not max(self._pushed_txid, NO_TXID + 1) <= txid <= TXID_MAX:
            return TxidOutOfOrder(self.log, txid, self._pushed_txid)
        if expected_offset is not None and expected_offset != self._next_offset:
            return UnexpectedOffset(self.log, expected_offset, self._next_offset)
        return None

    def _pump(self) -> None:
        self._scheduled = False
        while self.error is None and self._on_confirmed is None:
            group = self._packer.take()
            if group is None:
                return
            self._send(group)

    def _send(self, group: Group[Ticket]) -> None:
        payload = encode_batch(
            group.values,
            base_index=self._sent_offset - self._segment_first,
            base_timestamp_ms=group.base_timestamp_ms,
            timestamps_ms=group.timestamps_ms,
            txids=group.txids,
            keys=group.keys,
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
            self._sent_txid = next(t for t in reversed(group.txids) if t is not None)
        self._sent_offset += group.count
        self._segment_bytes += len(payload)
        future.add_done_callback(partial(self._on_added, group, self._sent_txid))

    def _on_added(
        self, group: Group[Ticket], last_txid: int, future: asyncio.Future[EntryId]
    ) -> None:
        if self.error is not None:
            return
        if future.cancelled() or future.exception() is not None:
            self.lose(self._ledger.error or _failure(future))
            return
        assert self._packer.confirmed() is group, "entries are confirmed in order"
        offset, count = self._confirmed_offset, group.count
        self._confirmed_offset = offset + count
        self._confirmed_txid = last_txid
        ids = entry_record_ids(offset, self._segment, future.result(), count)
        for ticket, record_id in zip(group.tickets, ids, strict=True):
            if not ticket.done():
                ticket.set_result(record_id)
        self._pump()
        if self._on_confirmed is not None and not self._packer.in_flight:
            self._held()
        self._wake()
        self._roller.grown(self._confirmed_offset - self._segment_first, self._segment_bytes)

    def _held(self) -> None:
        if self._on_confirmed is not None and self.error is None:
            self._on_confirmed()

    def _wake(self) -> None:
        while self._flushing and (
            self.error is not None or self._flushing[0][0] <= self._confirmed_offset
        ):
            _done(self._flushing.popleft()[1])
        while self._room and self.has_room:
            _done(self._room.popleft())

    async def _close_ledgers(self) -> None:
        """Close and seal; what fails here is done by the next open, so it only is told."""
        before, after = self._roller.unsealed
        segment = self._segment
        own = [(segment - 1, before), (segment, self._ledger), (segment + 1, after)]
        self.error = LogClosed(self.log)
        try:
            for number, ledger in own:
                if ledger is None:
                    continue
                if ledger is not before:
                    await ledger.close()
                sealed = await seal_of(
                    self._ledgers,
                    self.log,
                    ledger.ledger_id,
                    last_txid=self._confirmed_txid,
                    created_ms=self._now_ms(),
                )
                await self._node.edit(
                    seal_segment(self.log, number, ledger.ledger_id, sealed, now_ms=self._now_ms())
                )
        except LogError as error:
            _log.warning("close_incomplete", log=self.log, error=str(error))
            await asyncio.gather(*(ledger.abandon() for _, ledger in own if ledger is not None))


def _failure(future: asyncio.Future[EntryId]) -> LogError:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, LogError) else LogClosed("the ledger")


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
