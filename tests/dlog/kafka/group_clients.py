"""Consumers of groups, of the three clients of strangers, each on a thread of its own."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import aiokafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AioRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor as AioSticky,
)
from confluent_kafka import Consumer, KafkaException
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor as PythonRange
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as PythonRoundRobin
from kafka.coordinator.assignors.sticky.sticky_assignor import (
    StickyPartitionAssignor as PythonSticky,
)

from tests.waiting import PATIENCE_S

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 300


class GroupConsumer(ABC):
    """Consumes *topic* and commits what it has seen, until `stop`."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, assignor: str, instance: str | None = None
    ) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.assignor, self.instance = assignor, instance
        self.seen: list[tuple[int, int]] = []
        """Partition and offset of each record, as it came."""
        self.assigned: frozenset[int] = frozenset()
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, as a client does that ends in order."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the consumer does not end"
        self.assigned = frozenset()
        assert self.errors == []

    def _run(self) -> None:
        try:
            self.consume()
        except BaseException as error:  # noqa: BLE001 - the test sees it
            self.errors.append(error)

    @abstractmethod
    def consume(self) -> None: ...


class ConfluentConsumer(GroupConsumer):
    def consume(self) -> None:
        settings = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": self.assignor,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        if self.instance is not None:
            settings["group.instance.id"] = self.instance
        consumer = Consumer(settings)
        consumer.subscribe([self.topic])
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.05)
                self.assigned = frozenset(each.partition for each in consumer.assignment())
                if message is None or message.error() is not None:
                    continue  # it connects again by itself
                self.seen.append((message.partition(), message.offset()))
                with suppress(KafkaException):  # the record comes again
                    consumer.commit(message, asynchronous=False)
        finally:
            consumer.close()


class PythonConsumer(GroupConsumer):
    ASSIGNORS: Final = {
        "range": PythonRange,
        "roundrobin": PythonRoundRobin,
        "sticky": PythonSticky,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    def consume(self) -> None:
        more = {} if self.instance is None else {"group_instance_id": self.instance}
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[self.ASSIGNORS[self.assignor]],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
            **more,
        )
        try:
            while not self._stop.is_set():
                found = consumer.poll(50)
                self.assigned = frozenset(each.partition for each in consumer.assignment())
                for records in found.values():
                    self.seen += [(each.partition, each.offset) for each in records]
                if found:
                    with suppress(kafka.errors.CommitFailedError):  # the records come again
                        consumer.commit()
        finally:
            consumer.close()


class AioConsumer(GroupConsumer):
    ASSIGNORS: Final = {"range": AioRange, "roundrobin": AioRoundRobin, "sticky": AioSticky}

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[self.ASSIGNORS[self.assignor]],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                found = await consumer.getmany(timeout_ms=50)
                self.assigned = frozenset(each.partition for each in consumer.assignment())
                for records in found.values():
                    self.seen += [(each.partition, each.offset) for each in records]
                if found:
                    with suppress(aiokafka.errors.CommitFailedError):  # the records come again
                        await consumer.commit()
        finally:
            await consumer.stop()


GroupKind = Callable[..., GroupConsumer]
KINDS: Final = (
    (ConfluentConsumer, "range"),
    (ConfluentConsumer, "roundrobin"),
    (ConfluentConsumer, "cooperative-sticky"),
    (PythonConsumer, "range"),
    (PythonConsumer, "roundrobin"),
    (PythonConsumer, "sticky"),
    (PythonConsumer, "cooperative-sticky"),
    (AioConsumer, "range"),
    (AioConsumer, "roundrobin"),
    (AioConsumer, "sticky"),
)


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait on this thread, as long as clients on a loaded machine need."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


def share(consumers: list[GroupConsumer], partitions: int) -> bool:
    """Return whether *consumers* have all partitions among them, each one, and none twice."""
    owned = [partition for each in consumers for partition in each.assigned]
    return sorted(owned) == list(range(partitions)) and all(each.assigned for each in consumers)
