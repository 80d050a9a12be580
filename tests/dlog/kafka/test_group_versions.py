"""Requests about groups in every version that is offered, from bytes to bytes, of any values."""

import asyncio
import dataclasses
import random
import typing
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from dlog.kafka import wire
from dlog.kafka.coordinator import offsets_log
from dlog.kafka.gateway import OFFERED
from dlog.kafka.wire import decode_request, encode_response
from tests.dlog.kafka.test_coordinator import GROUP, Gateway, gateways
from tests.dlog.kafka.test_wire import request_frame, response_in
from tests.waiting import settled

HANDLERS = {
    wire.JOIN_GROUP: "join_group",
    wire.SYNC_GROUP: "sync_group",
    wire.HEARTBEAT: "heartbeat",
    wire.LEAVE_GROUP: "leave_group",
    wire.OFFSET_COMMIT: "offset_commit",
    wire.OFFSET_FETCH: "offset_fetch",
    wire.LIST_GROUPS: "list_groups",
    wire.DESCRIBE_GROUPS: "describe_groups",
    wire.DELETE_GROUPS: "delete_groups",
    wire.OFFSET_DELETE: "offset_delete",
}
NONE = ErrorCode.none
AGES = max(OFFERED[api].highest - OFFERED[api].lowest for api in HANDLERS) + 1


@dataclasses.dataclass
class Client:
    """A client that is so many versions newer than the oldest one."""

    gateway: Gateway
    age: int

    async def ask(self, api: int, **values: Any) -> Any:
        lowest, highest = OFFERED[api]
        version = min(lowest + self.age, highest)
        request = decode_request(request_frame(api, version, values), OFFERED)
        answer = await getattr(self.gateway.requests, HANDLERS[api])(request, self.gateway)
        return response_in(encode_response(request, answer), api, version)[1]


@pytest.mark.parametrize("age", range(AGES))
async def test_a_member_lives_in_every_version(age: int) -> None:
    async with gateways() as [gateway]:
        client = Client(gateway, age)
        join = {
            "group_id": GROUP,
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\6orders"}],
        }
        joined = await client.ask(wire.JOIN_GROUP, **join)
        if joined.error_code is ErrorCode.member_id_required:
            joined = await client.ask(wire.JOIN_GROUP, **join, member_id=joined.member_id)
        assert (joined.error_code, joined.generation_id) == (NONE, 1)
        assert [each.member_id for each in joined.members] == [joined.member_id]
        member = {"group_id": GROUP, "member_id": joined.member_id, "generation_id": 1}
        synced = await client.ask(
            wire.SYNC_GROUP,
            **member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": joined.member_id, "assignment": b"all"}],
        )
        assert (synced.error_code, synced.assignment) == (NONE, b"all")
        assert (await client.ask(wire.HEARTBEAT, **member)).error_code is NONE
        partition = {"partition_index": 0, "committed_offset": 42, "committed_metadata": "here"}
        committed = await client.ask(
            wire.OFFSET_COMMIT,
            **member,
            generation_id_or_member_epoch=1,
            topics=[{"name": "orders", "partitions": [partition]}],
        )
        assert committed.topics[0].partitions[0].error_code is NONE
        wanted = [{"name": "orders", "partition_indexes": [0, 1]}]
        fetched = await client.ask(
            wire.OFFSET_FETCH,
            group_id=GROUP,
            topics=wanted,
            groups=[{"group_id": GROUP, "topics": wanted}],
        )
        found = fetched if hasattr(fetched, "topics") else fetched.groups[0]
        assert [each.committed_offset for each in found.topics[0].partitions] == [42, -1]
        listed = await client.ask(wire.LIST_GROUPS)
        assert [each.group_id for each in listed.groups] == [GROUP]
        described = await client.ask(wire.DESCRIBE_GROUPS, groups=[GROUP])
        assert described.groups[0].members[0].member_assignment == b"all"
        removed = await client.ask(
            wire.OFFSET_DELETE,
            group_id=GROUP,
            topics=[{"name": "other", "partitions": [{"partition_index": 0}]}],
        )
        assert removed.topics[0].partitions[0].error_code is NONE
        left = await client.ask(wire.LEAVE_GROUP, **member, members=[member])
        assert left.error_code is NONE
        deleted = await client.ask(wire.DELETE_GROUPS, groups_names=[GROUP])
        assert deleted.results[0].error_code in {NONE, ErrorCode.non_empty_group}


def drawn(kind: Any, chance: random.Random) -> dict[str, Any]:
    """Return values for the fields of *kind*, some of them such as no client would send."""
    hints = typing.get_type_hints(kind)
    return {each.name: _drawn(hints[each.name], each, chance) for each in dataclasses.fields(kind)}


def _drawn(hint: Any, field: "dataclasses.Field[Any]", chance: random.Random) -> Any:
    kinds = typing.get_args(hint)
    if type(None) in kinds:
        if chance.random() < 0.3:
            return None
        hint = next(each for each in kinds if each is not type(None))
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        count = chance.randrange(3)
        if dataclasses.is_dataclass(inner):
            return [drawn(inner, chance) for _ in range(count)]
        return [_scalar(field.metadata["kafka_type"], chance) for _ in range(count)]
    return _scalar(field.metadata["kafka_type"], chance)


def _scalar(kafka_type: str, chance: random.Random) -> Any:
    match kafka_type:
        case "string":
            return chance.choice([GROUP, "", "orders", "\0", "é" * 2000, "consumer", "a/../b"])
        case "bytes":
            return chance.choice([b"", b"\0\1\0\0\0\1\0\6orders", b"\xff" * 100])
        case "bool":
            return chance.random() < 0.5
        case "timedelta_i32":
            return chance.choice([-(2**31), -1, 0, 5, 30_000, 2**31 - 1])
        case "int64":
            return chance.choice([-(2**63), -1, 0, 7, 2**63 - 1])
        case "uuid":
            return None
        case _:
            return chance.choice([-(2**31), -1, 0, 1, 2, 2**31 - 1])


@pytest.mark.parametrize("api", HANDLERS, ids=HANDLERS.get)
async def test_any_values_have_an_answer(api: int) -> None:
    chance = random.Random(api)
    lowest, highest = OFFERED[api]
    async with gateways() as [gateway]:
        await gateway.member()
        for _ in range(60):
            version = chance.randint(lowest, highest)
            values = drawn(load_request_schema(api, version), chance)
            request = decode_request(request_frame(api, version, values), OFFERED)
            handler = getattr(gateway.requests, HANDLERS[api])
            answering = asyncio.create_task(handler(request, gateway))
            await settled()
            if not answering.done():  # a member that waits for others: its client goes
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
                continue
            response_in(encode_response(request, answering.result()), api, version)
        assert offsets_log(GROUP) in gateway.coordinator._open, "and the coordinator lives"
        assert not gateway.coordinator._open[offsets_log(GROUP)].failed.is_set()
