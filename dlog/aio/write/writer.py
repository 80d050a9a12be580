"""The writer of one open log: carries out what `protocol.log_writer` says.

It encodes and sends, resolves outcomes, takes the log over again, closes and lets go; records
come in by `append` and `submit_many`, callers of the rest wait for an answer of the machine.
"""

import asyncio
import atexit
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

from dlog import metrics, spans
from dlog.aio.port import Leadership, LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.store import ManifestNode, delete_listed
from dlog.aio.write.segment_roll import Compression, RollSteps, compression_of
from dlog.aio.write.takeover_driver import OpenedLog, TakeoverDriver
from dlog.columns import Row
from dlog.encryption.ledgers import Sealer
from dlog.errors import AppendOutcomeUnknown, LostOwnership
from dlog.manifest import Manifest
from dlog.position import NO_TXID
from dlog.protocol import log_writer_events as protocol
from dlog.protocol.accumulator import RecordAccumulator
from dlog.protocol.edits import seal_segment, taken_by_sibling, trim
from dlog.protocol.log_writer import CLOSE_S, REOPEN_TIMEOUT_S, Writing
from dlog.protocol.pending_batch import Outcome
from dlog.recordbatch import Codec
from ledger.errors import LogError, WriterFailed
from ledger.ids import EntryId, LedgerId
from ledger.log_events import get_logger
from ledger.machine_loop import MachineLoop

SIBLING_S: Final = 10.0
"""How long a writer that lost its log looks for who has it now, at most."""

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
        reopen_timeout_s: float = REOPEN_TIMEOUT_S,
        process: str = "",
    ) -> None:
        """*reopen_timeout_s*: how long trouble may last; 0: it ends the writer at once.

        *process*: this one, as ``host:pid``, if errors are to name another one of this machine
        that took the log over."""
        manifest = opened.manifest
        self.log = node.log
        self.epoch = manifest.epoch
        self.settings = manifest.settings
        self.lost = asyncio.Event()
        """Set when this writer has ended without `close`; see `error`."""
        self._told = False
        self._incarnation = manifest.incarnation
        node.follow(manifest.incarnation)
        self._ledgers = ledgers
        self._node = node
        self._term = term
        self._process = process
        self._naming: asyncio.Task[None] | None = None
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._appenders: dict[LedgerId, LedgerAppender] = {opened.ledger.ledger_id: opened.ledger}
        """The ledgers that this writer holds, until they are let go of."""
        self._compressions: dict[LedgerId, Compression] = {
            opened.ledger.ledger_id: compression_of(manifest.settings)
        }
        self._sealers: dict[LedgerId, Sealer] = {}
        """Of those that are encrypted."""
        if opened.sealer is not None:
            self._sealers[opened.ledger.ledger_id] = opened.sealer
        self._roll_steps = self._steps_by(manifest)
        self._accumulator = RecordAccumulator(
            node.log,
            record_bytes_max=manifest.settings.record_bytes_max,
            next_offset=manifest.sealed_end,
            last_txid=manifest.sealed_last_txid,
            now_ms=now_ms,
            wake=partial(self._loop.call_soon, self.send),
            level=lambda: ledgers.level,
            told=self.tell,
        )
        self.append = self._accumulator.append
        self.submit_batch = self._accumulator.submit_batch
        """Call `send` then."""
        self.submit_many = self._accumulator.submit_many
        self.submit_encoded = self._accumulator.submit_encoded
        self.submit_kafka = self._accumulator.submit_kafka
        self._machine = Writing(
            node.log,
            manifest,
            opened.segment,
            opened.ledger.ledger_id,
            self._accumulator,
            reopen_timeout_s=reopen_timeout_s,
            now=self._loop.time(),
        )
        self._run = self._new_run()
        self._work: asyncio.Task[protocol.WritingEvent] | None = None
        """What was begun last; there is never more than one under way."""
        self._stopped: list[asyncio.Task[protocol.WritingEvent]] = []
        """Cancelled, and waited for before anything is let go of."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._tickets: dict[int, asyncio.Future[None]] = {}
        self._last_ticket = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._pid = os.getpid()
        metrics.WRITERS.add(self)

    def _steps_by(self, manifest: Manifest) -> RollSteps:
        return RollSteps(
            self._ledgers,
            self._node,
            manifest,
            self._appenders,
            self._compressions,
            self._sealers,
            now_ms=self._now_ms,
        )

    def _new_run(self) -> MachineLoop[protocol.WritingEvent, protocol.WritingEffect]:
        return MachineLoop(
            self._machine,
            self._execute,
            time_passed=protocol.TimePassed(),
            broken=self._broken,
        )

    @property
    def error(self) -> LogError | None:
        """What ended the writer."""
        return self._machine.error

    @property
    def told(self) -> bool:
        """True iff the writer has ended, and the application was told by an append or a call."""
        return self._told and self._machine.error is not None

    def tell(self) -> None:
        """The application is given an error: if the writer has ended, it knows. Any thread."""
        if self._machine.error is not None:
            self._told = True

    @property
    def last_offset(self) -> int:
        """Offset of the last confirmed record; -1 if the log never had one."""
        return self._machine.confirmed_offset - 1

    @property
    def next_offset(self) -> int:
        """Offset of the next append, behind all that was taken."""
        return self._accumulator.next_offset

    @property
    def last_txid(self) -> int | None:
        """Txid of the last confirmed record that has one."""
        txid = self._machine.confirmed_txid
        return None if txid == NO_TXID else txid

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
        return self._machine.own_ledgers

    @property
    def pending_bytes(self) -> int:
        return self._accumulator.pending_bytes

    @property
    def pending_records(self) -> int:
        """Of all that are not confirmed, nor failed."""
        if self._machine.error is not None:
            return 0
        return self._accumulator.next_offset - self._machine.confirmed_offset

    @property
    def is_idle(self) -> bool:
        """Whether a record that is appended now may leave at once, by `append_lone`."""
        return self._machine.is_idle

    def append_lone(
        self, record: bytes | Row, size: int, expected_offset: int | None
    ) -> tuple[Outcome, int]:
        """Append one record, and send it before this returns. Requires `is_idle`."""
        taken = self._accumulator.submit(record, size, expected_offset)
        self._run.call(self._machine.gathered, arms=False)
        return taken

    def send(self) -> None:
        """Send what has come in, as far as it may be sent now."""
        self._run.call(self._machine.gathered, arms=False)

    @property
    def has_room(self) -> bool:
        """True iff appends are welcome; or refused at once, which needs no room."""
        return self._accumulator.has_room

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
        self._make_room()

    async def flush(self) -> None:
        """Return once every append made before is confirmed. Raises what ended the writer."""
        await self._answer(protocol.FlushRequested)

    async def roll(self) -> None:
        """Begin a new segment unless the present one is empty; return when the old is sealed.

        Raises `LostOwnership` or what else ended the writer, and `RollPostponed` if it is not
        done in time: it will be, and appends go on meanwhile."""
        await self._answer(protocol.RollRequested)

    async def truncate(self, before: int) -> None:
        """Remove the records below offset *before*, which must not be beyond the end.

        They cannot be read from now on; space is freed segment by segment."""
        self._machine.check_truncation(before)
        manifest = await self._node.edit(trim(self.log, before, incarnation=self._incarnation))
        await delete_listed(self._ledgers, self._node, manifest)

    async def close(self, timeout_s: float | None = CLOSE_S) -> None:
        """Confirm what is pending, then close the segment. Raises what failed.

        If it is cancelled, what is not confirmed by then fails. A second call waits for the
        first."""
        self._stop_naming()
        if self._machine.closing:
            await self._closed.wait()
            return
        self._run.post(protocol.CloseRequested(timeout_s))
        try:
            await self._closed.wait()
        except asyncio.CancelledError:
            await self.abandon()
            raise
        if self._machine.close_error is not None:
            raise self._machine.close_error

    async def abandon(self) -> None:
        """Let go without closing anything; the next open recovers the log."""
        self._stop_naming()
        self._run.post(protocol.AbandonRequested())
        await self._closed.wait()

    def publish(self) -> None:
        """Let readers have at once what is confirmed: the process may end without `close`."""
        for ledger in self._appenders.values():
            ledger.publish()

    def _stop_naming(self) -> None:
        if self._naming is not None:
            self._naming.cancel()

    def lose(self, error: LogError) -> None:
        """Appends cannot go on as they did: reopen, or end the writer."""
        self._run.post(protocol.TroubleMet(error))

    def __del__(self) -> None:
        if self._loop.is_closed():  # asyncio.run() has ended without close()
            self.report_pending()

    def report_pending(self) -> None:
        """Warn once of what is not confirmed as the process ends; not in a child of it."""
        if self.pending_records and self._pid == os.getpid():
            self._pid = 0
            _log.warning("appends_unconfirmed_at_exit", log=self.log, records=self.pending_records)

    async def _answer(self, asked: Callable[[int], protocol.WritingEvent]) -> None:
        self._last_ticket += 1
        ticket = self._last_ticket
        waiter = self._tickets[ticket] = self._loop.create_future()
        try:
            self._run.post(asked(ticket))
            await waiter
        finally:
            self._tickets.pop(ticket, None)

    # What the machine asks for.

    def _execute(self, effect: protocol.WritingEffect) -> None:
        match effect:
            case protocol.Confirm():
                self._confirm(effect)
            case protocol.SendEntries():
                self._send(effect)
            case protocol.Refuse():
                error = effect.error
                metrics.FAILED_RECORDS.add("refused", by=effect.batch.count)
                effect.batch.fail(lambda _: error, self.tell)
                self._make_room()
            case protocol.LeaveUnknown():
                metrics.FAILED_RECORDS.add("unknown", by=effect.batch.count)
                effect.batch.fail(partial(self._unknown, effect), self.tell)
                self._make_room()
            case protocol.Answer():
                self._resolve(effect)
            case protocol.TakeRollStep() | protocol.TakeOver() | protocol.CloseSegment():
                assert self._work is None or self._work.done(), "work goes on one after another"
                self._work = self._run.spawn(self._ended(effect))
            case protocol.StopWork():
                if self._work is not None:
                    self._work.cancel()
                    self._stopped.append(self._work)
                    self._work = None
            case protocol.LetGo():
                leaving = self._loop.create_task(self._let_go(effect))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._left)
            case protocol.Lost():
                metrics.WRITERS.remove(self)
                self.lost.set()
                is_lost = isinstance(self.error, LostOwnership)
                if self._process and is_lost and not self._machine.closing:
                    self._naming = self._loop.create_task(self._name_sibling())
            case protocol.Closed():
                metrics.WRITERS.remove(self)
                self._closed.set()
            case protocol.Note():
                metrics.WRITER_EVENTS.add(effect.event)
                note = _log.warning if effect.warns else _log.info
                note(effect.event, log=self.log, epoch=self.epoch, **effect.fields)
            case _:
                assert_never(effect)

    def _confirm(self, effect: protocol.Confirm) -> None:
        batch = effect.batch
        metrics.APPENDED_RECORDS.add(by=batch.count)
        metrics.APPENDED_BYTES.add(by=batch.size_bytes)
        batch.confirm(effect.offset, effect.segment, effect.entry_id)
        if self._room:
            self._make_room()

    def _broken(self, error: BaseException) -> None:
        """What nobody foresaw must not leave callers waiting."""
        self._run = self._new_run()
        failure = self._failure(error)
        self._run.post(protocol.Broke(failure))
        for ticket in tuple(self._tickets):  # their answers may have been about to be given
            self._resolve(protocol.Answer(ticket, failure))

    def _failure(self, bug: BaseException) -> LogError:
        return WriterFailed(min(self.own_ledgers), repr(bug))

    def _send(self, effect: protocol.SendEntries) -> None:
        ledger = self._appenders[effect.ledger_id]
        codec, codec_level = self._compressions[effect.ledger_id]
        sealer = self._sealers.get(effect.ledger_id)
        entries: list[tuple[bytes, Callable[[EntryId | LogError], None]]] = []
        begun: list[spans.Span] = []
        sent_at = self._loop.time()
        for batch in effect.batches:
            inner = codec if sealer is None else Codec.NONE
            payload = batch.encode(codec=inner, codec_level=codec_level)
            if sealer is not None:
                payload = sealer.seal(payload, codec, codec_level)
                sealer.added()
            if (span := spans.begin("dlog.append")) is not None:
                facts = {"epoch": self.epoch, "ledger": ledger.ledger_id, "records": batch.count}
                spans.describe(span, log=self.log, bytes=len(payload), **facts)
                begun.append(span)
            settled = partial(self._on_settled, ledger, len(payload), sent_at, span)
            entries.append((payload, settled))
        try:
            ledger.add_all(entries)
        except LogError as error:  # the ledger is left then
            reason = ledger.error or error
            self._run.post(protocol.SendRefused(effect.ledger_id, len(entries), reason))
            for span in begun:
                spans.end(span, reason)
            return
        for batch, (payload, _) in zip(effect.batches, entries, strict=True):
            metrics.BATCH_RECORDS.observe(batch.count)
            metrics.BATCH_BYTES.observe(len(payload))

    def _on_settled(
        self,
        ledger: LedgerAppender,
        size_bytes: int,
        sent_at: float,
        span: "spans.Span | None",
        outcome: EntryId | LogError,
    ) -> None:
        if isinstance(outcome, LogError):  # not at once: the ledger may be in the middle of ending
            failed = protocol.AddFailed(ledger.ledger_id, ledger.error or outcome)
            self._loop.call_soon(self._run.post, failed)
        else:
            metrics.APPEND_S.observe(self._loop.time() - sent_at)
            confirmed = self._machine.confirmed
            self._run.call(partial(confirmed, ledger.ledger_id, outcome, size_bytes))
        if span is not None:  # last: what an application's tracing raises changes no outcome
            _end_span(span, outcome)

    def _unknown(self, effect: protocol.LeaveUnknown, slot: int) -> LogError:
        return AppendOutcomeUnknown(self.log, effect.offset + slot, effect.reason)

    def _resolve(self, effect: protocol.Answer) -> None:
        waiter = self._tickets.pop(effect.ticket, None)
        if waiter is None or waiter.done():
            return  # who asked was cancelled
        if effect.error is None:
            waiter.set_result(None)
        else:
            self.tell()
            waiter.set_exception(effect.error.with_traceback(None))

    def _make_room(self) -> None:
        while self._room and self.has_room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    # What takes time.

    async def _ended(self, effect: protocol.Work) -> protocol.WritingEvent:
        """Do it; return the event it ends with, also if that was not foreseen."""
        try:
            return await self._do(effect)
        except LogError as error:
            return _failed(effect, error)
        except Exception as bug:  # noqa: BLE001 - must not leave callers waiting
            return _failed(effect, self._failure(bug))

    async def _do(self, effect: protocol.Work) -> protocol.WritingEvent:
        match effect:
            case protocol.TakeRollStep():
                step = await self._roll_steps.take(effect)
                return protocol.RollStepped(effect.number, step)
            case protocol.TakeOver():
                return await self._take_over()
            case protocol.CloseSegment():
                return await self._close_segment(effect)
            case _:
                assert_never(effect)

    async def _take_over(self) -> protocol.WritingEvent:
        driver = TakeoverDriver(
            self._ledgers,
            self._node,
            term=self._term,
            now_ms=self._now_ms,
            expected_epoch=self.epoch,
            reopens=self._incarnation,
        )
        opened = await driver.run()
        ledger_id = opened.ledger.ledger_id
        self._appenders[ledger_id] = opened.ledger
        self._compressions[ledger_id] = compression_of(opened.manifest.settings)
        if opened.sealer is not None:
            self._sealers[ledger_id] = opened.sealer
        self._roll_steps = self._steps_by(opened.manifest)
        return protocol.Reopened(opened.manifest, opened.segment, ledger_id)

    async def _name_sibling(self) -> None:
        """Let errors say so if a process of this machine has the log now. Best effort."""
        with suppress(LogError, TimeoutError):
            async with asyncio.timeout(SIBLING_S):
                owner = await self._successor()
            if reason := taken_by_sibling(owner, self._process):
                self._run.post(protocol.SiblingNamed(reason))

    async def _successor(self) -> str:
        """Return the log's owner after us; empty if the log is gone, or changed but is ours.

        A log is fenced before its manifest says by whom: then one change is waited for."""
        watch = self._node.watch()
        try:
            manifest, _ = await self._node.read()
            if manifest.epoch == self.epoch:
                await watch.changed()
                manifest, _ = await self._node.read()
        finally:
            watch.close()
        is_taken = manifest.incarnation == self._incarnation and manifest.epoch > self.epoch
        return manifest.owner if is_taken else ""

    async def _close_segment(self, effect: protocol.CloseSegment) -> protocol.WritingEvent:
        if effect.closes:
            await self._appenders[effect.ledger_id].close()
        sealed = await seal_of(
            self._ledgers,
            self.log,
            effect.ledger_id,
            last_txid=effect.last_txid,
            created_ms=self._now_ms(),
        )
        await self._node.edit(
            seal_segment(self.log, effect.number, effect.ledger_id, sealed, now_ms=self._now_ms())
        )
        return protocol.SegmentClosed()

    async def _let_go(self, effect: protocol.LetGo) -> None:
        stopped, self._stopped = self._stopped, []
        if stopped:
            await asyncio.wait(stopped)
        own = [self._appenders.pop(each, None) for each in effect.ledger_ids]
        for each in effect.ledger_ids:
            self._compressions.pop(each, None)
            self._sealers.pop(each, None)
        await asyncio.gather(*(ledger.abandon() for ledger in own if ledger is not None))

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled():
            self._run.post(protocol.LedgersLetGo())


def _report_pending() -> None:
    """Say how many appends a program leaves behind at its end: their outcome is unknown to it."""
    for writer in tuple(metrics.WRITERS):
        if isinstance(writer, LogWriter):
            writer.report_pending()


atexit.register(_report_pending)


def _end_span(span: "spans.Span", outcome: EntryId | LogError) -> None:
    if isinstance(outcome, LogError):
        spans.end(span, outcome)
    else:
        spans.end(span, None, entry=outcome)


def _failed(effect: protocol.Work, error: LogError) -> protocol.WritingEvent:
    match effect:
        case protocol.TakeRollStep():
            return protocol.RollFailed(effect.number, error)
        case protocol.TakeOver():
            return protocol.ReopenFailed(error)
        case protocol.CloseSegment():
            return protocol.CloseFailed(error)
        case _:
            assert_never(effect)
