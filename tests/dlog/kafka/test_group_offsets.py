"""What an offsets log says of its groups: records, replay, snapshots, expiry."""

from random import Random

import pytest

from dlog.kafka.errors import DamagedGroupRecord, GroupRecordTooNew
from dlog.kafka.protocol.consumer_group_events import Assignor, StoredGeneration, StoredMember
from dlog.kafka.protocol.group_offsets import (
    GROUPS_MAX,
    OFFSETS_MAX,
    RECORD_BYTES,
    RETENTION_MS,
    CommittedOffset,
    GenerationChange,
    GroupChange,
    GroupOffsets,
    GroupRemoval,
    OffsetsChange,
    OffsetsRemoval,
    commits,
    decode_change,
    encode_change,
)
from dlog.wire import kafka_group_pb2 as pb

MEMBER = StoredMember(
    member_id="a-1",
    instance_id="i-1",
    client_id="a",
    client_host="/10.0.0.1",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=60_000,
    assignors=(Assignor("range", b"\0\1"), Assignor("sticky", b"")),
    assignment=b"\2",
)


def generation(number: int, *members: StoredMember) -> StoredGeneration:
    return StoredGeneration(
        generation=number,
        protocol_type="consumer",
        protocol="range" if members else "",
        leader_id="a-1" if members else "",
        is_assigned=True,
        members=members,
    )


def committed(offset: int, *, at_ms: int = 0, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(offset, -1, metadata, at_ms)


CHANGES = (
    GenerationChange("g", generation(7, MEMBER), 1_700_000_000_000),
    OffsetsChange("g", {("orders", 0): CommittedOffset(5, 3, "here", 9), ("é", 7): committed(0)}),
    OffsetsRemoval("g", (("orders", 0), ("orders", 1))),
    GroupRemoval("g"),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: type(each).__name__)
def test_a_record_says_what_it_was_made_of(change: GroupChange) -> None:
    assert decode_change(encode_change(change), log="offsets", offset=0) == change


@pytest.mark.parametrize("record", [b"\xff", b"", pb.GroupRecord(group="g").SerializeToString()])
def test_a_record_that_says_nothing_is_damaged(record: bytes) -> None:
    with pytest.raises(DamagedGroupRecord, match=r"at offset 5 .*restored from a backup"):
        decode_change(record, log="offsets", offset=5)


def test_a_record_of_a_newer_gateway_is_not_guessed_at() -> None:
    record = pb.GroupRecord(version=2, group="g").SerializeToString()
    with pytest.raises(GroupRecordTooNew, match="version 2"):
        decode_change(record, log="offsets", offset=5)


def test_the_last_record_of_a_partition_counts() -> None:
    state = GroupOffsets()
    state.apply(OffsetsChange("g", {("orders", 0): committed(5), ("orders", 1): committed(1)}))
    state.apply(OffsetsChange("g", {("orders", 0): committed(3)}))
    assert state.committed("g") == {("orders", 0): committed(3), ("orders", 1): committed(1)}
    state.apply(OffsetsRemoval("g", (("orders", 1), ("other", 0))))
    assert list(state.committed("g")) == [("orders", 0)]
    state.apply(GroupRemoval("g"))
    state.apply(GroupRemoval("g"))
    assert state.committed("g") == {}
    assert (state.groups, state.size_bytes) == ({}, 0)


def drawn(random: Random) -> GroupChange:
    group = f"g{random.randrange(4)}"
    match random.randrange(6):
        case 0:
            members = (MEMBER,) * random.randrange(3)
            return GenerationChange(group, generation(random.randrange(9), *members), 5)
        case 1:
            return OffsetsRemoval(group, (("orders", random.randrange(4)),))
        case 2:
            return GroupRemoval(group)
        case _:
            key = ("orders", random.randrange(4))
            metadata = "x" * random.choice((0, 3, RECORD_BYTES))
            return OffsetsChange(group, {key: committed(random.randrange(99), metadata=metadata)})


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_says_what_the_records_before_it_said(seed: int) -> None:
    random, state = Random(seed), GroupOffsets()
    for _ in range(60):
        state.apply(drawn(random))
    snapshot = list(state.snapshot())
    restored = GroupOffsets()
    for change in snapshot:
        restored.apply(decode_change(encode_change(change), log="offsets", offset=0))
    assert restored.groups == state.groups
    assert restored.size_bytes == state.size_bytes


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_that_was_cut_off_changes_nothing(seed: int) -> None:
    random, state = Random(seed), GroupOffsets()
    for _ in range(60):
        state.apply(drawn(random))
    again = GroupOffsets()
    for change in state.snapshot():
        again.apply(change)
    snapshot = list(state.snapshot())
    for change in snapshot[: random.randint(0, len(snapshot))]:
        again.apply(change)
    assert (again.groups, again.size_bytes) == (state.groups, state.size_bytes)


def test_offsets_with_much_metadata_are_several_records() -> None:
    offsets = {("orders", each): committed(each, metadata="x" * 4096) for each in range(200)}
    records = list(commits("g", offsets))
    assert max(len(encode_change(each)) for each in records) < 2 * RECORD_BYTES
    assert {key: each for record in records for key, each in record.offsets.items()} == offsets


def never(_: str) -> bool:
    return False


def test_offsets_expire_after_their_group_is_empty() -> None:
    state = GroupOffsets()
    state.apply(GenerationChange("g", generation(1, MEMBER), 0))
    state.apply(OffsetsChange("g", {("old", 0): committed(5), ("new", 0): committed(5, at_ms=50)}))
    assert state.expired(RETENTION_MS * 9, is_busy=never) == [], "it has members"
    state.apply(GenerationChange("g", generation(2), 20))
    assert state.expired(RETENTION_MS + 19, is_busy=never) == []
    assert state.expired(RETENTION_MS + 20, is_busy=lambda group: group == "g") == []
    removals = state.expired(RETENTION_MS + 20, is_busy=never)
    assert removals == [OffsetsRemoval("g", (("old", 0),))]
    assert state.expired(RETENTION_MS + 50, is_busy=never) == [GroupRemoval("g")]


def test_offsets_without_members_expire_after_they_were_committed() -> None:
    state = GroupOffsets()
    state.apply(OffsetsChange("g", {("orders", 0): committed(5, at_ms=10)}))
    assert state.expired(RETENTION_MS + 9, is_busy=never) == []
    assert state.expired(RETENTION_MS + 10, is_busy=never) == [GroupRemoval("g")]


def test_a_log_has_room_for_so_many_groups_and_offsets() -> None:
    state = GroupOffsets()
    keys = [("orders", each) for each in range(OFFSETS_MAX)]
    state.apply(OffsetsChange("g", dict.fromkeys(keys, committed(0))))
    assert state.has_room("g", keys[:5], 100)
    assert not state.has_room("g", [("orders", OFFSETS_MAX)], 0)
    assert not state.has_room("h", [("orders", 0)], 2**40)
    for number in range(GROUPS_MAX):
        state.apply(OffsetsChange(f"g{number}", {}))
    assert not state.has_room("one more", [("orders", 0)], 0)
    assert state.has_room("g5", [("orders", 0)], 0)
