"""Pipelines that people build on logs give what a plain computation over their records does."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.peers.jars import PeerMissing, fetched
from benchmarks.spark.kafka import beside_spark
from dlog import Log
from dlog.aio.admin import truncate_log
from dlog.local.zookeeper import dying_with_parent
from tests.dlog.spark.running import stream
from tests.dlog.spark.sessions import ROOT, environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

BEGIN_MS: Final = 1_777_636_800_000
END_MS: Final = BEGIN_MS + 3_600_000
"""So late that each watermark passes all else."""
ENDS_S: Final = 300
"""Of a query of some batches, on a machine that is busy."""
Row = tuple[Any, ...]


def fill(uri: str, log: str, rows: list[tuple[str, int, str]]) -> None:
    """Append (key, milliseconds after the beginning, value), an entry for every seven of them."""
    with Log.open(log, uri=uri) as writer:
        for first in range(0, len(rows), 7):
            appends = [
                writer.append_async(value.encode(), key=key.encode(), timestamp_ms=BEGIN_MS + ms)
                for key, ms, value in rows[first : first + 7]
            ]
            for each in appends:
                each.result()


def texts(frame: DataFrame, *more: str) -> DataFrame:
    return frame.select(
        *more,
        fn.col("key").cast("string").alias("key"),
        "timestamp",
        fn.col("value").cast("string").alias("value"),
    )


def run(frame: DataFrame, directory: Path, *, mode: str = "append") -> None:
    """Run a query into Parquet until it has read all there is."""
    query = (
        frame.writeStream.format("parquet")
        .outputMode(mode)
        .option("path", str(directory / "rows"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(ENDS_S), query.status


def result(spark: SparkSession, directory: Path) -> Counter[Row]:
    rows = spark.read.parquet(str(directory / "rows")).collect()
    return Counter(tuple(row) for row in rows)


def ms_of(column: str) -> Any:
    return fn.unix_millis(column) - BEGIN_MS


def test_two_logs_are_joined_within_a_time_and_rows_without_a_match_come_once_it_is_over(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    views = [(f"user {row % 5}", row * 1000, f"view {row}") for row in range(60)]
    clicks = [(f"user {row % 3}", row * 3000 + 400, f"click {row}") for row in range(20)]
    # The last ones move both watermarks on, over a batch of their own.
    fill(uri, "views", [*views, *[("nobody", END_MS - BEGIN_MS + row, "") for row in range(40)]])
    fill(uri, "clicks", [*clicks, *[("none", END_MS - BEGIN_MS + row, "") for row in range(20)]])
    left = texts(stream(spark, uri, "views", maxRecordsPerTrigger=20, pollMs=50))
    right = texts(stream(spark, uri, "clicks", maxRecordsPerTrigger=20, pollMs=50))
    joined = (
        left.withWatermark("timestamp", "1 second")
        .alias("v")
        .join(
            right.withWatermark("timestamp", "1 second").alias("c"),
            fn.expr(
                "v.key = c.key AND c.timestamp >= v.timestamp "
                "AND c.timestamp <= v.timestamp + INTERVAL 2 SECONDS"
            ),
            "leftOuter",
        )
        .select(fn.col("v.value").alias("view"), fn.col("c.value").alias("click"))
    )
    run(joined, tmp_path)
    expected: Counter[Row] = Counter()
    for key, at, view in views:
        found = [click for other, when, click in clicks if other == key and at <= when <= at + 2000]
        expected.update((view, click) for click in found or (None,))
    assert {row for row in expected if row[1] is None}
    assert result(spark, tmp_path) == expected


def test_duplicates_are_dropped_also_those_that_come_after_a_restart(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    rows = [(f"order {row % 40}", row, f"{row}") for row in range(100)]
    later = [(f"order {row % 60}", row, f"{row}") for row in range(100, 200)]
    frame = texts(stream(spark, uri, "orders twice", maxRecordsPerTrigger=30)).dropDuplicates(
        ["key"]
    )
    fill(uri, "orders twice", rows)
    run(frame.select("key"), tmp_path)
    assert result(spark, tmp_path) == Counter((key,) for key in {key for key, _, _ in rows})
    fill(uri, "orders twice", later)
    run(frame.select("key"), tmp_path)
    everything = {key for key, _, _ in rows + later}
    assert result(spark, tmp_path) == Counter((key,) for key in everything)


def test_windows_are_counted_with_records_of_several_batches(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    # Each record is up to two seconds behind one before it.
    rows = [(f"sensor {row % 3}", row * 250 - row * 7919 % 2000 + 2000, "1") for row in range(400)]
    fill(uri, "sensors", rows)
    fill(uri, "sensors", [("", END_MS - BEGIN_MS + row, "") for row in range(100)])
    counted = (
        texts(stream(spark, uri, "sensors", maxRecordsPerTrigger=90))
        .withWatermark("timestamp", "3 seconds")
        .groupBy(fn.window("timestamp", "10 seconds"), "key")
        .count()
        .select(ms_of("window.start"), "key", "count")
    )
    run(counted, tmp_path)
    windows = Counter((at // 10_000 * 10_000, key) for key, at, _ in rows)
    assert result(spark, tmp_path) == Counter((*window, count) for window, count in windows.items())


AVAILABLE_NOW = """
import sys
from pathlib import Path
from tests.dlog.spark.sessions import session

uri, directory = sys.argv[1:]
spark = session("local[2]", Path(directory) / "scratch")
query = (
    spark.readStream.format("dlog").option("uri", uri).option("maxRecordsPerTrigger", 50)
    .load("endless").select("value").writeStream.format("dlog").option("uri", uri)
    .option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True)
    .start("copied")
)
query.awaitTermination()
"""


def values(uri: str, log: str) -> list[bytes]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return [record.value for record in reader]


@pytest.mark.long("chaos-spark")
def test_a_killed_application_is_followed_by_one_that_ends_where_the_log_ends_now(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    fill(uri, "endless", [("", row, f"{row}") for row in range(3000)])
    fill(uri, "copied", [])
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            dying_with_parent(
                [sys.executable, "-c", AVAILABLE_NOW, uri, str(tmp_path)], os.getpid()
            ),
            cwd=ROOT,
            env={**os.environ, **environment()},
            stdout=said,
            stderr=said,
        )
    try:
        wait_until(
            lambda: len(values(uri, "copied")) >= 100 or process.poll() is not None,
            "two batches are written",
            timeout_s=ENDS_S,
        )
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    copied = len(values(uri, "copied"))
    assert 100 <= copied < 3000, (tmp_path / "said").read_text()
    fill(uri, "endless", [("", row, f"{row}") for row in range(3000, 3100)])
    query = (
        stream(spark, uri, "endless", maxRecordsPerTrigger=400)
        .select("value")
        .writeStream.format("dlog")
        .option("uri", uri)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("copied")
    )
    assert query.awaitTermination(ENDS_S), query.status
    assert values(uri, "copied") == [b"%d" % row for row in range(3100)]
    again, *rest = [each["numInputRows"] for each in query.recentProgress]
    assert again in {50, 400}, "a batch that was planned is what it was planned as"
    assert max(rest) == 400


class Refused(Exception):
    pass


def into(rows: list[int], *, refuse: int | None = None) -> Callable[[DataFrame, int], None]:
    def take(frame: DataFrame, number: int) -> None:
        if number == refuse:
            raise Refused
        rows.extend(int(row.value) for row in frame.select("value").collect())

    return take


def collected(
    frame: DataFrame, directory: Path, rows: list[int], refuse: int | None = None
) -> None:
    query = (
        frame.writeStream.foreachBatch(into(rows, refuse=refuse))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(ENDS_S), query.status


def test_a_log_is_truncated_below_a_batch_that_was_planned_and_not_written(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    with Log.open("cut", uri=uri) as writer:
        for row in range(100):
            writer.append(b"%d" % row)
            if row % 10 == 9:
                writer.roll()
    rows: list[int] = []
    frame = stream(spark, uri, "cut", maxRecordsPerTrigger=40)
    with pytest.raises(StreamingQueryException, match="Refused"):
        collected(frame, tmp_path, rows, refuse=1)
    assert sorted(rows) == list(range(40))
    asyncio.run(truncate_log("cut", before=60, uri=uri))
    with pytest.raises(StreamingQueryException, match="RecordsTrimmed"):
        collected(frame, tmp_path, rows)
    assert sorted(rows) == list(range(40))
    tolerant = stream(spark, uri, "cut", maxRecordsPerTrigger=40, failOnDataLoss=False)
    collected(tolerant, tmp_path, rows)
    assert sorted(rows) == [*range(40), *range(60, 100)]


def test_options_may_change_at_a_restart(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    for log, first in (("eu/a", 0), ("eu/b", 1000), ("us/a", 2000)):
        fill(uri, log, [("", row, f"{row}") for row in range(first, first + 50)])
    rows: list[int] = []
    collected(stream(spark, uri, "eu/a", maxRecordsPerTrigger=20), tmp_path, rows)
    assert sorted(rows) == list(range(50))
    fill(uri, "eu/a", [("", row, f"{row}") for row in range(50, 80)])
    # A log more, more tasks, no limit; what says where a new query begins counts no more.
    more = stream(
        spark, uri, logs="eu/a,eu/b", minPartitions=4, minTaskRecords=1, startingOffsets="latest"
    )
    collected(more, tmp_path, rows)
    assert sorted(rows) == [*range(80), *range(1000, 1050)]
    fill(uri, "eu/b", [("", row, f"{row}") for row in range(1050, 1060)])
    # By pattern, and other columns.
    pattern = stream(
        spark, uri, logsPattern="(eu|us)/.*", maxRecordsPerTrigger=25, columns="value,offset"
    )
    collected(pattern, tmp_path, rows)
    assert sorted(rows) == [*range(80), *range(1000, 1060), *range(2000, 2050)]


def changes(first: int, count: int) -> list[tuple[str, int, str]]:
    return [(f"account {row % 17}", row, f"{row}") for row in range(first, first + count)]


def latest(rows: list[tuple[str, int, str]]) -> dict[str, str]:
    return {key: value for key, _, value in rows}


def test_each_batch_is_merged_into_a_table_of_a_database(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "accounts", check_same_thread=False)) as table:
        table.execute("CREATE TABLE accounts (key TEXT PRIMARY KEY, place INTEGER, value TEXT)")
        broken = [True]

        def merge(frame: DataFrame, number: int) -> None:
            rows = [tuple(row) for row in texts(frame, "offset").collect()]
            with table:
                table.executemany(
                    "INSERT INTO accounts VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE "
                    "SET place = excluded.place, value = excluded.value "
                    "WHERE excluded.place > accounts.place",
                    [(key, place, value) for place, key, _, value in rows],
                )
            if number == 1 and broken:
                broken.clear()
                raise Refused  # the batch is merged, and comes again

        def run_merge() -> None:
            query = (
                stream(spark, uri, "accounts", maxRecordsPerTrigger=30)
                .writeStream.foreachBatch(merge)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(ENDS_S), query.status

        fill(uri, "accounts", changes(0, 100))
        with pytest.raises(StreamingQueryException, match="Refused"):
            run_merge()
        fill(uri, "accounts", changes(100, 41))
        run_merge()
        merged = dict(table.execute("SELECT key, value FROM accounts").fetchall())
    assert merged == latest(changes(0, 141))


MERGE: Final = """
import json
import sys
from pathlib import Path
from tests.dlog.spark.sessions import session

uri, directory = sys.argv[1:]
spark = session("local[2]", Path(directory) / "scratch", {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
})
table = f"delta.`{directory}/table`"
spark.sql(f"CREATE TABLE {table} (key STRING, offset BIGINT, value STRING) USING delta")
broken = [True]


def merge(frame, number):
    rows = frame.selectExpr("CAST(key AS STRING) key", "offset", "CAST(value AS STRING) value")
    rows.createOrReplaceTempView("changes")
    frame.sparkSession.sql(
        f"MERGE INTO {table} t USING ("
        "SELECT key, max(offset) AS offset, max_by(value, offset) AS value "
        "FROM changes GROUP BY key) c ON t.key = c.key "
        "WHEN MATCHED AND c.offset > t.offset THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    if number == 1 and broken:
        broken.clear()
        raise RuntimeError("the batch is merged, and comes again")


def run():
    query = (
        spark.readStream.format("dlog").option("uri", uri).option("maxRecordsPerTrigger", 30)
        .load("merged").writeStream.foreachBatch(merge)
        .option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


try:
    run()
except Exception as error:
    assert "comes again" in str(error), error
run()
print("table", json.dumps({row.key: row.value for row in spark.table(table).collect()}))
"""


def test_each_batch_is_merged_into_a_table_of_delta(uri: str, tmp_path: Path) -> None:
    series = ".".join(pyspark.__version__.split(".")[:2])
    try:
        jars = beside_spark(fetched([f"io.delta:delta-spark_{series}_2.13:[4.4,)"]))
    except PeerMissing as error:
        pytest.skip(f"no Delta Lake for Spark {series}: {error}")
    fill(uri, "merged", changes(0, 141))
    path = ":".join(map(str, jars))
    done = subprocess.run(
        [sys.executable, "-c", MERGE, uri, str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            **environment(),
            "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {path} pyspark-shell",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.partition("table ")[2]) == latest(changes(0, 141))
