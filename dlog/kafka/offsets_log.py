"""One offsets log that this gateway leads: the coordinators of its groups.

Opening it fences the gateway that led it before, and replays what it says. After that one task
writes: it takes whatever waits, appends it as one, applies it once it is confirmed, and answers. So
an answer is never ahead of the log, everything has the order in which it was decided, and a
snapshot is written while nothing else is under way. When nothing else can be appended (another
gateway has taken over, or an outcome is unknown), every request that waits is answered with
NOT_COORDINATOR, and what is in memory is dropped: the next opening reads it again. What a group has
committed is told only after the manifest has said that this gateway still has the log.

Bounds: `WAITING_BYTES_MAX` of commits that wait for the log (then they are refused, and may be
tried again), those of `group_offsets` and `consumer_group`; replay reads at most twice the state
and `SNAPSHOT_BYTES_MIN`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from dlog.aio.log import Log, open_as_gateway
from dlog.aio.maintain.lifecycle import ensure_log
from dlog.aio.port import Ledgers
from dlog.aio.store import ManifestNode
from dlog.kafka.group_mirror import GroupMirror
from dlog.kafka.protocol.consumer_group import INITIAL_DELAY_MS, ConsumerGroup, GroupPhase
from dlog.kafka.protocol.consumer_group_events import (
    DeadlinePassed,
    GroupEvent,
    Reply,
    Store,
    Stored,
)
from dlog.kafka.protocol.group_offsets import (
    GROUPS_MAX,
    STATE_BYTES_MAX,
    CommittedOffset,
    GenerationChange,
    GroupChange,
    GroupOffsets,
    GroupRemoval,
    OffsetsChange,
    OffsetsRemoval,
    TopicPartition,
    commits,
    decode_change,
    encode_change,
)
from ledger.errors import LogError
from ledger.log_events import get_logger, now_ms

WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
BATCH_BYTES: Final = 1024 * 1024
"""How much is appended as one, about; and at once of a snapshot."""
SNAPSHOT_BYTES_MIN: Final = 1024 * 1024
"""How much is appended, at least, before there is another snapshot."""
EXPIRY_S: Final = 600.0
"""How often offsets are looked through for expired ones."""
_log = get_logger(__name__)


class CoordinatorMoved(Exception):
    """Another gateway coordinates the group, or will: the client looks for it again."""


@dataclass(slots=True)
class LedGroup:
    """A group that has members, or is about to."""

    machine: ConsumerGroup
    waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    """Requests, by ticket."""
    timer: asyncio.TimerHandle | None = None
    stores: int = 0
    """How many are on their way into the log."""
    tickets: int = 0

    def ticket(self) -> tuple[int, asyncio.Future[Any]]:
        self.tickets += 1
        future = asyncio.get_running_loop().create_future()
        self.waiting[self.tickets] = future
        return self.tickets, future


class Submission(NamedTuple):
    changes: Sequence[GroupChange]
    records: Sequence[bytes]
    size_bytes: int
    stored: Callable[[], None]


class OffsetsLog:
    """Made by `open`. `failed` is set once it can do nothing any more; then `close` it."""

    def __init__(
        self,
        log: Log,
        mirror: GroupMirror,
        *,
        initial_delay_ms: int,
        rebalanced: Callable[[], None],
    ) -> None:
        self.name = log.name
        self.failed = asyncio.Event()
        self.state = GroupOffsets()
        self._dlog = log
        self._mirror = mirror
        self._initial_delay_ms, self._rebalanced = initial_delay_ms, rebalanced
        self._loop = asyncio.get_running_loop()
        self._led: dict[str, LedGroup] = {}
        self._queue: deque[Submission] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._since_snapshot_bytes = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._commits: set[asyncio.Future[Any]] = set()

    @classmethod
    async def open(
        cls,
        name: str,
        ledgers: Ledgers,
        mirror: GroupMirror,
        *,
        owner: str,
        initial_delay_ms: int = INITIAL_DELAY_MS,
        rebalanced: Callable[[], None] = lambda: None,
    ) -> Self:
        """Take *name* over, creating it if need be, and replay it. *rebalanced* is called with each
        generation that is formed. Raises what `Log.open` and
        reading raise, `DamagedGroupRecord`, `GroupRecordTooNew`."""
        await ensure_log(ledgers, ManifestNode(ledgers.store, name), None, own=True)
        log = await open_as_gateway(name, ledgers, owner=owner)
        try:
            led = cls(log, mirror, initial_delay_ms=initial_delay_ms, rebalanced=rebalanced)
            await led._replay(ledgers)
        except BaseException:
            await log.abandon()
            raise
        led._start()
        return led

    async def _replay(self, ledgers: Ledgers) -> None:
        reader = await Log.tail(self.name, start="start", follow=False, client=ledgers)
        try:
            async for record in reader:
                change = decode_change(record.value, log=self.name, offset=record.offset)
                self.state.apply(change)
                self._since_snapshot_bytes += len(record.value)
        finally:
            await reader.close()
        for group, state in self.state.groups.items():
            if state.generation is not None and state.generation.members:
                self._lead(group)
            for (topic, partition), committed in state.offsets.items():
                self._note(group, topic, partition, committed.offset)
        _log.info(
            "offsets_log_opened",
            log=self.name,
            epoch=self._dlog.epoch,
            groups=len(self.state.groups),
            replayed_bytes=self._since_snapshot_bytes,
        )

    def _start(self) -> None:
        create = self._loop.create_task
        self._tasks = [create(self._write()), create(self._expire()), create(self._watch())]
        for group in list(self._led):
            self._schedule(group)

    async def close(self) -> None:
        """Answer what waits with NOT_COORDINATOR, and let the log go. Idempotent."""
        self._fail()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            with suppress(LogError):
                await self._dlog.close()

    # Groups.

    def find(self, group: str) -> ConsumerGroup | None:
        """Return the machine of *group* as it stands; None if the group is not known."""
        self._check()
        led = self._led.get(group)
        if led is not None:
            return led.machine
        stored = self.state.groups.get(group)
        return None if stored is None else self._machine(group)

    def groups(self) -> list[ConsumerGroup]:
        """Return the machines of all groups as they stand."""
        self._check()
        names = dict.fromkeys((*self.state.groups, *self._led))
        return [group for group in map(self.find, names) if group is not None]

    def survey(self) -> list[tuple[str, GroupPhase, int]]:
        """Return each group, its phase and how many members it has, at little cost."""
        led = [(group, each.machine) for group, each in self._led.items()]
        idle = self.state.groups.keys() - self._led.keys()
        return [
            *((group, machine.phase, len(machine.members)) for group, machine in led),
            *((group, GroupPhase.EMPTY, 0) for group in idle),
        ]

    async def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets of *group* that are in the log, with every commit that was
        acknowledged before the call, by whichever gateway. Raises `CoordinatorMoved`."""
        await self._check_leads()
        return self.state.committed(group)

    async def _check_leads(self) -> None:
        """Raise `CoordinatorMoved` if another gateway has the log by now: one that was stopped for
        a while, or hears late of a new one, does not know what was committed since."""
        self._check()
        try:
            manifest, _ = await self._dlog.writer.node.read()
        except LogError as error:
            raise CoordinatorMoved from error
        if manifest.epoch != self._dlog.epoch:
            _log.info("offsets_log_taken_over", log=self.name)
            self._fail()
        self._check()

    def _machine(self, group: str) -> ConsumerGroup:
        stored = self.state.groups.get(group)
        delay_ms = self._initial_delay_ms
        if stored is None or stored.generation is None:
            return ConsumerGroup(group, initial_delay_ms=delay_ms)
        return ConsumerGroup.restored(
            group, stored.generation, self._clock_ms(), initial_delay_ms=delay_ms
        )

    def _lead(self, group: str) -> LedGroup:
        led = self._led.get(group)
        if led is None:
            led = self._led[group] = LedGroup(self._machine(group))
        return led

    def has_room(self, group: str) -> bool:
        """Return whether a member may join *group*."""
        if group in self._led:
            return self.state.size_bytes < STATE_BYTES_MAX
        is_known = group in self.state.groups
        count = max(len(self._led), len(self.state.groups))
        return self.state.size_bytes < STATE_BYTES_MAX and (is_known or count < GROUPS_MAX)

    async def request(self, group: str, event_of: Callable[[int], GroupEvent]) -> Any:
        """Return the reply to the event that *event_of* makes of a ticket. Raises
        `CoordinatorMoved`. A cancellation is a lost reply, nothing else."""
        self._check()
        led = self._lead(group)
        ticket, future = led.ticket()
        self._step(group, event_of(ticket))
        return await future

    def _step(self, group: str, event: GroupEvent) -> None:
        led = self._led[group]
        for effect in led.machine.step(event, self._clock_ms()):
            match effect:
                case Reply(ticket, reply):
                    future = led.waiting.pop(ticket)
                    if not future.done():  # else its client went
                        future.set_result(reply)
                case Store(number, generation):
                    led.stores += 1
                    if generation.members and not generation.is_assigned:
                        self._rebalanced()
                    change = GenerationChange(group, generation, now_ms())
                    self._submit([change], partial(self._stored, group, number))
        self._schedule(group)

    def _stored(self, group: str, number: int) -> None:
        self._led[group].stores -= 1
        self._step(group, Stored(number))

    def _schedule(self, group: str) -> None:
        """Let the group hear of its next deadline; forget a group that has nothing to do."""
        led = self._led[group]
        if led.machine.is_idle and not led.stores and not led.waiting:
            if led.timer is not None:
                led.timer.cancel()
            del self._led[group]
            return
        deadline_ms = led.machine.deadline_ms
        if led.timer is not None:
            if deadline_ms is not None and led.timer.when() * 1000 <= deadline_ms:
                return  # it looks again then: heartbeats move deadlines all the time
            led.timer.cancel()
            led.timer = None
        if deadline_ms is not None and not self.failed.is_set():
            led.timer = self._loop.call_at(deadline_ms / 1000, self._deadline, group)

    def _deadline(self, group: str) -> None:
        self._led[group].timer = None
        self._step(group, DeadlinePassed())

    def _clock_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        self._check()
        led = self._led.get(group)
        if led is None:
            return ErrorCode.unknown_member_id
        return led.machine.heartbeat(member_id, instance_id, generation, self._clock_ms())

    # Offsets.

    def submit_commit(
        self,
        group: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
    ) -> "ErrorCode | asyncio.Future[None]":
        """Return a refusal, or the future of the commit. Raises `CoordinatorMoved`, which the
        future may raise too."""
        self._check()
        machine = self.find(group) or self._machine(group)
        error = machine.check_commit(member_id, instance_id, generation, self._clock_ms())
        if error is not ErrorCode.none:
            return error
        size_bytes = sum(len(key[0]) + len(each.metadata) for key, each in offsets.items())
        if not self.state.has_room(group, offsets, size_bytes):
            return ErrorCode.invalid_commit_offset_size
        if self._waiting_bytes > WAITING_BYTES_MAX:
            return ErrorCode.coordinator_load_in_progress
        return self._change(list(commits(group, offsets)))

    def remove_offsets(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> "asyncio.Future[None]":
        self._check()
        return self._change([OffsetsRemoval(group, tuple(partitions))])

    def remove_group(self, group: str) -> "ErrorCode | asyncio.Future[None]":
        """Delete *group* with its offsets, unless it has members."""
        self._check()
        machine = self.find(group)
        if machine is None:
            return ErrorCode.group_id_not_found
        if machine.phase is not GroupPhase.EMPTY or not machine.is_idle:
            return ErrorCode.non_empty_group
        return self._change([GroupRemoval(group)])

    def _change(self, changes: list[GroupChange]) -> "asyncio.Future[None]":
        future: asyncio.Future[None] = self._loop.create_future()
        if not changes:
            future.set_result(None)
            return future
        self._commits.add(future)
        future.add_done_callback(self._commits.discard)

        def stored() -> None:
            if not future.done():
                future.set_result(None)

        self._submit(changes, stored)
        return future

    # Writing.

    def _submit(self, changes: Sequence[GroupChange], stored: Callable[[], None]) -> None:
        records = [encode_change(change) for change in changes]
        size_bytes = sum(map(len, records))
        self._waiting_bytes += size_bytes
        self._queue.append(Submission(changes, records, size_bytes, stored))
        self._news.set()

    async def _write(self) -> None:
        try:
            while not self.failed.is_set():
                if not self._queue:
                    self._news.clear()
                    await self._news.wait()
                await self._write_some()
                if self._since_snapshot_bytes >= self._snapshot_due_bytes:
                    await self._write_snapshot()
        except LogError as error:
            _log.warning("offsets_log_lost", log=self.name, reason=str(error))
        finally:
            self._fail()

    async def _write_some(self) -> None:
        taken: list[Submission] = []
        size_bytes = 0
        while self._queue and (not taken or size_bytes < BATCH_BYTES):
            taken.append(self._queue.popleft())
            size_bytes += taken[-1].size_bytes
        await self._append([record for each in taken for record in each.records])
        if self.failed.is_set():
            return
        self._waiting_bytes -= size_bytes
        self._since_snapshot_bytes += size_bytes
        for submission in taken:
            for change in submission.changes:
                self._apply(change)
            submission.stored()

    async def _append(self, records: list[bytes]) -> int:
        """Return the offset of the first record, once all are confirmed."""
        return (await self._dlog.append_many(records))[0].offset

    def _apply(self, change: GroupChange) -> None:
        match change:
            case OffsetsChange(group, offsets):
                for (topic, partition), committed in offsets.items():
                    self._note(group, topic, partition, committed.offset)
            case OffsetsRemoval(group, partitions):
                for topic, partition in partitions:
                    self._note(group, topic, partition, None)
            case GroupRemoval(group):
                for topic, partition in self.state.committed(group):
                    self._note(group, topic, partition, None)
            case GenerationChange():
                pass
        self.state.apply(change)

    def _note(self, group: str, topic: str, partition: int, offset: int | None) -> None:
        self._mirror.note(self.name, group, (topic, partition), offset)

    @property
    def _snapshot_due_bytes(self) -> int:
        return max(SNAPSHOT_BYTES_MIN, 2 * self.state.size_bytes)

    async def _write_snapshot(self) -> None:
        """Append all of the state, then truncate what lies before. Nothing else is under way."""
        first: int | None = None
        part: list[bytes] = []
        size_bytes = written = 0
        for change in list(self.state.snapshot()):
            part.append(encode_change(change))
            size_bytes += len(part[-1])
            if size_bytes >= BATCH_BYTES:
                offset = await self._append(part)
                first = offset if first is None else first
                written += size_bytes
                part, size_bytes = [], 0
        if part:
            offset = await self._append(part)
            first = offset if first is None else first
            written += size_bytes
        self._since_snapshot_bytes = 0
        before = self._dlog.last_offset + 1 if first is None else first
        try:
            await self._dlog.truncate(before=before)
        except LogError as error:  # the next snapshot truncates what lies before this one, too
            _log.warning("offsets_log_not_truncated", log=self.name, reason=str(error))
            return
        _log.info("offsets_log_compacted", log=self.name, before=before, snapshot_bytes=written)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            self.expire()

    def expire(self) -> None:
        """Remove what has expired by now."""
        for removal in self.state.expired(now_ms(), is_busy=self._led.__contains__):
            self._submit([removal], _nothing)

    async def _watch(self) -> None:
        """Give up once an append was refused, as another gateway has taken over. One that appends
        nothing does not learn it so: what is read for clients looks at the manifest first."""
        await self._dlog.lost.wait()
        _log.info("offsets_log_taken_over", log=self.name)
        self._fail()

    # The end.

    def _check(self) -> None:
        if self.failed.is_set():
            raise CoordinatorMoved

    def _fail(self) -> None:
        if self.failed.is_set():
            return
        self.failed.set()
        self._mirror.forget(self.name)
        for led in self._led.values():
            if led.timer is not None:
                led.timer.cancel()
            for future in led.waiting.values():
                _refuse(future)
        for future in list(self._commits):
            _refuse(future)
        self._led.clear()
        self._queue.clear()


def _refuse(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(CoordinatorMoved())
        future.exception()  # nobody may wait any more


def _nothing() -> None:
    return None
