"""What a query outlives: bookies that die while a task reads, workers that are killed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from dlog import Log
from dlog.local.cluster import LocalCluster
from tests.dlog.spark.processes import workers_below
from tests.dlog.spark.running import QUERY_TIMEOUT_S, batch, into_parquet, parquet, stream
from tests.dlog.spark.running import wait_until as until
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(360),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

RECORDS = 60_000
RECORD_BYTES = 1_000


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, loop: asyncio.AbstractEventLoop
) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path_factory.mktemp("cluster"))
    loop.run_until_complete(made.__aenter__())
    with Log.open("large", uri=made.uri) as writer:
        for first in range(0, RECORDS, 500):
            writer.append_many([b"%0*d" % (RECORD_BYTES, row) for row in range(first, first + 500)])
            if first == RECORDS // 2:
                writer.roll()
    yield made
    loop.run_until_complete(made.__aexit__(None, None, None))


def stopping(
    frame: DataFrame, directory: Path, *, patience_s: float = QUERY_TIMEOUT_S
) -> DataFrame:
    """Return the offsets of *frame*; each task stops after its first rows until it is let go."""

    def stop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, each in enumerate(batches):
            yield each
            if number == 0:
                (directory / f"began at {each['offset'][0].as_py()}").touch()
                wait_until((directory / "go on").exists, "let go", timeout_s=patience_s)

    return frame.select("offset").mapInArrow(stop, "offset bigint")


def test_a_bookie_that_dies_while_tasks_read_costs_no_task(
    spark: SparkSession,
    cluster: LocalCluster,
    loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
) -> None:
    # A task that fails here fails its job: the session tries none twice.
    frame = batch(spark, cluster.uri, "large", maxPartitions=2, minTaskRecords=1)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            lambda: (
                stopping(frame, tmp_path).selectExpr("count(*) AS n", "sum(offset) AS s").first()
            )
        )
        try:
            wait_until(
                lambda: len(list(tmp_path.glob("began at *"))) == 2 or reading.done(),
                "both tasks began",
                timeout_s=QUERY_TIMEOUT_S,
            )
            cluster.kill_bookie(0)
        finally:
            (tmp_path / "go on").touch()
        row = reading.result(QUERY_TIMEOUT_S)
    loop.run_until_complete(cluster.restart_bookie(0))
    assert row is not None
    assert (row.n, row.s) == (RECORDS, RECORDS * (RECORDS - 1) // 2)


def test_a_query_outlives_a_time_without_bookies(
    spark: SparkSession,
    cluster: LocalCluster,
    loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
) -> None:
    with Log.open("cut off", uri=cluster.uri) as writer:
        writer.append(b"before")
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1")
    try:
        query = into_parquet(stream(spark, cluster.uri, "cut off", pollMs=200), tmp_path).start()
    finally:
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")

    reports: set[str] = set()

    def has_asked(times: int) -> bool:
        reports.add(query.lastProgress["timestamp"])
        return len(reports) > times

    def has_read(count: int) -> bool:
        return query.lastProgress is not None and len(parquet(spark, tmp_path)) == count

    try:
        until(query, lambda: has_read(1))
        for index in range(3):
            cluster.kill_bookie(index)
        until(query, lambda: has_asked(5))
        for index in range(3):
            loop.run_until_complete(cluster.restart_bookie(index))
        with Log.open("cut off", uri=cluster.uri) as writer:
            writer.append(b"after")
        until(query, lambda: has_read(2))
    finally:
        query.stop()
    assert [bytes(row.value) for row in parquet(spark, tmp_path)] == [b"before", b"after"]


def test_workers_that_were_killed_are_no_trouble_for_the_next_job(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    frame = batch(spark, cluster.uri, "large", startingOffsets='{"large": 59000}')
    assert frame.count() == 1_000
    killed = workers_below(os.getpid())
    assert killed
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not set(killed) & set(workers_below(os.getpid())), "they ended")

    def is_read_again() -> bool:
        try:
            return bool(frame.count() == 1_000)
        except Py4JJavaError:  # Spark learns of a dead worker by giving it a task
            return False

    wait_until(is_read_again, "new workers read it", timeout_s=QUERY_TIMEOUT_S)


def test_a_batch_read_of_nothing_has_no_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    assert batch(spark, cluster.uri, "large", startingOffsets="latest").collect() == []
