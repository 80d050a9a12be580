"""The coordinator of one consumer group, in Kafka's classic protocol, as an event machine.

Members join, the coordinator chooses one of them as the leader, the leader assigns partitions, and
each member fetches its assignment with SyncGroup. All of that is a *generation*. A member that
joins, leaves or fails begins the next one. Assignors live in clients: metadata and assignments are
opaque bytes here, so range, sticky and cooperative ones work alike.

    EMPTY --join--> PREPARING --all joined--> FORMING --stored--> COMPLETING --leader's sync,
    stored--> STABLE; a change of members leads from the last two to PREPARING

Unlike Kafka's, this coordinator stores a generation *before* a member learns of it, and not only
its assignment (FORMING). So a takeover continues where the former coordinator stood, even between
JoinGroup and SyncGroup, and no number of a generation is ever used for two of them. A log confirms
in order: whoever learns of a generation, finds every offset that an earlier one committed.

Every event comes with the time in milliseconds of a clock that never goes back. `step` returns
effects: `Reply` for a waiting request, `Store` for what has to be in the log; the driver reports
the latter with `Stored`, in order. What cannot be stored ends the machine: its driver answers
whatever waits and replays the log.

Invariants (asserted by `step`):
    a generation has one leader, and each of its members one assignment
    a request waits only in a phase that has a deadline or a store in progress
    a static member (with an instance id) has one member id at a time

Bounds: `MEMBERS_MAX` members, those that were only given an id included, and `GROUP_BYTES_MAX` of
what they sent.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self, assert_never

from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.consumer_group_events import (
    Assignor,
    DeadlinePassed,
    GroupEffect,
    GroupEvent,
    JoinedMember,
    JoinReply,
    JoinRequested,
    LeaveReply,
    LeaveRequested,
    Reply,
    Store,
    Stored,
    StoredGeneration,
    StoredMember,
    SyncReply,
    SyncRequested,
)

MEMBERS_MAX: Final = 1000
GROUP_BYTES_MAX: Final = 512 * 1024
"""Of ids, metadata and assignments of all members; a record of the offsets log holds them."""
SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 30 * 60 * 1000
REBALANCE_MS_MAX: Final = 24 * 60 * 60 * 1000
INITIAL_DELAY_MS: Final = 500
"""How long a group that was empty waits for more members, so that those which start together
make one generation."""
NO_PROTOCOL: Final = ""
_CHARGE: Final = 32
"""Of a member, and of each of its assignors, beside the bytes that they have."""


class GroupPhase(Enum):
    """The value is the name that Kafka's tools know; FORMING is a part of PREPARING for them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    FORMING = "Forming"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"

    @property
    def kafka_name(self) -> str:
        return GroupPhase.PREPARING.value if self is GroupPhase.FORMING else self.value


@dataclass(slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    assignors: tuple[Assignor, ...]
    expires_ms: int
    """When its session ends, unless a request of it waits."""
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None
    has_synced: bool = False
    """In this generation."""

    @property
    def waits(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    @property
    def size_bytes(self) -> int:
        return (
            _size_of(self.member_id, self.instance_id, self.client_id, self.client_host)
            + _size_of_assignors(self.assignors)
            + len(self.assignment)
        )

    def metadata_for(self, protocol: str) -> bytes:
        return next((each.metadata for each in self.assignors if each.name == protocol), b"")

    def stored(self, assignment: bytes) -> StoredMember:
        return StoredMember(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            assignors=self.assignors,
            assignment=assignment,
        )


class ConsumerGroup:
    """The machine. `step` takes events; a few questions are answered at once."""

    def __init__(self, group_id: str, *, initial_delay_ms: int = INITIAL_DELAY_MS) -> None:
        self.group_id = group_id
        self.phase = GroupPhase.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = NO_PROTOCOL
        self.leader_id = ""
        self.members: dict[str, GroupMember] = {}
        self._initial_delay_ms = initial_delay_ms
        self._statics: dict[str, str] = {}
        """Member ids by instance id."""
        self._pending_ids: dict[str, int] = {}
        """Ids that were given out to members that have yet to join with them: until when."""
        self._joins_until_ms = 0
        """In PREPARING: when members that have not joined are removed."""
        self._joins_from_ms = 0
        """In PREPARING: before that, even a complete group waits for more."""
        self._was_empty = False
        """In PREPARING: whether this is the first generation after the group was empty."""
        self._syncs_until_ms = 0
        """In COMPLETING and STABLE: when members that have not synced are removed."""
        self._forming: tuple[JoinedMember, ...] = ()
        """In FORMING: the members that the generation has, as its leader hears of them."""
        self._changed = False
        """In FORMING: whether members have changed since."""
        self._stores = 0
        self._forming_store = 0
        self._assigning: tuple[int, dict[str, bytes]] | None = None
        """In COMPLETING: the assignment that is being stored, and its store."""
        self._replacements: dict[int, Reply] = {}
        """Answers to static members that restarted, by the store that they wait for."""
        self._effects: list[GroupEffect] = []
        self._size_bytes: int | None = 0

    @classmethod
    def restored(
        cls,
        group_id: str,
        stored: StoredGeneration,
        now_ms: int,
        *,
        initial_delay_ms: int = INITIAL_DELAY_MS,
    ) -> Self:
        """Return the group as its log has it, after a takeover. Every member has its session
        time-out, from now on, to be heard of."""
        group = cls(group_id, initial_delay_ms=initial_delay_ms)
        group.generation = stored.generation
        group.protocol_type, group.protocol = stored.protocol_type, stored.protocol
        group.leader_id = stored.leader_id
        for member in stored.members:
            group._add(
                GroupMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    session_timeout_ms=member.session_timeout_ms,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    assignors=member.assignors,
                    assignment=member.assignment,
                    expires_ms=now_ms + member.session_timeout_ms,
                    has_synced=stored.is_assigned,
                )
            )
        if group.members:
            group.phase = GroupPhase.STABLE if stored.is_assigned else GroupPhase.COMPLETING
            group._syncs_until_ms = now_ms + group._rebalance_timeout_ms
        return group

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in it or on the way into it, and nothing is being stored."""
        is_waiting = self._pending_ids or self._replacements or self._forming_store
        return self.phase is GroupPhase.EMPTY and not is_waiting

    @property
    def deadline_ms(self) -> int | None:
        """When `DeadlinePassed` has to be reported; a heartbeat may have moved it since."""
        deadlines = list(self._pending_ids.values())
        deadlines += [each.expires_ms for each in self.members.values() if not each.waits]
        match self.phase:
            case GroupPhase.PREPARING:
                deadlines.append(self._joins_until_ms)
                if self._all_joined:
                    deadlines.append(self._joins_from_ms)
            case GroupPhase.COMPLETING | GroupPhase.STABLE:
                is_storing = self._assigning is not None
                if not is_storing and not all(each.has_synced for each in self.members.values()):
                    deadlines.append(self._syncs_until_ms)
            case GroupPhase.EMPTY | GroupPhase.FORMING:
                pass
            case _:
                assert_never(self.phase)
        return min(deadlines, default=None)

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Answer a member that says it lives."""
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        match self.phase:
            case GroupPhase.FORMING | GroupPhase.PREPARING:
                if self.phase is GroupPhase.PREPARING and generation != self.generation:
                    return ErrorCode.illegal_generation
                self._renew(member_id, now_ms)
                return ErrorCode.rebalance_in_progress
            case GroupPhase.COMPLETING | GroupPhase.STABLE:
                if generation != self.generation:
                    return ErrorCode.illegal_generation
                self._renew(member_id, now_ms)
                return ErrorCode.none
            case GroupPhase.EMPTY:
                return ErrorCode.unknown_member_id
            case _:
                assert_never(self.phase)

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """Return whether a member of *generation* may commit offsets now. Without generation
        and member id, a client without membership may while the group has no members."""
        if generation < 0 and not member_id and not instance_id:
            is_free = self.phase is GroupPhase.EMPTY
            return ErrorCode.none if is_free else ErrorCode.unknown_member_id
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.none:
            return error
        match self.phase:
            case GroupPhase.FORMING:
                return ErrorCode.rebalance_in_progress
            case GroupPhase.COMPLETING:
                if generation != self.generation:
                    return ErrorCode.illegal_generation
                self._renew(member_id, now_ms)
                return ErrorCode.rebalance_in_progress
            case GroupPhase.PREPARING | GroupPhase.STABLE:
                if generation != self.generation:
                    return ErrorCode.illegal_generation
                self._renew(member_id, now_ms)
                return ErrorCode.none
            case GroupPhase.EMPTY:
                return ErrorCode.unknown_member_id
            case _:
                assert_never(self.phase)

    def step(self, event: GroupEvent, now_ms: int) -> list[GroupEffect]:
        """Take *event* and return what is to be done, in order."""
        match event:
            case JoinRequested():
                self._join(event, now_ms)
            case SyncRequested():
                self._sync(event, now_ms)
            case LeaveRequested():
                errors = tuple(self._leave(*leaver, now_ms=now_ms) for leaver in event.members)
                self._reply(event.ticket, LeaveReply(errors))
            case Stored(number):
                self._was_stored(number, now_ms)
            case DeadlinePassed():
                self._expire(now_ms)
            case _:
                assert_never(event)
        self._check()
        effects, self._effects = self._effects, []
        return effects

    # Joining.

    def _join(self, join: JoinRequested, now_ms: int) -> None:
        error = self._refusal_of(join)
        if error is not ErrorCode.none:
            self._reply(join.ticket, JoinReply(error=error, member_id=join.member_id))
        elif join.member_id:
            self._join_known(join, now_ms)
        elif join.instance_id is not None and join.instance_id in self._statics:
            self._replace_static(join, now_ms)
        elif join.needs_known_id and join.instance_id is None:
            self._pending_ids[join.new_member_id] = now_ms + join.session_timeout_ms
            reply = JoinReply(error=ErrorCode.member_id_required, member_id=join.new_member_id)
            self._reply(join.ticket, reply)
        else:
            self._join_new(join, join.new_member_id, now_ms)

    def _refusal_of(self, join: JoinRequested) -> ErrorCode:
        if not SESSION_MS_MIN <= join.session_timeout_ms <= SESSION_MS_MAX:
            return ErrorCode.invalid_session_timeout
        if not join.protocol_type or not join.assignors:
            return ErrorCode.inconsistent_group_protocol
        if join.member_id:
            is_pending = join.member_id in self._pending_ids and join.instance_id is None
            if not is_pending:
                error = self._check_member(join.member_id, join.instance_id)
                if error is not ErrorCode.none:
                    return error
        same = join.member_id
        if not same and join.instance_id is not None:
            same = self._statics.get(join.instance_id, "")
        if self.members and join.protocol_type != self.protocol_type:
            return ErrorCode.inconsistent_group_protocol
        others = [each for each in self.members.values() if each.member_id != same]
        if not any(_all_can(others, assignor.name) for assignor in join.assignors):
            return ErrorCode.inconsistent_group_protocol
        is_new = same not in self.members and same not in self._pending_ids
        if is_new and len(self.members) + len(self._pending_ids) >= MEMBERS_MAX:
            return ErrorCode.group_max_size_reached
        before = self.members[same].size_bytes if same in self.members else 0
        if self.size_bytes - before + _size_of_join(join) > GROUP_BYTES_MAX:
            return ErrorCode.group_max_size_reached
        return ErrorCode.none

    def _join_new(self, join: JoinRequested, member_id: str, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = join.protocol_type
        self._pending_ids.pop(member_id, None)
        member = GroupMember(
            member_id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout_of(join),
            assignors=join.assignors,
            expires_ms=now_ms + join.session_timeout_ms,
            join_ticket=join.ticket,
        )
        self._add(member)
        if self.phase is GroupPhase.PREPARING and self._was_empty:
            self._joins_from_ms = min(now_ms + self._initial_delay_ms, self._joins_until_ms)
        self._rebalance(now_ms)

    def _join_known(self, join: JoinRequested, now_ms: int) -> None:
        member = self.members.get(join.member_id)
        if member is None:
            self._join_new(join, join.member_id, now_ms)
            return
        is_same = member.assignors == join.assignors
        self._update(member, join, now_ms)
        match self.phase:
            case GroupPhase.PREPARING | GroupPhase.FORMING:
                self._wait_for_join(member, join.ticket)
                if self.phase is GroupPhase.PREPARING:
                    self._form_if_complete(now_ms)
                else:
                    self._changed = self._changed or not is_same
            case GroupPhase.COMPLETING if is_same:  # its reply was lost
                self._reply(join.ticket, self._join_reply(member, self._joined_members()))
            case GroupPhase.STABLE if is_same and member.member_id != self.leader_id:
                self._reply(join.ticket, self._join_reply(member, ()))
            case GroupPhase.COMPLETING | GroupPhase.STABLE:
                self._wait_for_join(member, join.ticket)
                self._rebalance(now_ms)
            case GroupPhase.EMPTY:
                raise AssertionError("an empty group has no members")
            case _:
                assert_never(self.phase)

    def _replace_static(self, join: JoinRequested, now_ms: int) -> None:
        """A static member restarted: give it a new id, and fence the process that had the old."""
        assert join.instance_id is not None
        old = self.members[self._statics[join.instance_id]]
        self._end_waits(old, ErrorCode.fenced_instance_id)
        was_leader = old.member_id == self.leader_id
        self._remove(old)
        member = GroupMember(
            member_id=join.new_member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=_rebalance_timeout_of(join),
            assignors=join.assignors,
            assignment=old.assignment,
            expires_ms=now_ms + join.session_timeout_ms,
            has_synced=old.has_synced,
        )
        self._add(member)
        if was_leader and self.phase is not GroupPhase.FORMING:  # else the log has another one
            self.leader_id = member.member_id
        if self.phase is GroupPhase.STABLE and self._chosen_protocol() == self.protocol:
            skips = was_leader and join.can_skip_assignment
            reply = JoinReply(
                member_id=member.member_id,
                generation=self.generation,
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                # A leader that cannot be told to skip must not take itself for one: what it
                # assigned would not be what others have.
                leader_id=self.leader_id if skips or not was_leader else old.member_id,
                skip_assignment=skips,
                members=self._joined_members() if skips else (),
            )
            number = self._store(is_assigned=True)
            self._replacements[number] = Reply(join.ticket, reply)
            return
        member.join_ticket = join.ticket
        self._rebalance(now_ms)

    def _wait_for_join(self, member: GroupMember, ticket: int) -> None:
        """A request that is repeated ends the one before, whose reply was lost."""
        self._end_waits(member, ErrorCode.rebalance_in_progress)
        member.join_ticket = ticket

    def _update(self, member: GroupMember, join: JoinRequested, now_ms: int) -> None:
        member.client_id, member.client_host = join.client_id, join.client_host
        member.session_timeout_ms = join.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout_of(join)
        member.assignors = join.assignors
        member.expires_ms = now_ms + join.session_timeout_ms
        self._size_bytes = None

    # Rebalancing.

    def _rebalance(self, now_ms: int) -> None:
        """Members have changed: the generation ends, or the next one gets other members."""
        match self.phase:
            case GroupPhase.FORMING:
                self._changed = True
                return
            case GroupPhase.PREPARING:
                self._form_if_complete(now_ms)
                return
            case GroupPhase.EMPTY | GroupPhase.COMPLETING | GroupPhase.STABLE:
                pass
            case _:
                assert_never(self.phase)
        self._assigning = None
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._answer_sync(member, SyncReply(error=ErrorCode.rebalance_in_progress), now_ms)
        self._was_empty = self.phase is GroupPhase.EMPTY
        self.phase = GroupPhase.PREPARING
        self._joins_until_ms = now_ms + self._rebalance_timeout_ms
        delay_ms = self._initial_delay_ms if self._was_empty else 0
        self._joins_from_ms = min(now_ms + delay_ms, self._joins_until_ms)
        self._form_if_complete(now_ms)

    @property
    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def _all_joined(self) -> bool:
        if not self.members:
            return True
        has_joined = all(each.join_ticket is not None for each in self.members.values())
        return has_joined and not self._pending_ids

    def _form_if_complete(self, now_ms: int) -> None:
        if self._all_joined and (now_ms >= self._joins_from_ms or not self.members):
            self._form(now_ms)

    def _form(self, now_ms: int) -> None:
        """Make the next generation of those that have joined, and store it."""
        for member in list(self.members.values()):
            if member.join_ticket is None and member.instance_id is None:
                self._remove(member)
        joined = [each for each in self.members.values() if each.join_ticket is not None]
        if self.members and not joined:
            # Static members that are away: they keep their place until their session ends.
            self._joins_until_ms = now_ms + self._rebalance_timeout_ms
            return
        self.generation += 1
        self._changed = False
        if not self.members:
            self.phase = GroupPhase.EMPTY
            self.protocol, self.leader_id = NO_PROTOCOL, ""
            self._store(is_assigned=True)
            return
        self.phase = GroupPhase.FORMING
        self.protocol = self._chosen_protocol()
        if self.leader_id not in {each.member_id for each in joined}:
            self.leader_id = joined[0].member_id
        for member in self.members.values():
            member.assignment, member.has_synced = b"", False
        self._size_bytes = None
        self._forming = self._joined_members()
        self._forming_store = self._store(is_assigned=False)

    def _chosen_protocol(self) -> str:
        """Return what most members prefer of all that everyone can do; the first one's choice,
        if several are liked as much."""
        members = list(self.members.values())
        names = [each.name for each in members[0].assignors if _all_can(members, each.name)]
        assert names, "who cannot do what the others can is refused"
        votes = Counter(
            next(each.name for each in member.assignors if each.name in names) for member in members
        )
        return max(names, key=lambda name: votes[name])

    def _was_stored(self, number: int, now_ms: int) -> None:
        replaced = self._replacements.pop(number, None)
        if replaced is not None:
            self._effects.append(replaced)
        elif number == self._forming_store:
            self._forming_store = 0
            self._announce(now_ms)
        elif self._assigning is not None and number == self._assigning[0]:
            assignments = self._assigning[1]
            self._assigning = None
            self._settle(assignments, now_ms)

    def _announce(self, now_ms: int) -> None:
        """The generation is in the log: tell its members."""
        assert self.phase is GroupPhase.FORMING
        forming, self._forming = self._forming, ()
        self.phase = GroupPhase.COMPLETING
        self._syncs_until_ms = now_ms + self._rebalance_timeout_ms
        for joined in forming:
            member = self.members.get(joined.member_id)
            if member is not None and member.join_ticket is not None:
                ticket, member.join_ticket = member.join_ticket, None
                member.expires_ms = now_ms + member.session_timeout_ms
                self._reply(ticket, self._join_reply(member, forming))
        if self._changed:
            self._changed = False
            self._rebalance(now_ms)

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata_for(self.protocol))
            for each in self.members.values()
        )

    def _join_reply(self, member: GroupMember, members: tuple[JoinedMember, ...]) -> JoinReply:
        return JoinReply(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader_id=self.leader_id,
            members=members if member.member_id == self.leader_id else (),
        )

    # Syncing.

    def _sync(self, sync: SyncRequested, now_ms: int) -> None:
        error = self._refusal_of_sync(sync)
        if error is not ErrorCode.none:
            self._reply(sync.ticket, SyncReply(error=error))
            return
        member = self.members[sync.member_id]
        if self.phase is GroupPhase.STABLE:
            member.expires_ms = now_ms + member.session_timeout_ms
            member.has_synced = True
            self._reply(sync.ticket, self._sync_reply(member))
            return
        if member.sync_ticket is not None:  # its reply was lost
            self._answer_sync(member, SyncReply(error=ErrorCode.rebalance_in_progress), now_ms)
        member.sync_ticket, member.has_synced = sync.ticket, True
        if member.member_id == self.leader_id and self._assigning is None:
            self._assign(sync.assignments, now_ms)

    def _refusal_of_sync(self, sync: SyncRequested) -> ErrorCode:
        error = self._check_member(sync.member_id, sync.instance_id)
        if error is not ErrorCode.none:
            return error
        match self.phase:
            case GroupPhase.FORMING:
                return ErrorCode.rebalance_in_progress
            case GroupPhase.EMPTY:
                return ErrorCode.unknown_member_id
            case GroupPhase.PREPARING | GroupPhase.COMPLETING | GroupPhase.STABLE:
                pass
            case _:
                assert_never(self.phase)
        if sync.generation != self.generation:
            return ErrorCode.illegal_generation
        if sync.protocol_type not in {None, self.protocol_type} or sync.protocol not in {
            None,
            self.protocol,
        }:
            return ErrorCode.inconsistent_group_protocol
        if self.phase is GroupPhase.PREPARING:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        chosen = {member_id: assignments.get(member_id, b"") for member_id in self.members}
        if self.size_bytes + sum(map(len, chosen.values())) > GROUP_BYTES_MAX:
            leader = self.members[self.leader_id]
            self._answer_sync(leader, SyncReply(error=ErrorCode.invalid_request), now_ms)
            leader.has_synced = False
            return
        self._assigning = (self._store(is_assigned=True, assignments=chosen), chosen)

    def _settle(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """The assignment is in the log: tell those that wait for it."""
        assert self.phase is GroupPhase.COMPLETING
        self.phase = GroupPhase.STABLE
        for member in self.members.values():
            member.assignment = assignments[member.member_id]
            if member.sync_ticket is not None:
                self._answer_sync(member, self._sync_reply(member), now_ms)
        self._size_bytes = None

    def _sync_reply(self, member: GroupMember) -> SyncReply:
        return SyncReply(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    # Leaving and failing.

    def _leave(self, member_id: str, instance_id: str | None, *, now_ms: int) -> ErrorCode:
        if not member_id and instance_id is not None:
            member_id = self._statics.get(instance_id, "")
        if instance_id is None and self._pending_ids.pop(member_id, None) is not None:
            if self.phase is GroupPhase.PREPARING:
                self._form_if_complete(now_ms)
            return ErrorCode.none
        error = self._check_member(member_id, instance_id)
        if error is ErrorCode.none:
            member = self.members[member_id]
            self._end_waits(member, ErrorCode.unknown_member_id)
            self._remove(member)
            self._rebalance(now_ms)
        return error

    def _expire(self, now_ms: int) -> None:
        pending = [each for each, until_ms in self._pending_ids.items() if until_ms <= now_ms]
        for member_id in pending:
            del self._pending_ids[member_id]
        gone = [
            each for each in self.members.values() if not each.waits and each.expires_ms <= now_ms
        ]
        if self._are_syncs_over(now_ms):
            gone += [each for each in self.members.values() if not each.has_synced]
        for member in gone:
            if member.member_id in self.members:
                self._end_waits(member, ErrorCode.unknown_member_id)
                self._remove(member)
        if gone:
            self._rebalance(now_ms)
        if self.phase is GroupPhase.PREPARING:
            if now_ms >= self._joins_until_ms:
                self._form(now_ms)
            else:
                self._form_if_complete(now_ms)

    def _are_syncs_over(self, now_ms: int) -> bool:
        is_open = self.phase in {GroupPhase.COMPLETING, GroupPhase.STABLE}
        return is_open and self._assigning is None and now_ms >= self._syncs_until_ms

    def _end_waits(self, member: GroupMember, error: ErrorCode) -> None:
        if member.join_ticket is not None:
            ticket, member.join_ticket = member.join_ticket, None
            self._reply(ticket, JoinReply(error=error, member_id=member.member_id))
        if member.sync_ticket is not None:
            ticket, member.sync_ticket = member.sync_ticket, None
            self._reply(ticket, SyncReply(error=error))

    # What is common.

    @property
    def size_bytes(self) -> int:
        """Bytes of what members sent."""
        if self._size_bytes is None:
            self._size_bytes = sum(each.size_bytes for each in self.members.values())
        return self._size_bytes

    def snapshot(self) -> StoredGeneration:
        """Return the group as a store of it says it."""
        return self._generation(
            is_assigned=self.phase in {GroupPhase.STABLE, GroupPhase.EMPTY}, assignments=None
        )

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self._statics.get(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            return ErrorCode.none if known == member_id else ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def _renew(self, member_id: str, now_ms: int) -> None:
        member = self.members[member_id]
        member.expires_ms = now_ms + member.session_timeout_ms

    def _add(self, member: GroupMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._statics[member.instance_id] = member.member_id
        self._size_bytes = None

    def _remove(self, member: GroupMember) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._statics[member.instance_id]
        self._size_bytes = None

    def _answer_sync(self, member: GroupMember, reply: SyncReply, now_ms: int) -> None:
        assert member.sync_ticket is not None
        ticket, member.sync_ticket = member.sync_ticket, None
        member.expires_ms = now_ms + member.session_timeout_ms
        self._reply(ticket, reply)

    def _reply(self, ticket: int, reply: JoinReply | SyncReply | LeaveReply) -> None:
        self._effects.append(Reply(ticket, reply))

    def _store(self, *, is_assigned: bool, assignments: Mapping[str, bytes] | None = None) -> int:
        self._stores += 1
        generation = self._generation(is_assigned=is_assigned, assignments=assignments)
        self._effects.append(Store(self._stores, generation))
        return self._stores

    def _generation(
        self, *, is_assigned: bool, assignments: Mapping[str, bytes] | None
    ) -> StoredGeneration:
        return StoredGeneration(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader_id=self.leader_id,
            is_assigned=is_assigned,
            members=tuple(
                each.stored(each.assignment if assignments is None else assignments[key])
                for key, each in self.members.items()
            ),
        )

    def _check(self) -> None:
        joins = self.phase in {GroupPhase.PREPARING, GroupPhase.FORMING}
        for member in self.members.values():
            assert member.join_ticket is None or joins, "a join waits in a rebalance"
            assert member.sync_ticket is None or self.phase is GroupPhase.COMPLETING
        assert bool(self.members) == (self.phase is not GroupPhase.EMPTY) or (
            self.phase is GroupPhase.FORMING
        )
        assert (self._forming_store != 0) == (self.phase is GroupPhase.FORMING)
        assert self._assigning is None or self.phase is GroupPhase.COMPLETING


def _all_can(members: Iterable[GroupMember], name: str) -> bool:
    return all(any(assignor.name == name for assignor in each.assignors) for each in members)


def _rebalance_timeout_of(join: JoinRequested) -> int:
    if join.rebalance_timeout_ms <= 0:
        return join.session_timeout_ms
    return min(max(join.rebalance_timeout_ms, SESSION_MS_MIN), REBALANCE_MS_MAX)


def _size_of(*texts: str | None) -> int:
    return _CHARGE + sum(len(text.encode()) for text in texts if text)


def _size_of_assignors(assignors: Iterable[Assignor]) -> int:
    return sum(_CHARGE + len(each.name.encode()) + len(each.metadata) for each in assignors)


def _size_of_join(join: JoinRequested) -> int:
    texts = (join.new_member_id, join.member_id, join.instance_id, join.client_id, join.client_host)
    return _size_of(*texts) + _size_of_assignors(join.assignors)
