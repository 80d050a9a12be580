"""Reading logs: as a table, and as a stream that ends where the log does."""

from collections.abc import Callable
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamReader

from benchmarks.spark import kafka
from benchmarks.spark.bench import (
    KAFKA,
    LIMIT,
    OURS,
    PLAIN,
    Bench,
    Running,
    Way,
    made,
    streamed,
    timed,
    to_nothing,
)
from dlog import Log
from dlog.spark.options import PARTITIONS_MAX, TASK_RECORDS_MIN

_AIM: Final = 0.6


def source(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        log, topic = _filled(on, value_bytes, count)
        memory = made(on.spark.read, value_bytes, count, _tasks(count))
        frames: dict[str, Callable[[], DataFrame]] = {
            LIMIT: memory.load,
            OURS: partial(on.spark.read.format("dlog").option("uri", on.uri).load, log),
        }
        if topic is not None:
            table = on.spark.read.format("kafka").options(**kafka.reading(on, topic))
            frames[KAFKA] = table.load
        ways: dict[str, Way] = {way: partial(_read, count, frame) for way, frame in frames.items()}
        ways[PLAIN] = partial(timed, count, partial(_read_plainly, on, log))
        bench.compare(f"table, {count:,} of {value_bytes} B", ways, aim=_AIM)


def stream(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        log, topic = _filled(on, value_bytes, count)
        memory = made(on.spark.readStream, value_bytes, count, _tasks(count))
        frames = {LIMIT: memory.load(), OURS: _logs(on).load(log)}
        if topic is not None:
            table = on.spark.readStream.format("kafka").options(**kafka.reading(on, topic))
            frames[KAFKA] = table.load()
        for target in ("noop", "parquet"):
            ways: dict[str, Way] = {
                way: partial(_streamed, on, frame, target) for way, frame in frames.items()
            }
            name = f"stream to {target}, {count:,} of {value_bytes} B"
            bench.compare(name, ways, aim=_AIM)


def _logs(on: Running) -> DataStreamReader:
    return on.spark.readStream.format("dlog").option("uri", on.uri)


def _read(count: int, frame: Callable[[], DataFrame]) -> tuple[int, float]:
    """Planning is part of it: that is where a source finds out where its rows end."""
    return timed(count, lambda: to_nothing(frame()))


def _read_plainly(on: Running, log: str) -> None:
    with Log.tail(log, uri=on.uri, follow=False) as reader:
        for _ in reader.read_batches():
            pass


def _tasks(count: int) -> int:
    """As many as the source would have."""
    return max(1, min(PARTITIONS_MAX, count // TASK_RECORDS_MIN))


def _streamed(on: Running, frame: DataFrame, target: str) -> tuple[int, float]:
    files = {"path": str(on.directory / on.fresh("parquet"))} if target == "parquet" else {}
    return streamed(on, frame, target, files)


def _filled(on: Running, value_bytes: int, count: int) -> tuple[str, str | None]:
    """Return a log and, if Kafka is here, a topic with the same values."""
    log = on.fresh("read")
    fill(on.uri, log, value_bytes, count)
    if on.kafka is None:
        return log, None
    topic = kafka.topic_for(on, "read", synced=False)
    kafka.save(on, made(on.spark.read, value_bytes, count).load().select("value"), topic)
    return log, topic


def fill(uri: str, name: str, value_bytes: int, count: int) -> None:
    at_once = max(1, 4_000_000 // value_bytes)
    with Log.open(name, uri=uri) as log:
        for first in range(0, count, at_once):
            log.append_many([bytes(value_bytes)] * min(at_once, count - first))
