"""Bugs of the coordinator of consumer groups, found by groups at random."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from dlog.kafka import coordinator
from dlog.kafka.group_mirror import GroupMirror
from dlog.kafka.offsets_log import OffsetsLog
from dlog.kafka.protocol import consumer_group as groups
from dlog.kafka.protocol.consumer_group import ConsumerGroup, GroupPhase
from dlog.kafka.protocol.consumer_group_events import (
    JoinedMember,
    JoinRequested,
    StoredGeneration,
    SyncRequested,
)
from dlog.kafka.protocol.group_offsets import CommittedOffset, GroupOffsets, OffsetsChange
from tests.simulation.mutations.mutation import Patch, mutation

_GROUPS = "tests/dlog/kafka/test_consumer_group.py"
_COORDINATOR = "tests/dlog/kafka/test_coordinator.py"
_DRAWN = f"{_GROUPS}::test_groups_at_random_keep_every_promise"


@mutation("group generations", drawn=False, test=_DRAWN)
def tells_of_a_generation_before_it_is_stored(patch: Patch) -> None:
    """As Kafka does: after a takeover its number is given to another one."""
    honest = ConsumerGroup._form

    def form(self: ConsumerGroup, now_ms: int) -> None:
        honest(self, now_ms)
        if self.phase is GroupPhase.FORMING:
            self._forming_store = 0
            self._announce(now_ms)

    patch.set(ConsumerGroup, "_form", form)


@mutation("group generations", drawn=False, test=_DRAWN)
def tells_of_an_assignment_before_it_is_stored(patch: Patch) -> None:
    honest = ConsumerGroup._assign

    def assign(self: ConsumerGroup, assignments: Mapping[str, bytes], now_ms: int) -> None:
        honest(self, assignments, now_ms)
        if self._assigning is not None:
            chosen, self._assigning = self._assigning[1], None
            self._settle(chosen, now_ms)

    patch.set(ConsumerGroup, "_assign", assign)


@mutation(
    "group generations",
    drawn=False,
    test=f"{_GROUPS}::test_the_first_assignment_of_a_generation_counts",
)
def lets_a_leader_assign_twice(patch: Patch) -> None:
    honest = ConsumerGroup._sync

    def sync(self: ConsumerGroup, sync: SyncRequested, now_ms: int) -> None:
        is_leader = sync.member_id == self.leader_id and bool(sync.assignments)
        if is_leader and self.phase is GroupPhase.STABLE and sync.generation == self.generation:
            for member in self.members.values():
                member.assignment = sync.assignments.get(member.member_id, b"")
        honest(self, sync, now_ms)

    patch.set(ConsumerGroup, "_sync", sync)


@mutation("group generations", drawn=False, test=_DRAWN)
def takes_commits_of_an_old_generation(patch: Patch) -> None:
    honest = ConsumerGroup.check_commit

    def check_commit(
        self: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        if 0 <= generation < self.generation:
            generation = self.generation
        return honest(self, member_id, instance_id, generation, now_ms)

    patch.set(ConsumerGroup, "check_commit", check_commit)


@mutation("group generations", drawn=False, test=_DRAWN)
def takes_commits_while_a_generation_is_stored(patch: Patch) -> None:
    """They come behind it in the log, and its members do not see them."""
    honest = ConsumerGroup.check_commit

    def check_commit(
        self: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        if self.phase is GroupPhase.FORMING and member_id in self.members:
            return ErrorCode.none
        return honest(self, member_id, instance_id, generation, now_ms)

    patch.set(ConsumerGroup, "check_commit", check_commit)


@mutation("group members", drawn=False, test=_DRAWN)
def does_not_fence_a_static_member_that_was_replaced(patch: Patch) -> None:
    """The process of before is an ordinary member again."""

    def check_member(self: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None and instance_id in self._statics:
            return ErrorCode.none
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    honest = ConsumerGroup._remove

    def remove(self: ConsumerGroup, member: Any) -> None:
        honest(self, member)
        if member.instance_id is not None and self.phase is not GroupPhase.EMPTY:
            self.members[member.member_id] = replace(member, instance_id=None)

    patch.set(ConsumerGroup, "_check_member", check_member)
    patch.set(ConsumerGroup, "_remove", remove)


@mutation("group members", drawn=False, test=_DRAWN)
def waits_for_ever_for_members_that_do_not_join(patch: Patch) -> None:
    def form_if_complete(self: ConsumerGroup, now_ms: int) -> None:
        if self._all_joined:
            self._form(now_ms)

    honest = ConsumerGroup._expire

    def expire(self: ConsumerGroup, now_ms: int) -> None:
        self._joins_until_ms = now_ms + 10**12
        for member in self.members.values():
            member.expires_ms = now_ms + 10**12
        honest(self, now_ms)

    patch.set(ConsumerGroup, "_form_if_complete", form_if_complete)
    patch.set(ConsumerGroup, "_expire", expire)


@mutation("group members", drawn=False, test=_DRAWN)
def keeps_members_whose_session_has_ended(patch: Patch) -> None:
    honest = ConsumerGroup._expire

    def expire(self: ConsumerGroup, now_ms: int) -> None:
        for member in self.members.values():
            member.expires_ms = now_ms + member.session_timeout_ms
        honest(self, now_ms)

    patch.set(ConsumerGroup, "_expire", expire)


@mutation("group takeovers", drawn=False, test=_DRAWN)
def takes_a_generation_without_assignment_for_a_stable_one(patch: Patch) -> None:
    honest = ConsumerGroup.restored

    def restored(
        group_id: str, stored: StoredGeneration, now_ms: int, **more: int
    ) -> ConsumerGroup:
        return honest(group_id, replace(stored, is_assigned=True), now_ms, **more)

    patch.set(ConsumerGroup, "restored", restored)


@mutation("group takeovers", drawn=False, test=_DRAWN)
def begins_with_an_empty_group_after_a_takeover(patch: Patch) -> None:
    """And counts its generations from the start."""

    def restored(
        group_id: str, _stored: StoredGeneration, _now_ms: int, **more: int
    ) -> ConsumerGroup:
        return ConsumerGroup(group_id, **more)

    patch.set(ConsumerGroup, "restored", restored)


@mutation("group offsets", drawn=False, test=_DRAWN)
def leaves_out_a_partition_of_a_commit(patch: Patch) -> None:
    honest = GroupOffsets.apply

    def apply(self: GroupOffsets, change: Any) -> None:
        if isinstance(change, OffsetsChange) and len(change.offsets) > 1:
            first = dict(list(change.offsets.items())[:-1])
            change = OffsetsChange(change.group, first)
        honest(self, change)

    patch.set(GroupOffsets, "apply", apply)


@mutation("group members", drawn=False, test=_DRAWN)
def tells_the_leader_of_itself_alone(patch: Patch) -> None:
    honest = ConsumerGroup._joined_members

    def joined_members(self: ConsumerGroup) -> tuple[JoinedMember, ...]:
        return tuple(each for each in honest(self) if each.member_id == self.leader_id)

    patch.set(ConsumerGroup, "_joined_members", joined_members)


@mutation("group members", drawn=False, test=f"{_GROUPS}::test_session_timeouts_have_bounds")
def takes_any_session_timeout(patch: Patch) -> None:
    patch.set(groups, "SESSION_MS_MIN", 0)


@mutation(
    "group offsets",
    drawn=False,
    test="tests/dlog/kafka/test_group_offsets.py"
    "::test_a_snapshot_says_what_the_records_before_it_said",
)
def leaves_the_metadata_of_offsets_out_of_snapshots(patch: Patch) -> None:
    honest = GroupOffsets.snapshot

    def snapshot(self: GroupOffsets) -> Any:
        for change in honest(self):
            if isinstance(change, OffsetsChange):
                bare = {
                    key: CommittedOffset(each.offset, each.leader_epoch, "", each.committed_ms)
                    for key, each in change.offsets.items()
                }
                yield OffsetsChange(change.group, bare)
            else:
                yield change

    patch.set(GroupOffsets, "snapshot", snapshot)


@mutation("group members", drawn=False, test=f"{_GROUPS}::test_a_static_member_that_is_away_keeps"
          "_its_place_in_a_rebalance")  # fmt: skip
def removes_static_members_that_are_away(patch: Patch) -> None:
    honest = ConsumerGroup._form

    def form(self: ConsumerGroup, now_ms: int) -> None:
        for member in list(self.members.values()):
            if member.join_ticket is None:
                self._remove(member)
        honest(self, now_ms)

    patch.set(ConsumerGroup, "_form", form)


@mutation("group members", drawn=False, test=f"{_GROUPS}::test_an_id_that_nobody_joins_with_is"
          "_forgotten")  # fmt: skip
def keeps_ids_that_nobody_joined_with(patch: Patch) -> None:
    honest = ConsumerGroup._join

    def join(self: ConsumerGroup, join: JoinRequested, now_ms: int) -> None:
        honest(self, join, now_ms)
        for member_id in self._pending_ids:
            self._pending_ids[member_id] = now_ms + 10**12

    patch.set(ConsumerGroup, "_join", join)


@mutation(
    "group offsets",
    drawn=False,
    test=f"{_COORDINATOR}::test_what_is_not_in_the_log_is_not_acknowledged",
)
def acknowledges_commits_before_they_are_in_the_log(patch: Patch) -> None:
    honest = OffsetsLog.submit_commit

    def submit_commit(self: OffsetsLog, *commit: Any) -> Any:
        outcome = honest(self, *commit)
        if isinstance(outcome, asyncio.Future):
            outcome.set_result(None)
        return outcome

    patch.set(OffsetsLog, "submit_commit", submit_commit)


@mutation(
    "group offsets",
    drawn=False,
    test=f"{_COORDINATOR}::test_the_log_is_compacted_and_says_the_same",
)
def truncates_behind_the_snapshot(patch: Patch) -> None:
    """All of it is gone, and nobody notices before a takeover."""
    honest = OffsetsLog._write_snapshot

    async def write_snapshot(self: OffsetsLog) -> None:
        await honest(self)
        await self._dlog.truncate(before=self._dlog.last_offset + 1)

    patch.set(OffsetsLog, "_write_snapshot", write_snapshot)


@mutation(
    "group takeovers",
    drawn=False,
    test=f"{_COORDINATOR}::test_a_log_that_was_lost_just_now_is_left_alone",
)
def takes_a_log_back_at_once(patch: Patch) -> None:
    """Two gateways whose views differ fence each other without end."""
    patch.set(coordinator, "REOPEN_S", -1.0)


@mutation(
    "group mirror",
    drawn=False,
    test=f"{_COORDINATOR}::test_what_a_group_has_committed_is_a_consumer_of_the_log",
)
def moves_the_consumer_of_a_group_forward_only(patch: Patch) -> None:
    """Retention then removes what the group reads again."""
    honest = GroupMirror.note

    def note(self: GroupMirror, source: str, group: str, key: Any, offset: int | None) -> None:
        handle = self._handles.get((source, group, key))
        if handle is None or offset is None or offset > handle.position:
            honest(self, source, group, key, offset)

    patch.set(GroupMirror, "note", note)


@mutation(
    "group mirror",
    drawn=False,
    test=f"{_COORDINATOR}::test_a_gateway_that_lost_the_group_moves_its_consumer_no_more",
)
def moves_the_consumer_of_a_group_that_another_gateway_has(patch: Patch) -> None:
    honest = GroupMirror._write

    async def write(self: GroupMirror, key: Any, *rest: Any) -> None:
        self._handles.pop(key, None)
        await honest(self, key, *rest)

    patch.set(GroupMirror, "_write", write)
