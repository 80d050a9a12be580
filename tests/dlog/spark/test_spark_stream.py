"""One Spark session streams a real log into Parquet, exactly once, over a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from dlog.aio import Log
from dlog.aio.admin import delete_log
from dlog.arrow import (
    ARROW_SCHEMA,
    ARROW_SCHEMA_WITH_HEADERS,
)
from dlog.row_schema import SPARK_SCHEMA, SPARK_SCHEMA_WITH_HEADERS
from ledger.client import LedgerClient
from tests.dlog.spark.running import QUERY_TIMEOUT_S, into_parquet, stream, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(360)]


def value_of(row: int) -> bytes:
    return b"record %d " % row * (row % 5)


def append(uri: str, log: str, first: int, count: int, *, segments: int = 1) -> None:
    """Append *count* records with txids from *first* on, spread over *segments*."""

    async def scenario() -> None:
        async with await Log.open(log, uri=uri) as writer:
            for row in range(first, first + count):
                key = None if row % 3 else b"%d" % row
                await writer.append(value_of(row), txid=row, key=key)
                if (row + 1 - first) % (count // segments) == 0:
                    await writer.roll()

    asyncio.run(scenario())


def rows_in(spark: SparkSession, directory: Path) -> list[tuple[Any, ...]]:
    frame = spark.read.parquet(str(directory / "parquet")).orderBy("offset")
    return [(row.offset, row.txid, row.key, row.value) for row in frame.collect()]


def expected(count: int) -> list[tuple[Any, ...]]:
    return [
        (row, row, None if row % 3 else bytearray(b"%d" % row), bytearray(value_of(row)))
        for row in range(count)
    ]


def test_a_stream_writes_every_record_once_over_a_restart(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "orders", 0, 300, segments=3)
    frame = stream(spark, uri, "orders", maxRecordsPerTrigger=100, minTaskRecords=30)
    query = into_parquet(frame, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination(QUERY_TIMEOUT_S)
    sizes = [report["numInputRows"] for report in query.recentProgress]
    assert [size for size in sizes if size] == [100, 100, 100]
    assert rows_in(spark, tmp_path) == expected(300)

    query = into_parquet(frame, tmp_path).start()
    try:
        append(uri, "orders", 300, 200, segments=2)
        wait_until(query, lambda: len(rows_in(spark, tmp_path)) >= 500)
    finally:
        query.stop()
    assert rows_in(spark, tmp_path) == expected(500)

    query = into_parquet(frame, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination(QUERY_TIMEOUT_S)
    assert rows_in(spark, tmp_path) == expected(500)


def test_rows_say_where_their_records_are(spark: SparkSession, uri: str) -> None:
    append(uri, "places", 0, 20, segments=2)
    frame = spark.read.format("dlog").option("uri", uri).load("places").orderBy("offset")
    rows = frame.collect()
    assert [row.offset for row in rows] == list(range(20))
    assert {row.log for row in rows} == {"places"}
    assert [row.value for row in rows] == [bytearray(value_of(row)) for row in range(20)]
    assert rows[0].dlsn.endswith(":0:0")
    assert rows[0].timestamp <= rows[19].timestamp
    assert frame.schema == StructType.fromDDL(SPARK_SCHEMA)
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(ARROW_SCHEMA)


def append_headed(uri: str, log: str) -> None:
    """Append records with headers and without, in an entry together and in entries of their own."""

    async def scenario() -> None:
        async with await Log.open(log, uri=uri) as writer:
            await writer.append_many([b"0", b"1"], headers=[{"trace": b"\xff", "b": b""}, None])
            await writer.append(b"2")
            await writer.roll()
            await writer.append(b"3", headers=[("größe", b"3"), ("größe", None)])

    asyncio.run(scenario())


def headers_in(frame: DataFrame) -> list[list[tuple[str, bytes | None]]]:
    rows = frame.orderBy("offset").collect()
    return [
        [(h.key, None if h.value is None else bytes(h.value)) for h in row.headers] for row in rows
    ]


HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("trace", b"\xff"), ("b", b"")],
    [],
    [],
    [("größe", b"3"), ("größe", None)],
]


def test_headers_are_a_column_of_a_batch_read_that_asks_for_them(
    spark: SparkSession, uri: str
) -> None:
    append_headed(uri, "headed")
    reader = spark.read.format("dlog").option("uri", uri)
    frame = reader.option("includeHeaders", True).load("headed")
    assert headers_in(frame) == HEADERS
    assert frame.schema == StructType.fromDDL(SPARK_SCHEMA_WITH_HEADERS)
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(ARROW_SCHEMA_WITH_HEADERS)
    found = frame.selectExpr(
        "offset", "get(filter(headers, h -> h.key = 'trace'), 0).value AS trace"
    )
    assert [row.offset for row in found.where("trace IS NOT NULL").collect()] == [0]
    plain = spark.read.format("dlog").option("uri", uri).load("headed")
    assert plain.schema == StructType.fromDDL(SPARK_SCHEMA)
    assert plain.count() == 4


def test_headers_are_a_column_of_a_stream_that_asks_for_them(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append_headed(uri, "streamed")
    frame = stream(spark, uri, "streamed", includeHeaders="true", minTaskRecords=1)
    query = into_parquet(frame, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination(QUERY_TIMEOUT_S)
    assert headers_in(spark.read.parquet(str(tmp_path / "parquet"))) == HEADERS


def test_a_batch_read_keeps_to_its_offsets(spark: SparkSession, uri: str) -> None:
    append(uri, "bounds", 0, 20, segments=2)
    reader = spark.read.format("dlog").option("uri", uri)
    reader = reader.option("startingOffsets", '{"bounds": 7}')
    frame = reader.option("endingOffsets", '{"bounds": 13}').load("bounds")
    assert sorted(row.txid for row in frame.collect()) == [7, 8, 9, 10, 11, 12]


def test_a_log_that_was_made_again_fails_the_query(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    append(uri, "again", 0, 10)
    frame = stream(spark, uri, "again")
    query = into_parquet(frame, tmp_path).trigger(availableNow=True).start()
    query.awaitTermination(QUERY_TIMEOUT_S)
    asyncio.run(delete_log("again", uri=uri))
    append(uri, "again", 0, 20)
    query = into_parquet(frame, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="deleted and re-created"):
        query.awaitTermination(QUERY_TIMEOUT_S)
    assert len(rows_in(spark, tmp_path)) == 10


def test_a_misspelt_option_fails_with_its_name(spark: SparkSession, uri: str) -> None:
    with pytest.raises(AnalysisException, match="maxrecordpertrigger"):
        stream(spark, uri, "orders", maxRecordPerTrigger=5).schema.simpleString()


def test_a_query_of_300_logs_reads_each_row_once_and_finds_new_ones(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    logs = [f"many/{number:03}" for number in range(300)]

    async def append_to_all(value: bytes) -> None:
        client = await LedgerClient.connect(uri)
        at_once = asyncio.Semaphore(16)

        async def one(log: str) -> None:
            async with at_once, await Log.open(log, client=client) as writer:
                await writer.append_many([value + b" of " + log.encode()] * 2)

        try:
            await asyncio.gather(*map(one, logs))
        finally:
            await client.close()

    asyncio.run(append_to_all(b"first"))
    frame = stream(spark, uri, logsPattern="many/.*", minTaskRecords=100)
    query = into_parquet(frame, tmp_path).start()
    wait_until(query, lambda: counted(query) == 600)
    logs.append("many/new")
    asyncio.run(append_to_all(b"second"))
    wait_until(query, lambda: counted(query) == 600 + 602)
    query.stop()
    rows = spark.read.parquet(str(tmp_path / "parquet")).groupBy("log", "value").count().collect()
    assert len(rows) == 601
    assert {row["count"] for row in rows} == {2}
    assert all(bytes(row["value"]).endswith(row["log"].encode()) for row in rows)


def counted(query: StreamingQuery) -> int:
    """Return how many rows the query has read since it was started."""
    return sum(each["numInputRows"] for each in query.recentProgress)
