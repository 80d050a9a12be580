"""Reading logs: as a table, and as a stream that ends where the log does."""

from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter

from benchmarks.spark.bench import Bench, Running, seconds_of, timed, to_nothing
from dlog import Log
from dlog.spark.options import PARTITIONS_MAX, TASK_RECORDS_MIN

_AIM: Final = 0.6


def source(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        log = on.fresh("read")
        _fill(on.uri, log, value_bytes, count)
        rounds = bench.sizes.rounds
        limit_s = timed(rounds, partial(to_nothing, _memory(on, value_bytes, count)))
        took_s = timed(rounds, partial(_read, on, log))
        name = f"{count:,} records of {value_bytes} B"
        bench.note(f"limit: {name} from memory", count / limit_s / 1e3, "k rows/s")
        bench.rate(f"read as a table: {name}", count, took_s, limit_s, aim=_AIM)


def stream(bench: Bench, on: Running) -> None:
    for value_bytes, count in bench.sizes.records:
        log = on.fresh("streamed")
        _fill(on.uri, log, value_bytes, count)
        memory = on.spark.readStream.format("memory-rows").option("rows", count)
        memory = memory.option("valueBytes", value_bytes).option("partitions", _tasks(count))
        name = f"{count:,} records of {value_bytes} B"
        for target in ("noop", "parquet"):
            limit_s = _streamed(on, memory.load(), target)
            took_s = _streamed(on, _logs(on).load(log), target)
            bench.note(f"limit: {name}, memory to {target}", count / limit_s / 1e3, "k rows/s")
            bench.rate(f"stream to {target}: {name}", count, took_s, limit_s, aim=_AIM)


def _logs(on: Running) -> DataStreamReader:
    return on.spark.readStream.format("dlog").option("uri", on.uri)


def _read(on: Running, log: str) -> None:
    to_nothing(on.spark.read.format("dlog").option("uri", on.uri).load(log))


def _memory(on: Running, value_bytes: int, count: int) -> DataFrame:
    memory = on.spark.read.format("memory-rows").option("rows", count)
    return memory.option("valueBytes", value_bytes).option("partitions", _tasks(count)).load()


def _tasks(count: int) -> int:
    """As many as the source would have."""
    return max(1, min(PARTITIONS_MAX, count // TASK_RECORDS_MIN))


def _streamed(on: Running, frame: DataFrame, target: str) -> float:
    """Return the seconds of the batches of the second of two runs."""
    seconds = 0.0
    for _ in range(2):
        writer: DataStreamWriter = frame.writeStream.format(target)
        writer = writer.option("checkpointLocation", str(on.directory / on.fresh("checkpoint")))
        if target == "parquet":
            writer = writer.option("path", str(on.directory / on.fresh("parquet")))
        _, seconds = seconds_of(writer.trigger(availableNow=True).start())
    return seconds


def _fill(uri: str, name: str, value_bytes: int, count: int) -> None:
    at_once = max(1, 4_000_000 // value_bytes)
    with Log.open(name, uri=uri) as log:
        for first in range(0, count, at_once):
            log.append_many([bytes(value_bytes)] * min(at_once, count - first))
