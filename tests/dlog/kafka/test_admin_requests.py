"""What tools ask for: topics that are created, grown, configured, emptied and deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

import dlog.testing
from dlog.aio.admin import list_logs, log_settings
from dlog.aio.namespace_connection import connect
from dlog.kafka.gateway import Gateway, GatewayOptions, gateway
from dlog.kafka.topic_requests import TopicDefaults
from tests.dlog.kafka.clients import CONFLUENT
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@asynccontextmanager
async def serving(defaults: TopicDefaults | None = None) -> AsyncIterator[tuple[Gateway, Any]]:
    async with dlog.testing.cluster() as cluster:
        ledgers = await connect(cluster.uri)
        try:
            options = GatewayOptions(port=0, topics=defaults or TopicDefaults())
            async with gateway(ledgers, options) as running:
                yield running, AdminClient({"bootstrap.servers": running.address})
        finally:
            await ledgers.close()


async def done(futures: dict[Any, Any]) -> Any:
    """Return what the one of *futures* has; raise what it raises."""
    (future,) = futures.values()
    return await asyncio.to_thread(future.result, PATIENCE_S)


async def refused(futures: dict[Any, Any], name: str, reason: str | None = None) -> None:
    with pytest.raises(KafkaException, match=reason) as error:
        await done(futures)
    assert error.value.args[0].name() == name


async def test_a_topic_is_created_with_partitions_and_settings_and_deleted() -> None:
    async with serving() as (running, admin):
        topic = NewTopic("orders", 3, 3, config={"retention.ms": "60000"})
        await done(admin.create_topics([topic]))
        settings = await log_settings("orders-2", client=running.ledgers)
        assert settings.retention_age_s == 60
        assert (settings.quorum.ensemble, settings.quorum.ack) == (3, 2)
        listed = await asyncio.to_thread(admin.list_topics, None, PATIENCE_S)
        assert len(listed.topics["orders"].partitions) == 3
        assert len(listed.brokers) == 1
        await refused(admin.create_topics([topic]), "TOPIC_ALREADY_EXISTS")
        await done(admin.delete_topics(["orders"]))
        assert await list_logs(client=running.ledgers) == []
        await refused(admin.delete_topics(["orders"]), "UNKNOWN_TOPIC_OR_PART")


async def test_what_no_topic_can_be_is_refused_with_a_sentence() -> None:
    async with serving() as (_, admin):
        compacted = NewTopic("t", 1, 1, config={"cleanup.policy": "compact"})
        await refused(admin.create_topics([compacted]), "INVALID_CONFIG", "never compacted")
        await refused(admin.create_topics([NewTopic(".t", 1, 1)]), "TOPIC_EXCEPTION", "a dot")
        assigned = NewTopic("t", 1, replica_assignment=[[0]])
        await refused(
            admin.create_topics([assigned]), "INVALID_REPLICA_ASSIGNMENT", "without an assignment"
        )


async def test_a_creation_that_is_only_validated_creates_nothing() -> None:
    async with serving() as (running, admin):
        await done(admin.create_topics([NewTopic("t", 1, 3)], validate_only=True))
        assert await list_logs(client=running.ledgers) == []


async def test_a_topic_gets_more_partitions_and_keeps_its_records() -> None:
    async with serving() as (running, admin):
        await asyncio.to_thread(CONFLUENT.produce, running.address, "t", [b"1"])
        await done(admin.create_partitions([NewPartitions("t", 3)]))
        await asyncio.to_thread(CONFLUENT.produce, running.address, "t", [b"2"], partition=2)
        (record,) = await asyncio.to_thread(CONFLUENT.consume, running.address, "t", 0, 1)
        assert record.value == b"1"
        await refused(admin.create_partitions([NewPartitions("t", 2)]), "INVALID_PARTITIONS")


async def test_settings_are_described_and_changed_by_kafkas_names() -> None:
    async with serving() as (running, admin):
        await done(admin.create_topics([NewTopic("t", 2, 3)]))
        resource = ConfigResource(ResourceType.TOPIC, "t")
        described = await done(admin.describe_configs([resource]))
        assert described["cleanup.policy"].value == "delete"
        assert described["retention.bytes"].value == "-1"
        assert described["retention.bytes"].is_default
        change = ConfigEntry("retention.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[change])
        await done(admin.incremental_alter_configs([changed]))
        for log in ("t-0", "t-1"):
            assert (await log_settings(log, client=running.ledgers)).retention_bytes == 5000
        described = await done(admin.describe_configs([resource]))
        assert described["retention.bytes"].value == "5000"
        assert not described["retention.bytes"].is_default
        wrong = ConfigEntry("flush.ms", "1", incremental_operation=AlterConfigOpType.SET)
        refusal = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[wrong])
        await refused(
            admin.incremental_alter_configs([refusal]), "INVALID_CONFIG", "logs have no such"
        )


async def test_settings_of_a_broker_are_shown_and_others_refused() -> None:
    async with serving(TopicDefaults(partitions=4)) as (running, admin):
        broker = ConfigResource(ResourceType.BROKER, str(running.membership.node_id))
        described = await done(admin.describe_configs([broker]))
        assert described["num.partitions"].value == "4"
        assert described["advertised.listeners"].value == f"PLAINTEXT://{running.address}"
        assert described["advertised.listeners"].is_read_only
        nothing = ConfigResource(ResourceType.TOPIC, "nothing")
        await refused(admin.describe_configs([nothing]), "UNKNOWN_TOPIC_OR_PART")


async def test_records_are_deleted_up_to_an_offset_and_offsets_are_listed() -> None:
    async with serving() as (running, admin):
        values = [b"%d" % number for number in range(10)]
        await asyncio.to_thread(CONFLUENT.produce, running.address, "t", values)
        await done(admin.delete_records([TopicPartition("t", 0, 4)]))
        place = TopicPartition("t", 0)
        earliest = await done(admin.list_offsets({place: OffsetSpec.earliest()}))
        latest = await done(admin.list_offsets({place: OffsetSpec.latest()}))
        assert (earliest.offset, latest.offset) == (4, 10)
        await refused(admin.delete_records([TopicPartition("t", 0, 11)]), "OFFSET_OUT_OF_RANGE")


async def test_a_cluster_is_described() -> None:
    async with serving() as (running, admin):
        future = admin.describe_cluster()
        described = await asyncio.to_thread(future.result, PATIENCE_S)
        (node,) = described.nodes
        assert f"{node.host}:{node.port}" == running.address
        assert described.controller.id == node.id


async def test_topics_are_not_created_by_their_use_where_that_is_off() -> None:
    async with serving(TopicDefaults(auto_create=False)) as (running, admin):
        listed = await asyncio.to_thread(admin.list_topics, "nothing", PATIENCE_S)
        assert listed.topics["nothing"].error.name() == "UNKNOWN_TOPIC_OR_PART"
        assert await list_logs(client=running.ledgers) == []
