"""The writer of one open log: packs records into entries, resolves appends, rolls, closes.

An append costs no task and no wake-up of its own: it joins the open group (`protocol.packer`)
and the loop's next turn sends what has gathered. Offsets are given at the append and are
final: if an entry cannot be confirmed every later append fails too.

Healing: trouble that may pass (too few bookies, no metadata store at an ensemble change) ends a
ledger, not the writer. It takes its own log over, within its epoch (`aio.healing`): recovery tells
for each entry that was in flight whether it is in the log, once and for all. Those that are get
confirmed, the others are sent again to the new ledger, with the same offsets. If anybody else
took the log meanwhile, or trouble lasts, the writer ends.

How an append ends: confirmed with its `RecordId`; refused before it was sent (`AppendRejected`
and other caller errors: the log goes on); `AppendOutcomeUnknown` if it was in flight when
the writer ended; `LostOwnership` or `AppendFailed` if it was certainly not sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dlog.aio.healing import HEAL_S, heal
from dlog.aio.manifests import ManifestNode, delete_listed
from dlog.aio.opening import OpenedLog
from dlog.aio.port import Leadership, LedgerAppender, Ledgers
from dlog.aio.rolling import Roller
from dlog.aio.segments import seal_of
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    BatchTooLarge,
    CloseTimedOut,
    DamagedLog,
    EpochChanged,
    InvalidPosition,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    RecordTooLarge,
    TxidOutOfOrder,
    UnexpectedOffset,
)
from dlog.outcome import Outcome
from dlog.position import NO_TXID, TXID_MAX
from dlog.protocol.edits import seal_segment, trim
from dlog.protocol.packer import Group, Packer, Part
from dlog.recordbatch import encode_batch
from ledger.errors import CallerError, LedgerFenced, LogError, NoSuchLedger, TooManyPending
from ledger.ids import EntryId, LedgerId
from ledger.log_events import get_logger

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of unconfirmed records, each counted with `packer.RECORD_CHARGE`, beyond which
`append_async` refuses."""
PENDING_BYTES_ROOM: Final = 32 * 1024 * 1024
"""Bytes of unconfirmed records below which waiting appends go on."""

APPEND_MANY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of records that one `append_many` may bring."""
CLOSE_S: Final = 30.0
"""How long `close` takes at most unless told otherwise."""

_TAKEN_OVER = (LedgerFenced, LostOwnership, EpochChanged, NoSuchLog, NoSuchLedger)

_log = get_logger(__name__)


class LogWriter:
    """All methods are called on the loop that made it."""

    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        opened: OpenedLog,
        *,
        now_ms: Callable[[], int],
        term: Leadership | None = None,
        heal_s: float = HEAL_S,
    ) -> None:
        """*heal_s*: how long one healing may take; 0: trouble ends the writer at once."""
        manifest = opened.manifest
        self.log = node.log
        self.epoch = opened.segment
        self.settings = manifest.settings
        self._record_bytes_max = manifest.settings.record_bytes_max
        self._incarnation = manifest.incarnation
        node.follow(manifest.incarnation)
        self.lost = asyncio.Event()
        """Set when this writer has ended without `close`; see `error`."""
        self.error: LogError | None = None
        self._ledgers = ledgers
        self._node = node
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._ledger = opened.ledger
        self._segment = opened.segment
        self._term = term
        self._heal_s = heal_s
        self._healing: asyncio.Task[None] | None = None
        self._healed_offset = -1
        """What was confirmed when the last healing ended: one without progress is the last."""
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
    def node(self) -> ManifestNode:
        """Of the log that is written, whatever its name is by now."""
        return self._node

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
        payload: bytes,
        key: bytes | None,
        txid: int | None,
        timestamp_ms: int | None,
        expected_offset: int | None,
    ) -> tuple[Outcome, int]:
        """Append one record; return the outcome it will have, sooner or later, and its slot.

        Raises `TooManyPending` alone."""
        packer = self._packer
        if packer.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(packer.pending_bytes, PENDING_BYTES_MAX)
        size = len(payload) if key is None else len(payload) + len(key)
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
        group = packer.add(payload, key, txid, timestamp_ms, self._now_ms)
        if not self._scheduled:
            self._schedule()
        return group.outcome, len(group.values) - 1

    def submit_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        txids: Sequence[int | None] | None,
        timestamps_ms: Sequence[int | None] | None,
        expected_offset: int | None,
    ) -> list[Part]:
        """Append records behind each other, all or none; return where they went, in order.

        Raises why they are refused, and `TooManyPending`."""
        packer = self._packer
        if packer.pending_bytes >= PENDING_BYTES_MAX:
            raise TooManyPending(packer.pending_bytes, PENDING_BYTES_MAX)
        sizes = list(map(len, values))
        if keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
        last_txid = self._pushed_txid
        refusal = self._refusal(max(sizes), None, expected_offset)
        if refusal is None and sum(sizes) > APPEND_MANY_BYTES_MAX:
            refusal = BatchTooLarge(self.log, sum(sizes), APPEND_MANY_BYTES_MAX)
        for txid in txids or ():
            if refusal is None and txid is not None:
                refusal = self._txid_refusal(txid, last_txid)
                last_txid = txid
        if refusal is not None:
            raise refusal
        self._pushed_txid = last_txid
        self._next_offset += len(values)
        parts = packer.add_many(values, keys, txids, timestamps_ms, self._now_ms)
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

    async def roll(self) -> None:
        """Begin a new segment unless the present one is empty; return when the old is sealed."""
        await self.flush()
        if self._healing is not None:
            await asyncio.wait((self._healing,))  # and begins a new segment
            await self.flush()
        else:
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

    async def close(self, timeout_s: float | None = CLOSE_S) -> None:
        """Confirm what is pending, then close the segment. Raises what failed."""
        if self._closing:
            return
        self._closing = True
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self.flush()
                if self._healing is not None:
                    await asyncio.wait((self._healing,))
        except TimeoutError:
            assert timeout_s is not None
            if self._confirmed_offset < self._next_offset:
                pending = self._next_offset - self._confirmed_offset
                error = CloseTimedOut(self.log, pending, timeout_s)
                self.lose(error)
                raise error from None
        finally:
            self._roller.stop(LogClosed(self.log))
            if self.error is None and self._healing is None:
                await self._close_ledgers(deadline)
            else:
                await self.abandon()

    async def abandon(self) -> None:
        """Let go without closing anything; the next open recovers the log."""
        self._closing = True
        self.lose(LogClosed(self.log))
        if self._leaving is not None:
            await self._leaving
        if self._healing is not None:
            await asyncio.wait((self._healing,))

    # What the roller needs.

    def hold(self, on_confirmed: Callable[[], None]) -> None:
        self._on_confirmed = on_confirmed
        if not self._packer.in_flight:
            self._loop.call_soon(self._held)

    def switch(self, ledger: LedgerAppender, segment: int) -> LedgerAppender:
        assert not self._packer.in_flight, "adds of the ledger before are not confirmed"
        before = self._ledger
        self._begin_segment(ledger, segment)
        return before

    def lose(self, error: LogError) -> None:
        """Heal, or end this writer: resolve everything, let the ledger go."""
        if self.error is not None:
            return
        if error.retryable and self._heal_s > 0 and not isinstance(error, CallerError):
            if self._healing is not None:
                return
            if self._confirmed_offset > self._healed_offset:
                self._healing = self._loop.create_task(self._heal(error))
                return
        if self._healing is not None:
            self._healing.cancel()
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
            group.outcome.fail(partial(self._unknown, offset, str(error)))
            offset += group.count
        ended = self.error
        for group in unsent:
            group.outcome.fail(lambda _: ended)
        self._roller.stop(self.error)
        self._leaving = self._loop.create_task(self._ledger.abandon())
        self.lost.set()
        self._wake()

    # The append path.

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

    def _confirm(self, group: Group, entry: int) -> None:
        offset = self._confirmed_offset
        self._confirmed_entry = entry
        self._confirmed_offset = offset + group.count
        group.outcome.confirm(offset, self._segment, entry)

    def _unknown(self, offset: int, reason: str, slot: int) -> LogError:
        return AppendOutcomeUnknown(self.log, offset + slot, reason)

    def _begin_segment(self, ledger: LedgerAppender, segment: int) -> None:
        self._ledger = ledger
        self._segment = segment
        self._segment_first = self._sent_offset
        self._segment_bytes = 0
        self._confirmed_entry = -1
        self._on_confirmed = None
        self._pump()

    async def _heal(self, error: LogError) -> None:
        _log.warning("writer_heals", log=self.log, epoch=self.epoch, error=str(error))
        rolls = self._roller.leave()
        own = (self._ledger, *self._roller.unsealed)
        await asyncio.gather(*(ledger.abandon() for ledger in own if ledger is not None))
        try:
            opened = await heal(
                self._ledgers,
                self._node,
                error,
                epoch=self.epoch,
                incarnation=self._incarnation,
                term=self._term,
                now_ms=self._now_ms,
                patience_s=self._heal_s,
            )
            self._healed(opened)
        except LogError as verdict:
            self._healed_offset = self._next_offset
            self._healing = None
            self.lose(verdict)
        for future in rolls:
            if not future.done():
                _done(future) if self.error is None else future.set_exception(self.error)

    def _healed(self, opened: OpenedLog) -> None:
        """Settle what was in flight by what the log holds; go on in the new segment."""
        manifest = opened.manifest
        end, packer = manifest.sealed_end, self._packer
        while packer.in_flight and self._confirmed_offset < end:
            self._confirm(packer.confirmed(), self._confirmed_entry + 1)
        if self._confirmed_offset != end:
            reason = f"it ends at {end} where its writer has {self._confirmed_offset}"
            raise DamagedLog(self.log, reason)
        packer.put_all_back()
        self._sent_offset = end
        self._sent_txid = self._confirmed_txid = manifest.sealed_last_txid
        self._healed_offset = end
        self._healing = None
        self._roller = Roller(
            self._ledgers, self._node, self, manifest, opened.segment, now_ms=self._now_ms
        )
        _log.info("writer_healed", log=self.log, epoch=self.epoch, segment=opened.segment)
        self._begin_segment(opened.ledger, opened.segment)
        self._wake()

    async def _close_ledgers(self, deadline: float | None) -> None:
        """Close and seal; what fails here is done by the next open, so it only is told."""
        before, after = self._roller.unsealed
        segment = self._segment
        own = [(segment - 1, before), (segment, self._ledger), (segment + 1, after)]
        self.error = LogClosed(self.log)
        try:
            async with asyncio.timeout_at(deadline):
                for number, ledger in own:
                    if ledger is not None:
                        await self._close_ledger(number, ledger, closes=ledger is not before)
        except (LogError, TimeoutError) as error:
            _log.warning("close_incomplete", log=self.log, error=str(error))
            await asyncio.gather(*(ledger.abandon() for _, ledger in own if ledger is not None))

    async def _close_ledger(self, number: int, ledger: LedgerAppender, *, closes: bool) -> None:
        if closes:
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


def _failure(future: asyncio.Future[EntryId]) -> LogError:
    error = None if future.cancelled() else future.exception()
    return error if isinstance(error, LogError) else LogClosed("the ledger")


def _done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
