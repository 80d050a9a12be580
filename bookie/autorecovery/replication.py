"""Drives `protocol.replication` against real bookies and a real metadata store."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from bookie.autorecovery.marks import Ended
from bookie.autorecovery.protocol import replication_events as protocol
from bookie.autorecovery.protocol.replication import Replication, ReplicationConfig
from bookie.autorecovery.repair_cache import Seen
from bookie.autorecovery.replica_check import READ_BYTES_MAX, ask, look
from ledger.backoff import Backoff
from ledger.clock import now_ms
from ledger.environment import Credentials, Environment, repair_credentials
from ledger.errors import BadVersion, LogError, MetadataUnavailable, NoSuchLedger
from ledger.ids import BookieId, LedgerId
from ledger.log_events import get_logger
from ledger.machine_loop import Machine, read_metadata, run_in_turn
from ledger.mark import Mark
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import CheckOp
from ledger.protocol import common_events
from ledger.protocol.answers import verified
from ledger.recovery import recover_without_password
from ledger.registry import DECOMMISSIONING
from ledger.requests import AddRun, ReadQuery, Status
from ledger.runs import runs_of
from ledger.throttle import Throttle

SENDS_MAX: Final = 6
"""How often frames are sent to a bookie that is too busy for them, or has just come back."""
_SEND_AGAIN_S_MIN: Final = 0.1
_SEND_AGAIN_S_MAX: Final = 3.0
_UNLOCK_S_MAX: Final = 2.0
COMPARED_MAX: Final = 2 * READ_BYTES_MAX
"""Bytes that a witness gives: more than what they are compared with, which is about one read."""

_log = get_logger(__name__)


class Pace:
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
    operator's own (`manual_repair.OwnMarks`)."""

    async def lock(self, ledger_id: LedgerId) -> bool: ...

    async def unlock(self, ledger_id: LedgerId) -> None: ...

    async def name_target(self, ledger_id: LedgerId, bookie: BookieId) -> bool: ...

    async def read(self, ledger_id: LedgerId) -> tuple[Mark, int] | None: ...

    async def write(self, ledger_id: LedgerId, mark: Mark, version: int) -> bool: ...

    async def end(self, ledger_id: LedgerId, version: int) -> Ended: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a repair works with."""

    environment: Environment
    marks: MarksPort
    pace: Pace
    config: ReplicationConfig
    seen: Seen
    wall_clock_ms: Callable[[], int] = now_ms


async def replicate(
    surroundings: Surroundings,
    ledger_id: LedgerId,
    *,
    eager: bool = False,
    came: frozenset[BookieId] = frozenset(),
) -> protocol.Finish:
    """Repair the ledger, if it is marked and nobody else does; return how that ended.

    *eager*, *came*: see `Begin`.
    What the metadata store or bookies refuse ends up in the mark, or in what is returned;
    nothing of it is raised. Safe to cancel at any moment: the lock is given back then."""
    repair = _Repair(surroundings, ledger_id)
    try:
        machine: Machine[protocol.ReplicationEvent, protocol.ReplicationEffect]
        machine = Replication(ledger_id, surroundings.config)
        begin: protocol.ReplicationEvent = protocol.Begin(eager, came)
        await run_in_turn(machine, begin, repair.execute, time_passed=common_events.TimePassed())
    finally:
        await repair.let_go()
    assert repair.finish is not None, "the machine ends with Finish"
    return repair.finish


class _Repair:
    def __init__(self, surroundings: Surroundings, ledger_id: LedgerId) -> None:
        self.finish: protocol.Finish | None = None
        self._environment = surroundings.environment
        self._marks = surroundings.marks
        self._seen = surroundings.seen
        self._pace = surroundings.pace
        self._now_ms = surroundings.wall_clock_ms
        self._ledger_id = ledger_id
        self._mark: Mark | None = None
        self._metadata: LedgerMetadata | None = None
        self._frames: dict[int, bytes] = {}
        self._silent: set[BookieId] = set()
        """Witnesses that did not answer."""
        self._locking = False
        """Whether a lock was asked for, and not given back."""

    async def execute(self, effect: protocol.ReplicationEffect) -> protocol.ReplicationEvent | None:
        try:
            return await self._execute(effect)
        except LogError as error:
            return protocol.EffectFailed(str(error))

    async def _execute(  # noqa: C901, PLR0911, PLR0912 - one line for each effect
        self, effect: protocol.ReplicationEffect
    ) -> protocol.ReplicationEvent | None:
        match effect:
            case protocol.TakeLock():
                self._locking = True
                taken = await self._marks.lock(self._ledger_id)
                self._locking = taken
                return protocol.LockTaken() if taken else protocol.LockRefused()
            case protocol.ReadMark():
                found = await self._marks.read(self._ledger_id)
                self._mark, version = (None, -1) if found is None else found
                return protocol.MarkRead(self._mark, version, self._now_ms())
            case protocol.ReadLedger(fresh):
                return await self._read_ledger(fresh=fresh)
            case protocol.Look():
                return await self._look(effect)
            case common_events.ChooseReplacements():
                assert self._metadata is not None
                return common_events.ReplacementsChosen(
                    self._environment.replacements(
                        self._metadata.quorum, effect.ensemble, effect.indexes, effect.exclude
                    )
                )
            case protocol.ChooseBetter(exclude, ensemble):
                assert self._metadata is not None
                better = self._environment.better(self._metadata.quorum, ensemble, exclude)
                return common_events.ReplacementsChosen(better)
            case protocol.ReadFrames():
                return await self._read_frames(effect)
            case protocol.SendFrames():
                return await self._send_frames(effect)
            case protocol.WriteSwap():
                return await self._write_swap(effect)
            case protocol.RecoverLedger():
                return await self._recover()
            case protocol.WriteMark(mark, version):
                stored = await self._marks.write(self._ledger_id, mark, version)
                return protocol.MarkStored() if stored else protocol.MarkGrew()
            case protocol.DeleteMark(version):
                return await self._delete_mark(version)
            case protocol.Unlock():
                await self._marks.unlock(self._ledger_id)
                self._locking = False
                return protocol.Unlocked()
            case protocol.Finish():
                self.finish = effect
                return None
            case _:
                assert_never(effect)

    async def let_go(self) -> None:
        """Give back a lock that is still held, if the metadata store can be reached."""
        if not self._locking:
            return
        with suppress(LogError, TimeoutError):  # then it goes with the session
            async with asyncio.timeout(_UNLOCK_S_MAX):
                await self._marks.unlock(self._ledger_id)

    async def _delete_mark(self, version: int) -> protocol.ReplicationEvent:
        match await self._marks.end(self._ledger_id, version):
            case Ended.GONE:
                self._locking = False
                return protocol.MarkStored()
            case Ended.GREW:
                return protocol.MarkGrew()
            case Ended.LOCK_LOST as lost:
                return protocol.EffectFailed(lost.value)

    async def _read_ledger(self, *, fresh: bool) -> protocol.LedgerRead:
        leaving = await self._seen.leaving_for(self._mark)
        version = -1
        try:
            self._metadata, version = await self._environment.ledgers.read(
                self._ledger_id, fresh=fresh
            )
        except NoSuchLedger:
            self._metadata = None
        registered = frozenset(
            BookieId(found.bookie) for found in self._environment.bookies.available()
        )
        return protocol.LedgerRead(self._metadata, version, registered, leaving, self._now_ms())

    async def _write_swap(
        self, effect: protocol.WriteSwap
    ) -> common_events.MetadataEvent | protocol.MoreLeave:
        check = CheckOp(DECOMMISSIONING, effect.leaving_version)
        try:
            version = await self._environment.ledgers.write(
                self._ledger_id, effect.metadata, effect.version, only_if=check
            )
        except BadVersion as error:
            if error.path == check.path:
                self._seen.forget()
                return protocol.MoreLeave()
        except NoSuchLedger:
            pass
        except MetadataUnavailable:
            return common_events.MetadataFailed()
        else:
            return common_events.MetadataWritten(version)
        return await read_metadata(self._environment.ledgers, self._ledger_id)

    async def _look(self, effect: protocol.Look) -> protocol.Looked:
        metadata, credentials = self._known()
        share = await look(
            self._environment.transport,
            credentials,
            effect.bookie,
            effect.index,
            metadata.quorum,
            effect.first,
            effect.last,
            thorough=effect.thorough,
        )
        return protocol.Looked(share)

    async def _read_frames(self, effect: protocol.ReadFrames) -> protocol.FramesRead:
        metadata, credentials = self._known()
        query = ReadQuery(
            self._ledger_id,
            credentials.key,
            effect.first,
            effect.copy.last,
            bytes_max=READ_BYTES_MAX,
            repairs=True,
        )
        answer = await ask(self._environment.transport, effect.bookie, query)
        found = verified(answer, self._ledger_id, credentials.checks)
        self._frames = {
            entry_id: bytes(frame)
            for entry_id, frame in found.frames.items()
            if effect.copy.takes(entry_id, metadata.quorum)
        }
        entries = tuple(self._frames)
        if effect.witness is None or not entries:
            return protocol.FramesRead(found.status, entries, found.considered)
        query = replace(query, last=min(found.considered, effect.copy.last), bytes_max=COMPARED_MAX)
        differing = await self._differing(effect.witness, query, credentials)
        if differing:
            _log.error(
                "frames_differ",
                ledger_id=self._ledger_id,
                bookies=[effect.bookie, effect.witness],
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

    async def _send_frames(
        self, effect: protocol.SendFrames
    ) -> protocol.FramesStored | protocol.FramesRefused | protocol.EffectFailed:
        _, credentials = self._known()
        if not await self._marks.name_target(self._ledger_id, effect.bookie):
            return protocol.EffectFailed(Ended.LOCK_LOST.value)
        runs = runs_of(
            effect.entries, self._frames, credentials, bytes_max=READ_BYTES_MAX, recovery=True
        )
        size_bytes = sum(len(run.frames) for run in runs)
        await self._pace.take(size_bytes)
        refused = await self._send(effect.bookie, runs)
        self._frames.clear()
        if refused is not None:
            return protocol.FramesRefused(refused)
        self._pace.copied(len(effect.entries), size_bytes)
        return protocol.FramesStored()

    async def _send(self, bookie: BookieId, runs: Sequence[AddRun]) -> Status | None:
        """Add *runs*; return the first answer that is not OK."""
        for run in runs:
            status = await self._add_patiently(bookie, run)
            if status is not Status.OK:
                return status
        return None

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

    async def _recover(self) -> protocol.Recovered | protocol.RecoveryRefused:
        try:
            await recover_without_password(self._environment, self._ledger_id)
        except LogError as error:
            return protocol.RecoveryRefused(str(error))
        return protocol.Recovered()

    def _known(self) -> tuple[LedgerMetadata, Credentials]:
        assert self._metadata is not None, "the metadata were read first"
        return self._metadata, repair_credentials(self._ledger_id, self._metadata)
