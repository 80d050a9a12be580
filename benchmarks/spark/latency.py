"""From an append until a micro-batch has the record, beside rows that a source makes in time."""

import time
from threading import Event, Thread
from typing import Final

from pyspark.sql import DataFrame

from benchmarks.figures import percentile
from benchmarks.spark.bench import Bench, Running
from dlog import Log

_AIM: Final = 1.2
_WARM_S: Final = 5.0
_AT_ONCE: Final = 10
"""Records appended together: a hundred times a second at 1,000 records a second."""


def latency(bench: Bench, on: Running) -> None:
    per_s = bench.sizes.latency_per_s
    made = on.spark.readStream.format("memory-rows").option("rowsPerSecond", per_s).load()
    floor = _seen(bench, on, made)
    log = on.fresh("timely")
    stop = Event()
    with Log.open(log, uri=on.uri) as writer:
        writer.append(b"%d" % time.time_ns())
        appending = Thread(target=_append, args=(writer, per_s, stop))
        appending.start()
        try:
            stream = on.spark.readStream.format("dlog").option("uri", on.uri)
            found = _seen(bench, on, stream.option("startingOffsets", "latest").load(log))
        finally:
            stop.set()
            appending.join()
    for percent in (50, 99):
        value, limit = percentile(found, percent), percentile(floor, percent)
        bench.note(f"floor: made until seen at {per_s:,}/s, p{percent}", limit * 1e3, "ms")
        bench.note(f"appended until seen at {per_s:,}/s, p{percent}", value * 1e3, "ms")
        if percent == 50:
            bench.at_most("the same against the floor, p50", value / limit, "times", _AIM)


def _append(log: Log, per_s: int, stop: Event) -> None:
    due = time.perf_counter()
    while not stop.is_set():
        log.append_many([b"%d" % time.time_ns()] * _AT_ONCE)
        due += _AT_ONCE / per_s
        time.sleep(max(0.0, due - time.perf_counter()))


def _seen(bench: Bench, on: Running, frame: DataFrame) -> list[float]:
    """Return how old each record is when `foreachBatch` has it."""
    ages: list[float] = []
    began = time.perf_counter()

    def look(batch: DataFrame, _: int) -> None:
        values = batch.select("value").toArrow().column(0).to_pylist()
        now = time.time_ns()
        if time.perf_counter() - began > _WARM_S:
            ages.extend((now - int(value)) / 1e9 for value in values)

    query = (
        frame.writeStream.foreachBatch(look)
        .option("checkpointLocation", str(on.directory / on.fresh("checkpoint")))
        .start()
    )
    query.awaitTermination(_WARM_S + bench.sizes.latency_s)
    query.stop()
    return ages
