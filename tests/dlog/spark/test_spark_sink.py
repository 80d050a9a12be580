"""Spark writes logs: batches and streams, exactly once, over restarts; who else writes them."""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import dlog.spark
from dlog import Log
from dlog.aio.admin import log_info, seal_log
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.position import Record
from tests.dlog.spark.feeding import Feed
from tests.dlog.spark.running import QUERY_TIMEOUT_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]


def records(uri: str, log: str) -> list[Record]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return list(reader)


def values(uri: str, log: str) -> list[bytes]:
    return [record.value for record in records(uri, log)]


def manifest(uri: str, log: str) -> Manifest:
    return asyncio.run(log_info(log, uri=uri)).manifest


def numbers(spark: SparkSession, begin: int, end: int, *, partitions: int = 2) -> DataFrame:
    return spark.range(begin, end, 1, partitions).selectExpr("CAST(id AS STRING) AS value")


def save(frame: DataFrame, uri: str, log: str | None, mode: str = "append", **options: Any) -> None:
    writer = frame.write.format("dlog").option("uri", uri).mode(mode)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    if log is None:
        writer.save()
    else:
        writer.save(log)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path)


def test_a_batch_write_appends_the_rows_of_each_partition_in_order(
    spark: SparkSession, uri: str
) -> None:
    save(numbers(spark, 0, 1000), uri, "orders")
    save(numbers(spark, 1000, 1010), uri, "orders")
    assert values(uri, "orders") == [b"%d" % row for row in range(1010)]


def test_all_columns_become_what_a_record_has(spark: SparkSession, uri: str) -> None:
    frame = spark.range(0, 3, 1, 1).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "IF(id = 1, NULL, CONCAT('k', id)) AS key",
        "TIMESTAMP_MILLIS(1700000000000 + id) AS timestamp",
        "id * 10 AS txid",
        "IF(id = 2, ARRAY(STRUCT('trace' AS key, X'FF' AS value), STRUCT('n' AS key, NULL AS "
        "value), STRUCT('trace' AS key, X'' AS value)), NULL) AS headers",
    )
    save(frame, uri, "columns")
    found = records(uri, "columns")
    assert [record.value for record in found] == [b"0", b"1", b"2"]
    assert [record.key for record in found] == [b"k0", None, b"k2"]
    assert [record.timestamp_ms - 1_700_000_000_000 for record in found] == [0, 1, 2]
    assert [record.txid for record in found] == [0, 10, 20]
    headers = (("trace", b"\xff"), ("n", None), ("trace", b""))
    assert [record.headers.pairs() for record in found] == [(), (), headers]


def test_many_rows_are_staged_by_the_tasks_and_few_travel(spark: SparkSession, uri: str) -> None:
    frame = spark.range(0, 40_000, 1, 2).selectExpr("LPAD(id, 100, '0') AS value")
    save(frame, uri, "large")
    assert values(uri, "large") == [b"%0100d" % row for row in range(40_000)]
    adopted = [
        segment.sealed.records for segment in manifest(uri, "large").segments if segment.sealed
    ]
    assert sorted(adopted)[-2:] == [20_000, 20_000]
    save(numbers(spark, 0, 10), uri, "large", inlineBytesMax=0)
    assert len(values(uri, "large")) == 40_010


def test_a_thread_that_registers_the_format_can_write(spark: SparkSession, uri: str) -> None:
    rows = numbers(spark, 0, 10)

    def write() -> None:
        # Spark has no active session in the thread of the JVM that it keeps for this one.
        dlog.spark.register(spark)
        save(rows, uri, "of a thread")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert len(values(uri, "of a thread")) == 10


def test_writes_of_one_name_ascend_by_their_numbers(spark: SparkSession, uri: str) -> None:
    for number in (0, 1, 2, 2):
        rows = numbers(spark, 10 * number, 10 * number + 10)
        save(rows, uri, "numbered", writeId="cleaned", writeNumber=number)
    assert len(values(uri, "numbered")) == 30
    with pytest.raises(PySparkException, match="writeNumber 1 comes after writeNumber 2"):
        save(numbers(spark, 0, 10), uri, "numbered", writeId="cleaned", writeNumber=1)


def test_a_write_that_has_a_name_is_done_once(spark: SparkSession, uri: str) -> None:
    for _ in range(2):
        save(numbers(spark, 0, 10), uri, "named", writeId="2026-11-23")
    save(numbers(spark, 10, 20), uri, "named", writeId="2026-11-24")
    assert values(uri, "named") == [b"%d" % row for row in range(20)]


def test_rows_go_to_the_logs_that_they_name(spark: SparkSession, uri: str) -> None:
    frame = spark.range(0, 30, 1, 2).selectExpr(
        "CONCAT('city/', id % 3) AS log", "CAST(id AS STRING) AS value"
    )
    save(frame, uri, None)
    for city in range(3):
        expected = [b"%d" % row for row in range(30) if row % 3 == city]
        assert values(uri, f"city/{city}") == expected
    large = spark.range(0, 30_000, 1, 2).selectExpr(
        "CONCAT('city/', id % 2) AS log", "LPAD(id, 100, '0') AS value"
    )
    save(large, uri, None, logs="city/0,city/1")
    assert len(values(uri, "city/0")) == 10 + 15_000


def test_a_log_is_made_with_the_settings_that_the_write_names(
    spark: SparkSession, uri: str
) -> None:
    save(numbers(spark, 0, 10), uri, "made", **{"log.codec": "zstd:3", "log.roll_bytes": "12345"})
    assert manifest(uri, "made").settings.roll_bytes == 12345
    assert values(uri, "made") == [b"%d" % row for row in range(10)]
    with pytest.raises(PySparkException, match="there is no log 'never'"):
        save(numbers(spark, 0, 10), uri, "never", createLogs=False)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (["id AS value"], {}, "column 'value' is of type bigint; cast it to binary or string"),
        (["'x' AS value", "id AS n"], {}, "column 'n' is unknown; known are value, key"),
        (["'x' AS value", "id AS offset"], {}, "column 'offset' is what a log gives its records"),
        (["'x' AS key"], {}, "no column 'value'"),
        (["'x' AS value"], {"startingOffsets": "latest"}, "startingOffsets='latest'.*unknown"),
        (["'x' AS value", "'a' AS log"], {}, "names log 'refused' for all"),
    ],
)
def test_wrong_columns_and_options_are_refused_before_anything_is_written(
    spark: SparkSession, uri: str, columns: list[str], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        save(spark.range(3).selectExpr(*columns), uri, "refused", **options)


def test_rows_that_can_be_no_records_fail_the_write(spark: SparkSession, uri: str) -> None:
    one = spark.range(0, 10, 1, 1)
    for columns, sentence in [
        (["IF(id = 7, NULL, 'x') AS value"], "column 'value' is null"),
        (["REPEAT('x', 2000000) AS value"], "is over the limit of 1048576"),
        (["'x' AS value", "10 - id AS txid"], "txids must not decrease"),
        (["'x' AS value", "IF(id = 7, NULL, id) AS txid"], "column 'txid' is null"),
    ]:
        with pytest.raises(PySparkException, match=sentence):
            save(one.selectExpr(*columns), uri, "norows")
    later = spark.range(0, 10, 1, 2).selectExpr("'x' AS value", "10 - id AS txid")
    with pytest.raises(PySparkException, match="txids must not decrease"):
        save(later, uri, "norows")
    save(numbers(spark, 0, 1), uri, "norows")
    assert values(uri, "norows") == [b"0"]


def test_a_log_is_not_overwritten_and_a_sealed_one_is_not_written(
    spark: SparkSession, uri: str
) -> None:
    with pytest.raises(PySparkException, match="a log is only appended to"):
        save(numbers(spark, 0, 1), uri, "kept", mode="overwrite")
    save(numbers(spark, 0, 1), uri, "kept")
    asyncio.run(seal_log("kept", uri=uri))
    with pytest.raises(PySparkException, match="LogSealed"):
        save(numbers(spark, 0, 1), uri, "kept")


def test_a_stream_writes_small_and_large_batches_once_over_restarts(feed: Feed, uri: str) -> None:
    for count in (10, 100_000, 1, 100_000):
        feed.put(count)
    feed.run(uri, "stream")
    assert values(uri, "stream") == feed.all()
    feed.put(5)
    feed.run(uri, "stream")
    assert values(uri, "stream") == feed.all()


@pytest.mark.parametrize("rows", [10, 100_000])
def test_a_batch_that_spark_runs_again_is_there_once(feed: Feed, uri: str, rows: int) -> None:
    log = f"again{rows}"
    feed.put(rows)
    feed.put(rows)
    feed.run(uri, log)
    for note in (feed.checkpoint / "commits").glob("*1*"):
        note.unlink()  # as if the driver had died before it made it
    feed.put(3)
    feed.run(uri, log)
    assert values(uri, log) == feed.all()


def test_a_checkpoint_that_was_set_back_is_an_error_and_no_row_is_dropped_in_silence(
    feed: Feed, uri: str, tmp_path: Path
) -> None:
    feed.put(2)
    feed.run(uri, "set back")
    backup = tmp_path / "backup"
    shutil.copytree(feed.checkpoint, backup)
    for _ in range(3):
        feed.put(2)
    feed.run(uri, "set back")
    query = feed.writer(uri, backup).trigger(availableNow=True).start("set back")
    with pytest.raises(StreamingQueryException, match=r"batch 1 comes after batch 3.*was set back"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    feed.run(uri, "set back")  # with the newest one it goes on
    assert values(uri, "set back") == feed.all()


def test_a_new_checkpoint_begins_at_batch_0_and_writes_all_again(
    feed: Feed, uri: str, tmp_path: Path
) -> None:
    feed.put(10)
    feed.run(uri, "twice")
    feed.run(uri, "twice", checkpoint=tmp_path / "another")
    assert values(uri, "twice") == feed.all() * 2


def test_rows_are_inserted_into_a_table_and_read_back(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TABLE sales USING dlog OPTIONS (uri '{uri}', logs 'sales')")
    try:
        spark.sql("INSERT INTO sales (value, key) VALUES (X'61', X'6B'), (X'62', NULL)")
        spark.sql("INSERT INTO sales (value, txid) SELECT CAST('c' AS BINARY), 7")
        spark.sql("INSERT INTO sales WITH (writeId = 'once') (value) VALUES (X'64')")
        spark.sql("INSERT INTO sales WITH (writeId = 'once') (value) VALUES (X'64')")
        found = spark.sql("SELECT * FROM sales ORDER BY offset").collect()
        assert [(bytes(row.value), row.key, row.txid) for row in found] == [
            (b"a", bytearray(b"k"), None),
            (b"b", None, None),
            (b"c", None, 7),
            (b"d", None, None),
        ]
        for sentence, statement in [
            ("column 'log' is what the log gives", "INSERT INTO sales SELECT * FROM sales"),
            ("a log is only appended to", "INSERT OVERWRITE sales (value) VALUES (X'61')"),
            (
                "column 'txid' is null",
                "INSERT INTO sales (value, txid) SELECT /*+ COALESCE(1) */ X'61', "
                "IF(id = 1, NULL, 7 + id) FROM RANGE(3)",
            ),
            ("column 'value' is null", "INSERT INTO sales (key) VALUES (X'61')"),
        ]:
            with pytest.raises(PySparkException, match=sentence):
                spark.sql(statement)
        assert len(values(uri, "sales")) == 4
    finally:
        spark.sql("DROP TABLE sales")


def test_a_table_of_several_logs_takes_no_rows(spark: SparkSession, uri: str) -> None:
    spark.sql(f"CREATE TABLE many USING dlog OPTIONS (uri '{uri}', logsPattern 'sales.*')")
    try:
        with pytest.raises(PySparkException, match="a table of one log; give them a column 'log'"):
            spark.sql("INSERT INTO many (value) VALUES (X'61')")
    finally:
        spark.sql("DROP TABLE many")


def test_many_small_batches_make_the_segments_that_the_log_rolls_and_no_more(
    feed: Feed, uri: str
) -> None:
    for _ in range(41):
        feed.put(3)
    feed.run(uri, "small", **{"log.roll_records": 30})
    assert values(uri, "small") == feed.all()
    found = manifest(uri, "small")
    assert found.epoch == 1
    full = [segment.sealed.records for segment in found.segments if segment.sealed]
    assert full[:4] == [30] * 4
    assert len(found.segments) <= 5


def test_an_application_that_opens_the_log_ends_the_query_and_a_restart_takes_it_back(
    feed: Feed, uri: str
) -> None:
    feed.put(10)
    query = feed.writer(uri).start("contested")
    wait_until(query, lambda: has(uri, "contested", 10))
    with Log.open("contested", uri=uri, owner="the billing application") as log:
        log.append(b"mine")
        feed.put(10)
        with pytest.raises(
            StreamingQueryException, match=r"LostOwnership.*the billing application"
        ):
            query.awaitTermination(QUERY_TIMEOUT_S)
        log.append(b"still mine")
        feed.run(uri, "contested")
    assert sorted(values(uri, "contested")) == sorted([*feed.all(), b"mine", b"still mine"])


def has(uri: str, log: str, count: int) -> bool:
    """Return whether there are so many records."""
    try:
        return len(values(uri, log)) >= count
    except NoSuchLog:
        return False


def test_of_two_queries_on_one_log_the_second_has_it_and_the_first_fails(
    spark: SparkSession, feed: Feed, uri: str, tmp_path: Path
) -> None:
    feed.put(10)
    first = feed.writer(uri).start("shared")
    wait_until(first, lambda: has(uri, "shared", 10))
    second = feed.writer(uri, tmp_path / "second").start("shared")
    wait_until(second, lambda: has(uri, "shared", 20))
    feed.put(5)
    with pytest.raises(StreamingQueryException, match="of the same Spark application took it over"):
        first.awaitTermination(QUERY_TIMEOUT_S)
    wait_until(second, lambda: len(values(uri, "shared")) >= 25)
    second.stop()
    feed.run(uri, "shared")
    assert sorted(values(uri, "shared")) == sorted(feed.all() * 2)
