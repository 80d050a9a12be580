"""Writing logs: one job, and a stream of batches."""

from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from benchmarks.spark.bench import Bench, Running, seconds_of, timed

_AIM: Final = 0.5
_TASKS: Final = 2
"""One for each core."""


def sink(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        rows = _rows(on, value_bytes, count)
        limit_s = timed(bench.sizes.rounds, partial(_discard, rows))
        took_s = timed(bench.sizes.rounds, partial(_save, on, rows))
        name = f"{count:,} rows of {value_bytes} B"
        bench.note(f"limit: {name} into nothing", count / limit_s / 1e3, "k rows/s")
        bench.rate(f"write by one job: {name}", count, took_s, limit_s, aim=_AIM)


def sink_stream(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        name = f"{count:,} rows of {value_bytes} B"
        limit_s = _streamed(bench, on, value_bytes, count, "discard")
        took_s = _streamed(bench, on, value_bytes, count, "dlog")
        bench.note(f"limit: {name}, stream into nothing", count / limit_s / 1e3, "k rows/s")
        bench.rate(f"write by a stream: {name}", count, took_s, limit_s, aim=_AIM)


def _rows(on: Running, value_bytes: int, count: int) -> DataFrame:
    memory = on.spark.read.format("memory-rows").option("rows", count)
    memory = memory.option("valueBytes", value_bytes).option("partitions", _TASKS)
    return memory.load().select("value")


def _discard(frame: DataFrame) -> None:
    frame.write.format("discard").mode("append").save()


def _save(on: Running, frame: DataFrame) -> None:
    target = on.fresh("written")
    frame.write.format("dlog").option("uri", on.uri).mode("append").save(target)


def _streamed(bench: Bench, on: Running, value_bytes: int, count: int, target: str) -> float:
    """Return the seconds of the batches of the second of two runs."""
    memory = on.spark.readStream.format("memory-rows").option("rows", count)
    memory = memory.option("valueBytes", value_bytes).option("partitions", _TASKS)
    frame = memory.option("rowsPerTrigger", bench.sizes.per_trigger).load().select("value")
    seconds = 0.0
    for _ in range(2):
        writer: DataStreamWriter = frame.writeStream.format(target)
        writer = writer.option("checkpointLocation", str(on.directory / on.fresh("checkpoint")))
        if target == "dlog":
            writer = writer.option("uri", on.uri).option("path", on.fresh("streamed-into"))
        _, seconds = seconds_of(writer.trigger(availableNow=True).start())
    return seconds
