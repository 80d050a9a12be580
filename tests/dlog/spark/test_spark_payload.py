"""Payloads as columns of Spark: by the schema of a log, of a file, or by the user's own columns."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from dlog import Log, LogSettings, admin
from dlog.log_schema import LogSchema
from dlog.spark.plan import FileRange, LogRange
from dlog.spark.source import DlogSource
from tests.dlog.spark.running import QUERY_TIMEOUT_S, batch, stream

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(360)]

FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {
        "name": "lines",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Line",
                "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
            },
        },
    },
    {"name": "tags", "type": {"type": "map", "values": "string"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    },
]
NOON = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)


def avro(*fields: dict[str, Any]) -> LogSchema:
    definition = {"type": "record", "name": "Order", "fields": [*fields]}
    return LogSchema(format="avro", definition=json.dumps(definition).encode())


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 2 else f"n{number}",
        "at": NOON,
        "local": dt.datetime(2026, 1, 1),  # noqa: DTZ001 - of no zone
        "lines": [{"sku": "s", "n": number}],
        "tags": [("k", "v")],
        "price": number,
    }


def payloads(schema: LogSchema, rows: list[dict[str, Any]]) -> list[bytes]:
    return schema.encode(pa.RecordBatch.from_pylist(rows, schema=schema.arrow_schema()))


def write(uri: str, log: str, schema: LogSchema, rows: list[dict[str, Any]], *bad: bytes) -> None:
    """Append *rows*, and *bad* after the first of them."""
    first, *others = payloads(schema, rows)
    with Log.open(log, uri=uri) as writer:
        writer.append_many([first, *bad, *others])


def test_rows_have_the_columns_of_the_schema_and_bad_ones_are_kept_left_out_or_fatal(
    spark: SparkSession, uri: str
) -> None:
    schema = avro(*FIELDS)
    write(uri, "typed/a", schema, [row(0), row(1)], b"bad")
    admin.set_log_schema("typed/a", schema, uri=uri)
    frame = batch(spark, uri, logs="typed/a", payload="schema")
    assert [*frame.columns] == [
        *(field["name"] for field in FIELDS),
        *("_offset", "_timestamp", "_log", "_corrupt_record"),
    ]
    first, bad, last = frame.orderBy("_offset").collect()
    assert (first.id, first.name, first.lines[0].sku, first.tags) == (0, "n0", "s", {"k": "v"})
    assert (str(first.price), first.local) == ("0.00", dt.datetime(2026, 1, 1))  # noqa: DTZ001
    assert (first._log, first._offset, first._corrupt_record) == ("typed/a", 0, None)
    assert (bad.id, bad.lines, bad._offset, bytes(bad._corrupt_record)) == (None, None, 1, b"bad")
    assert (last.id, last.name, last._offset) == (1, None, 2)
    assert frame.where("at = timestamp'2026-11-28T12:00:00Z'").count() == 2
    dropped = batch(
        spark, uri, logs="typed/a", payload="avro", mode="dropmalformed", columns="_offset,ID,_key"
    )
    assert [*dropped.columns] == ["_offset", "id", "_key"]
    assert [tuple(each) for each in dropped.collect()] == [(0, 0, None), (2, 1, None)]
    with pytest.raises(Exception, match=r"typed/a.*offset 1 .*DROPMALFORMED"):
        batch(spark, uri, logs="typed/a", payload="avro", mode="FAILFAST").collect()


def test_records_are_read_with_the_version_that_they_name(spark: SparkSession, uri: str) -> None:
    old = avro({"name": "id", "type": "int"}, {"name": "gone", "type": "string", "default": ""})
    new = avro({"name": "name", "type": "string", "default": "-"}, {"name": "id", "type": "long"})
    with Log.open("typed/versions", uri=uri) as log:
        number = admin.set_log_schema("typed/versions", old, uri=uri).version
        for payload in payloads(old, [{"id": 1, "gone": "x"}]):
            log.append(payload, headers={"dlog.schema": b"%d" % number})
        admin.set_log_schema("typed/versions", new, uri=uri)
        for payload in payloads(new, [{"id": 2, "name": "n"}, {"id": 3, "name": "m"}]):
            log.append(payload)
        log.append(payload, headers={"dlog.schema": b"77"})
        log.append(payload, headers={"dlog.schema": b"none"})
    frame = batch(spark, uri, logs="typed/versions", payload="avro", columns="id,name,_offset")
    rows = [tuple(each) for each in frame.orderBy("_offset").collect()]
    assert rows == [(1, "-", 0), (2, "n", 1), (3, "m", 2), (None, None, 3), (None, None, 4)]


def test_a_stream_reads_rows_and_a_sink_writes_them(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    schema = avro(*FIELDS)
    rows = [row(number) for number in range(5)]
    write(uri, "typed/from", schema, rows)
    for log in ("typed/from", "typed/to"):
        if log == "typed/to":
            admin.create_log(log, uri=uri)
        admin.set_log_schema(log, schema, uri=uri)
    frame = stream(spark, uri, logs="typed/from", payload="avro")
    kept = frame.selectExpr(*schema.arrow_schema().names, "CAST(id AS STRING) AS _key")
    query = (
        kept.writeStream.format("dlog")
        .option("uri", uri)
        .option("payload", "avro")
        .option("schemaHeader", "true")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start("typed/to")
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S), query.status
    with Log.tail("typed/to", follow=False, uri=uri) as reader:
        records = list(reader)
    decoded = schema.decode([record.value for record in records])
    assert not decoded.bad
    with Log.tail("typed/from", follow=False, uri=uri) as reader:
        assert sorted(r.value for r in records) == sorted(r.value for r in reader)
    assert [record.headers["dlog.schema"] for record in records] == [b"1"] * 5
    assert sorted(record.key or b"" for record in records) == [b"%d" % n for n in range(5)]


def test_columns_that_the_user_declares_are_read_from_json_and_written_to_it(
    spark: SparkSession, uri: str
) -> None:
    frame = spark.createDataFrame(
        [(1, "a", [1]), (2, None, None)], "id INT, name STRING, n ARRAY<INT>"
    )
    frame.write.format("dlog").option("uri", uri).option("payload", "json").mode("append").save(
        "typed/json"
    )
    with Log.open("typed/json", uri=uri) as log:
        log.append(b'{"id": 3, "more": true}')
        log.append(b'{"id": "x"}')
    declared = spark.read.schema("name STRING, id INT, n ARRAY<INT>, _offset BIGINT").format("dlog")
    rows = declared.options(uri=uri, logs="typed/json", payload="json").load()
    read = sorted((each.id or 0, each.name, each.n) for each in rows.collect())
    assert read == [(0, None, None), (1, "a", [1]), (2, None, None), (3, None, None)]


def test_a_table_has_the_columns_of_the_schema(spark: SparkSession, uri: str) -> None:
    schema = avro(*FIELDS[:2])
    write(uri, "typed/table", schema, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    admin.set_log_schema("typed/table", schema, uri=uri)
    spark.sql(
        "CREATE TABLE typed_orders USING dlog OPTIONS "
        f"(logs 'typed/table', payload 'avro', uri '{uri}')"
    )
    try:
        read = "SELECT id, name FROM typed_orders WHERE id > 0 ORDER BY id"
        assert [tuple(each) for each in spark.sql(read).collect()] == [(1, "a"), (2, "b")]
        spark.sql("INSERT INTO typed_orders (id, name) VALUES (3, 'c')")
        assert [each.id for each in spark.sql(read).collect()] == [1, 2, 3]
    finally:
        spark.sql("DROP TABLE typed_orders")


def test_history_from_a_table_and_the_rest_from_the_log_are_read_by_one_schema(
    uri: str, tmp_path: Path
) -> None:
    settings = LogSettings(archive=f"file://{tmp_path}/objects", archive_table="parquet")
    admin.create_log("typed/history", settings=settings, uri=uri)
    old = avro({"name": "id", "type": "int"})
    new = avro({"name": "more", "type": "string", "default": "-"}, {"name": "id", "type": "long"})
    admin.set_log_schema("typed/history", old, uri=uri)
    with Log.open("typed/history", uri=uri) as log:
        for payload in payloads(old, [{"id": number} for number in range(3)]):
            log.append(payload, headers={"dlog.schema": b"1"})
        log.roll()
        admin.archive_log("typed/history", at_once=True, uri=uri)
        admin.set_log_schema("typed/history", new, uri=uri)
        log.append_many(payloads(new, [{"id": 3, "more": "x"}]))
    options = {"uri": uri, "path": "typed/history", "payload": "avro", "table": "parquet"}
    source = DlogSource(options)
    reader = source.reader(source.schema())
    parts = reader.partitions()
    kinds = {type(piece) for part in parts for piece in part.ranges}
    assert kinds == {FileRange, LogRange}
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    read = sorted((row["_offset"], row["id"], row["more"]) for row in rows)
    assert read == [(0, 0, "-"), (1, 1, "-"), (2, 2, "-"), (3, 3, "x")]


def test_what_does_not_fit_together_is_refused(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    schema = avro(*FIELDS[:2])
    with Log.open("typed/b", uri=uri), Log.open("typed/c", uri=uri):
        pass
    admin.set_log_schema("typed/b", schema, uri=uri)

    def refused(match: str, **options: object) -> None:
        with pytest.raises(AnalysisException, match=match):
            batch(spark, uri, **options).schema  # noqa: B018 - Spark asks for it

    refused("has no schema", logs="typed/c", payload="avro")
    refused("is avro", logs="typed/b", payload="json")
    refused("known are raw, schema", logs="typed/b", payload="xml")
    refused("known are PERMISSIVE", logs="typed/b", payload="avro", mode="LENIENT")
    refused("no column 'more'", logs="typed/b", payload="avro", columns="id,more")
    refused("give payload too", logs="typed/b", mode="FAILFAST")
    file = tmp_path / "orders.avsc"
    file.write_bytes(schema.definition)
    frame = batch(spark, uri, logs="typed/b,typed/c", payload="avro", schemaFile=file)
    assert frame.columns[:2] == ["id", "name"]
    admin.set_log_schema("typed/c", avro(FIELDS[0]), uri=uri)
    refused("different schemas", logs="typed/b,typed/c", payload="avro")
    wrong = spark.createDataFrame([("1",)], "id STRING").write.format("dlog").mode("append")
    with pytest.raises(AnalysisException, match="'id' is bigint"):
        wrong.options(uri=uri, payload="avro").save("typed/b")
