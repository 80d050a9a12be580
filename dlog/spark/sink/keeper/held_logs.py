"""The logs that the keeper holds open, by one client for all; `ownership` decides who may write
them.

One thing happens to a log at a time. What others should know after a crash is saved before it is
relied upon; that the keeper dies in between costs nothing but a takeover.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode
from dlog.aio.write.sink import Assignment, Committed, Sink, Staged
from dlog.errors import EpochChanged, LogSealed, LostOwnership, NoSuchLog
from dlog.receipts import Receipt
from dlog.settings import LogSettings
from dlog.spark.errors import StagedBefore
from dlog.spark.sink.keeper.ownership import Ownership, RunTenure
from ledger.errors import LogError
from ledger.log_events import get_logger

IDLE_S: Final = 15 * 60.0
"""A log that nobody wrote to for so long is closed; the next batch goes on in the same epoch."""
OPEN_MAX: Final = 256
"""Logs that are open at once; the one that was used longest ago is closed for another."""
KNOWN_MAX: Final = 4096
"""Logs of which it is known who had them."""
_LOST: Final = (LostOwnership, LogSealed, NoSuchLog)
_log = get_logger(__name__)


class HeldSink(Protocol):
    """What the keeper needs of `dlog.aio.write.sink.Sink`."""

    @property
    def epoch(self) -> int: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def assignment(self) -> Assignment: ...
    def last_unit(self, origin: bytes) -> int | None: ...
    async def commit(
        self, receipt: Receipt, parts: Sequence[bytes | Staged], *, entry_bytes_max: int = ...
    ) -> Committed: ...
    async def close(self) -> None: ...
    async def abandon(self) -> None: ...


class LogOpener(Protocol):
    """How logs are opened."""

    async def open(self, log: str, *, create: bool, settings: LogSettings | None) -> HeldSink:
        """Take the log over."""

    async def resume(self, log: str, tenure: RunTenure) -> HeldSink:
        """Go on within *tenure*. Raises `EpochChanged`, `NoSuchLog`."""

    async def look(self, log: str) -> Assignment:
        """Return the assignment that who has the log now would give. Raises `NoSuchLog`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one run wants to be in one log."""

    log: str
    run: str
    receipt: Receipt
    parts: Sequence[bytes | Staged]
    entry_bytes_max: int
    create: bool
    settings: LogSettings | None
    final: bool
    """The run writes nothing more after this."""


@dataclass(slots=True)
class _Slot:
    ownership: Ownership
    sink: HeldSink | None = None
    last_used: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Holding:
    """Used on one loop. *save* is given who has which log, whenever that changes."""

    def __init__(
        self,
        opener: LogOpener,
        *,
        known: dict[str, Ownership],
        save: Callable[[dict[str, Ownership]], None],
        clock: Callable[[], float],
        idle_s: float = IDLE_S,
        open_max: int = OPEN_MAX,
    ) -> None:
        self._opener = opener
        self._slots = {log: _Slot(ownership) for log, ownership in known.items()}
        self._save = save
        self._saved = {log: ownership.to_facts() for log, ownership in known.items()}
        self._clock = clock
        self._idle_s, self._open_max = idle_s, open_max

    async def claim(
        self, log: str, *, run: str | None, create: bool, settings: LogSettings | None
    ) -> Assignment:
        """Return what tasks need to stage for *log*; take it over if nobody here has it, and may.

        Raises what opening a log does, and `LostOwnership` if *run* lost it before."""
        slot = self._slot(log)
        async with slot.lock:
            if run is not None:
                slot.ownership.admit(log, run)
            if slot.sink is None:
                slot.sink = await self._resumed(log, slot)
            elif slot.ownership.may_take_over(run) and not await self._is_current(slot.sink, log):
                await self._drop(slot)
            if slot.sink is None:
                if not slot.ownership.may_take_over(run):
                    return await self._lent(log, slot)
                slot.sink = await self._opened(log, slot, create=create, settings=settings)
            if run is not None:
                slot.ownership.used(run)
                self._keep(log)
            return slot.sink.assignment

    def assignments(self) -> list[Assignment]:
        """Return those of all logs that are open."""
        return [slot.sink.assignment for slot in self._slots.values() if slot.sink is not None]

    async def commit(self, batch: Batch) -> Committed:
        """Make the batch part of its log, unless it is. Raises what `Sink.commit` does; it is
        `LostOwnership` also for a run that lost the log before."""
        slot = self._slot(batch.log)
        async with slot.lock:
            ownership = slot.ownership
            ownership.admit(batch.log, batch.run)
            begins = ownership.may_take_over(batch.run)
            if slot.sink is None:
                slot.sink = await self._resumed(batch.log, slot)
                ownership.admit(batch.log, batch.run)  # it may just have lost the log
            if slot.sink is None:
                slot.sink = await self._opened(
                    batch.log, slot, create=batch.create, settings=batch.settings
                )
            ownership.used(batch.run)
            self._keep(batch.log)
            try:
                committed = await self._committed(slot.sink, batch)
            except StagedBefore:
                raise
            except _LOST as error:
                await self._drop(slot)
                if not (begins and isinstance(error, LostOwnership)):
                    self._lose(batch.log, slot, error, told=batch.run)
                    raise
                # It was lost before this run began, so it is this run's to take.
                slot.sink = await self._opened(
                    batch.log, slot, create=batch.create, settings=batch.settings
                )
                committed = await self._committed(slot.sink, batch)
            if batch.final:
                ownership.finished(batch.run)
                self._keep(batch.log)
            return committed

    async def finish(self, log: str, run: str) -> None:
        """*run* gave up: it will write nothing."""
        slot = self._slot(log)
        async with slot.lock:
            slot.ownership.finished(run)
            self._keep(log)

    async def close_idle(self) -> None:
        """Close what nobody used lately; to be called now and then."""
        now = self._clock()
        for log, slot in list(self._slots.items()):
            if slot.sink is not None and now - slot.last_used >= self._idle_s:
                await self._close(log, slot)

    async def close(self) -> None:
        """Close all logs cleanly."""
        await asyncio.gather(*(self._close(log, slot) for log, slot in self._slots.items()))

    def _slot(self, log: str) -> _Slot:
        slot = self._slots.pop(log, None) or _Slot(Ownership())
        self._slots[log] = slot  # the last one used is the last one in order
        slot.last_used = self._clock()
        if len(self._slots) > KNOWN_MAX:
            free = (k for k, s in self._slots.items() if s.sink is None and not s.lock.locked())
            forgotten = next(free, log)
            del self._slots[forgotten]
            self._saved.pop(forgotten, None)
        return slot

    async def _resumed(self, log: str, slot: _Slot) -> HeldSink | None:
        """Go on where the log was open here last; None: it never was, or was lost since."""
        if slot.ownership.tenure is None:
            return None
        await self._make_room()
        try:
            return await self._opener.resume(log, slot.ownership.tenure)
        except EpochChanged as error:
            by = f"{error.owner} took it over" if error.owner else "another process took it over"
            self._lose(log, slot, LostOwnership(log, by))
        except (LostOwnership, LogSealed, NoSuchLog) as error:
            self._lose(log, slot, error)
        return None

    async def _is_current(self, sink: HeldSink, log: str) -> bool:
        try:
            return (await self._opener.look(log)).epoch == sink.epoch
        except NoSuchLog:
            return False

    async def _opened(
        self, log: str, slot: _Slot, *, create: bool, settings: LogSettings | None
    ) -> HeldSink:
        await self._make_room()
        sink = await self._opener.open(log, create=create, settings=settings)
        slot.ownership.opened(RunTenure(sink.incarnation, sink.epoch))
        self._keep(log)
        return sink

    async def _lent(self, log: str, slot: _Slot) -> Assignment:
        try:
            return await self._opener.look(log)
        except NoSuchLog:
            slot.ownership = Ownership(deposed=slot.ownership.deposed)
            self._keep(log)
            raise

    async def _committed(self, sink: HeldSink, batch: Batch) -> Committed:
        last = sink.last_unit(batch.receipt.origin)
        stale = [p for p in batch.parts if isinstance(p, Staged) and p.epoch != sink.epoch]
        if stale and (last is None or last < batch.receipt.number):
            raise StagedBefore(batch.log)
        return await sink.commit(batch.receipt, batch.parts, entry_bytes_max=batch.entry_bytes_max)

    def _lose(self, log: str, slot: _Slot, error: LogError, *, told: str | None = None) -> None:
        reason = error.reason if isinstance(error, LostOwnership) else str(error)
        slot.ownership.lost(reason)
        if told is not None:
            slot.ownership.told(told)
        _log.warning("log_lost", log=log, reason=reason)
        self._keep(log)

    def _keep(self, log: str) -> None:
        """Save what is known, if what is known of *log* has changed."""
        slot = self._slots.get(log)
        facts = None if slot is None else slot.ownership.to_facts()
        if facts is not None and facts != self._saved.get(log):
            self._save({log: slot.ownership for log, slot in self._slots.items()})
            self._saved[log] = facts

    async def _make_room(self) -> None:
        held = [(log, s) for log, s in self._slots.items() if s.sink and not s.lock.locked()]
        for log, slot in held[: max(0, len(held) - self._open_max + 1)]:
            await self._close(log, slot)

    async def _close(self, log: str, slot: _Slot) -> None:
        async with slot.lock:
            sink, slot.sink = slot.sink, None
            if sink is None:
                return
            try:
                await sink.close()
            except LogError as error:
                _log.warning("log_not_closed", log=log, error=str(error))

    async def _drop(self, slot: _Slot) -> None:
        sink, slot.sink = slot.sink, None
        if sink is not None:
            await sink.abandon()


class ClusterOpener:
    """Connects by *connect* at the first call; *owner* is what others read who took a log."""

    def __init__(self, connect: Callable[[], Awaitable[Ledgers]], *, owner: str) -> None:
        self._connect, self._owner = connect, owner
        self._connecting = asyncio.Lock()
        self._ledgers: Ledgers | None = None

    async def open(self, log: str, *, create: bool, settings: LogSettings | None) -> Sink:
        ledgers = await self._connected()
        return await Sink.open(
            log, client=ledgers, create=create, settings=settings, owner=self._owner
        )

    async def resume(self, log: str, tenure: RunTenure) -> Sink:
        ledgers = await self._connected()
        return await Sink.resume(
            log,
            client=ledgers,
            incarnation=tenure.incarnation,
            epoch=tenure.epoch,
            owner=self._owner,
        )

    async def look(self, log: str) -> Assignment:
        ledgers = await self._connected()
        manifest, _ = await ManifestNode(ledgers.store, log).read()
        return Assignment(
            log,
            manifest.incarnation,
            manifest.epoch,
            manifest.settings,
            manifest.sealed_last_txid,
        )

    async def close(self) -> None:
        if self._ledgers is not None:
            await self._ledgers.close()
            self._ledgers = None

    async def _connected(self) -> Ledgers:
        async with self._connecting:
            if self._ledgers is None:
                self._ledgers = await self._connect()
            return self._ledgers
