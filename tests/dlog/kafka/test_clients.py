"""Real clients of Kafka produce and consume, on partitions in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import dlog.testing
from dlog.aio.namespace_connection import connect
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.led_logs import LedPartition
from dlog.kafka.protocol.topics import TopicRecord
from tests.dlog.kafka.clients import CLIENTS, CONFLUENT, KafkaClient
from tests.dlog.kafka.memory_partition import MemoryPartition

pytestmark = pytest.mark.slow


@asynccontextmanager
async def in_memory() -> AsyncIterator[Gateway]:
    kept: dict[str, list[tuple[int, bytes]]] = {}

    async def open_partition(log: str, _topic: TopicRecord) -> LedPartition:
        return MemoryPartition(log, kept.setdefault(log, []))

    async with dlog.testing.cluster(bookies=1) as cluster:
        ledgers = await connect(cluster.uri)
        try:
            async with gateway(
                ledgers, GatewayOptions(port=0), open_partition=open_partition
            ) as served:
                yield served
        finally:
            await ledgers.close()


@pytest.mark.parametrize("client", CLIENTS, ids=str)
async def test_a_client_consumes_what_it_produced_in_order(client: KafkaClient) -> None:
    values = [b"value %d" % number for number in range(500)]
    async with in_memory() as served:
        await asyncio.to_thread(client.produce, served.address, "greetings", values, key=b"k")
        found = await asyncio.to_thread(client.consume, served.address, "greetings", 0, 500)
    assert [record.value for record in found] == values
    assert [record.offset for record in found] == list(range(500))
    assert {record.key for record in found} == {b"k"}


@pytest.mark.parametrize("consumer", CLIENTS, ids=str)
@pytest.mark.parametrize("producer", CLIENTS, ids=str)
async def test_a_client_consumes_what_another_one_produced_with_headers(
    producer: KafkaClient, consumer: KafkaClient
) -> None:
    async with in_memory() as served:
        headers = [("trace", b"1"), ("trace", b"2")]
        await asyncio.to_thread(
            producer.produce, served.address, "greetings", [b"hello"], headers=headers
        )
        (record,) = await asyncio.to_thread(consumer.consume, served.address, "greetings", 0, 1)
    assert record.value == b"hello"
    assert record.headers == (("trace", b"1"), ("trace", b"2"))


async def test_a_topic_that_a_client_names_is_created_unless_that_is_off() -> None:
    async with in_memory() as served:
        await asyncio.to_thread(CONFLUENT.produce, served.address, "made", [b"1"])
        assert (await served.topics.table(fresh=True)).names() == ["made"]


async def test_partitions_of_a_topic_are_logs_of_their_own() -> None:
    async with in_memory() as served:
        await served.topics.create("split", 3, {})
        for partition in range(3):
            values = [b"%d" % partition]
            await asyncio.to_thread(
                CONFLUENT.produce, served.address, "split", values, partition=partition
            )
        for partition in range(3):
            (record,) = await asyncio.to_thread(
                CONFLUENT.consume, served.address, "split", partition, 1
            )
            assert (record.partition, record.value) == (partition, b"%d" % partition)
