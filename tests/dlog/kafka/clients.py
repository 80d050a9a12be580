"""Three clients of strangers, made to look alike: confluent-kafka, kafka-python, aiokafka.

Each call blocks: a test on an event loop calls it in a thread."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiokafka
import kafka
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.waiting import PATIENCE_S

_MS: Final = 1000


@dataclass(frozen=True)
class Consumed:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class KafkaClient:
    name: str
    produce: Callable[..., None]
    """(bootstrap, topic, values, **settings): returns once all are acknowledged."""
    consume: Callable[..., list[Consumed]]
    """(bootstrap, topic, partition, count): from the start."""

    def __str__(self) -> str:
        return self.name


def _confluent_produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    compression: str = "none",
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    errors: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 5,
        }
    )
    for value in values:
        producer.produce(
            topic,
            value,
            key=key,
            partition=partition,
            headers=list(headers),
            on_delivery=delivered,
        )
    left = producer.flush(PATIENCE_S)
    assert not left, f"{left} records were not acknowledged in time"
    assert not errors, errors


def _confluent_consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Consumed]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "no group",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[Consumed] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records came in time"
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                found.append(
                    Consumed(
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                    )
                )
    finally:
        consumer.close()
    return found


def _python_produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    compression: str = "none",
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if compression == "none" else compression,
        linger_ms=5,
    )
    try:
        sent = [
            producer.send(topic, value, key=key, partition=partition, headers=list(headers))
            for value in values
        ]
        producer.flush(PATIENCE_S)
        for future in sent:
            future.get(PATIENCE_S)
    finally:
        producer.close(PATIENCE_S)


def _python_consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Consumed]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=round(PATIENCE_S * _MS),
    )
    found: list[Consumed] = []
    try:
        consumer.assign([kafka.TopicPartition(topic, partition)])
        while len(found) < count:
            found.append(_consumed(next(consumer)))
    finally:
        consumer.close()
    return found


def _aio_produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    compression: str = "none",
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            linger_ms=5,
        ) as producer:
            sent = [
                await producer.send(topic, value, key=key, partition=partition, headers=headers)
                for value in values
            ]
            await asyncio.gather(*sent)

    asyncio.run(produce())


def _aio_consume(bootstrap: str, topic: str, partition: int, count: int) -> list[Consumed]:
    async def consume() -> list[Consumed]:
        found: list[Consumed] = []
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(topic, partition)])
            async with asyncio.timeout(PATIENCE_S):
                while len(found) < count:
                    found.append(_consumed(await consumer.getone()))
        finally:
            await consumer.stop()
        return found

    return asyncio.run(consume())


def _consumed(record: Any) -> Consumed:
    headers = tuple(record.headers or ())
    return Consumed(record.partition, record.offset, record.key, record.value, headers)


CONFLUENT: Final = KafkaClient("confluent-kafka", _confluent_produce, _confluent_consume)
KAFKA_PYTHON: Final = KafkaClient("kafka-python", _python_produce, _python_consume)
AIOKAFKA: Final = KafkaClient("aiokafka", _aio_produce, _aio_consume)
CLIENTS: Final = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)
