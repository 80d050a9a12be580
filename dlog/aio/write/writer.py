"""The writer of one open log: sends what `aio.append_path` packs, rolls, heals, truncates, closes.

Healing: trouble that may pass (too few bookies, no metadata store at an ensemble change) ends a
ledger, not the writer. It takes its own log over, within its epoch (`aio.healing`): recovery tells
for each entry that was in flight whether it is in the log, once and for all. Those that are get
confirmed, the others are sent again to the new ledger, with the same offsets. If anybody else
took the log meanwhile, or trouble lasts, the writer ends. A ledger that a stranger made at its
bookies first (`KeyDiffers`) is closed as empty by the ledger's own writer, and replaced likewise.

How an append that was neither confirmed nor refused ends then: `AppendOutcomeUnknown` if it was
in flight; `LostOwnership` or `AppendFailed` if it was certainly not sent.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from dlog.aio.port import Leadership, LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of
from dlog.aio.store.manifests import ManifestNode, delete_listed
from dlog.aio.write.append_path import AppendPath, done
from dlog.aio.write.healing import HEAL_S, heal
from dlog.aio.write.opening import OpenedLog
from dlog.aio.write.rolling import Roller
from dlog.errors import (
    AppendFailed,
    AppendOutcomeUnknown,
    CloseTimedOut,
    DamagedLog,
    EpochChanged,
    InvalidPosition,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
)
from dlog.protocol.edits import seal_segment, trim
from ledger.errors import (
    CallerError,
    KeyDiffers,
    LedgerFenced,
    LogError,
    NoSuchLedger,
    WriterFailed,
)
from ledger.ids import LedgerId
from ledger.log_events import get_logger

EMPTY_CLOSES_MAX: Final = 20
"""So many ledgers, one after another, may turn out to be a stranger's, and be closed empty, before
the writer ends: with a block of ids left behind each time, more than a bookie takes unasked."""
CLOSE_S: Final = 30.0
"""How long `close` takes at most unless told otherwise."""

_TAKEN_OVER = (LedgerFenced, LostOwnership, EpochChanged, NoSuchLog, NoSuchLedger)

_log = get_logger(__name__)


class LogWriter(AppendPath):
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
        super().__init__(node.log, opened, now_ms=now_ms)
        manifest = opened.manifest
        self.epoch = opened.segment
        self._incarnation = manifest.incarnation
        node.follow(manifest.incarnation)
        self.lost = asyncio.Event()
        """Set when this writer has ended without `close`; see `error`."""
        self._ledgers = ledgers
        self._node = node
        self._term = term
        self._heal_s = heal_s
        self._healed_offset = -1
        """What was confirmed when the last healing ended: one without progress is the last."""
        self._empty_closes = 0
        """Ledgers that strangers had, since the last that was confirmed."""
        self._leaving: asyncio.Task[None] | None = None
        self._let_go = asyncio.Event()
        """Set when `close` or `abandon` has ended."""
        self._roller = Roller(ledgers, node, self, manifest, opened.segment, now_ms=now_ms)

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
        """Confirm what is pending, then close the segment. Raises what failed.

        If it is cancelled, what is not confirmed by then fails. A second call waits for the
        first."""
        if self._closing:
            await self._let_go.wait()
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
        except asyncio.CancelledError:
            self.lose(LogClosed(self.log))
            raise
        finally:
            self._roller.stop(LogClosed(self.log))
            try:
                if self.error is None and self._healing is None:
                    await self._close_ledgers(deadline)
                else:
                    await self.abandon()
            finally:
                self._let_go.set()

    async def abandon(self) -> None:
        """Let go without closing anything; the next open recovers the log."""
        self._closing = True
        self.lose(LogClosed(self.log))
        try:
            if self._leaving is not None:
                await self._leaving
            if self._healing is not None:
                await asyncio.wait((self._healing,))
        finally:
            self._let_go.set()

    # What the roller needs.

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
            if self._may_heal(error):
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
        ended = self.error
        for group in sent:
            if _closed_empty(error):
                group.outcome.fail(lambda _: ended)
            else:
                group.outcome.fail(partial(self._unknown, offset, str(error)))
            offset += group.count
        for group in unsent:
            group.outcome.fail(lambda _: ended)
        self._roller.stop(self.error)
        self._leaving = self._loop.create_task(self._ledger.abandon())
        self.lost.set()
        self._wake()

    def _may_heal(self, error: LogError) -> bool:
        if self._confirmed_offset > self._healed_offset:
            self._empty_closes = 0
        elif not _closed_empty(error):
            return False
        self._empty_closes += _closed_empty(error)
        return self._empty_closes <= EMPTY_CLOSES_MAX

    def _grown(self, records: int, size_bytes: int) -> None:
        self._roller.grown(records, size_bytes)

    def _unknown(self, offset: int, reason: str, slot: int) -> LogError:
        return AppendOutcomeUnknown(self.log, offset + slot, reason)

    async def _heal(self, error: LogError) -> None:
        _log.warning("writer_heals", log=self.log, epoch=self.epoch, error=str(error))
        rolls = self._roller.leave()
        own = (self._ledger, *self._roller.unsealed)
        try:
            await asyncio.gather(*(ledger.abandon() for ledger in own if ledger is not None))
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
            self._not_healed(verdict)
        except Exception as bug:  # noqa: BLE001 - what nobody foresaw must not leave callers waiting
            self._not_healed(WriterFailed(self._ledger.ledger_id, repr(bug)))
        finally:
            healed = self._healing is None and self.error is None
            for future in rolls:
                if healed:
                    done(future)
                elif not future.done():
                    future.set_exception(self.error or LogClosed(self.log))

    def _not_healed(self, verdict: LogError) -> None:
        self._healed_offset = self._next_offset
        self._healing = None
        self.lose(verdict)

    def _healed(self, opened: OpenedLog) -> None:
        """Settle what was in flight by what the log holds; go on in the new segment."""
        manifest = opened.manifest
        end, packer = manifest.sealed_end, self._packer
        while packer.in_flight and self._confirmed_offset + packer.oldest.count <= end:
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
        txid, txid_before = self._confirmed_txid, self._roller.previous_txid
        own = [
            (segment - 1, before, txid_before),
            (segment, self._ledger, txid),
            (segment + 1, after, txid),
        ]
        self.error = LogClosed(self.log)
        try:
            async with asyncio.timeout_at(deadline):
                for number, ledger, last_txid in own:
                    if ledger is not None:
                        await self._close_ledger(
                            number, ledger, last_txid, closes=ledger is not before
                        )
        except (LogError, TimeoutError) as error:
            _log.warning("close_incomplete", log=self.log, error=str(error))
        finally:  # those that are closed have nothing to let go of
            ledgers = (ledger for _, ledger, _ in own if ledger is not None)
            await asyncio.gather(*(ledger.abandon() for ledger in ledgers))

    async def _close_ledger(
        self, number: int, ledger: LedgerAppender, last_txid: int, *, closes: bool
    ) -> None:
        if closes:
            await ledger.close()
        sealed = await seal_of(
            self._ledgers,
            self.log,
            ledger.ledger_id,
            last_txid=last_txid,
            created_ms=self._now_ms(),
        )
        await self._node.edit(
            seal_segment(self.log, number, ledger.ledger_id, sealed, now_ms=self._now_ms())
        )


def _closed_empty(error: LogError) -> bool:
    """Whether *error* says that nothing which was sent to the ledger is kept."""
    return isinstance(error, KeyDiffers) and error.closed_empty
