"""From an append until a micro-batch has the record, beside rows that a source makes in time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Final

from pyspark.sql import DataFrame

from benchmarks.figures import percentile
from benchmarks.spark import kafka
from benchmarks.spark.bench import Bench, Running
from dlog import Log

_AIM: Final = 1.2
_PATIENCE_S: Final = 60.0
_AT_ONCE: Final = 10
"""Records appended together: a hundred times a second at 1,000 records a second."""


def latency(bench: Bench, on: Running) -> None:
    per_s = bench.sizes.latency_per_s
    made = on.spark.readStream.format("memory-rows").option("rowsPerSecond", per_s).load()
    _seen(bench, on, made)  # what Spark loads in its first query counts for nothing
    found = {"made by a source without input and output": _seen(bench, on, made)}
    log = on.fresh("timely")
    with Log.open(log, uri=on.uri) as writer:
        writer.append(b"%d" % time.time_ns())
        with _meanwhile(lambda stop: _append(writer, per_s, stop)):
            stream = on.spark.readStream.format("dlog").option("uri", on.uri)
            appended = _seen(bench, on, stream.option("startingOffsets", "latest").load(log))
            beside = _seen(bench, on, made)
    found["the same, beside appends that nobody reads"] = beside
    found["appended to a log"] = appended
    if on.kafka is not None:
        topic = kafka.topic_for(on, "timely", partitions=1)
        with _meanwhile(lambda stop: kafka.appending(on, topic, per_s, _AT_ONCE, stop)):
            stream = on.spark.readStream.format("kafka")
            stream = stream.options(**kafka.reading(on, topic, "latest"))
            found["appended to Kafka, synced"] = _seen(bench, on, stream.load())
    for name, ages in found.items():
        for percent in (50, 99):
            value = percentile(ages, percent)
            bench.note(f"{name}, until seen, {per_s:,}/s, p{percent}", value * 1e3, "ms")
    for name in list(found)[:2]:
        against = percentile(appended, 50) / percentile(found[name], 50)
        bench.at_most(f"appended to a log, p50, against {name}", against, "times", _AIM)


@contextmanager
def _meanwhile(work: Callable[[Event], None]) -> Iterator[None]:
    stop = Event()
    thread = Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _append(log: Log, per_s: int, stop: Event) -> None:
    due = time.perf_counter()
    while not stop.is_set():
        log.append_many([b"%d" % time.time_ns()] * _AT_ONCE)
        due += _AT_ONCE / per_s
        time.sleep(max(0.0, due - time.perf_counter()))


def _seen(bench: Bench, on: Running, frame: DataFrame) -> list[float]:
    """Return how old each record is when `foreachBatch` has it; at least one, however slow it is.

    The query is stopped while no batch is looked at: Spark takes the error of a job that it
    interrupts in `foreachBatch` apart by a regular expression, whose stack overflows on long ones.
    """
    ages: list[float] = []
    began = time.perf_counter()
    at_work, done = Lock(), Event()

    def look(batch: DataFrame, _: int) -> None:
        with at_work:
            if done.is_set():
                return
            values = batch.select("value").toArrow().column(0).to_pylist()
            now = time.time_ns()
            if time.perf_counter() - began > bench.sizes.warm_s:
                ages.extend((now - int(value)) / 1e9 for value in values)

    query = (
        frame.writeStream.foreachBatch(look)
        .option("checkpointLocation", str(on.directory / on.fresh("checkpoint")))
        .start()
    )
    query.awaitTermination(bench.sizes.warm_s + bench.sizes.latency_s)
    while not ages and query.isActive and time.perf_counter() - began < _PATIENCE_S:
        query.awaitTermination(0.1)
    with at_work:
        done.set()
    query.stop()
    if not ages:
        raise TimeoutError(f"no batch came within {_PATIENCE_S:g} s: {query.exception()}")
    return ages
