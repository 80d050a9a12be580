"""A consumer group by hand: requests of named members, their answers, and a log that confirms
when the test says so."""

from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.consumer_group import ConsumerGroup
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
    StoredGeneration,
    SyncReply,
    SyncRequested,
)

SESSION_MS = 10_000
REBALANCE_MS = 30_000
RANGE = (Assignor("range", b"topics"),)


class GroupRig:
    def __init__(self, group: ConsumerGroup | None = None, *, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.group = group or ConsumerGroup("g", initial_delay_ms=0)
        self.replies: dict[int, JoinReply | SyncReply | LeaveReply] = {}
        self.stores: list[Store] = []
        self.log: list[StoredGeneration] = []
        self.holds = False
        """Whether stores wait for `confirm`."""
        self._tickets = 0

    def step(self, event: GroupEvent) -> None:
        for effect in self.group.step(event, self.now_ms):
            match effect:
                case Reply(ticket, reply):
                    assert ticket not in self.replies, "a request has one answer"
                    self.replies[ticket] = reply
                case Store():
                    self.stores.append(effect)
        if not self.holds:
            self.confirm()

    def confirm(self) -> None:
        while self.stores:
            store = self.stores.pop(0)
            self.log.append(store.generation)
            self.step(Stored(store.number))

    def pass_time(self, ms: int) -> None:
        """Let time pass, from deadline to deadline."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.group.deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step(DeadlinePassed())
        self.now_ms = end_ms

    def ask_join(
        self,
        member_id: str,
        *,
        known: bool = True,
        instance_id: str | None = None,
        assignors: tuple[Assignor, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        new_id: str | None = None,
        skip: bool = False,
        rebalance_ms: int = REBALANCE_MS,
    ) -> int:
        """Send JoinGroup, without a member id if it is not *known*; return the ticket."""
        self._tickets += 1
        self.step(
            JoinRequested(
                ticket=self._tickets,
                member_id=member_id if known else "",
                instance_id=instance_id,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                assignors=assignors,
                new_member_id=new_id or member_id,
                needs_known_id=False,
                can_skip_assignment=skip,
            )
        )
        return self._tickets

    def ask_sync(
        self,
        member_id: str,
        generation: int | None = None,
        *,
        instance_id: str | None = None,
        assignments: dict[str, bytes] | None = None,
    ) -> int:
        self._tickets += 1
        self.step(
            SyncRequested(
                ticket=self._tickets,
                member_id=member_id,
                instance_id=instance_id,
                generation=self.group.generation if generation is None else generation,
                assignments=assignments or {},
            )
        )
        return self._tickets

    def leave(self, *members: tuple[str, str | None]) -> tuple[ErrorCode, ...]:
        self._tickets += 1
        self.step(LeaveRequested(ticket=self._tickets, members=members))
        reply = self.replies[self._tickets]
        assert isinstance(reply, LeaveReply)
        return reply.errors

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, ticket: int) -> SyncReply:
        reply = self.replies[ticket]
        assert isinstance(reply, SyncReply)
        return reply

    def beat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        number = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance_id, number, self.now_ms)

    def commits(self, member_id: str, generation: int) -> ErrorCode:
        return self.group.check_commit(member_id, None, generation, self.now_ms)

    def settled(self, *names: str, instances: bool = False) -> "GroupRig":
        """Have a group of *names* in which everybody has an assignment: its own name."""
        tickets = {}
        for name in names:
            instance = f"i-{name}" if instances else None
            tickets[name] = self.ask_join(name, known=False, instance_id=instance)
            for other in names[: names.index(name)]:
                instance = f"i-{other}" if instances else None
                tickets[other] = self.ask_join(other, instance_id=instance)
        leader = self.group.leader_id
        for name in (leader, *(each for each in names if each != leader)):
            assert self.joined(tickets[name]).error is ErrorCode.none
            ticket = self.ask_sync(
                name,
                instance_id=f"i-{name}" if instances else None,
                assignments={each: each.encode() for each in names} if name == leader else None,
            )
            assert self.synced(ticket).assignment == name.encode()
        return self
