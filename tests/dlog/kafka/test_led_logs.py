"""The logs that a gateway leads: opened at the first request, closed when it leads them no more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.errors import TakeoverFailed
from dlog.kafka.errors import KafkaRefusal
from dlog.kafka.led_logs import LedLogs
from dlog.kafka.membership import Membership
from dlog.kafka.protocol.topics import NO_ID, TopicRecord
from dlog.protocol.gateway_record import GATEWAYS_PATH, GatewayRecord
from tests.dlog.kafka.memory_partition import MemoryPartition
from tests.waiting import eventually, settled, until

TOPIC = TopicRecord(name="t", id=NO_ID, logs=tuple(f"t-{n}" for n in range(40)), settings={})


class Rig:
    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.opened: list[MemoryPartition] = []
        self.failing: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.led = LedLogs(membership, self.open)

    async def open(self, log: str, topic: TopicRecord, *, follow: bool) -> MemoryPartition:
        await self.gate.wait()
        if self.failing is not None:
            raise self.failing
        partition = MemoryPartition(log, [], epoch=len(self.opened) + 1)
        self.opened.append(partition)
        return partition

    async def other_gateway(self) -> None:
        """Let another gateway register, which leads about half of the logs."""
        record = GatewayRecord(node_id=0, host="127.0.0.1", port=9999)
        await self.membership._store.create(
            f"{GATEWAYS_PATH}/", record.encode(), ephemeral=True, sequential=True
        )
        await until(lambda: len(self.membership.view.gateways) == 2)


@asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    async with dlog.testing.cluster(bookies=1) as cluster:
        ledgers = await connect(cluster.uri, alone=True)
        made: list[Rig] = []
        membership = Membership(
            ledgers.store,
            host="127.0.0.1",
            port=9092,
            changed=lambda: made[0].led.view_changed() if made else None,
        )
        await membership.start()
        made.append(Rig(membership))
        try:
            yield made[0]
        finally:
            await made[0].led.close()
            await membership.close()
            await ledgers.close()


async def refusal(made: Rig, index: int = 0) -> ErrorCode:
    with pytest.raises(KafkaRefusal) as refused:
        await made.led.partition(TOPIC, index)
    return refused.value.code


async def test_a_log_is_opened_once_for_all_requests_for_it() -> None:
    async with rig() as made:
        found = await asyncio.gather(*(made.led.partition(TOPIC, 0) for _ in range(5)))
        assert len(made.opened) == 1
        assert all(each is made.opened[0] for each in found)
        assert made.led.opened("t-0") is made.opened[0]


async def test_a_partition_that_a_topic_does_not_have_is_unknown() -> None:
    async with rig() as made:
        assert await refusal(made, 40) is ErrorCode.unknown_topic_or_partition
        assert await refusal(made, -1) is ErrorCode.unknown_topic_or_partition


async def test_a_log_that_another_gateway_leads_by_now_is_closed_and_refused() -> None:
    async with rig() as made:
        for index in range(40):
            await made.led.partition(TOPIC, index)
        await made.other_gateway()
        lost = [partition for partition in made.opened if not made.membership.leads(partition.log)]
        assert 5 < len(lost) < 35
        await until(lambda: all(partition.closed for partition in lost))
        assert len(made.led) == 40 - len(lost)
        index = TOPIC.logs.index(lost[0].log)
        assert await refusal(made, index) is ErrorCode.not_leader_or_follower


async def test_a_gateway_without_a_session_leads_nothing() -> None:
    async with rig() as made:
        await made.led.partition(TOPIC, 0)
        made.membership._session = None
        assert await refusal(made) is ErrorCode.not_leader_or_follower
        await until(lambda: made.opened[0].closed)


async def test_a_log_that_was_fenced_is_opened_again_after_a_pause() -> None:
    async with rig() as made:
        await made.led.partition(TOPIC, 0)
        made.opened[0].fail()
        await until(lambda: made.opened[0].closed)
        assert await refusal(made) is ErrorCode.not_leader_or_follower

        async def led_again() -> bool:
            try:
                return await made.led.partition(TOPIC, 0) is made.opened[1]
            except KafkaRefusal:
                return False

        await eventually(led_again)
        assert len(made.opened) == 2


async def test_a_log_that_cannot_be_opened_is_tried_again_after_a_pause() -> None:
    async with rig() as made:
        made.failing = TakeoverFailed("t-0", 8)
        assert await refusal(made) is ErrorCode.not_leader_or_follower
        made.failing = None
        assert await refusal(made) is ErrorCode.not_leader_or_follower

        async def led() -> bool:
            try:
                return await made.led.partition(TOPIC, 0) is made.opened[0]
            except KafkaRefusal:
                return False

        await eventually(led)


async def test_a_client_that_goes_away_does_not_stop_an_opening() -> None:
    async with rig() as made:
        made.gate.clear()
        waiting = asyncio.create_task(made.led.partition(TOPIC, 0))
        await settled()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        made.gate.set()
        assert await made.led.partition(TOPIC, 0) is made.opened[0]


async def test_a_log_that_is_released_while_it_is_opened_is_closed_once_it_is_open() -> None:
    async with rig() as made:
        made.gate.clear()
        waiting = asyncio.create_task(made.led.partition(TOPIC, 0))
        await settled()
        made.led.release("t-0")
        made.gate.set()
        await waiting
        await until(lambda: made.opened[0].closed)
        assert made.led.opened("t-0") is None


async def test_a_gateway_that_stops_closes_all_and_opens_nothing_more() -> None:
    async with rig() as made:
        for index in range(5):
            await made.led.partition(TOPIC, index)
        await made.led.close()
        assert all(partition.closed for partition in made.opened)
        assert await refusal(made) is ErrorCode.not_leader_or_follower
        assert len(made.opened) == 5
