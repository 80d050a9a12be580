"""The state in an offsets log: of each of its groups the last generation and committed offsets.

A record states what is so from then on, for one group. Replay applies the records in order; a
snapshot is the records that say everything, and what lies before it can be truncated. A record that
is read twice changes nothing, so a snapshot that was cut off is harmless, and so is a truncation
that came too late.

Offsets expire as Kafka's: `RETENTION_MS` after the group became empty and the offset was committed,
whichever is later; for clients that commit without membership, after the commit. A group without
offsets and members goes after the same time.

Bounds: `GROUPS_MAX` groups, `OFFSETS_MAX` offsets of one group, `STATE_BYTES_MAX` in all,
`METADATA_BYTES_MAX` of metadata beside an offset. The coordinator refuses what is beyond, so replay
takes whatever the log has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from google.protobuf.message import DecodeError

from dlog.kafka.errors import DamagedGroupRecord, GroupRecordTooNew
from dlog.kafka.protocol.consumer_group_events import Assignor, StoredGeneration, StoredMember
from dlog.wire import kafka_group_pb2 as pb

FORMAT_VERSION: Final = 1
GROUPS_MAX: Final = 10_000
OFFSETS_MAX: Final = 100_000
STATE_BYTES_MAX: Final = 128 * 1024 * 1024
METADATA_BYTES_MAX: Final = 4096
RECORD_BYTES: Final = 256 * 1024
"""How large a record with offsets becomes, about; then there is another."""
RETENTION_MS: Final = 7 * 24 * 60 * 60 * 1000
EXPIRED_MAX: Final = 10_000
"""Offsets that expire at once; the rest does at the next look."""
_OFFSET_CHARGE: Final = 150
_GROUP_CHARGE: Final = 500
"""What Python needs beside the bytes themselves, about."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    """Of the next record to process."""
    leader_epoch: int
    """Of the record before; -1: unknown."""
    metadata: str
    """Whatever the client wants to find again."""
    committed_ms: int


# Records, one for each change.


@dataclass(frozen=True, slots=True)
class GenerationChange:
    group: str
    generation: StoredGeneration
    changed_ms: int


@dataclass(frozen=True, slots=True)
class OffsetsChange:
    group: str
    offsets: Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class OffsetsRemoval:
    group: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupRemoval:
    group: str


GroupChange = GenerationChange | OffsetsChange | OffsetsRemoval | GroupRemoval


def encode_change(change: GroupChange) -> bytes:
    record = pb.GroupRecord(version=FORMAT_VERSION, group=change.group)
    match change:
        case GenerationChange(_, generation, changed_ms):
            record.generation.CopyFrom(_encoded_generation(generation, changed_ms))
        case OffsetsChange(_, offsets):
            record.committed.SetInParent()
            _put_offsets(record.committed, offsets)
        case OffsetsRemoval(_, partitions):
            record.deleted_offsets.SetInParent()
            _put_offsets(record.deleted_offsets, dict.fromkeys(partitions))
        case GroupRemoval():
            record.deleted.SetInParent()
        case _:
            assert_never(change)
    return record.SerializeToString(deterministic=True)


def _encoded_generation(generation: StoredGeneration, changed_ms: int) -> pb.Generation:
    return pb.Generation(
        generation=generation.generation,
        protocol_type=generation.protocol_type,
        protocol=generation.protocol,
        leader_id=generation.leader_id,
        is_assigned=generation.is_assigned,
        changed_ms=changed_ms,
        members=[
            pb.Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                assignors=[
                    pb.Assignor(name=assignor.name, metadata=assignor.metadata)
                    for assignor in each.assignors
                ],
                assignment=each.assignment,
            )
            for each in generation.members
        ],
    )


def _put_offsets(
    message: pb.Offsets, offsets: Mapping[TopicPartition, CommittedOffset | None]
) -> None:
    topics: dict[str, pb.TopicOffsets] = {}
    for (topic, partition), committed in offsets.items():
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = message.topics.add(topic=topic)
        if committed is None:
            entry.partitions.add(partition=partition)
        else:
            entry.partitions.add(
                partition=partition,
                offset=committed.offset,
                leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                committed_ms=committed.committed_ms,
            )


def decode_change(record: bytes, *, log: str, offset: int) -> GroupChange:
    """Return what the record at *offset* of *log* says. Raises `DamagedGroupRecord`,
    `GroupRecordTooNew`."""
    try:
        message = pb.GroupRecord.FromString(record)
    except DecodeError as error:
        raise DamagedGroupRecord(log, offset, str(error)) from error
    if message.version > FORMAT_VERSION:
        raise GroupRecordTooNew(log, offset, message.version, FORMAT_VERSION)
    match message.WhichOneof("change"):
        case "generation":
            stored = message.generation
            return GenerationChange(message.group, _decoded_generation(stored), stored.changed_ms)
        case "committed":
            offsets = {
                (topic.topic, each.partition): CommittedOffset(
                    each.offset, each.leader_epoch, each.metadata, each.committed_ms
                )
                for topic in message.committed.topics
                for each in topic.partitions
            }
            return OffsetsChange(message.group, offsets)
        case "deleted_offsets":
            partitions = tuple(
                (topic.topic, each.partition)
                for topic in message.deleted_offsets.topics
                for each in topic.partitions
            )
            return OffsetsRemoval(message.group, partitions)
        case "deleted":
            return GroupRemoval(message.group)
        case None:
            raise DamagedGroupRecord(log, offset, "it changes nothing that is known")


def _decoded_generation(stored: pb.Generation) -> StoredGeneration:
    return StoredGeneration(
        generation=stored.generation,
        protocol_type=stored.protocol_type,
        protocol=stored.protocol,
        leader_id=stored.leader_id,
        is_assigned=stored.is_assigned,
        members=tuple(
            StoredMember(
                member_id=each.member_id,
                instance_id=each.instance_id if each.HasField("instance_id") else None,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                assignors=tuple(
                    Assignor(assignor.name, assignor.metadata) for assignor in each.assignors
                ),
                assignment=each.assignment,
            )
            for each in stored.members
        ),
    )


def commits(
    group: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> Iterator[OffsetsChange]:
    """Yield the records that commit *offsets*, each of bounded size."""
    part: dict[TopicPartition, CommittedOffset] = {}
    size_bytes = 0
    for key, committed in offsets.items():
        part[key] = committed
        size_bytes += _charge(key, committed)
        if size_bytes >= RECORD_BYTES:
            yield OffsetsChange(group, part)
            part, size_bytes = {}, 0
    if part:
        yield OffsetsChange(group, part)


@dataclass(slots=True)
class GroupState:
    generation: StoredGeneration | None = None
    """None: its clients commit without membership."""
    changed_ms: int = 0
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


class GroupOffsets:
    """The state of one offsets log, as far as its records are confirmed."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupState] = {}
        self.size_bytes = 0

    def apply(self, change: GroupChange) -> None:
        """Take the next record of the log."""
        match change:
            case GenerationChange(group, generation, changed_ms):
                state = self._group(group)
                self.size_bytes -= _charge_of(state.generation)
                self.size_bytes += _charge_of(generation)
                state.generation, state.changed_ms = generation, changed_ms
            case OffsetsChange(group, offsets):
                state = self._group(group)
                for key, committed in offsets.items():
                    self._forget(state, key)
                    state.offsets[key] = committed
                    self.size_bytes += _charge(key, committed)
            case OffsetsRemoval(group, partitions):
                known = self.groups.get(group)
                if known is not None:
                    for key in partitions:
                        self._forget(known, key)
            case GroupRemoval(group):
                removed = self.groups.pop(group, None)
                if removed is not None:
                    for key in list(removed.offsets):
                        self._forget(removed, key)
                    self.size_bytes -= _group_charge(group) + _charge_of(removed.generation)
            case _:
                assert_never(change)

    def committed(self, group: str) -> Mapping[TopicPartition, CommittedOffset]:
        state = self.groups.get(group)
        return {} if state is None else state.offsets

    def snapshot(self) -> Iterator[GroupChange]:
        """Yield records that say all of this state."""
        for group, state in self.groups.items():
            if state.generation is not None:
                yield GenerationChange(group, state.generation, state.changed_ms)
            yield from commits(group, state.offsets)

    def has_room(self, group: str, partitions: Iterable[TopicPartition], size_bytes: int) -> bool:
        """Return whether *group* may commit offsets of *partitions*, with *size_bytes* of
        metadata."""
        known = self.committed(group)
        new = sum(key not in known for key in partitions)
        return (
            (group in self.groups or len(self.groups) < GROUPS_MAX)
            and len(known) + new <= OFFSETS_MAX
            and self.size_bytes + size_bytes + new * _OFFSET_CHARGE <= STATE_BYTES_MAX
        )

    def expired(
        self, now_ms: int, *, is_busy: Callable[[str], bool], retention_ms: int = RETENTION_MS
    ) -> list[OffsetsRemoval | GroupRemoval]:
        """Return the records that remove what has expired by the wall clock. *is_busy*: whether
        clients are on the way into the group."""
        before_ms = now_ms - retention_ms
        removals: list[OffsetsRemoval | GroupRemoval] = []
        count = 0
        for group, state in self.groups.items():
            has_members = state.generation is not None and bool(state.generation.members)
            if has_members or state.changed_ms > before_ms or is_busy(group):
                continue
            old = tuple(
                key for key, each in state.offsets.items() if each.committed_ms <= before_ms
            )
            if len(old) == len(state.offsets):
                removals.append(GroupRemoval(group))
            elif old:
                removals.append(OffsetsRemoval(group, old))
            count += len(old) + 1
            if count >= EXPIRED_MAX:
                break
        return removals

    def _group(self, group: str) -> GroupState:
        state = self.groups.get(group)
        if state is None:
            state = self.groups[group] = GroupState()
            self.size_bytes += _group_charge(group)
        return state

    def _forget(self, state: GroupState, key: TopicPartition) -> None:
        committed = state.offsets.pop(key, None)
        if committed is not None:
            self.size_bytes -= _charge(key, committed)


def _charge(key: TopicPartition, committed: CommittedOffset) -> int:
    return _OFFSET_CHARGE + len(key[0]) + len(committed.metadata)


def _group_charge(group: str) -> int:
    return _GROUP_CHARGE + len(group)


def _charge_of(generation: StoredGeneration | None) -> int:
    """Of a generation: what it holds of its members."""
    if generation is None:
        return 0
    return sum(
        _OFFSET_CHARGE
        + len(each.assignment)
        + sum(len(assignor.metadata) for assignor in each.assignors)
        for each in generation.members
    )
