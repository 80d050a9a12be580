"""Executes `protocol.roll` for one writer: creates, lists, switches, closes, seals."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, assert_never

from dlog.aio.maintain.trim import apply_retention
from dlog.aio.port import LedgerAppender, Ledgers
from dlog.aio.read.segments import seal_of, stamp
from dlog.aio.store.manifests import ManifestNode, delete_listed
from dlog.errors import AppendFailed, RollPostponed
from dlog.manifest import Manifest
from dlog.position import NO_TXID
from dlog.protocol import roll as protocol
from dlog.protocol.edits import add_segment, seal_segment
from ledger.errors import BadVersion, LedgerFenced, LogError
from ledger.log_events import get_logger
from ledger.machine_loop import MachineLoop

Step = protocol.CreateLedger | protocol.ListSegment | protocol.CloseLedger | protocol.SealSegment

ROLL_PATIENCE_S: Final = 30.0

_log = get_logger(__name__)


class Switchable(Protocol):
    """The writer, as far as rolling it goes."""

    @property
    def last_txid(self) -> int | None: ...

    def hold(self, on_confirmed: Callable[[], None]) -> None:
        """Send nothing more; call back once all that was sent is confirmed."""

    def switch(self, ledger: LedgerAppender, segment: int) -> LedgerAppender:
        """Send again, to *ledger*; return the ledger before."""

    def lose(self, error: LogError) -> None:
        """The log belongs to somebody else, or is gone."""


class Roller:
    def __init__(
        self,
        ledgers: Ledgers,
        node: ManifestNode,
        writer: Switchable,
        manifest: Manifest,
        segment: int,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._ledgers = ledgers
        self._node = node
        self._writer = writer
        self._incarnation = manifest.incarnation
        self._settings = manifest.settings
        self._now_ms = now_ms
        loop = asyncio.get_running_loop()
        self._machine = protocol.Roll(manifest.settings, segment, now=loop.time())
        self._run: MachineLoop[protocol.RollEvent, protocol.RollEffect] = MachineLoop(
            self._machine,
            self._execute,
            time_passed=protocol.TimePassed(),
            broken=self._broken,
        )
        self._next: LedgerAppender | None = None
        self._previous: LedgerAppender | None = None
        self.previous_txid = NO_TXID
        """Last txid of the log when the previous ledger was switched from."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._error: LogError | None = None
        self._trouble = "its ledgers are slow"
        """Why a roll that is under way takes long."""

    @property
    def unsealed(self) -> tuple[LedgerAppender | None, LedgerAppender | None]:
        """The ledgers before and after the writer's own that a roll has under way."""
        return self._previous, self._next

    def grown(self, records: int, size_bytes: int) -> None:
        """Tell what the present segment holds by now."""
        self._run.post(protocol.Grown(records, size_bytes))

    async def roll(self) -> None:
        """Roll now, unless the segment is empty; return when the one before is sealed.

        Raises `LostOwnership` or what else ended the writer, and `RollPostponed` if it is not
        done in time: it will be, and appends go on meanwhile."""
        if self._error is not None:
            raise self._error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._machine.segment + 1, future))
        self._run.post(protocol.RollRequested())
        try:
            async with asyncio.timeout(ROLL_PATIENCE_S):
                await future
        except TimeoutError:
            raise RollPostponed(self._node.log, ROLL_PATIENCE_S, self._trouble) from None

    def stop(self, error: LogError) -> None:
        """Roll no more: the writer ended with *error*."""
        self._error = error
        self._run.stop()
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def leave(self) -> list[asyncio.Future[None]]:
        """Roll no more, without an error; return what waits for a roll."""
        self._run.stop()
        waiting, self._waiting = self._waiting, []
        return [future for _, future in waiting]

    def _execute(self, effect: protocol.RollEffect) -> None:
        match effect:
            case protocol.HoldAdds():
                self._writer.hold(lambda: self._run.post(protocol.AddsConfirmed()))
            case protocol.Switch():
                assert self._next is not None
                txid = self._writer.last_txid
                self.previous_txid = NO_TXID if txid is None else txid
                self._previous = self._writer.switch(self._next, effect.segment)
                self._next = None
            case protocol.Rolled():
                self._rolled(effect.segment)
            case _:
                self._run.spawn(self._perform(effect))

    async def _perform(self, effect: Step) -> protocol.RollEvent:
        """Do what takes time; return the event it ends with, `StepFailed` for what may pass."""
        try:
            return await self._outcome(effect)
        except LogError as error:
            if error.retryable or isinstance(error, LedgerFenced | BadVersion):
                _log.warning("roll_postponed", log=self._node.log, error=str(error))
                self._trouble = str(error)
                return protocol.StepFailed()
            raise

    def _broken(self, error: BaseException) -> None:
        """A step failed for good."""
        _log.warning("roll_failed", log=self._node.log, error=str(error))
        lost = error if isinstance(error, LogError) else AppendFailed(self._node.log, repr(error))
        self._writer.lose(lost)

    async def _outcome(self, effect: Step) -> protocol.RollEvent:
        match effect:
            case protocol.CreateLedger():
                return await self._create(effect)
            case protocol.ListSegment():
                return await self._list(effect)
            case protocol.CloseLedger():
                return await self._close(effect)
            case protocol.SealSegment():
                return await self._seal(effect)
            case _:
                assert_never(effect)

    async def _create(self, effect: protocol.CreateLedger) -> protocol.RollEvent:
        self._next = await self._ledgers.create(
            self._settings.quorum,
            digest=self._settings.digest,
            custom=stamp(self._node.log, self._incarnation, effect.segment),
        )
        return protocol.LedgerCreated(self._next.ledger_id)

    async def _list(self, effect: protocol.ListSegment) -> protocol.RollEvent:
        await self._node.edit(
            add_segment(
                self._node.log,
                incarnation=self._incarnation,
                own_segment=effect.segment - 1,
                number=effect.segment,
                ledger_id=effect.ledger_id,
                now_ms=self._now_ms(),
            )
        )
        return protocol.SegmentListed()

    async def _close(self, effect: protocol.CloseLedger) -> protocol.RollEvent:
        assert self._previous is not None
        if not effect.recover:
            await self._previous.close()
        sealed = await seal_of(
            self._ledgers,
            self._node.log,
            self._previous.ledger_id,
            last_txid=self.previous_txid,
            created_ms=self._now_ms(),
        )
        return protocol.LedgerClosed(sealed)

    async def _seal(self, effect: protocol.SealSegment) -> protocol.RollEvent:
        assert self._previous is not None
        manifest = await self._node.edit(
            seal_segment(
                self._node.log,
                effect.segment,
                self._previous.ledger_id,
                effect.sealed,
                now_ms=self._now_ms(),
            )
        )
        self._previous = None
        try:
            manifest = await apply_retention(
                self._ledgers, self._node, manifest, now_ms=self._now_ms()
            )
            await delete_listed(self._ledgers, self._node, manifest)
        except LogError as error:  # they stay listed: the next roll or the janitor deletes them
            _log.warning("deletion_postponed", log=self._node.log, error=str(error))
        return protocol.SegmentSealed()

    def _rolled(self, segment: int) -> None:
        for target, future in self._waiting:
            if target <= segment and not future.done():
                future.set_result(None)
        self._waiting = [(target, f) for target, f in self._waiting if not f.done()]
