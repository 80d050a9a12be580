"""Groups of real clients share partitions, rebalance, restart and commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

import dlog.testing
from dlog.aio.admin import list_consumers
from dlog.aio.namespace_connection import connect
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.group_survey import GROUPS_SHOWN_MAX, _largest
from dlog.kafka.offsets_log import OffsetsLog
from tests.dlog.kafka.clients import CONFLUENT
from tests.dlog.kafka.group_clients import (
    KINDS,
    AioConsumer,
    ConfluentConsumer,
    GroupConsumer,
    GroupKind,
    PythonConsumer,
    share,
    wait,
)
from tests.waiting import PATIENCE_S, eventually, until

pytestmark = pytest.mark.slow
PARTITIONS = 4
EACH = 10


@asynccontextmanager
async def serving(partitions: int = PARTITIONS) -> AsyncIterator[Gateway]:
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            async with gateway(ledgers, GatewayOptions(port=0)) as running:
                await running.topics.create("orders", partitions, {})
                yield running
        finally:
            await ledgers.close()


def produce(bootstrap: str, partitions: int = PARTITIONS) -> None:
    for partition in range(partitions):
        values = [b"%d" % number for number in range(EACH)]
        CONFLUENT.produce(bootstrap, "orders", values, partition=partition)


def everything(rounds: int) -> set[tuple[int, int]]:
    return {
        (partition, offset) for partition in range(PARTITIONS) for offset in range(EACH * rounds)
    }


def seen(*consumers: GroupConsumer) -> set[tuple[int, int]]:
    return {record for each in consumers for record in each.seen}


@pytest.mark.parametrize(
    ("kind", "assignor"), KINDS, ids=[f"{kind.__name__}-{name}" for kind, name in KINDS]
)
async def test_consumers_share_partitions_and_take_over_from_each_other(
    kind: GroupKind, assignor: str
) -> None:
    async with serving() as served:
        await asyncio.to_thread(_share, served.address, kind, assignor)


def _share(bootstrap: str, kind: GroupKind, assignor: str) -> None:
    def started() -> GroupConsumer:
        return kind(bootstrap, "orders", "billing", assignor)

    produce(bootstrap)
    first, second = started(), started()
    wait(lambda: share([first, second], PARTITIONS), "two share the partitions")
    wait(lambda: seen(first, second) == everything(1), "all is consumed")
    third = started()
    wait(lambda: share([first, second, third], PARTITIONS), "three share the partitions")
    first.stop()
    wait(lambda: share([second, third], PARTITIONS), "the others have its partitions")
    produce(bootstrap)
    wait(lambda: seen(first, second, third) == everything(2), "all is consumed")
    for each in (second, third):
        each.stop()
    fourth = started()
    wait(lambda: share([fourth], PARTITIONS), "one has all partitions")
    produce(bootstrap)
    new = everything(3) - everything(2)
    wait(lambda: new <= seen(fourth), "it consumes what is new")
    assert seen(fourth) == new, "and begins where the others have committed"
    fourth.stop()


@pytest.mark.parametrize("kind", [ConfluentConsumer, PythonConsumer, AioConsumer])
async def test_a_static_member_that_restarts_has_its_partitions_and_disturbs_nobody(
    kind: GroupKind,
) -> None:
    async with serving() as served:
        log = await served.coordinator.led("billing")
        await asyncio.to_thread(_static, served.address, kind, log)


def _static(bootstrap: str, kind: GroupKind, log: OffsetsLog) -> None:
    def started(name: str) -> GroupConsumer:
        return kind(bootstrap, "orders", "billing", "range", name)

    first, second = started("one"), started("two")
    wait(lambda: share([first, second], PARTITIONS), "two share the partitions")
    group = log.find("billing")
    assert group is not None
    generation, owned = group.generation, second.assigned
    second.stop()  # a static member does not leave
    again = started("two")
    wait(lambda: again.assigned == owned, "it has its partitions again")
    produce(bootstrap)
    wait(lambda: seen(first, again) == everything(1), "all is consumed")
    assert group.generation == generation, "without a rebalance"
    for each in (first, again):
        each.stop()


async def test_tools_list_describe_and_delete_groups() -> None:
    async with serving() as served:
        await asyncio.to_thread(_administer, served.address)


def _administer(bootstrap: str) -> None:
    produce(bootstrap)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    consumer = ConfluentConsumer(bootstrap, "orders", "billing", "range")
    wait(lambda: seen(consumer) == everything(1), "all is consumed")
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert [(each.group_id, each.state.name) for each in listed.valid] == [("billing", "STABLE")]
    [described] = admin.describe_consumer_groups(["billing"]).values()
    group = described.result(PATIENCE_S)
    [member] = group.members
    partitions = {each.partition for each in member.assignment.topic_partitions}
    assert (group.partition_assignor, partitions) == ("range", set(range(PARTITIONS)))
    python = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        offsets = python.list_group_offsets(["billing"])["billing"]
        assert {each.partition: found.offset for each, found in offsets.items()} == dict.fromkeys(
            range(PARTITIONS), EACH
        )
        [refused] = admin.delete_consumer_groups(["billing"]).values()
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            refused.result(PATIENCE_S)
        consumer.stop()
        moved = ConsumerGroupTopicPartitions("billing", [TopicPartition("orders", 0, 3)])
        [altered] = admin.alter_consumer_group_offsets([moved]).values()
        altered.result(PATIENCE_S)
        again = ConfluentConsumer(bootstrap, "orders", "billing", "range")
        expected = {(0, offset) for offset in range(3, EACH)}
        wait(lambda: seen(again) == expected, "it begins where it was told")
        again.stop()
        [deleted] = admin.delete_consumer_groups(["billing"]).values()
        deleted.result(PATIENCE_S)
    finally:
        python.close()
    assert admin.list_consumer_groups().result(PATIENCE_S).valid == []


async def test_a_group_is_a_consumer_of_each_of_its_logs() -> None:
    async with serving() as served:
        await asyncio.to_thread(produce, served.address)
        started = await asyncio.to_thread(
            ConfluentConsumer, served.address, "orders", "billing", "range"
        )
        ledgers = served.ledgers

        async def position() -> bool:
            consumers = await list_consumers("orders-2", client=ledgers)
            return [(each.name, each.position, each.lag) for each in consumers] == [
                ("kafka/billing", EACH, 0)
            ]

        await eventually(position, "the position is written")
        await asyncio.to_thread(started.stop)


async def test_metrics_say_how_far_a_group_is_behind_whoever_leads_its_partitions() -> None:
    async with dlog.testing.cluster() as cluster:
        clients = [await connect(cluster.uri) for _ in range(2)]
        try:
            async with (
                gateway(clients[0], GatewayOptions(port=0)) as first,
                gateway(clients[1], GatewayOptions(port=0)) as second,
            ):
                both = (first, second)
                await until(lambda: all(len(e.membership.view.gateways) == 2 for e in both))
                await first.topics.create("orders", PARTITIONS, {})
                await asyncio.to_thread(_behind, first.address)
                for each in both:
                    await each.survey.look()
                [mine] = [each for each in both if each.survey.lags]
                [other] = [each for each in both if each is not mine]
                led = [each.led.opened(f"orders-{number}") for number in range(4) for each in both]
                assert sum(partition is not None for partition in led) == PARTITIONS
                assert mine.survey.lags == {"billing": PARTITIONS * EACH}
                assert (mine.survey.states["Empty"], mine.survey.members) == (1, {})
                assert mine.coordinator.rebalances == 1
                assert mine.coordinator.takeovers >= 1
                assert (other.survey.states["Empty"], other.coordinator.rebalances) == (0, 0)
        finally:
            for client in clients:
                await client.close()


def _behind(bootstrap: str) -> None:
    produce(bootstrap)
    consumer = ConfluentConsumer(bootstrap, "orders", "billing", "range")
    wait(lambda: seen(consumer) == everything(1), "all is consumed")
    consumer.stop()
    produce(bootstrap)


async def test_metrics_count_members_and_states_of_groups() -> None:
    async with serving() as served:
        await asyncio.to_thread(produce, served.address)
        consumers = [
            ConfluentConsumer(served.address, "orders", "billing", "range") for _ in range(2)
        ]
        try:

            async def stable() -> bool:
                survey = served.survey
                await survey.look()
                known = survey.members, survey.lags, survey.states["Stable"]
                return known == ({"billing": 2}, {"billing": 0}, 1)

            await eventually(stable)
        finally:
            for each in consumers:
                await asyncio.to_thread(each.stop)


@pytest.mark.parametrize("count", [3, GROUPS_SHOWN_MAX, GROUPS_SHOWN_MAX + 2])
def test_of_many_groups_those_are_shown_that_are_furthest_behind(count: int) -> None:
    lags = {f"group-{number}": number for number in range(count)}
    shown = _largest(lags)
    assert len(shown) == min(count, GROUPS_SHOWN_MAX)
    assert min(shown.values()) == max(0, count - GROUPS_SHOWN_MAX)
