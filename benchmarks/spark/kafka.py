"""Kafka's connector for Spark, beside which ours is measured.

It is of the version of PySpark in use or, where Maven Central does not have that, of the newest one
before it that was seen to work. Brokers and connector keep their defaults, with these exceptions:
acks=all; topics with `flush.messages=1` where they are written, since what a log acknowledges is on
disk; and producers that gather up to 512 KiB for up to 5 ms, as our entries do.
"""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.peers.kafka import SYNCED
from benchmarks.spark.bench import Running

PARTITIONS: Final = 2
"""Of a topic: one for each core."""
_OLDER: Final = "4.2.0"
_ACKS: Final = {"acks": "all"}
_GATHERING: Final = {"batch.size": str(512 << 10), "linger.ms": "5"}
_BYTES: Final = "org.apache.kafka.common.serialization.ByteArraySerializer"


def connector() -> list[Path]:
    """Return the jars that PySpark lacks. Raises `PeerMissing`."""
    found: list[Path] = []
    for version in dict.fromkeys((pyspark.__version__, _OLDER)):
        try:
            found = fetched([f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"])
            break
        except PeerMissing:
            if version == _OLDER:
                raise
    return beside_spark(found)


def beside_spark(jars: Iterable[Path]) -> list[Path]:
    """Return those of *jars* that PySpark has not, in any version."""
    there = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    names = {_name(each) for each in there}
    return [each for each in jars if _name(each) not in names]


def topic_for(on: Running, kind: str, *, partitions: int = PARTITIONS, synced: bool = True) -> str:
    """Create a topic that nothing was in before."""
    topic = on.fresh(kind)
    _cluster(on).create(topic, partitions=partitions, config=SYNCED if synced else {})
    return topic


def options(on: Running, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": _cluster(on).servers, **more}


def reading(on: Running, topic: str, start: str = "earliest") -> dict[str, str]:
    return options(on, subscribe=topic, startingOffsets=start)


def writing(on: Running, topic: str) -> dict[str, str]:
    producing = {f"kafka.{name}": value for name, value in (_ACKS | _GATHERING).items()}
    return options(on, topic=topic, **producing)


def save(on: Running, rows: DataFrame, topic: str) -> None:
    rows.write.format("kafka").options(**writing(on, topic)).save()


def appending(on: Running, topic: str, per_s: int, at_once: int, stop: Event) -> None:
    """Send *at_once* records that say when they were made, and wait for them; again, at *per_s*."""
    jvm: Any = on.spark._jvm  # noqa: SLF001 - Spark has no other way to the producer
    properties = jvm.java.util.Properties()
    for name, value in (_ACKS | {"bootstrap.servers": _cluster(on).servers}).items():
        properties.put(name, value)
    for name in ("key.serializer", "value.serializer"):
        properties.put(name, _BYTES)
    clients = jvm.org.apache.kafka.clients.producer
    producer = clients.KafkaProducer(properties)
    due = time.perf_counter()
    while not stop.is_set():
        record = clients.ProducerRecord(topic, b"%d" % time.time_ns())
        for _ in range(at_once):
            producer.send(record)
        producer.flush()
        due += at_once / per_s
        time.sleep(max(0.0, due - time.perf_counter()))
    producer.close()


def _cluster(on: Running) -> Any:
    assert on.kafka is not None, "it is here"
    return on.kafka


def _name(jar: Path) -> str:
    return re.split(r"-\d", jar.name)[0]
