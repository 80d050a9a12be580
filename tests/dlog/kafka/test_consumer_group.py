"""The coordinator of one consumer group, decision by decision, and at random."""

import pytest
from kio.schema.errors import ErrorCode

from dlog.kafka.protocol.consumer_group import (
    GROUP_BYTES_MAX,
    MEMBERS_MAX,
    ConsumerGroup,
    GroupPhase,
)
from dlog.kafka.protocol.consumer_group_events import Assignor, JoinedMember, JoinRequested
from tests.dlog.kafka.group_rig import RANGE, REBALANCE_MS, SESSION_MS, GroupRig
from tests.dlog.kafka.group_world import World

SEEDS = 120


def test_the_first_member_leads_and_has_what_it_assigned() -> None:
    rig = GroupRig()
    joined = rig.joined(rig.ask_join("a", known=False))
    assert (joined.error, joined.generation, joined.leader_id) == (ErrorCode.none, 1, "a")
    assert joined.members == (JoinedMember("a", None, b"topics"),)
    assert rig.group.phase.kafka_name == "CompletingRebalance"
    synced = rig.synced(rig.ask_sync("a", assignments={"a": b"all"}))
    assert (synced.assignment, synced.protocol) == (b"all", "range")
    assert rig.group.phase is GroupPhase.STABLE


def test_members_that_start_together_make_one_generation() -> None:
    rig = GroupRig(ConsumerGroup("g", initial_delay_ms=500))
    first = rig.ask_join("a", known=False)
    rig.pass_time(400)
    second = rig.ask_join("b", known=False)
    rig.pass_time(400)
    assert not rig.replies, "the second one began the wait again"
    rig.pass_time(100)
    assert rig.joined(first).generation == rig.joined(second).generation == 1
    assert [each.member_id for each in rig.joined(first).members] == ["a", "b"]
    assert rig.joined(second).members == ()


def test_the_wait_for_more_members_ends_with_the_rebalance_timeout() -> None:
    rig = GroupRig(ConsumerGroup("g", initial_delay_ms=900))
    first = rig.ask_join("m0", known=False, rebalance_ms=2000)
    for number in range(1, 4):
        rig.pass_time(800)
        rig.ask_join(f"m{number}", known=False, rebalance_ms=2000)
    assert rig.joined(first).generation == 1


def test_no_member_hears_of_a_generation_that_is_not_stored() -> None:
    rig = GroupRig()
    rig.holds = True
    join = rig.ask_join("a", known=False)
    assert join not in rig.replies
    assert rig.beat("a") is ErrorCode.rebalance_in_progress
    rig.confirm()
    rig.holds = True
    sync = rig.ask_sync("a", assignments={"a": b"all"})
    assert sync not in rig.replies
    rig.confirm()
    assert rig.synced(sync).assignment == b"all"
    assert [(each.generation, each.is_assigned) for each in rig.log] == [(1, False), (1, True)]


def test_a_new_member_makes_the_others_join_again() -> None:
    rig = GroupRig().settled("a")
    second = rig.ask_join("b", known=False)
    assert rig.beat("a") is ErrorCode.rebalance_in_progress
    assert second not in rig.replies
    first = rig.ask_join("a")
    assert rig.joined(first).generation == rig.joined(second).generation == 2
    assert rig.joined(second).leader_id == "a"
    assert rig.beat("a", 1) is ErrorCode.illegal_generation


def test_who_does_not_join_again_in_time_is_removed() -> None:
    rig = GroupRig().settled("a", "b")
    third = rig.ask_join("c", known=False)
    for _ in range(9):
        rig.pass_time(REBALANCE_MS // 10)
        assert rig.beat("a") is ErrorCode.rebalance_in_progress
        assert rig.beat("b") is ErrorCode.rebalance_in_progress
    rig.ask_join("a")
    rig.pass_time(REBALANCE_MS // 10)
    assert rig.joined(third).generation == 3
    assert list(rig.group.members) == ["a", "c"]
    assert rig.beat("b") is ErrorCode.unknown_member_id


def test_a_member_that_is_silent_is_removed_after_its_session() -> None:
    rig = GroupRig().settled("a", "b")
    rig.pass_time(SESSION_MS - 1)
    assert rig.beat("a") is ErrorCode.none
    rig.pass_time(1)
    assert list(rig.group.members) == ["a"]
    assert rig.beat("a") is ErrorCode.rebalance_in_progress


def test_a_leader_that_never_assigns_is_removed() -> None:
    rig = GroupRig()
    rig.ask_join("a", known=False)
    second = rig.ask_join("b", known=False)
    rig.ask_join("a")
    assert rig.joined(second).generation == 2
    sync = rig.ask_sync("b")
    for _ in range(10):
        rig.beat("a")
        rig.pass_time(REBALANCE_MS // 10)
    assert rig.synced(sync).error is ErrorCode.rebalance_in_progress
    assert list(rig.group.members) == ["b"]


def test_a_member_that_never_fetches_its_assignment_is_removed() -> None:
    rig = GroupRig()
    rig.ask_join("a", known=False)
    rig.ask_join("b", known=False)
    rig.ask_join("a")
    rig.ask_sync("a", assignments={"a": b"1", "b": b"2"})
    assert rig.group.phase is GroupPhase.STABLE
    for _ in range(10):
        rig.beat("a")
        rig.beat("b")
        rig.pass_time(REBALANCE_MS // 10)
    assert list(rig.group.members) == ["a"]


def test_lost_replies_are_given_again() -> None:
    rig = GroupRig().settled("a", "b")
    again = rig.joined(rig.ask_join("b"))
    assert (again.generation, again.leader_id, again.members) == (rig.group.generation, "a", ())
    assert rig.synced(rig.ask_sync("b")).assignment == b"b"
    assert rig.group.phase is GroupPhase.STABLE


def test_the_reply_to_a_leader_that_has_yet_to_assign_is_given_again() -> None:
    rig = GroupRig()
    rig.ask_join("a", known=False)
    again = rig.joined(rig.ask_join("a"))
    assert (again.generation, len(again.members)) == (1, 1)


def test_a_leader_that_joins_again_begins_a_generation() -> None:
    """It has seen that topics have other partitions now."""
    rig = GroupRig().settled("a", "b")
    leader = rig.ask_join("a")
    assert rig.group.phase is GroupPhase.PREPARING
    rig.ask_join("b")
    assert rig.joined(leader).generation == 3


def test_other_metadata_begins_a_generation() -> None:
    rig = GroupRig().settled("a", "b")
    rig.ask_join("b", assignors=(Assignor("range", b"other topics"),))
    leader = rig.ask_join("a")
    assert JoinedMember("b", None, b"other topics") in rig.joined(leader).members


def test_the_first_assignment_of_a_generation_counts() -> None:
    rig = GroupRig()
    rig.ask_join("a", known=False)
    rig.holds = True
    first = rig.ask_sync("a", assignments={"a": b"1"})
    second = rig.ask_sync("a", assignments={"a": b"2"})
    rig.confirm()
    assert rig.synced(first).error is ErrorCode.rebalance_in_progress
    assert rig.synced(second).assignment == b"1"
    assert rig.synced(rig.ask_sync("a", assignments={"a": b"3"})).assignment == b"1"


def test_a_sync_of_another_generation_or_member_is_refused() -> None:
    rig = GroupRig().settled("a")
    assert rig.synced(rig.ask_sync("a", 0)).error is ErrorCode.illegal_generation
    assert rig.synced(rig.ask_sync("x")).error is ErrorCode.unknown_member_id
    rig.ask_join("b", known=False)
    assert rig.synced(rig.ask_sync("a")).error is ErrorCode.rebalance_in_progress


def test_a_dynamic_member_has_to_join_with_the_id_it_is_given() -> None:
    rig = GroupRig()
    join = JoinRequested(
        ticket=1,
        member_id="",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="consumer",
        assignors=RANGE,
        new_member_id="a",
    )
    rig.step(join)
    assert rig.joined(1).error is ErrorCode.member_id_required
    assert rig.joined(1).member_id == "a"
    assert not rig.group.is_idle
    rig._tickets = 1
    assert rig.joined(rig.ask_join("a")).generation == 1


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    rig = GroupRig()
    join = JoinRequested(
        ticket=1,
        member_id="",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        protocol_type="consumer",
        assignors=RANGE,
        new_member_id="a",
    )
    rig.step(join)
    rig.pass_time(SESSION_MS)
    assert rig.group.is_idle
    rig._tickets = 1
    assert rig.joined(rig.ask_join("a")).error is ErrorCode.unknown_member_id


def test_members_that_leave_end_the_generation_and_the_last_one_the_group() -> None:
    rig = GroupRig().settled("a", "b")
    assert rig.leave(("b", None)) == (ErrorCode.none,)
    assert rig.joined(rig.ask_join("a")).generation == 3
    assert rig.leave(("b", None), ("a", None)) == (ErrorCode.unknown_member_id, ErrorCode.none)
    assert rig.group.phase is GroupPhase.EMPTY
    assert rig.log[-1].members == ()
    assert rig.group.generation == 4


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    rig = GroupRig().settled("a", "b", instances=True)
    generation = rig.group.generation
    joined = rig.joined(rig.ask_join("", known=False, instance_id="i-b", new_id="b2"))
    assert (joined.member_id, joined.generation) == ("b2", generation)
    assert rig.synced(rig.ask_sync("b2", instance_id="i-b")).assignment == b"b"
    assert rig.group.phase is GroupPhase.STABLE
    assert rig.beat("b", instance_id="i-b") is ErrorCode.fenced_instance_id
    assert rig.synced(rig.ask_sync("b", instance_id="i-b")).error is ErrorCode.fenced_instance_id
    join = rig.ask_join("b", instance_id="i-b")
    assert rig.joined(join).error is ErrorCode.fenced_instance_id


def test_a_static_leader_that_restarts_does_not_assign_again() -> None:
    rig = GroupRig().settled("a", "b", instances=True)
    new = rig.joined(rig.ask_join("", known=False, instance_id="i-a", new_id="a2", skip=True))
    assert (new.leader_id, new.skip_assignment, len(new.members)) == ("a2", True, 2)
    older = rig.joined(rig.ask_join("", known=False, instance_id="i-a", new_id="a3"))
    assert (older.leader_id, older.skip_assignment, older.members) == ("a2", False, ())


def test_a_restart_of_a_static_member_is_told_once_it_is_stored() -> None:
    rig = GroupRig().settled("a", instances=True)
    rig.holds = True
    ticket = rig.ask_join("", known=False, instance_id="i-a", new_id="a2")
    assert ticket not in rig.replies
    rig.confirm()
    assert rig.joined(ticket).error is ErrorCode.none
    assert rig.log[-1].members[0].member_id == "a2"


def test_a_static_member_that_is_away_keeps_its_place_in_a_rebalance() -> None:
    rig = GroupRig().settled("a", "b", instances=True)
    third = rig.ask_join("c", known=False)
    rig.pass_time(1)
    rig.ask_join("a", instance_id="i-a")
    for _ in range(30):  # b sends heartbeats, but does not join
        rig.beat("b", instance_id="i-b")
        rig.pass_time(REBALANCE_MS // 30)
    assert rig.joined(third).generation == 3
    assert list(rig.group.members) == ["a", "b", "c"]


def test_a_static_member_is_removed_by_its_instance_id() -> None:
    rig = GroupRig().settled("a", "b", instances=True)
    assert rig.leave(("other", "i-b")) == (ErrorCode.fenced_instance_id,)
    assert rig.leave(("", "i-b"), ("", "i-x")) == (ErrorCode.none, ErrorCode.unknown_member_id)
    assert list(rig.group.members) == ["a"]


def test_the_protocol_is_one_that_all_can_and_most_prefer() -> None:
    rig = GroupRig()
    names = {"a": ("sticky", "range"), "b": ("range", "sticky"), "c": ("range", "own", "sticky")}
    for name, can in names.items():
        rig.ask_join(name, known=False, assignors=tuple(Assignor(each, b"") for each in can))
    for name in ("a", "b"):
        can = names[name]
        rig.ask_join(name, assignors=tuple(Assignor(each, b"") for each in can))
    assert rig.group.protocol == "range"


def test_who_has_no_protocol_in_common_is_refused() -> None:
    rig = GroupRig().settled("a")
    other = rig.ask_join("b", known=False, assignors=(Assignor("sticky", b""),))
    connect = rig.ask_join("b", known=False, protocol_type="connect")
    nothing = rig.ask_join("b", known=False, assignors=())
    for ticket in (other, connect, nothing):
        assert rig.joined(ticket).error is ErrorCode.inconsistent_group_protocol
    assert rig.group.phase is GroupPhase.STABLE


def test_session_timeouts_have_bounds() -> None:
    rig = GroupRig()
    for session_ms in (999, 30 * 60 * 1000 + 1):
        ticket = rig.ask_join("a", known=False, session_ms=session_ms)
        assert rig.joined(ticket).error is ErrorCode.invalid_session_timeout


def test_a_group_takes_no_more_members_than_it_has_room_for() -> None:
    rig = GroupRig()
    for number in range(MEMBERS_MAX):
        rig.ask_join(f"m{number}", known=False)
    ticket = rig.ask_join("one more", known=False)
    assert rig.joined(ticket).error is ErrorCode.group_max_size_reached


def test_a_group_takes_no_more_bytes_than_a_record_holds() -> None:
    rig = GroupRig().settled("a")
    large = (Assignor("range", b"x" * GROUP_BYTES_MAX),)
    refused = rig.joined(rig.ask_join("b", known=False, assignors=large))
    assert refused.error is ErrorCode.group_max_size_reached
    ticket = rig.ask_join("a")
    assert rig.joined(ticket).error is ErrorCode.none
    sync = rig.ask_sync("a", assignments={"a": b"x" * GROUP_BYTES_MAX})
    assert rig.synced(sync).error is ErrorCode.invalid_request
    assert rig.synced(rig.ask_sync("a", assignments={"a": b"1"})).assignment == b"1"


def test_offsets_are_committed_by_members_of_the_generation_alone() -> None:
    rig = GroupRig().settled("a", "b")
    generation = rig.group.generation
    assert rig.commits("a", generation) is ErrorCode.none
    assert rig.commits("a", generation - 1) is ErrorCode.illegal_generation
    assert rig.commits("x", generation) is ErrorCode.unknown_member_id
    assert rig.commits("", -1) is ErrorCode.unknown_member_id
    rig.ask_join("c", known=False)
    assert rig.commits("a", generation) is ErrorCode.none, "it does so before it joins again"
    rig.holds = True
    rig.ask_join("a")
    rig.ask_join("b")
    assert rig.group.phase is GroupPhase.FORMING
    assert rig.commits("a", generation) is ErrorCode.rebalance_in_progress
    assert rig.commits("a", generation + 1) is ErrorCode.rebalance_in_progress
    rig.confirm()
    assert rig.commits("a", generation) is ErrorCode.illegal_generation
    assert rig.commits("a", generation + 1) is ErrorCode.rebalance_in_progress


def test_clients_without_membership_commit_while_the_group_is_empty() -> None:
    rig = GroupRig()
    assert rig.commits("", -1) is ErrorCode.none
    assert rig.commits("a", 0) is ErrorCode.unknown_member_id


def test_a_commit_is_as_good_as_a_heartbeat() -> None:
    rig = GroupRig().settled("a")
    for _ in range(4):
        rig.pass_time(SESSION_MS // 2)
        assert rig.commits("a", rig.group.generation) is ErrorCode.none


def test_changes_while_a_generation_is_stored_begin_the_next_one() -> None:
    rig = GroupRig()
    rig.holds = True
    first = rig.ask_join("a", known=False)
    second = rig.ask_join("b", known=False)
    rig.confirm()
    assert rig.joined(first).generation == 1
    assert second not in rig.replies
    rig.ask_join("a")
    rig.confirm()
    assert rig.joined(second).generation == 2


def test_a_group_whose_members_leave_while_a_generation_is_stored_is_empty() -> None:
    rig = GroupRig()
    rig.holds = True
    join = rig.ask_join("a", known=False)
    rig.leave(("a", None))
    assert rig.joined(join).error is ErrorCode.unknown_member_id
    rig.confirm()
    assert rig.group.phase is GroupPhase.EMPTY
    assert rig.log[-1].members == ()


@pytest.mark.parametrize("is_assigned", [True, False])
def test_a_takeover_continues_the_generation(is_assigned: bool) -> None:
    before = GroupRig()
    before.ask_join("a", known=False)
    if is_assigned:
        before.ask_sync("a", assignments={"a": b"1"})
    after = GroupRig(ConsumerGroup.restored("g", before.log[-1], now_ms=77), now_ms=77)
    assert after.group.snapshot() == before.log[-1]
    assert after.beat("a", 1) is ErrorCode.none
    sync = after.ask_sync("a", assignments={"a": b"2"})
    assert after.synced(sync).assignment == (b"1" if is_assigned else b"2")
    after.pass_time(SESSION_MS)
    assert after.group.phase is GroupPhase.EMPTY
    assert after.group.generation == 2


def test_a_repeated_join_ends_the_wait_of_the_one_before() -> None:
    rig = GroupRig().settled("a", "b")
    third = rig.ask_join("c", known=False)
    again = rig.ask_join("c")
    assert rig.joined(third).error is ErrorCode.rebalance_in_progress
    assert again not in rig.replies


def test_phases_have_the_names_of_kafkas_tools() -> None:
    assert [each.kafka_name for each in GroupPhase] == [
        "Empty",
        "PreparingRebalance",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_groups_at_random_keep_every_promise(first: int) -> None:
    taken_over = 0
    for seed in range(first, first + 20):
        world = World(seed)
        world.run()
        taken_over += world.takeovers
    assert taken_over, "coordinators fail, too"
