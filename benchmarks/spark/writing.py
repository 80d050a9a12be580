"""Writing logs: one job, and a stream of batches."""

from functools import partial
from typing import Final

from pyspark.sql import DataFrame

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
)
from benchmarks.spark.reading import fill

_AIM: Final = 0.5
_TASKS: Final = 2
"""One for each core."""
_NOT_SYNCED: Final = "Kafka, acknowledged from memory"


def sink(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        rows = _rows(on, value_bytes, count)
        ways: dict[str, Way] = {
            LIMIT: partial(timed, count, partial(_discard, rows)),
            OURS: partial(timed, count, partial(_save, on, rows)),
            PLAIN: partial(timed, count, partial(_write_plainly, on, value_bytes, count)),
        }
        if on.kafka is not None:
            less = count // bench.sizes.kafka_writes
            fewer = _rows(on, value_bytes, less)
            for name, synced in ((KAFKA, True), (_NOT_SYNCED, False)):
                topic = kafka.topic_for(on, "written", synced=synced)
                ways[name] = partial(timed, less, partial(kafka.save, on, fewer, topic))
        bench.compare(f"write by one job, {count:,} of {value_bytes} B", ways, aim=_AIM)


def sink_stream(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        ways: dict[str, Way] = {
            LIMIT: partial(_streamed, bench, on, value_bytes, count, "discard"),
            OURS: partial(_streamed, bench, on, value_bytes, count, "dlog"),
        }
        if on.kafka is not None:
            less = count // bench.sizes.kafka_writes
            ways[KAFKA] = partial(_streamed, bench, on, value_bytes, less, "kafka")
        bench.compare(f"write by a stream, {count:,} of {value_bytes} B", ways, aim=_AIM)


def _rows(on: Running, value_bytes: int, count: int) -> DataFrame:
    return made(on.spark.read, value_bytes, count, _TASKS).load().select("value")


def _discard(frame: DataFrame) -> None:
    frame.write.format("discard").mode("append").save()


def _save(on: Running, frame: DataFrame) -> None:
    target = on.fresh("written")
    frame.write.format("dlog").option("uri", on.uri).mode("append").save(target)


def _write_plainly(on: Running, value_bytes: int, count: int) -> None:
    fill(on.uri, on.fresh("written"), value_bytes, count)


def _streamed(
    bench: Bench, on: Running, value_bytes: int, count: int, target: str
) -> tuple[int, float]:
    memory = made(on.spark.readStream, value_bytes, count, _TASKS)
    frame = memory.option("rowsPerTrigger", bench.sizes.per_trigger).load().select("value")
    where: dict[str, str] = {}
    if target == "dlog":
        where = {"uri": on.uri, "path": on.fresh("streamed-into")}
    if target == "kafka":
        where = kafka.writing(on, kafka.topic_for(on, "streamed-into"))
    return streamed(on, frame, target, where)
