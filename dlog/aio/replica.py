"""A replicated state machine: applies a log, leads it when elected, and then follows again.

    async with Replica.open("accounts", Accounts(), address="http://app-1:8000") as replica:
        result = await replica.submit(b"pay alice 5", request_id=("client-7", 42))
        balance = await replica.read(lambda accounts: accounts.balance("alice"))

A replica is a standby (`dlog.aio.standby`) again and again: it follows the log and stands for
election; elected, it takes the log over, appends a mark of its epoch, and leads until its term
ends; then it follows from where it is. The leader applies its own commands as they are
confirmed, which they are in the order of the log.

Invariants:
    the state machine is used by one call at a time: on the event loop, or on the given executor
    commands are taken only after the mark was applied, so with all that was ever acknowledged
    an outcome comes from a confirmed append or from the log, never from a time-out
    a linearizable read sees whatever was acknowledged to anybody before it began, by no clock
    what fails in the state stops the replica, at that record
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar, get_args

from dlog import metrics
from dlog.aio.command_router import CommandRouter, LocalReplica
from dlog.aio.handle import opening
from dlog.aio.leader_term import APPLY_RECORDS_MAX, CommandOutcome, PendingCommands, Term, Waiter
from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.namespace_connection import connect
from dlog.aio.port import Ledgers
from dlog.aio.read import handles
from dlog.aio.read.tails import acknowledged_end
from dlog.aio.read_barrier import ReadBarrier
from dlog.aio.replica_registry import ReplicaRegistration
from dlog.aio.snapshot_keeper import SnapshotKeeper
from dlog.aio.standby import Standby, lease_of
from dlog.aio.state_apply import StateTurns, whole
from dlog.aio.store import ManifestNode
from dlog.errors import (
    LogClosed,
    LostOwnership,
    NotCaughtUp,
    NotLeader,
    ObjectStorageUnavailable,
    SnapshotAhead,
    Trimmed,
    text_of,
)
from dlog.headers import Payload
from dlog.names import check_name
from dlog.position import Position, Record
from dlog.protocol.accumulator import PENDING_BYTES_ROOM
from dlog.protocol.command import (
    VERSION_MAX,
    LeaderMark,
    RequestId,
    encode_digest,
    encode_mark,
)
from dlog.protocol.replica_record import ReplicaRecord, ReplicaRole
from dlog.protocol.replicated_state import (
    Applied,
    AppliedCommand,
    ReplicatedState,
    StateMachine,
    StoredCommand,
    has_snapshots,
)
from dlog.protocol.snapshot import SnapshotPolicy
from dlog.settings import LogSettings
from dlog.snapshot_store import SnapshotStore
from leader import Candidate
from ledger.delays import Backoff
from ledger.errors import InvalidValue, LogError, TooManyPending
from ledger.log_events import get_logger, now_ms
from ledger.process import this_process
from ledger.values import Duration, count_of, duration_or_none, duration_s

DIGEST_EVERY_MIN: Final = 100
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 5.0
SUBMIT_S: Final = 30.0
"""How long `submit` waits for an outcome."""
SURE_S: Final = 0.001
"""How long a leader is sure that it leads before it looks again."""
READ_S: Final = 10.0
"""How long a read waits until this replica has applied what it must see."""

Consistency = Literal["linearizable", "local"]
M = TypeVar("M", bound=StateMachine)
R = TypeVar("R")

_log = get_logger(__name__)


class _ClosingReplica(Exception):
    """Ends what is under way."""


class Replica(Generic[M]):
    """Made by `Replica.open`; an async context manager."""

    def __init__(  # noqa: PLR0913 - made by `open`
        self,
        ledgers: Ledgers,
        name: str,
        machine: M,
        *,
        incarnation: str,
        candidate: Candidate,
        lease_s: float,
        lifeline_host: str | None,
        executor: Executor | None,
        snapshots: SnapshotStore | None,
        policy: SnapshotPolicy,
        owns_ledgers: bool,
    ) -> None:
        """Requires `_start`."""
        self.name = name
        self.error: BaseException | None = None
        """What stopped this replica; each later call raises it."""
        self._ledgers, self._owns_ledgers = ledgers, owns_ledgers
        self._node = ManifestNode(ledgers.store, name)
        self._node.follow(incarnation)
        self._incarnation = incarnation
        self._candidate, self._lease_s, self._lifeline_host = candidate, lease_s, lifeline_host
        self._turns = StateTurns(executor)
        self._state = ReplicatedState(name, machine)
        self._keeper: SnapshotKeeper | None = None
        if snapshots is not None:
            self._keeper = SnapshotKeeper(
                snapshots, policy, ledgers, self._node, self._state, self._turns.use
            )
        self._since_ms = now_ms()
        self._registration = ReplicaRegistration(self._node, self._describe, self.snapshot)
        self._commands = PendingCommands(name)
        self._term: Term | None = None
        self._router = CommandRouter(
            LocalReplica(
                name=name,
                candidate=candidate.name,
                version=int(machine.version),
                leads=self._leads,
                leader_elsewhere=self._leader_elsewhere,
                submit=self._submit,
                changed=lambda: self._changed,
            ),
            ledgers,
            self._node,
            f"replica-{self._commands.proposer.hex()}",
        )
        self._led_epoch = 0
        """The last one that this replica led."""
        self._changed = asyncio.Event()
        """Set, and replaced, whenever something was applied or the role changed."""
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._barrier = ReadBarrier(name, self._reach_end)
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._ended: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        metrics.REPLICAS.add(self)

    @classmethod
    @opening
    async def open(  # noqa: PLR0913 - those of a standby, and our own
        cls,
        name: str,
        machine: M,
        *,
        uri: str | None = None,
        address: str = "",
        candidate: str = "",
        create: bool = True,
        settings: LogSettings | None = None,
        lease_s: Duration | None = None,
        lifeline_host: str | None = "127.0.0.1",
        snapshots: str | None = None,
        policy: SnapshotPolicy | None = None,
        executor: Executor | None = None,
        client: Ledgers | None = None,
    ) -> Self:
        """Apply the log *name* to *machine*, and stand for election.

        *machine* is as a new one, and belongs to the replica from now on. *address* is where
        clients reach this replica, *candidate* its name for people (``host:pid`` unless given):
        `NotLeader` of other replicas tells both. *executor*: where the machine is used, by one call
        at a time, instead of on the event loop. *snapshots*: where snapshots are, a directory as
        ``file:///directory`` or object storage as ``s3://BUCKET/PREFIX``, which replicas may share;
        the newest whole one there is where this begins, else the beginning of the log. Object
        storage that is unavailable is waited for only if the log was truncated: until then this is
        a standby that has applied nothing. *policy* says when they are written. The others are
        those of `Standby.open`; at *lifeline_host* the leader also takes what others forward.

        Raises `InvalidName`, `InvalidValue`, `NoSuchLog` (with *create* False),
        `SnapshotsUnusable`, `ArchiveMissing`, `ObjectStorageRefused`, `SnapshotTooNew`,
        `SnapshotAhead`, `DamagedSnapshot` (again with another *machine*, then), what the machine's
        `restore` raises, and what connecting raises.
        What ends the replica later is `error`; each call raises it."""
        check_name(name)
        count_of(machine.version, "version", least=0, most=VERSION_MAX)
        count_of(machine.digest_every, "digest_every", least=DIGEST_EVERY_MIN)
        if snapshots is not None and not has_snapshots(machine):
            raise InvalidValue(
                "snapshots", snapshots, "the machine defines no snapshot and restore"
            )
        stands = Candidate.of(Candidate(candidate, address))
        leased_s = lease_of(lease_s, client)
        ledgers = client if client is not None else await connect(uri)
        try:
            node = ManifestNode(ledgers.store, name)
            if create:
                await ensure_log(ledgers, node, settings)
            manifest, _ = await node.read()
            store = None
            if snapshots is not None:
                store = await SnapshotStore.open(snapshots, name, manifest.incarnation)
            replica = cls(
                ledgers,
                name,
                machine,
                incarnation=manifest.incarnation,
                candidate=stands,
                lease_s=leased_s,
                lifeline_host=lifeline_host,
                executor=executor,
                snapshots=store,
                policy=policy or SnapshotPolicy(),
                owns_ledgers=client is None,
            )
            await replica._start()
        except BaseException:
            if client is None:
                await ledgers.close()
            raise
        return replica

    @property
    def role(self) -> ReplicaRole:
        """What it is as far as is known here: "leader" while it takes commands."""
        if self.error is not None or self._closing.is_set():
            return "stopped"
        term = self._term
        return (
            "leader" if term is not None and term.serves and term.standby.is_leader else "standby"
        )

    @property
    def leader(self) -> LeaderMark | None:
        """Who led the last epoch that was applied here; itself while it leads."""
        return self._state.leader

    @property
    def applied(self) -> int:
        """Offset after the last record that was applied here."""
        return self._state.offset

    @property
    def epoch(self) -> int | None:
        """The epoch of the log while this leads: usable as a fencing token."""
        return self._term.log.epoch if self._term is not None and self.role == "leader" else None

    def age_s(self) -> float:
        """Return how old the state is at most: it has all that was acknowledged to anybody until so
        many seconds ago, by this machine's monotonic clock. Infinite before the first proof, which
        is a linearizable read, or a command that was submitted here and confirmed."""
        return self._barrier.age_s()

    async def submit(
        self,
        payload: Payload,
        *,
        request_id: RequestId | tuple[str, int] | None = None,
        timeout_s: Duration = SUBMIT_S,
        forward: bool = False,
    ) -> object:
        """Append a command, apply it in the order of the log, and return what `apply` returned.

        With *request_id*, a client and a number that it gives to no other request, the command has
        one effect and one result, however often and wherever it is submitted, as long as
        `dlog.protocol.client_table` keeps it. If its append ends without an outcome the log is
        waited for. Cancelling ends the waiting, not the command.

        With *forward* the command is sent to the leader if this replica is not it, and again to its
        successor if the leader dies meanwhile, until *timeout_s*. It has a request then, its own if
        none is given, so it has one effect, within the bounds of `dlog.protocol.client_table`; its
        result must be one that can be kept.

        Raises `NotLeader` (certainly not applied), `CommandOutcomeUnknown` if the outcome was not
        learned in *timeout_s*, `RequestForgotten`, `RecordTooLarge`, `TooManyPending`,
        `InvalidValue`; with *forward* `AccessDenied`, `ForwardRefused`, `InvalidResult`;
        `ApplyFailed` and what else stopped this replica."""
        wait_s = SUBMIT_S if timeout_s is SUBMIT_S else duration_s(timeout_s, "timeout_s")
        if request_id is None or isinstance(request_id, RequestId):
            request = request_id
        else:
            request = RequestId(*request_id)
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise InvalidValue("payload", payload, "give bytes")
        command = bytes(payload)
        if forward:
            return await self._router.submit(command, request, wait_s)
        # Not by `_submit`: a coroutine costs as much as a tenth of an append.
        outcome = await self._outcome(command, request, wait_s, int(self._state.machine.version))
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    async def _submit(
        self, command: bytes, request: RequestId | None, wait_s: float, version: int
    ) -> object:
        outcome = await self._outcome(command, request, wait_s, version)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _outcome(
        self, command: bytes, request: RequestId | None, wait_s: float, version: int
    ) -> Awaitable["CommandOutcome | AppliedCommand"]:
        """Append a command; return what waits for its outcome, and then raises as `submit`."""
        now_s = self._loop.time()
        waiter = self._waiter_of(command, request, version, now_s)
        if waiter is None:
            return self._outcome_in_room(command, request, wait_s, version)
        self._commands.deadlines.watch(waiter, now_s, wait_s)
        return waiter

    async def _outcome_in_room(
        self, command: bytes, request: RequestId | None, wait_s: float, version: int
    ) -> "CommandOutcome | AppliedCommand":
        """As `_outcome`, once there is room."""
        waiter = None
        try:
            async with asyncio.timeout(wait_s):
                while waiter is None:
                    await self._leading(self._loop.time()).log.writer.room()
                    waiter = self._waiter_of(command, request, version, self._loop.time())
                return await waiter
        except TimeoutError:
            if waiter is not None:
                raise self._commands.outcome_unknown(wait_s) from None
            pending_bytes = self._term.log.writer.pending_bytes if self._term else 0
            raise TooManyPending(pending_bytes, PENDING_BYTES_ROOM) from None

    def _leads(self) -> bool:
        """Raises what stopped this replica."""
        self._check()
        return self.role == "leader"

    def _leader_elsewhere(self) -> LeaderMark | None:
        """Return who leads as far as is known here, if that is another replica."""
        mark = self._state.leader
        return None if mark is None or mark.epoch == self._led_epoch else mark

    async def read(
        self,
        query: Callable[[M], R],
        *,
        consistency: Consistency = "linearizable",
        timeout_s: Duration = READ_S,
    ) -> R:
        """Return *query* of the state machine, which it must not change nor keep.

        "linearizable": with the effect of each command whose `submit` returned, anywhere, before
        this call. It costs a barrier, which concurrent reads share, and works on every replica.
        "local": at once, of the state as it is here; `age_s` says how old that is at most.

        Raises `NotCaughtUp`, `BarrierNotReached`, `StateNotRestored`, what bookies and metadata
        store raise, what *query* raises, and what stopped this replica."""
        if consistency not in get_args(Consistency):
            allowed = " or ".join(get_args(Consistency))
            raise InvalidValue("consistency", consistency, f"use {allowed}")
        wait_s = duration_s(timeout_s, "timeout_s")
        self._check()
        if consistency == "linearizable":
            try:
                async with asyncio.timeout(wait_s):
                    await self._barrier.wait()
            except TimeoutError:
                raise NotCaughtUp(self.name, self.applied, wait_s) from None
        return await self._turns.use(partial(self._ask, query))

    def _ask(self, query: Callable[[M], R]) -> R:
        self._check()  # again, as this had to wait for its turn
        self._state.check()
        return query(self._state.machine)

    async def snapshot(self) -> int:
        """Write a snapshot now, unless nothing was applied since the last one; return its offset.

        Raises `InvalidValue` if this was opened without a store, `StateNotRestored`, `OSError`,
        what the state machine raises, and what stopped this replica."""
        self._check()
        if self._keeper is None:
            raise InvalidValue("snapshots", None, "this replica was opened without a store of them")
        return await self._keeper.write()

    async def wait_role(self, role: ReplicaRole, *, timeout_s: Duration | None = None) -> bool:
        """Wait until this has *role*; return False if it had not within *timeout_s*.

        Raises what stopped it, unless that is waited for."""
        wait_s = duration_or_none(timeout_s, "timeout_s")
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self.role != role:
                    self._check()
                    await self._changed.wait()
        return self.role == role

    async def roles(self) -> AsyncIterator[ReplicaRole]:
        """Yield the role of this replica, and again after each change of it, until it is closed.

        Each lead counts as a change, as `epoch` is another then. What came and went between two
        steps of the caller is left out. Raises what stopped this replica."""
        seen = None
        while not self._closing.is_set():
            self._check()
            role, epoch = self.role, self.epoch
            if (role, epoch) != seen:
                seen = role, epoch
                yield role
            else:
                await self._changed.wait()

    async def resign(self) -> None:
        """Hand leadership over: what was submitted gets its outcome, then the next candidate leads.

        This follows and stands for election again, behind the others. Returns when the term is
        over; does nothing if this does not lead."""
        term = self._term
        if term is None:
            return
        term.ending.set()
        while self._term is term:
            await self._changed.wait()

    async def close(self) -> None:
        """Resign if this leads, end following, and free everything. Idempotent.

        The state machine is not used any more when this returns."""
        if self._ended is None:
            self._ended = asyncio.create_task(self._close(), name=f"closing replica of {self.name}")
        await asyncio.shield(self._ended)

    async def abandon(self) -> None:
        """End as a crash would, for tests: commands that are under way have no outcome here, and
        the next leader recovers the log. Idempotent."""
        if self._term is not None and self._ended is None:
            await self._term.log.abandon()
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _check(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)  # which would grow by each call
        if self._closing.is_set():
            raise LogClosed(self.name)

    def _leading(self, now_s: float) -> Term:
        """Return the term. Raises `NotLeader`.

        It is looked at for many commands at once: no promise rests on it, as the log itself takes
        nothing any more once this does not lead."""
        self._check()
        term = self._term
        if term is not None and term.serves:
            if now_s < term.is_sure_until_s:
                return term
            if term.standby.is_leader:
                term.is_sure_until_s = now_s + SURE_S
                return term
        mark = self._leader_elsewhere() or LeaderMark(0, "", "")
        raise NotLeader(self.name, mark.name, mark.address, mark.epoch)

    def _waiter_of(
        self, payload: bytes, request: RequestId | None, version: int, now_s: float
    ) -> Waiter | None:
        """Append a command of *version*, unless its *request* is pending already; return what waits
        for its outcome. None: there is no room for it. Raises `NotLeader`, `TooManyPending`."""
        term = self._term
        if term is None or now_s >= term.is_sure_until_s:
            if request is not None and (waiter := self._commands.join(request)) is not None:
                self._check()
                return waiter
            term = self._leading(now_s)
        return self._commands.append(term, payload, request, version, now_s)

    def _describe(self) -> ReplicaRecord:
        """Return what this replica reports of itself."""
        keeper, progress = self._keeper, None
        if keeper is not None:
            progress = keeper.progress
        return ReplicaRecord(
            log=self._node.log,
            candidate=self._candidate.name,
            address=self._candidate.address,
            process=this_process(),
            role=self.role,
            epoch=self.epoch or 0,
            applied=self.applied,
            version=self._state.machine.version,
            since_ms=self._since_ms,
            snapshots="" if keeper is None else keeper.uri,
            newest_snapshot=0 if keeper is None else keeper.newest,
            phase=None if progress is None else progress.phase,
            done_bytes=0 if progress is None else progress.done_bytes,
            total_bytes=None if progress is None else progress.total_bytes,
            error="" if self.error is None else text_of(self.error),
        )

    # Following and leading in turn.

    async def _start(self) -> None:
        await self._registration.start()
        try:
            await self._router.listen(self._lifeline_host)
            if self._keeper is not None:
                try:
                    await self._keeper.restore_newest()
                except ObjectStorageUnavailable as error:
                    # The log may have everything; if not, it is waited for: `_skip_to_snapshot`.
                    _log.warning("snapshots_unavailable", log=self.name, error=str(error))
                await self._keeper.register()
        except BaseException:
            await self._router.close()
            await self._registration.close()
            raise
        self._running = asyncio.create_task(self._run(), name=f"replica of {self.name}")

    async def _run(self) -> None:
        try:
            while True:
                try:
                    if not await self._follow_or_skip():
                        await self._unless_closing(asyncio.sleep(self._backoff.next()))
                except LogError as error:
                    if self._state.failure is not None or not _passes(error):
                        raise
                    _log.warning("replica_interrupted", log=self.name, error=str(error))
                    await self._unless_closing(asyncio.sleep(self._backoff.next()))
        except _ClosingReplica:
            self._give_up("this replica was closed")
        except Exception as error:  # noqa: BLE001 - callers learn it, whatever it is
            _log.exception("replica_stopped", log=self.name, offset=self.applied)
            self.error = error
            self._give_up(text_of(error))

    async def _follow_or_skip(self) -> bool:
        """As `_follow_and_lead`; continue from a snapshot if the log was truncated meanwhile."""
        try:
            return await self._follow_and_lead()
        except Trimmed:
            if not await self._skip_to_snapshot():
                raise
            return True

    async def _skip_to_snapshot(self) -> bool:
        """Continue from a snapshot, as the log does not have any more what comes next."""
        keeper = self._keeper
        try:
            if keeper is None or not await keeper.restore_newest():
                return False
        except ObjectStorageUnavailable:
            assert keeper is not None
            _log.warning(
                "replica_waits_for_snapshots",
                log=self.name,
                applied=self.applied,
                snapshots=keeper.uri,
            )
            raise
        self._give_up("the log was truncated before this replica had applied it")
        return True

    async def _follow_and_lead(self) -> bool:
        """Be a standby until it has led, or something ended that; return whether commands could be
        submitted."""
        await self._unless_closing(self._node.read())  # the log may have another name by now
        reader = await self._unless_closing(
            handles.tail(
                self._node.log,
                start=Position(self.applied, self._incarnation),
                beyond_end="wait",
                client=self._ledgers,
            )
        )
        standby = Standby(
            self._ledgers,
            reader,
            self._follow,
            incarnation=self._incarnation,
            candidate=self._candidate,
            lease_s=self._lease_s,
            lifeline_host=self._lifeline_host,
            owns_ledgers=False,
        )
        try:
            log = await self._unless_closing(standby.promote())
            term = Term(standby, log)
            await self._lead(term)
        finally:
            await self._step_down(standby)
        return term.has_served

    async def _lead(self, term: Term) -> None:
        end = term.log.last_offset + 1
        if self.applied > end:
            raise SnapshotAhead(
                self.name, f"the records below offset {self.applied}", f"which ends at {end}"
            )
        assert self.applied == end, "a promotion ends at the end of the log"
        self._term, self._led_epoch = term, term.log.epoch
        candidate, endpoint = self._candidate, self._router.endpoint
        mark = LeaderMark(term.log.epoch, candidate.name, candidate.address, endpoint)
        term.append(mark, encode_mark(mark), self._loop.time())
        endings = {
            asyncio.create_task(term.standby.lost.wait()),
            asyncio.create_task(term.ending.wait()),
            # It may have been set already, while this was promoted.
            asyncio.create_task(self._closing.wait()),
        }
        for ending in endings:
            ending.add_done_callback(lambda _: term.news.set())
        try:
            while not any(each.done() for each in endings):
                term.news.clear()
                if not term.queue:
                    await term.news.wait()
                elif (outcome := term.queue[0][0]).done:
                    await self._apply_confirmed(term)
                else:
                    outcome.watch(term.news.set)
                    await term.news.wait()
        finally:
            for each in endings:
                each.cancel()

    async def _step_down(self, standby: Standby) -> None:
        """End the term: every append of it has an outcome now, or the log tells it later."""
        term = self._term
        if term is not None:
            term.stop_serving()
            self._notify()
        try:
            await standby.close()  # confirms what is pending, if that can be
        except LogError as error:
            _log.warning("replica_closed_its_term_with", log=self.name, error=str(error))
        if term is None:
            return
        try:
            while term.queue:
                assert term.queue[0][0].done, "a closed log has settled its appends"
                await self._apply_confirmed(term)
        finally:
            self._term = None
            self._notify()
            _log.info("replica_leads_no_more", log=self.name, reason=standby.lost_reason)

    async def _apply_confirmed(self, term: Term) -> None:
        """Apply what is confirmed, in order, as far as that is known without a wait."""
        confirmed, size_bytes, at_s = term.take_confirmed(self._commands.refuse)
        await self._apply(confirmed, size_bytes)
        # No other leader had acknowledged anything by then.
        self._barrier.prove(at_s)

    # The state.

    async def _follow(self, batch: Sequence[Record]) -> None:
        """Apply what was read from the log, where that was not done before."""
        first = self.applied
        batch = [record for record in batch if record.offset >= first]
        for at in range(0, len(batch), APPLY_RECORDS_MAX):
            part = batch[at : at + APPLY_RECORDS_MAX]
            txids = [record.txid for record in part if record.txid is not None]
            await self._apply(
                [(record.offset, record.timestamp_ms, record.value) for record in part],
                sum(len(record.value) for record in part),
                last_txid=txids[-1] if txids else None,
            )
            await asyncio.sleep(0)

    async def _apply(
        self, records: Sequence[StoredCommand], size_bytes: int, *, last_txid: int | None = None
    ) -> None:
        """Apply *records*, of *size_bytes* together, and report their outcomes, whole also if this
        is cancelled. Raises what stopped the state."""
        before, forgotten = self.applied, self._state.clients.forgotten
        if self._turns.on_loop:
            self._report(self._state.apply(records, last_txid=last_txid))
        else:
            apply = partial(self._state.apply, records, last_txid=last_txid)
            work = asyncio.ensure_future(self._turns.use(apply))
            try:
                await whole(work)
            finally:
                if not work.cancelled() and work.exception() is None:
                    self._report(work.result())
        metrics.REPLICA_RECORDS.add(by=self.applied - before)
        metrics.REPLICA_FORGOTTEN_CLIENTS.add(by=self._state.clients.forgotten - forgotten)
        self._state.check()
        if self._keeper is not None and records:
            self._keeper.applied(size_bytes, leads=self._term is not None)

    def _report(self, applied: Iterable[Applied]) -> None:
        for each in applied:
            if isinstance(each, AppliedCommand):
                self._commands.settle(each)
            elif isinstance(each, LeaderMark):
                self._begin_epoch(each)
            elif self._term is not None and self.role == "leader":
                with suppress(TooManyPending):  # the next one is as good
                    self._term.append(each, encode_digest(each), self._loop.time())
        self._notify()

    def _begin_epoch(self, mark: LeaderMark) -> None:
        self._router.leader_changed()
        self._commands.withdraw_before(mark)
        term = self._term
        if term is not None and mark.epoch == term.log.epoch and not term.ending.is_set():
            term.serves = term.has_served = True
            self._backoff.reset()
            _log.info("replica_leads", log=self.name, epoch=mark.epoch, applied=self.applied)

    def is_state_user(self) -> bool:
        """Return whether the caller is called by the state machine, or by a query of it, on the
        executor: there it must not wait for this replica, which waits for it."""
        return self._turns.is_user()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reach_end(self) -> None:
        """Return once all that was acknowledged to anybody before this call is applied here."""
        end = await acknowledged_end(self._ledgers, self._node, incarnation=self._incarnation)
        while self.applied < end:
            self._check()
            await self._changed.wait()

    # Ending.

    def _give_up(self, reason: str) -> None:
        """Let no command wait any more: the outcome of those that do is not learned here."""
        self._commands.give_up(reason)
        self._notify()

    async def _close(self) -> None:
        self._closing.set()
        if self._term is not None:
            self._term.stop_serving()
        metrics.REPLICAS.remove(self)
        self._notify()
        if self._running is not None:
            await asyncio.wait({self._running})
        await self._router.close()
        await self._registration.close()
        self._commands.deadlines.close()  # none waits any more
        if self._keeper is not None:
            await self._keeper.close()
        await self._barrier.close()
        await self._turns.ended()  # of a read that was under way
        if self._owns_ledgers:
            await self._ledgers.close()

    async def _unless_closing(self, work: Coroutine[Any, Any, R]) -> R:
        """Return what *work* returns; cancel it if this replica is closed. Raises
        `_ClosingReplica`."""
        working = asyncio.ensure_future(work)
        closing = asyncio.create_task(self._closing.wait())
        try:
            await _first({working, closing})
            if not working.done():
                raise _ClosingReplica
            return working.result()
        finally:
            closing.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait({working})


def _passes(error: LogError) -> bool:
    return error.retryable or error.outcome_unknown or isinstance(error, LostOwnership)


async def _first(futures: set[asyncio.Future[Any]]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
