"""A group of consumers in a world of its own: members, their coordinators, the offsets log, faults.

Members behave as Kafka's clients do. Requests and replies are lost, members crash, restart and
leave, and coordinators are replaced while what they appended is on its way: any part of it may be
kept. Everything is drawn from a seed. `Broken` says which invariant does not hold.

Invariants:
    leader: a generation has one leader, whichever coordinator tells of it
    assignment: a member has one assignment in a generation, and no partition two members
    generation: no commit of an earlier generation comes after a later one in the log
    offsets: what a partition has committed never goes back, and no acknowledged commit is lost
    liveness: once faults end, every member that lives gets into one generation, soon
"""

import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.consumer_group import ConsumerGroup, GroupPhase
from dlog.kafka.protocol.consumer_group_events import (
    Assignor,
    DeadlinePassed,
    GroupEvent,
    JoinReply,
    JoinRequested,
    LeaveReply,
    LeaveRequested,
    Reply,
    Store,
    Stored,
    SyncReply,
    SyncRequested,
)
from dlog.kafka.protocol.group_offsets import (
    CommittedOffset,
    GenerationChange,
    GroupChange,
    GroupOffsets,
    OffsetsChange,
    decode_change,
    encode_change,
)

GROUP: Final = "billing"
TOPIC: Final = "orders"
PARTITIONS: Final = 4
SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 10_000
TIMEOUT_MS: Final = 2_000
"""Of a client, for all requests but joins and syncs."""
FAULTS_MS: Final = 120_000
QUIET_MS: Final = 120_000

AnyReply = JoinReply | SyncReply | LeaveReply | ErrorCode


class Broken(AssertionError):
    def __init__(self, invariant: str, story: str) -> None:
        super().__init__(f"{invariant}: {story}")
        self.invariant = invariant


@dataclass(slots=True)
class Appended:
    record: bytes
    generation: int
    """Of the group, or of the member that commits."""
    confirmed: Callable[[], None]


class Coordinator:
    """One takeover of the group: the machine, and a driver as thin as can be."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.alive = True
        self.state = GroupOffsets()
        for offset, record in enumerate(world.log):
            self.state.apply(decode_change(record, log="offsets", offset=offset))
        stored = self.state.groups.get(GROUP)
        if stored is None or stored.generation is None:
            self.group = ConsumerGroup(GROUP)
        else:
            self.group = ConsumerGroup.restored(GROUP, stored.generation, world.now_ms)
        self.pending: list[Appended] = []
        self.waiting: dict[int, Callable[[AnyReply], None]] = {}
        self._tickets = itertools.count(1)
        self.tick()

    def ticket(self, answer: Callable[[AnyReply], None]) -> int:
        ticket = next(self._tickets)
        self.waiting[ticket] = answer
        return ticket

    def step(self, event: GroupEvent) -> None:
        if not self.alive:
            return
        for effect in self.group.step(event, self.world.now_ms):
            match effect:
                case Reply(ticket, reply):
                    self.world.check_reply(self.group, reply)
                    self.waiting.pop(ticket)(reply)
                case Store(number, generation):
                    change = GenerationChange(GROUP, generation, self.world.now_ms)

                    def stored(number: int = number) -> None:
                        self.step(Stored(number))

                    self.append(change, generation.generation, stored)

    def append(self, change: GroupChange, generation: int, confirmed: Callable[[], None]) -> None:
        self.pending.append(Appended(encode_change(change), generation, confirmed))
        self.world.later(self.world.random.randint(1, 20), self._confirm)
        if isinstance(change, GenerationChange) and self.world.random.random() < 0.05:
            self.world.later(self.world.random.randint(0, 40), self._fail)

    def _fail(self) -> None:
        if self.alive and self.world.is_faulty:
            self.world.fail_over()

    def _confirm(self) -> None:
        if self.alive and self.pending:
            appended = self.pending.pop(0)
            self.world.keep(appended)
            offset = len(self.world.log) - 1
            self.state.apply(decode_change(appended.record, log="offsets", offset=offset))
            appended.confirmed()

    def tick(self) -> None:
        """Report deadlines, as late as a loaded machine does."""
        if not self.alive:
            return
        deadline_ms = self.group.deadline_ms
        if deadline_ms is not None and deadline_ms <= self.world.now_ms:
            self.step(DeadlinePassed())
        self.world.later(self.world.random.randint(20, 100), self.tick)

    def commit(
        self, member_id: str, instance_id: str | None, generation: int, offsets: dict[int, int]
    ) -> ErrorCode | None:
        """Return the refusal, or None: the append will answer."""
        now_ms = self.world.now_ms
        error = self.group.check_commit(member_id, instance_id, generation, now_ms)
        return None if error is ErrorCode.none else error

    def die(self) -> None:
        self.alive = False
        self.waiting.clear()


@dataclass(slots=True)
class Member:
    """A client, as its process is: its own thread of requests, one after the other."""

    world: "World"
    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    protocol: str = "range"
    alive: bool = True
    is_stable: bool = False
    leaving: bool = False
    request: int = 0
    """The one whose reply counts; an older one's comes too late."""
    assigned: tuple[int, ...] = ()
    positions: dict[int, int] = field(default_factory=dict)

    def _send(
        self, call: Callable[[Coordinator, Callable[[AnyReply], None]], None],
        answered: Callable[[AnyReply], None], timeout_ms: int, timed_out: Callable[[], None],
        *, once: bool = False,
    ) -> None:  # fmt: skip
        """*once*: no duplicate of it comes later. Of a commit that would be the client's own
        word that it goes back."""
        self.request += 1
        number = self.request

        def reply(found: AnyReply) -> None:
            if self.world.is_lost():
                return
            self.world.later(self.world.delay_ms(), lambda: arrive(found))

        def arrive(found: AnyReply) -> None:
            if self.alive and number == self.request:
                self.request += 1
                answered(found)

        def expire() -> None:
            if self.alive and number == self.request:
                self.request += 1
                timed_out()

        def deliver() -> None:
            if self.world.coordinator.alive:
                call(self.world.coordinator, reply)

        if not self.world.is_lost():
            self.world.later(self.world.delay_ms(), deliver)
            if not once and self.world.is_faulty and self.world.random.random() < 0.05:
                late_ms = self.world.random.randint(100, 8_000)
                self.world.later(late_ms, deliver)  # a duplicate, out of an old connection
        self.world.later(timeout_ms, expire)

    def join(self) -> None:
        self.is_stable = False
        join = self.world.join_of(self)

        def call(coordinator: Coordinator, reply: Callable[[AnyReply], None]) -> None:
            coordinator.step(join(coordinator.ticket(reply)))

        self._send(call, self._joined, REBALANCE_MS + 5_000, self.join)

    def _joined(self, reply: AnyReply) -> None:
        assert isinstance(reply, JoinReply)
        match reply.error:
            case ErrorCode.none:
                self.member_id, self.generation = reply.member_id, reply.generation
                assignments: dict[str, bytes] = {}
                if reply.leader_id == self.member_id and not reply.skip_assignment:
                    names = [each.member_id for each in reply.members]
                    shares = self.world.shares(names)
                    assignments = {name: json.dumps(shares[name]).encode() for name in names}
                self._sync(assignments)
            case ErrorCode.member_id_required:
                self.member_id = reply.member_id
                self.join()
            case _:
                self._refused(reply.error)

    def _sync(self, assignments: dict[str, bytes]) -> None:
        member_id, generation = self.member_id, self.generation

        def call(coordinator: Coordinator, reply: Callable[[AnyReply], None]) -> None:
            def noted(found: AnyReply) -> None:
                assert isinstance(found, SyncReply)
                if found.error is ErrorCode.none:
                    self.world.check_sync(self, member_id, generation, found)
                reply(found)

            sync = SyncRequested(
                ticket=coordinator.ticket(noted),
                member_id=member_id,
                instance_id=self.instance_id,
                generation=generation,
                assignments=assignments,
            )
            coordinator.step(sync)

        self._send(call, self._synced, REBALANCE_MS + 5_000, self.join)

    def _synced(self, reply: AnyReply) -> None:
        assert isinstance(reply, SyncReply)
        if reply.error is not ErrorCode.none:
            self._refused(reply.error)
            return
        self.assigned = tuple(json.loads(reply.assignment))
        coordinator = self.world.coordinator
        if not coordinator.alive:
            self.world.later(100, self.join)
            return
        committed = coordinator.state.committed(GROUP)
        self.positions = {
            each: committed[TOPIC, each].offset if (TOPIC, each) in committed else 0
            for each in self.assigned
        }
        self.is_stable = True
        self._work()

    def _work(self) -> None:
        pause_ms = self.world.random.randint(500, SESSION_MS // 3)
        self.world.later(pause_ms, self._next)

    def _next(self) -> None:
        if not self.alive or not self.is_stable:
            return
        if self.world.random.random() < 0.5:
            self._beat()
        else:
            self._commit()

    def _beat(self) -> None:
        member_id, generation = self.member_id, self.generation

        def call(coordinator: Coordinator, reply: Callable[[AnyReply], None]) -> None:
            now_ms = self.world.now_ms
            reply(coordinator.group.heartbeat(member_id, self.instance_id, generation, now_ms))

        self._send(call, self._beaten, TIMEOUT_MS, self._work)

    def _beaten(self, reply: AnyReply) -> None:
        assert isinstance(reply, ErrorCode)
        if reply is ErrorCode.none:
            self._work()
        elif reply is ErrorCode.rebalance_in_progress and self.world.random.random() < 0.5:
            self._commit()  # what it has done, before it joins
        else:
            self._refused(reply)

    def _commit(self) -> None:
        for each in self.positions:
            self.positions[each] += self.world.random.randint(0, 3)
        member_id, generation, offsets = self.member_id, self.generation, dict(self.positions)

        def call(coordinator: Coordinator, reply: Callable[[AnyReply], None]) -> None:
            refusal = coordinator.commit(member_id, self.instance_id, generation, offsets)
            if refusal is not None:
                reply(refusal)
                return
            change = OffsetsChange(
                GROUP,
                {
                    (TOPIC, each): CommittedOffset(offset, -1, "", self.world.now_ms)
                    for each, offset in offsets.items()
                },
            )

            def confirmed() -> None:
                self.world.acknowledge(offsets)
                reply(ErrorCode.none)

            coordinator.append(change, generation, confirmed)

        self._send(call, self._committed, TIMEOUT_MS, self._work, once=True)

    def _committed(self, reply: AnyReply) -> None:
        assert isinstance(reply, ErrorCode)
        if reply is ErrorCode.none:
            self._work()
        else:
            self._refused(reply)

    def _refused(self, error: ErrorCode) -> None:
        self.is_stable = False
        if error is ErrorCode.fenced_instance_id:
            self.alive = False  # as clients do: somebody else is this instance
            self.world.fenced += 1
            return
        if error in {ErrorCode.unknown_member_id, ErrorCode.illegal_generation}:
            if error is ErrorCode.unknown_member_id:
                self.member_id = ""
            self.generation = -1
        self.world.later(self.world.random.randint(10, 200), self.join)

    def leave(self) -> None:
        member_id = self.member_id
        coordinator = self.world.coordinator
        if coordinator.alive and member_id and not self.world.is_lost():
            ticket = coordinator.ticket(lambda _: None)
            leavers = ((member_id, self.instance_id),)
            coordinator.step(LeaveRequested(ticket=ticket, members=leavers))
        self.crash()

    def crash(self) -> None:
        self.alive = self.is_stable = False


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_ms = 1_000
        self.is_faulty = True
        self.log: list[bytes] = []
        self.log_generation = 0
        self.fenced = 0
        self.generations = 0
        self.takeovers = 0
        self.members: list[Member] = []
        self._names = itertools.count(1)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._leaders: dict[int, str] = {}
        self._assigned: dict[tuple[int, str], bytes] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self._acknowledged: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self.coordinator = Coordinator(self)

    def later(self, delay_ms: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._sequence), call))

    def delay_ms(self) -> int:
        return self.random.randint(1, 300 if self.is_faulty and self.random.random() < 0.2 else 5)

    def is_lost(self) -> bool:
        return self.is_faulty and self.random.random() < 0.04

    def run(self) -> None:
        """Run with faults, then without; raise `Broken`."""
        for _ in range(self.random.randint(1, 4)):
            self._start_member()
        self.later(1_000, self._fault)
        self._run_until(self.now_ms + FAULTS_MS)
        self.is_faulty = False
        if not self.coordinator.alive:
            self._take_over()
        if not any(each.alive for each in self.members):
            self._start_member()
        self._run_until(self.now_ms + QUIET_MS)
        self._check_end()

    def _run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, call = heapq.heappop(self._queue)
            call()
        self.now_ms = end_ms

    def _fault(self) -> None:
        if not self.is_faulty:
            return
        alive = [each for each in self.members if each.alive]
        match self.random.randrange(8):
            case 0 | 1 if len(alive) < 6:
                self._start_member()
            case 2 if alive:
                self.random.choice(alive).crash()
            case 3 if alive:
                self.random.choice(alive).leave()
            case 4 if alive:  # a static one restarts; its old process may still run
                self._restart(self.random.choice(alive))
            case 5 | 6:
                self.fail_over()
            case _:
                pass
        self.later(self.random.randint(200, 9_000), self._fault)

    def _start_member(self, instance_id: str | None = None) -> None:
        name = f"m{next(self._names)}"
        if instance_id is None and self.random.random() < 0.3:
            instance_id = f"i{name}"
        member = Member(self, name, instance_id)
        self.members.append(member)
        member.join()

    def _restart(self, member: Member) -> None:
        if member.instance_id is not None:
            if self.random.random() < 0.7:
                member.crash()
            self._start_member(member.instance_id)

    def fail_over(self) -> None:
        """The coordinator dies; of what it had appended, any first part is kept."""
        died = self.coordinator
        kept = self.random.randint(0, len(died.pending))
        died.die()
        for appended in died.pending[:kept]:
            self.keep(appended)
        if self.random.random() < 0.7:
            self._take_over()
        else:
            self.later(self.random.randint(100, 4_000), self._take_over)

    def _take_over(self) -> None:
        if not self.coordinator.alive:
            self.takeovers += 1
            self.coordinator = Coordinator(self)
            committed = self.coordinator.state.committed(GROUP)
            for partition, offset in self._acknowledged.items():
                if committed[TOPIC, partition].offset < offset:
                    raise Broken("offsets", f"partition {partition}: {offset} was acknowledged")

    def join_of(self, member: Member) -> Callable[[int], JoinRequested]:
        """Return how *member* joins now, for every ticket the same request."""
        new_member_id = f"{member.name}-{next(self._names)}"
        assignors = (Assignor("range", b"r"), Assignor("sticky", member.name.encode()))
        needs_known_id = member.instance_id is None and self.random.random() < 0.8

        def join(ticket: int) -> JoinRequested:
            return JoinRequested(
                ticket=ticket,
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocol_type="consumer",
                assignors=assignors,
                new_member_id=new_member_id,
                needs_known_id=needs_known_id,
                can_skip_assignment=True,
            )

        return join

    def shares(self, names: list[str]) -> dict[str, list[int]]:
        """Assign at random: another leader, or another try, assigns in another way."""
        shares: dict[str, list[int]] = {name: [] for name in names}
        for partition in range(PARTITIONS):
            shares[self.random.choice(names)].append(partition)
        return shares

    def keep(self, appended: Appended) -> None:
        """It is in the log, whoever knows of it."""
        change = decode_change(appended.record, log="offsets", offset=len(self.log))
        self.log.append(appended.record)
        if appended.generation < self.log_generation:
            story = f"one of {appended.generation} comes after generation {self.log_generation}"
            raise Broken("generation", story)
        if isinstance(change, GenerationChange):
            self.log_generation = appended.generation
            return
        assert isinstance(change, OffsetsChange)
        for (_, partition), committed in change.offsets.items():
            if committed.offset < self._committed.get(partition, 0):
                raise Broken("offsets", f"partition {partition} goes back to {committed.offset}")
            self._committed[partition] = committed.offset

    def acknowledge(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, 0))

    def check_reply(self, group: ConsumerGroup, reply: object) -> None:
        if not isinstance(reply, JoinReply) or reply.error is not ErrorCode.none:
            return
        self.generations = max(self.generations, reply.generation)
        if reply.leader_id == reply.member_id and not reply.skip_assignment:
            leader = self._leaders.setdefault(reply.generation, reply.member_id)
            if leader != reply.member_id:
                story = f"{leader} and {reply.member_id} lead generation {reply.generation}"
                raise Broken("leader", story)

    def check_sync(self, member: Member, member_id: str, generation: int, reply: SyncReply) -> None:
        if not reply.assignment:
            raise Broken("assignment", f"{member_id} has none in generation {generation}")
        known = self._assigned.setdefault((generation, member_id), reply.assignment)
        if known != reply.assignment:
            story = f"{member_id} has two in generation {generation}"
            raise Broken("assignment", story)
        owner = member.instance_id or member_id
        for partition in json.loads(reply.assignment):
            other = self._owners.setdefault((generation, partition), owner)
            if other != owner:
                story = f"{other} and {owner} have partition {partition} of {generation}"
                raise Broken("assignment", story)

    def _check_end(self) -> None:
        group, alive = self.coordinator.group, [each for each in self.members if each.alive]
        standing = f"{group.phase}, members {list(group.members)}"
        if alive and group.phase is not GroupPhase.STABLE:
            raise Broken("liveness", standing)
        for member in alive:
            if not member.is_stable or member.generation != group.generation:
                raise Broken("liveness", f"{member.name} is not in the generation; {standing}")
        if len(group.members) != len(alive):
            raise Broken("liveness", f"{len(alive)} are alive; {standing}")
        if self.coordinator.waiting:
            raise Broken("liveness", f"{len(self.coordinator.waiting)} requests wait; {standing}")
        owned = sorted(each for member in alive for each in member.assigned)
        if alive and owned != list(range(PARTITIONS)):
            raise Broken("liveness", f"partitions {owned} are assigned")
