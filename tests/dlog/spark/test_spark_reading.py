"""What a user of the source can ask for, on a real Spark and a real cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from dlog import Log
from dlog.admin import (
    consumer_info,
    delete_log,
    rename_log,
    truncate_log,
)
from tests.dlog.spark.running import (
    batch,
    into_parquet,
    parquet,
    run_to_the_end,
    stream,
    wait_until,
)

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(360)]


def append(uri: str, log: str, count: int, *, first: int = 0) -> None:
    """Append records with the numbers from *first* on as value, txid and second of 1970."""
    rows = range(first, first + count)
    with Log.open(log, uri=uri) as writer:
        writer.append_many(
            [b"%d" % row for row in rows],
            txids=list(rows),
            timestamps_ms=[1000 * row for row in rows],
        )


def txids(frame: DataFrame) -> list[int]:
    return sorted(row.txid for row in frame.select("txid").collect())


def test_a_batch_read_lies_between_two_ends(spark: SparkSession, uri: str) -> None:
    append(uri, "ends/a", 10)
    append(uri, "ends/b", 20)
    logs: dict[str, object] = {"logs": "ends/a,ends/b"}

    def count(**options: object) -> int:
        return int(batch(spark, uri, **logs, **options).count())

    assert count(startingTimestamp="1970-01-01T00:00:05Z", endingTimestamp="7000") == 4
    assert count(startingTxid=json.dumps({"ends/a": 8}), endingTxid=15) == 2 + 15
    assert count(startingOffsets='{"ends/b": "latest"}') == 10
    assert count(startingTimestamp=999_000) == 0


def test_filters_that_are_pushed_down_leave_fewer_tasks_and_the_same_rows(
    spark: SparkSession, uri: str
) -> None:
    append(uri, "pushed", 20)
    append(uri, "pushed too", 20)
    options: dict[str, object] = {"logs": "pushed,pushed too", "minTaskRecords": 5}
    plain = batch(spark, uri, **options)
    assert plain.rdd.getNumPartitions() == 8
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = batch(spark, uri, **options, pushdown=True, timestampsAscend=True)
        for condition, tasks in (
            ("log = 'pushed'", 4),
            ("offset = 7", 1),
            ("offset >= 10 AND offset < 15 AND log LIKE 'pushed%'", 2),
            ("timestamp >= timestamp_millis(15000)", 2),
            ("timestamp < timestamp_millis(5000)", 8),
            ("txid = 3 OR offset = 4", 8),
            ("log = 'another'", 1),
        ):
            found = pushing.where(condition)
            assert found.rdd.getNumPartitions() == tasks, condition
            assert txids(found) == txids(plain.where(condition)), condition
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(AnalysisException, match="PUSHDOWN_DISABLED"):
        batch(spark, uri, **options, pushdown=True).count()


def test_a_filter_on_timestamps_that_are_out_of_order_misses_no_row(
    spark: SparkSession, uri: str
) -> None:
    with Log.open("unordered", uri=uri) as writer:
        for second in (9, 2, 8, 1, 7):
            writer.append(b"%d" % second, timestamp_ms=1000 * second)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = batch(spark, uri, "unordered", pushdown=True)
        for moment, count in ((9, 1), (8, 2), (2, 4)):
            found = pushing.where(f"timestamp >= timestamp_seconds({moment})")
            assert found.count() == count
        assert pushing.where("timestamp = timestamp_seconds(1)").count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_of_the_catalog_is_read_by_sql_and_by_a_stream(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "sold", 20)
    spark.sql(f"CREATE TABLE sold USING dlog OPTIONS (uri '{uri}', logs 'sold', endingTxid '15')")
    try:
        count = "SELECT log, count(*) AS n FROM sold WHERE offset >= 5 GROUP BY log"
        assert [(row.log, row.n) for row in spark.sql(count).collect()] == [("sold", 10)]
        again = spark.sql("SELECT count(*) AS n FROM sold WITH (endingTxid '12')")
        assert again.collect()[0].n == 12
        with pytest.raises(StreamingQueryException, match="a stream has no end"):
            run_to_the_end(spark.readStream.table("sold"), tmp_path)
    finally:
        spark.sql("DROP TABLE sold")
    options = f"OPTIONS (uri '{uri}', includeHeaders 'true')"
    spark.sql(f"CREATE TABLE sold USING dlog {options} LOCATION 'sold'")
    try:
        assert spark.table("sold").columns[-1] == "headers"
        run_to_the_end(spark.readStream.table("sold"), tmp_path)
        assert [row.txid for row in parquet(spark, tmp_path)] == list(range(20))
    finally:
        spark.sql("DROP TABLE sold")


def test_a_temporary_view_is_read_by_sql(spark: SparkSession, uri: str) -> None:
    append(uri, "viewed", 20)
    spark.sql(
        "CREATE TEMPORARY VIEW viewed USING dlog "
        f"""OPTIONS (uri '{uri}', logs 'viewed', startingOffsets '{{"viewed": 5}}')"""
    )
    assert spark.sql("SELECT min(offset) AS n FROM viewed").collect()[0].n == 5
    batch(spark, uri, "viewed").createOrReplaceTempView("whole")
    assert spark.sql("SELECT max(txid) AS n FROM whole").collect()[0].n == 19


def test_a_table_with_an_unknown_option_is_not_made(spark: SparkSession, uri: str) -> None:
    with pytest.raises(AnalysisException, match="called logs here"):
        spark.sql(f"CREATE TABLE wrong USING dlog OPTIONS (uri '{uri}', subscribe 'a')")


def test_logs_that_match_are_found_while_the_query_runs(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "found/1", 10)
    append(uri, "not found/1", 10)
    frame = stream(spark, uri, logsPattern="found/.*", startingOffsets="latest")
    query = into_parquet(frame, tmp_path).start()
    try:
        wait_until(query, lambda: query.lastProgress is not None)
        append(uri, "found/1", 5, first=10)
        append(uri, "found/2", 5)
        wait_until(query, lambda: rows_of(query) == 10)
    finally:
        query.stop()
    append(uri, "found/3", 5)
    run_to_the_end(frame, tmp_path)
    rows = [(row.log, row.txid) for row in parquet(spark, tmp_path)]
    assert rows == [
        *(("found/1", row) for row in range(10, 15)),
        *((log, row) for log in ("found/2", "found/3") for row in range(5)),
    ]


def rows_of(query: Any) -> int:
    return sum(each["numInputRows"] for each in query.recentProgress)


def lags(progress: Any) -> dict[str, int]:
    """Return how many records of each log are still to be read, from a query's progress."""
    source = progress["sources"][0]
    latest, end = (source[name] for name in ("latestOffset", "endOffset"))
    latest, end = (json.loads(each) if isinstance(each, str) else each for each in (latest, end))
    return {log: latest["logs"][log][1] - offset for log, (_, offset) in end["logs"].items()}


def test_progress_says_the_lag_of_each_log(spark: SparkSession, uri: str, tmp_path: Path) -> None:
    append(uri, "lag/a", 10)
    append(uri, "lag/b", 30)
    frame = stream(spark, uri, logs="lag/a,lag/b", maxRecordsPerTrigger=10)
    query = run_to_the_end(frame, tmp_path)
    reports = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in reports] == [10, 10, 10, 10]
    assert [lags(each) for each in reports] == [
        {"lag/a": 5, "lag/b": 25},
        {"lag/a": 0, "lag/b": 20},
        {"lag/a": 0, "lag/b": 10},
        {"lag/a": 0, "lag/b": 0},
    ]


def test_a_consumer_shows_how_far_the_query_is(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "shown", 30)
    frame = stream(spark, uri, "shown", maxRecordsPerTrigger=10, consumer="etl")
    run_to_the_end(frame, tmp_path)
    assert consumer_info("etl", "shown", uri=uri).lag == 0
    append(uri, "shown", 5, first=30)
    assert consumer_info("etl", "shown", uri=uri).lag == 5


def test_a_query_that_accepts_losses_survives_truncation_deletion_and_another_log(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "lossy", 10)
    strict = stream(spark, uri, "lossy")
    lossy = stream(spark, uri, "lossy", failOnDataLoss=False)
    run_to_the_end(strict, tmp_path)
    append(uri, "lossy", 20, first=10)
    truncate_log("lossy", before=25, uri=uri)
    with pytest.raises(StreamingQueryException, match="15 records are lost"):
        run_to_the_end(strict, tmp_path)
    run_to_the_end(lossy, tmp_path)
    delete_log("lossy", uri=uri)
    with pytest.raises(StreamingQueryException, match="was deleted"):
        run_to_the_end(strict, tmp_path)
    run_to_the_end(lossy, tmp_path)
    append(uri, "lossy", 3, first=100)
    run_to_the_end(lossy, tmp_path)
    expected = [*range(10), *range(25, 30), *range(100, 103)]
    assert sorted(row.txid for row in parquet(spark, tmp_path)) == expected


def test_a_query_goes_on_with_its_log_under_another_name(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "old name", 10)
    frame = stream(spark, uri, "old name")
    query = into_parquet(frame, tmp_path).start()
    try:
        wait_until(query, lambda: rows_of(query) == 10)
        rename_log("old name", "new name", uri=uri)
        append(uri, "new name", 10, first=10)
        wait_until(query, lambda: rows_of(query) == 20)
    finally:
        query.stop()
    append(uri, "new name", 10, first=20)
    run_to_the_end(frame, tmp_path)
    rows = parquet(spark, tmp_path)
    assert [row.txid for row in rows] == list(range(30))
    assert {row.log for row in rows} == {"old name"}


def test_a_query_reads_the_log_that_took_the_name_of_a_renamed_one_too(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "rotating", 10)
    frame = stream(spark, uri, "rotating")
    run_to_the_end(frame, tmp_path)
    rename_log("rotating", "rotating.1", uri=uri)
    append(uri, "rotating", 5, first=100)
    run_to_the_end(frame, tmp_path)
    append(uri, "rotating", 5, first=105)
    append(uri, "rotating.1", 2, first=10)
    run_to_the_end(frame, tmp_path)
    rows = parquet(spark, tmp_path)
    assert sorted(row.txid for row in rows) == [*range(12), *range(100, 110)]
    assert {row.log for row in rows} == {"rotating"}


def test_a_batch_waits_for_enough_records_or_for_its_delay(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "held", 10)
    options: dict[str, object] = {"minRecordsPerTrigger": 20, "maxTriggerDelay": "1h"}
    query = into_parquet(stream(spark, uri, "held", **options), tmp_path).start()
    try:
        wait_until(query, lambda: "Getting offsets" in query.status["message"])
        append(uri, "held", 10, first=10)
        wait_until(query, lambda: rows_of(query) > 0)
        assert rows_of(query) == 20
    finally:
        query.stop()
    append(uri, "held", 5, first=20)
    options["maxTriggerDelay"] = "1s"
    query = into_parquet(stream(spark, uri, "held", **options), tmp_path).start()
    try:
        wait_until(query, lambda: rows_of(query) == 5)
    finally:
        query.stop()
