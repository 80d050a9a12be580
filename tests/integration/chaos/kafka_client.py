"""A verifiable producer or consumer of one of three Python clients, in the words of Kafka's own
(VerifiableProducer, VerifiableConsumer): JSON lines with a name and a timestamp in ms.

A producer sends ``PREFIX.NUMBER`` for ever; SIGTERM lets it end once all are answered. A consumer
says what it read, then commits it.

Call: python -m tests.integration.chaos.kafka_client ROLE FAMILY BOOTSTRAP TOPIC PARTITIONS NAME
*NAME*: a producer's prefix, or a consumer's group.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
REQUEST_MS: Final = 6_000
"""A gateway that stands still is left after this."""
DELIVERY_MS: Final = 300_000
"""Longer than any trouble: a record is given up only for an error that no retry cures."""
PAUSE_S: Final = 0.03
POLL_S: Final = 0.2
RECONNECT_MS: Final = 500
METADATA_MS: Final = 2_000
BATCH: Final = 500

_stop = False


def _say(name: str, **fields: object) -> None:
    line = {"name": name, "timestamp": round(time.time() * 1000), **fields}
    print(json.dumps(line), flush=True)


def _said_sent(value: str, partition: int, offset: int) -> None:
    _say("producer_send_success", value=value, partition=partition, offset=offset)


def _said_refused(value: str, error: object) -> None:
    _say("producer_send_error", value=value, exception=type(error).__name__, message=str(error))


def _said_assigned(partitions: Iterable[Any]) -> None:
    _say("partitions_assigned", partitions=[{"partition": each.partition} for each in partitions])


def _said_revoked(partitions: Iterable[Any]) -> None:
    _say("partitions_revoked", partitions=[{"partition": each.partition} for each in partitions])


def _said_read(records: Sequence[tuple[int, int, bytes]]) -> dict[int, int]:
    """Return the positions after *records*."""
    shown = [[partition, offset, value.decode()] for partition, offset, value in records]
    _say("records_read", records=shown)
    return {partition: offset + 1 for partition, offset, _ in records}


def _said_committed(positions: dict[int, int], error: object = None) -> None:
    offsets = [{"partition": each, "offset": positions[each]} for each in positions]
    fields = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
    _say("offsets_committed", offsets=offsets, success=error is None, **fields)


# Confluent's, librdkafka.


def _confluent(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": REQUEST_MS,
        "socket.connection.setup.timeout.ms": 3_000,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "log_level": 0,
    }


def produce_confluent(bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
    from confluent_kafka import KafkaException, Producer

    def delivered(error: Any, message: Any) -> None:
        value = message.value().decode()
        if error is None:
            _said_sent(value, message.partition(), message.offset())
        else:
            _said_refused(value, KafkaException(error))

    producer = Producer(
        {
            **_confluent(bootstrap),
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": DELIVERY_MS,
            "linger.ms": 5,
        }
    )
    number = 0
    while not _stop:
        try:
            producer.produce(
                topic,
                f"{prefix}.{number}",
                partition=number % partitions,
                on_delivery=delivered,
            )
            number += 1
        except BufferError:
            pass
        producer.poll(PAUSE_S)
    producer.flush()


def consume_confluent(bootstrap: str, topic: str, _: int, group: str) -> None:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            **_confluent(bootstrap),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: _said_assigned(partitions),
        on_revoke=lambda _, partitions: _said_revoked(partitions),
    )
    while not _stop:
        messages = [each for each in consumer.consume(BATCH, POLL_S) if each.error() is None]
        if not messages:
            continue
        positions = _said_read([(m.partition(), m.offset(), m.value()) for m in messages])
        wanted = [TopicPartition(topic, partition, positions[partition]) for partition in positions]
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            _said_committed(positions, error)
        else:
            _said_committed(positions)
    consumer.close()


# kafka-python.


def _python(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap.split(","),
        "request_timeout_ms": REQUEST_MS,
        "reconnect_backoff_max_ms": RECONNECT_MS,
        "metadata_max_age_ms": METADATA_MS,
    }


def produce_python(bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(
        **_python(bootstrap),
        enable_idempotence=True,
        acks="all",
        delivery_timeout_ms=DELIVERY_MS,
        max_block_ms=DELIVERY_MS,
    )
    number = 0
    while not _stop:
        value = f"{prefix}.{number}"
        number += 1
        try:
            future = producer.send(topic, value.encode(), partition=number % partitions)
        except KafkaError as error:
            _said_refused(value, error)
            continue
        future.add_callback(lambda m, v=value: _said_sent(v, m.partition, m.offset))
        future.add_errback(lambda error, v=value: _said_refused(v, error))
        time.sleep(PAUSE_S)
    producer.flush()


def consume_python(bootstrap: str, topic: str, _: int, group: str) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            _said_assigned(assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            _said_revoked(revoked)

    consumer = KafkaConsumer(
        **{**_python(bootstrap), "request_timeout_ms": 2 * SESSION_MS},
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=BATCH,
    )
    consumer.subscribe([topic], listener=Listener())
    while not _stop:
        try:
            found = consumer.poll(round(POLL_S * 1000))
        except KafkaError as error:  # this one raises what passes, a refused connection for one
            _say("trouble", error=f"{type(error).__name__}: {error}")
            time.sleep(POLL_S)
            continue
        records = [(r.partition, r.offset, r.value) for each in found.values() for r in each]
        if not records:
            continue
        positions = _said_read(records)
        wanted = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in positions.items()
        }
        try:
            consumer.commit(wanted)
        except KafkaError as error:
            _said_committed(positions, error)
        else:
            _said_committed(positions)
    consumer.close()


# aiokafka.


def _aio(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": bootstrap,
        "request_timeout_ms": REQUEST_MS,
        "metadata_max_age_ms": METADATA_MS,
    }


def produce_aio(bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
    asyncio.run(_produce_aio(bootstrap, topic, partitions, prefix))


async def _produce_aio(bootstrap: str, topic: str, partitions: int, prefix: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    def answered(value: str, future: "asyncio.Future[Any]") -> None:
        error = future.exception()
        if error is None:
            _said_sent(value, future.result().partition, future.result().offset)
        else:
            _said_refused(value, error)

    # Once a partition had no leader for longer than a request may take, this client gives a batch
    # up that has its sequence, and is refused whatever it sends after that.
    settings = {**_aio(bootstrap), "request_timeout_ms": DELIVERY_MS}
    producer = await _started(
        lambda: AIOKafkaProducer(**settings, enable_idempotence=True, acks="all")
    )
    number = 0
    while not _stop:
        value = f"{prefix}.{number}"
        number += 1
        try:
            future = await producer.send(topic, value.encode(), partition=number % partitions)
        except KafkaError as error:
            _said_refused(value, error)
            continue
        future.add_done_callback(lambda done, v=value: answered(v, done))
        await asyncio.sleep(PAUSE_S)
    await producer.flush()
    await producer.stop()


def consume_aio(bootstrap: str, topic: str, _: int, group: str) -> None:
    asyncio.run(_consume_aio(bootstrap, topic, group))


async def _consume_aio(bootstrap: str, topic: str, group: str) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            _said_assigned(assigned)

        async def on_partitions_revoked(self, revoked: Any) -> None:
            _said_revoked(revoked)

    consumer = await _started(
        lambda: AIOKafkaConsumer(
            **_aio(bootstrap),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
    )
    consumer.subscribe([topic], listener=Listener())
    while not _stop:
        found = await consumer.getmany(timeout_ms=round(POLL_S * 1000), max_records=BATCH)
        records = [(r.partition, r.offset, r.value) for each in found.values() for r in each]
        if not records:
            continue
        positions = _said_read(records)
        wanted = {TopicPartition(topic, each): offset for each, offset in positions.items()}
        try:
            await consumer.commit(wanted)
        except (KafkaError, ValueError) as error:  # ValueError: it is not assigned any more
            _said_committed(positions, error)
        else:
            _said_committed(positions)
    await consumer.stop()


async def _started(made: Callable[[], Any]) -> Any:
    """Return a client once a gateway answered it: this one gives up at the first refusal."""
    from aiokafka.errors import KafkaError

    while True:
        client = made()
        try:
            await client.start()
        except (KafkaError, OSError):
            await client.stop()
            await asyncio.sleep(POLL_S)
        else:
            return client


FAMILIES: Final[dict[str, dict[str, Callable[[str, str, int, str], None]]]] = {
    "producer": {
        "confluent": produce_confluent,
        "kafka-python": produce_python,
        "aiokafka": produce_aio,
    },
    "consumer": {
        "confluent": consume_confluent,
        "kafka-python": consume_python,
        "aiokafka": consume_aio,
    },
}


def main() -> None:
    role, family, bootstrap, topic, partitions, name = sys.argv[1:]

    def stop(*_: object) -> None:
        global _stop  # noqa: PLW0603 - a signal has nobody else to tell
        _stop = True

    signal.signal(signal.SIGTERM, stop)
    _say("startup_complete")
    FAMILIES[role][family](bootstrap, topic, int(partitions), name)
    _say("shutdown_complete")


if __name__ == "__main__":
    main()
