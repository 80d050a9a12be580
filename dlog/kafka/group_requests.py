"""Requests about groups of consumers, from the fields of the request to those of the answer.

An answer has the fields of every version; what a version does not have is left out when it is
encoded. Nothing here raises but a cancellation, which is a client that went: what it asked for is
done all the same.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from dlog.kafka.coordinator import GroupCoordinator, new_member_id
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.offsets_log import CoordinatorMoved, OffsetsLog
from dlog.kafka.protocol.consumer_group import ConsumerGroup, GroupPhase
from dlog.kafka.protocol.consumer_group_events import (
    CONSUMER,
    Assignor,
    JoinReply,
    JoinRequested,
    LeaveReply,
    LeaveRequested,
    SyncReply,
    SyncRequested,
    subscribed_topics,
)
from dlog.kafka.protocol.group_offsets import METADATA_BYTES_MAX, CommittedOffset, TopicPartition
from ledger.log_events import now_ms

Values = Mapping[str, Any]
_TOPIC_BYTES_MAX: Final = 249
_KNOWN_ID_VERSION: Final = 4
"""Of JoinGroup: from here on a new member joins twice."""
_SKIP_VERSION: Final = 9
_MANY_LEAVE_VERSION: Final = 3
_MANY_FETCH_VERSION: Final = 8
_NO_GROUP_VERSION: Final = 6
"""Of DescribeGroups: from here on an unknown group is an error."""
_NO_OPERATIONS: Final = -(2**31)
_DEAD: Final = "Dead"


class GroupRequest(Protocol):
    @property
    def version(self) -> int: ...
    @property
    def body(self) -> Any:
        """An entity of kio's."""


class GroupClient(Protocol):
    """The connection that a request came by."""

    client_id: str
    host: str
    identity: str


class GroupAccess(Protocol):
    """What a client may do, by its certificate."""

    def may_join(self, identity: str) -> bool:
        """Return whether it may be in a group, and manage groups."""

    def may_read(self, identity: str, topic: str, partition: int) -> bool:
        """Return whether it may read this partition, and so commit its offsets."""


class GroupRequests:
    """Each method answers the requests of one API."""

    def __init__(self, coordinator: GroupCoordinator, access: GroupAccess) -> None:
        self._coordinator, self._access = coordinator, access

    async def join_group(self, request: GroupRequest, client: GroupClient) -> Values:
        body, version = request.body, request.version
        instance_id = getattr(body, "group_instance_id", None)
        session_ms = _ms(body.session_timeout)
        rebalance_ms = _ms(getattr(body, "rebalance_timeout", body.session_timeout))
        assignors = tuple(Assignor(each.name, bytes(each.metadata)) for each in body.protocols)

        def event(ticket: int) -> JoinRequested:
            return JoinRequested(
                ticket=ticket,
                member_id=body.member_id,
                instance_id=instance_id,
                client_id=client.client_id,
                client_host=client.host,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=body.protocol_type,
                assignors=assignors,
                new_member_id=new_member_id(client.client_id, instance_id),
                needs_known_id=version >= _KNOWN_ID_VERSION,
                can_skip_assignment=version >= _SKIP_VERSION,
            )

        async def join(log: OffsetsLog) -> JoinReply:
            if not log.has_room(body.group_id):
                return JoinReply(error=ErrorCode.group_max_size_reached)
            reply: JoinReply = await log.request(body.group_id, event)
            return reply

        reply = await self._ask(client, body.group_id, join, lambda error: JoinReply(error=error))
        return {
            "error_code": reply.error,
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol or "",
            "leader": reply.leader_id,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id or body.member_id,
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "metadata": each.metadata,
                }
                for each in reply.members
            ],
        }

    async def sync_group(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body

        def event(ticket: int) -> SyncRequested:
            return SyncRequested(
                ticket=ticket,
                member_id=body.member_id,
                instance_id=getattr(body, "group_instance_id", None),
                generation=int(body.generation_id),
                protocol_type=getattr(body, "protocol_type", None),
                protocol=getattr(body, "protocol_name", None),
                assignments={each.member_id: bytes(each.assignment) for each in body.assignments},
            )

        async def sync(log: OffsetsLog) -> SyncReply:
            reply: SyncReply = await log.request(body.group_id, event)
            return reply

        reply = await self._ask(client, body.group_id, sync, lambda error: SyncReply(error=error))
        return {
            "error_code": reply.error,
            "protocol_type": reply.protocol_type,
            "protocol_name": reply.protocol,
            "assignment": reply.assignment,
        }

    async def heartbeat(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body
        instance_id = getattr(body, "group_instance_id", None)

        async def heartbeat(log: OffsetsLog) -> ErrorCode:
            generation = int(body.generation_id)
            return log.heartbeat(body.group_id, body.member_id, instance_id, generation)

        return {"error_code": await self._ask(client, body.group_id, heartbeat, _same)}

    async def leave_group(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body
        if request.version < _MANY_LEAVE_VERSION:
            members: tuple[tuple[str, str | None], ...] = ((body.member_id, None),)
        else:
            members = tuple((each.member_id, each.group_instance_id) for each in body.members)

        async def leave(log: OffsetsLog) -> LeaveReply | ErrorCode:
            event_of = lambda ticket: LeaveRequested(ticket=ticket, members=members)  # noqa: E731
            reply: LeaveReply = await log.request(body.group_id, event_of)
            return reply

        reply = await self._ask(client, body.group_id, leave, _same)
        if isinstance(reply, ErrorCode):
            return {"error_code": reply, "members": []}
        if request.version < _MANY_LEAVE_VERSION:
            return {"error_code": reply.errors[0]}
        return {
            "error_code": ErrorCode.none,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
                for (member_id, instance_id), error in zip(members, reply.errors, strict=True)
            ],
        }

    async def offset_commit(self, request: GroupRequest, client: GroupClient) -> Values:
        body, at_ms = request.body, now_ms()
        errors: dict[TopicPartition, ErrorCode] = {}
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for topic in body.topics:
            for each in topic.partitions:
                key = (topic.name, int(each.partition_index))
                committed = CommittedOffset(
                    int(each.committed_offset),
                    int(getattr(each, "committed_leader_epoch", -1)),
                    each.committed_metadata or "",
                    at_ms,
                )
                errors[key] = (
                    _refusal_of_offset(key, committed)
                    if self._access.may_read(client.identity, *key)
                    else ErrorCode.topic_authorization_failed
                )
                if errors[key] is ErrorCode.none:
                    offsets[key] = committed

        async def commit(log: OffsetsLog) -> ErrorCode:
            outcome = log.submit_commit(
                body.group_id,
                body.member_id,
                getattr(body, "group_instance_id", None),
                int(body.generation_id_or_member_epoch),
                offsets,
            )
            return await _stored(outcome)

        error = await self._ask(client, body.group_id, commit, _same)
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": errors[topic.name, int(each.partition_index)]
                            if (topic.name, int(each.partition_index)) not in offsets
                            else error,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def offset_fetch(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body
        if request.version < _MANY_FETCH_VERSION:
            return await self._fetched(client, body.group_id, body.topics)
        groups = [
            {"group_id": each.group_id, **await self._fetched(client, each.group_id, each.topics)}
            for each in body.groups
        ]
        return {"groups": groups}

    async def _fetched(self, client: GroupClient, group: str, topics: Any) -> dict[str, Any]:
        """Return the offsets of *topics*; None: of all."""

        async def fetch(log: OffsetsLog) -> Mapping[TopicPartition, CommittedOffset] | ErrorCode:
            return await log.committed(group)

        committed = await self._ask(client, group, fetch, _same)
        error = committed if isinstance(committed, ErrorCode) else ErrorCode.none
        found = {} if isinstance(committed, ErrorCode) else committed
        wanted: Iterable[TopicPartition] = (
            list(found)
            if topics is None
            else [(each.name, int(index)) for each in topics for index in each.partition_indexes]
        )
        by_topic: dict[str, list[Values]] = {}
        for topic, partition in wanted:
            if not self._access.may_read(client.identity, topic, partition):
                continue
            offset = found.get((topic, partition), _NO_OFFSET)
            by_topic.setdefault(topic, []).append(
                {
                    "partition_index": partition,
                    "committed_offset": offset.offset,
                    "committed_leader_epoch": offset.leader_epoch,
                    "metadata": offset.metadata,
                    "error_code": error,
                }
            )
        listed = [{"name": name, "partitions": parts} for name, parts in by_topic.items()]
        return {"topics": listed, "error_code": error}

    async def list_groups(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body
        states = {each.lower() for each in getattr(body, "states_filter", ())}
        types = {each.lower() for each in getattr(body, "types_filter", ())}
        if not self._access.may_join(client.identity):
            return {"error_code": ErrorCode.group_authorization_failed, "groups": []}
        try:
            logs = await self._coordinator.all_led()
        except (KafkaRefusal, CoordinatorMoved) as error:
            return {"error_code": _code_of(error), "groups": []}
        groups = [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.phase.kafka_name,
                "group_type": "classic",
            }
            for log in logs
            for group in log.groups()
            if not states or group.phase.kafka_name.lower() in states
        ]
        return {
            "error_code": ErrorCode.none,
            "groups": groups if not types or "classic" in types else [],
        }

    async def describe_groups(self, request: GroupRequest, client: GroupClient) -> Values:
        described = [
            await self._described(client, group_id, request.version)
            for group_id in request.body.groups
        ]
        return {"groups": described}

    async def _described(self, client: GroupClient, group_id: str, version: int) -> Values:
        async def find(log: OffsetsLog) -> ConsumerGroup | ErrorCode | None:
            return log.find(group_id)

        group = await self._ask(client, group_id, find, _same)
        values: dict[str, Any] = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "group_id": group_id,
            "group_state": "",
            "protocol_type": "",
            "protocol_data": "",
            "members": [],
            "authorized_operations": _NO_OPERATIONS,
        }
        if isinstance(group, ErrorCode):
            return {**values, "error_code": group}
        if group is None:
            if version >= _NO_GROUP_VERSION:
                values["error_code"] = ErrorCode.group_id_not_found
                values["error_message"] = f"there is no group {group_id!r}"
            return {**values, "group_state": _DEAD}
        is_stable = group.phase is GroupPhase.STABLE
        return {
            **values,
            "group_state": group.phase.kafka_name,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol if is_stable else "",
            "members": [
                {
                    "member_id": each.member_id,
                    "group_instance_id": each.instance_id,
                    "client_id": each.client_id,
                    "client_host": f"/{each.client_host}",
                    "member_metadata": each.metadata_for(group.protocol) if is_stable else b"",
                    "member_assignment": each.assignment if is_stable else b"",
                }
                for each in group.members.values()
            ],
        }

    async def delete_groups(self, request: GroupRequest, client: GroupClient) -> Values:
        results = []
        for group_id in request.body.groups_names:

            async def delete(log: OffsetsLog, group_id: str = group_id) -> ErrorCode:
                return await _stored(log.remove_group(group_id))

            error = await self._ask(client, group_id, delete, _same)
            results.append({"group_id": group_id, "error_code": error})
        return {"results": results}

    async def offset_delete(self, request: GroupRequest, client: GroupClient) -> Values:
        body = request.body
        subscribed: set[str] = set()

        async def delete(log: OffsetsLog) -> ErrorCode:
            group = log.find(body.group_id)
            if group is None:
                return ErrorCode.group_id_not_found
            if group.members and group.protocol_type != CONSUMER:
                return ErrorCode.non_empty_group
            for member in group.members.values():
                topics = subscribed_topics(member.assignors)
                if topics is None:
                    return ErrorCode.non_empty_group
                subscribed.update(topics)
            wanted = [
                (topic.name, int(each.partition_index))
                for topic in body.topics
                if topic.name not in subscribed
                for each in topic.partitions
                if self._access.may_read(client.identity, topic.name, int(each.partition_index))
            ]
            return await _stored(log.remove_offsets(body.group_id, wanted))

        error = await self._ask(client, body.group_id, delete, _same)
        return {
            "error_code": error,
            "topics": []
            if error is not ErrorCode.none
            else [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": ErrorCode.group_subscribed_to_topic
                            if topic.name in subscribed
                            else ErrorCode.none,
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in body.topics
            ],
        }

    async def _ask(
        self,
        client: GroupClient,
        group_id: str,
        ask: Callable[[OffsetsLog], Awaitable[Any]],
        refused: Callable[[ErrorCode], Any],
    ) -> Any:
        """Return what *ask* finds out from the coordinator of the group, or a refusal."""
        if not self._access.may_join(client.identity):
            return refused(ErrorCode.group_authorization_failed)
        try:
            return await ask(await self._coordinator.led(group_id))
        except (KafkaRefusal, CoordinatorMoved) as error:
            return refused(_code_of(error))


_NO_OFFSET: Final = CommittedOffset(-1, -1, "", 0)


def _code_of(error: KafkaRefusal | CoordinatorMoved) -> ErrorCode:
    return error.code if isinstance(error, KafkaRefusal) else ErrorCode.not_coordinator


async def _stored(outcome: "ErrorCode | Awaitable[None]") -> ErrorCode:
    if isinstance(outcome, ErrorCode):
        return outcome
    await outcome
    return ErrorCode.none


def _same(error: ErrorCode) -> ErrorCode:
    return error


def _ms(time: Any) -> int:
    """Of a time-out, which kio gives as a timedelta."""
    return int(time.total_seconds() * 1000)


def _refusal_of_offset(key: TopicPartition, committed: CommittedOffset) -> ErrorCode:
    topic, partition = key
    if not 0 < len(topic.encode(errors="replace")) <= _TOPIC_BYTES_MAX or partition < 0:
        return ErrorCode.unknown_topic_or_partition
    if committed.offset < 0:
        return ErrorCode.offset_out_of_range
    if len(committed.metadata.encode(errors="replace")) > METADATA_BYTES_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none
