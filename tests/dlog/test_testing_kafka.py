"""A Kafka in the process of a test."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import dlog
import dlog.testing
from tests.dlog.kafka.clients import CLIENTS, CONFLUENT, KafkaClient

pytest_plugins = ["dlog.testing.plugin"]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_test_has_a_kafka(kafka_bootstrap: str, client: KafkaClient) -> None:
    client.produce(kafka_bootstrap, "greetings", [b"hello"])
    (record,) = client.consume(kafka_bootstrap, "greetings", 0, 1)
    assert record.value == b"hello"


def test_its_records_are_those_of_the_cluster(
    kafka_bootstrap: str, dlog_cluster: dlog.testing.Cluster
) -> None:
    CONFLUENT.produce(kafka_bootstrap, "greetings", [b"hello"])
    dlog_cluster.kill_bookie(0)
    CONFLUENT.produce(kafka_bootstrap, "greetings", [b"again"])
    with dlog.Log.tail("greetings", follow=False) as reader:
        assert [record.value for record in reader] == [b"hello", b"again"]


async def test_a_test_with_an_event_loop_has_one_with_several_partitions() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        dlog.testing.kafka(cluster.uri, partitions=3) as bootstrap,
    ):
        await asyncio.to_thread(CONFLUENT.produce, bootstrap, "t", [b"1"], partition=2)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = await asyncio.to_thread(admin.list_topics, "t", 30)
        assert len(topics.topics["t"].partitions) == 3


def test_the_program_of_the_guide_does_what_it_says(kafka_bootstrap: str) -> None:
    guide = Path(__file__).parents[2] / "docs" / "kafka.md"
    (program,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, guide.name, "exec"), names)
    names["test_orders_arrive"](kafka_bootstrap)
    (record,) = CONFLUENT.consume(kafka_bootstrap, "orders", 0, 1)
    assert record.value == b"one"
