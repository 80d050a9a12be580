"""Does the actions of `protocol.repair` on bookies and the metadata store."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from bookie.autorecovery.marks import Ended, Marks
from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.protocol.repair_plan import Leaving, Share
from bookie.autorecovery.replica_scan import READ_BYTES_MAX, ask, look
from ledger.delays import Backoff, Throttle
from ledger.environment import Credentials, Environment, repair_credentials, runs_of
from ledger.errors import BadVersion, LogError, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger, now_ms
from ledger.mark import Reason, UnderreplicatedLedger
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import CheckOp
from ledger.procedures import run
from ledger.protocol.answers import verified
from ledger.protocol.procedure import Action
from ledger.recovery import recover_without_password
from ledger.registry import DECOMMISSIONING
from ledger.requests import AddRun, ReadQuery, Status

SENDS_MAX: Final = 6
"""How often frames are sent to a bookie that is too busy for them, or has just come back."""
_SEND_AGAIN_S_MIN: Final = 0.1
_SEND_AGAIN_S_MAX: Final = 3.0
_UNLOCK_S_MAX: Final = 2.0
CACHE_S: Final = 1.0
COMPARED_MAX: Final = 2 * READ_BYTES_MAX
"""Bytes that a witness gives: more than what they are compared with, which is about one read."""

_log = get_logger(__name__)


class CopyPace:
    """What all repairs of a process share: bytes that are copied, and how fast they may be."""

    def __init__(self, bytes_per_s: float) -> None:
        """*bytes_per_s*: 0 for no limit."""
        self._clock = asyncio.get_running_loop().time
        self._throttle = Throttle(bytes_per_s, now=self._clock())
        self.bytes = 0
        """Copied so far."""
        self.entries = 0

    async def take(self, size_bytes: int) -> None:
        await asyncio.sleep(self._throttle.take(size_bytes, self._clock()))

    @property
    def bytes_per_s(self) -> float:
        return self._throttle.per_s

    def set_rate(self, bytes_per_s: float) -> None:
        """Let *bytes_per_s* hold from now on; 0 for no limit."""
        self._throttle.set_rate(bytes_per_s)

    def copied(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.bytes += size_bytes


class MarksPort(Protocol):
    """What a repair needs of marks and locks: those of the metadata store (`marks.Marks`), or an
    operator's own (`move_job.OwnMarks`)."""

    async def lock(self, ledger_id: LedgerId) -> bool: ...

    async def unlock(self, ledger_id: LedgerId) -> None: ...

    async def name_target(self, ledger_id: LedgerId, bookie: BookieId) -> bool: ...

    async def read(self, ledger_id: LedgerId) -> tuple[UnderreplicatedLedger, int] | None: ...

    async def write(
        self, ledger_id: LedgerId, mark: UnderreplicatedLedger, version: int
    ) -> bool: ...

    async def end(self, ledger_id: LedgerId, version: int) -> Ended: ...


class RepairCache:
    """What a worker reads once for all of its repairs, and not for each of them; never older than
    `CACHE_S`.

    Hints only, but for who is to be emptied: of a ledger that is marked for a bookie that was not
    to be emptied when this was read, it is read again, as that is written before any mark."""

    def __init__(self, marks: Marks) -> None:
        self._leaving = Leaving(frozenset(), -1)
        self.urgent: tuple[LedgerId, ...] = ()
        """Marked ledgers that come before others."""
        self.locked: frozenset[LedgerId] = frozenset()
        """Ledgers that are being repaired, also by this worker."""
        self.revision = 0
        """Grows each time that all of this was read."""
        self._marks = marks
        self._clock = asyncio.get_running_loop().time
        self._read_at: float | None = None

    async def refresh(self) -> None:
        """Read all again if it is old. Raises `MetadataUnavailable`."""
        now = self._clock()
        if self._read_at is not None and now < self._read_at + CACHE_S:
            return
        self.urgent = await self._marks.urgent()
        self.locked = await self._marks.locked_ledgers()
        self._leaving = await self._marks.leaving()
        self._read_at = now
        self.revision += 1

    def forget(self) -> None:
        """Let all be read again: it has changed."""
        self._read_at = None

    async def leaving_for(self, mark: UnderreplicatedLedger) -> Leaving:
        """Return who is to be emptied, for the repair of what *mark* says. Raises as `refresh`."""
        emptied = {
            replica.bookie for replica in mark.missing if replica.reason is Reason.DECOMMISSIONING
        }
        await self.refresh()
        if not emptied <= self._leaving.bookies:
            self._leaving = await self._marks.leaving()
        return self._leaving


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What a repair works with."""

    environment: Environment
    marks: MarksPort
    pace: CopyPace
    config: protocol.RepairConfig
    cache: RepairCache
    wall_clock_ms: Callable[[], int] = now_ms


async def repair_ledger(
    context: RepairContext,
    ledger_id: LedgerId,
    *,
    eager: bool = False,
    rejoined: frozenset[BookieId] = frozenset(),
) -> protocol.RepairEnd:
    """Repair the ledger, if it is marked and nobody else does; return how that ended.

    *eager*, *rejoined*: see `protocol.repair`.
    What the metadata store or bookies refuse ends up in the mark, or in what is returned;
    nothing of it is raised. Safe to cancel at any moment: the lock is given back then."""
    repairing = _RepairIO(context, ledger_id)
    steps = protocol.repair(context.config, eager=eager, rejoined=rejoined)
    try:
        return await run(steps, repairing.perform)
    finally:
        await repairing.let_go()


class _RepairIO:
    """Does the actions of one repair."""

    def __init__(self, context: RepairContext, ledger_id: LedgerId) -> None:
        self._environment = context.environment
        self._marks = context.marks
        self._cache = context.cache
        self._pace = context.pace
        self._now_ms = context.wall_clock_ms
        self._ledger_id = ledger_id
        self._metadata: LedgerMetadata | None = None
        self._frames: dict[int, bytes] = {}
        self._silent: set[BookieId] = set()
        """Witnesses that did not answer."""
        self._locking = False
        """Whether a lock was asked for, and not given back."""

    async def perform(self, action: Action[Any]) -> object:  # noqa: C901, PLR0911, PLR0912 - one line each
        match action:
            case protocol.TakeLock():
                self._locking = True
                self._locking = await self._marks.lock(self._ledger_id)
                return self._locking
            case protocol.ReadMark():
                mark, version = await self._marks.read(self._ledger_id) or (None, -1)
                return protocol.MarkRead(mark, version, self._now_ms())
            case protocol.ReadLedger():
                return await self._read_ledger(action)
            case protocol.ReadMetadata():
                return await self._environment.ledgers.read(self._ledger_id)
            case protocol.Look():
                return await self._look(action)
            case protocol.ChooseReplacements(indexes, exclude, ensemble):
                quorum = self._known()[0].quorum
                return self._environment.replacements(quorum, ensemble, indexes, exclude)
            case protocol.ChooseBetter(exclude, ensemble):
                quorum = self._known()[0].quorum
                return self._environment.better(quorum, ensemble, exclude)
            case protocol.ReadFrames():
                return await self._read_frames(action)
            case protocol.SendFrames():
                return await self._send_frames(action)
            case protocol.WriteSwap():
                return await self._write_swap(action)
            case protocol.RecoverLedger():
                await recover_without_password(self._environment, self._ledger_id)
            case protocol.WriteMark(mark, version):
                return await self._marks.write(self._ledger_id, mark, version)
            case protocol.DeleteMark(version):
                return await self._delete_mark(version)
            case protocol.Unlock():
                await self._marks.unlock(self._ledger_id)
                self._locking = False
            case _:
                raise AssertionError(f"no action of a repair: {action}")
        return None

    async def let_go(self) -> None:
        """Give back a lock that is still held, if the metadata store can be reached."""
        if not self._locking:
            return
        with suppress(LogError, TimeoutError):  # then it goes with the session
            async with asyncio.timeout(_UNLOCK_S_MAX):
                await self._marks.unlock(self._ledger_id)

    async def _delete_mark(self, version: int) -> bool:
        match await self._marks.end(self._ledger_id, version):
            case Ended.GONE:
                self._locking = False
                return True
            case Ended.GREW:
                return False
            case Ended.LOCK_LOST:
                raise protocol.LockLost

    async def _read_ledger(self, action: protocol.ReadLedger) -> protocol.LedgerRead:
        leaving = await self._cache.leaving_for(action.mark)
        version = -1
        try:
            self._metadata, version = await self._environment.ledgers.read(
                self._ledger_id, fresh=action.fresh
            )
        except NoSuchLedger:
            self._metadata = None
        registered = self._environment.registered()
        return protocol.LedgerRead(self._metadata, version, registered, leaving, self._now_ms())

    async def _write_swap(self, action: protocol.WriteSwap) -> int | None:
        check = CheckOp(DECOMMISSIONING, action.leaving_version)
        try:
            return await self._environment.ledgers.write(
                self._ledger_id, action.metadata, action.version, only_if=check
            )
        except BadVersion as error:
            if error.path != check.path:
                raise
            self._cache.forget()
            return None

    async def _look(self, action: protocol.Look) -> Share:
        metadata, credentials = self._known()
        return await look(
            self._environment.transport,
            credentials,
            metadata.quorum,
            action.question,
            thorough=action.thorough,
        )

    async def _read_frames(self, action: protocol.ReadFrames) -> protocol.FramesRead:
        metadata, credentials = self._known()
        query = ReadQuery(
            self._ledger_id,
            credentials.key,
            action.first,
            action.copy.last,
            bytes_max=READ_BYTES_MAX,
            repairs=True,
        )
        answer = await ask(self._environment.transport, action.bookie, query)
        found = verified(answer, self._ledger_id, credentials.checks)
        self._frames = {
            entry_id: bytes(frame)
            for entry_id, frame in found.frames.items()
            if action.copy.takes(entry_id, metadata.quorum)
        }
        entries = tuple(self._frames)
        if action.witness is None or not entries:
            return protocol.FramesRead(found.status, entries, found.considered)
        query = replace(query, last=min(found.considered, action.copy.last), bytes_max=COMPARED_MAX)
        differing = await self._differing(action.witness, query, credentials)
        if differing:
            _log.error(
                "frames_differ",
                ledger_id=self._ledger_id,
                bookies=[action.bookie, action.witness],
                entries=differing,
            )
        return protocol.FramesRead(found.status, entries, found.considered, differing)

    async def _differing(
        self, witness: BookieId, query: ReadQuery, credentials: Credentials
    ) -> tuple[int, ...]:
        """Return of which entries *witness* has another frame than the one held, whole like that.

        It is asked once: there is no need of what it does not give."""
        if witness in self._silent:
            return ()
        answer = await self._environment.transport.read(witness, query)
        if answer.status is not Status.OK:
            self._silent.add(witness)
        if all(frame == self._frames.get(entry_id, frame) for entry_id, frame in answer.each()):
            return ()
        others = verified(answer, self._ledger_id, credentials.checks).frames
        return tuple(
            entry_id
            for entry_id, frame in self._frames.items()
            if entry_id in others and others[entry_id] != frame
        )

    async def _send_frames(self, action: protocol.SendFrames) -> Status:
        _, credentials = self._known()
        if not await self._marks.name_target(self._ledger_id, action.bookie):
            raise protocol.LockLost
        runs = runs_of(
            action.entries, self._frames, credentials, bytes_max=READ_BYTES_MAX, recovery=True
        )
        size_bytes = sum(len(run.frames) for run in runs)
        await self._pace.take(size_bytes)
        status = await self._send(action.bookie, runs)
        self._frames.clear()
        if status is Status.OK:
            self._pace.copied(len(action.entries), size_bytes)
        return status

    async def _send(self, bookie: BookieId, runs: Sequence[AddRun]) -> Status:
        """Add *runs*, up to the first answer that is not OK."""
        for added in runs:
            status = await self._add_patiently(bookie, added)
            if status is not Status.OK:
                return status
        return Status.OK

    async def _add_patiently(self, bookie: BookieId, run: AddRun) -> Status:
        backoff = Backoff(_SEND_AGAIN_S_MIN, _SEND_AGAIN_S_MAX)
        for _ in range(SENDS_MAX - 1):
            status = await self._add(bookie, run)
            if status not in {Status.TOO_MANY_REQUESTS, Status.UNREACHABLE}:
                return status
            await asyncio.sleep(backoff.next())
        return await self._add(bookie, run)

    async def _add(self, bookie: BookieId, run: AddRun) -> Status:
        answered: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

        def on_done(status: Status) -> None:
            if not answered.done():
                answered.set_result(status)

        self._environment.transport.add(bookie, run, on_done)
        return await answered

    def _known(self) -> tuple[LedgerMetadata, Credentials]:
        assert self._metadata is not None, "the metadata were read first"
        return self._metadata, repair_credentials(self._ledger_id, self._metadata)
