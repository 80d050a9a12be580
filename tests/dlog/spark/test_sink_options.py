"""Options and columns of a sink: what is taken, and what is refused, with a sentence."""

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructType

from dlog.arrow import ARROW_SCHEMA
from dlog.recordbatch import Codec
from dlog.spark.catalog import insertion_options, with_options
from dlog.spark.errors import InvalidColumns, InvalidOption
from dlog.spark.sink.columns import HEADERS_TYPE, SinkColumns
from dlog.spark.sink.options import INLINE_BYTES, INLINE_BYTES_MAX, SinkOptions, origin_of_write

TABLE = from_arrow_schema(ARROW_SCHEMA)


def test_a_log_alone_is_enough_and_what_spark_adds_is_let_through() -> None:
    options = SinkOptions.parse({"path": "orders", "checkpointLocation": "/c", "queryName": "q"})
    assert options == SinkOptions(log="orders")
    assert options.inline_bytes_max == INLINE_BYTES
    assert options.create_logs


def test_options_are_read_whatever_their_case() -> None:
    options = SinkOptions.parse(
        {
            "LOGS": "b, a,",
            "uri": "file:///x",
            "inlineBytesMax": "0",
            "createLogs": "False",
            "writeId": "2026-11-23",
            "log.codec": "zstd:3",
            "log.roll_bytes": "1000",
            "log.retention_waits_for_consumers": "true",
            "log.roll_age_s": "0.5",
        }
    )
    assert options.logs == ("a", "b")
    assert (options.log, options.inline_bytes_max) == (None, 0)
    assert not options.create_logs
    assert options.write_id == "2026-11-23"
    assert options.settings is not None
    assert options.settings.codec is Codec.ZSTD
    assert (options.settings.roll_bytes, options.settings.roll_age_s) == (1000, 0.5)
    assert options.settings.retention_waits_for_consumers


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffsets": "latest"}, "unknown; known for a sink are createLogs, inlineBytesMax"),
        ({"inlineBytesMax": str(INLINE_BYTES_MAX + 1)}, f"from 0 to {INLINE_BYTES_MAX}"),
        ({"inlineBytesMax": "1x"}, "use bytes, or 512K"),
        ({"createLogs": "yes"}, "use true or false"),
        ({"path": "a//b"}, "empty part"),
        ({"logs": "a,.b"}, "begins with a dot"),
        ({"log": "a", "path": "b"}, "name the log once"),
        ({"writeId": " "}, "must not be empty"),
        ({"writeNumber": "3"}, "give that, too"),
        ({"writeId": "a", "writeNumber": "-1"}, "writeNumber"),
        ({"writeId": "a", "writeNumber": "x"}, "writeNumber"),
        ({"log.speed": "1"}, "there is no such setting"),
        ({"log.roll_bytes": "many"}, "use bytes, or 512K"),
        ({"log.ensemble": "1"}, "E >= Qw >= Qa"),
    ],
)
def test_what_means_nothing_is_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        SinkOptions.parse(options)


def test_a_write_of_the_same_name_is_the_same_origin() -> None:
    assert origin_of_write("a") == origin_of_write("a") != origin_of_write("b")


def test_columns_are_found_where_they_stand() -> None:
    fields = [("TxId", "bigint"), ("value", "string"), ("headers", HEADERS_TYPE)]
    assert SinkColumns.of(fields, log="orders") == SinkColumns(value=1, txid=0, headers=2)
    assert SinkColumns.of([("log", "string"), ("value", "binary")], log=None).log == 0


@pytest.mark.parametrize(
    ("fields", "log", "sentence"),
    [
        ([("value", "binary"), ("name", "string")], "o", r"'name' is unknown.*to_json"),
        ([("value", "bigint")], "o", "'value' is of type bigint; cast it to binary or string"),
        ([("value", "binary"), ("timestamp", "date")], "o", "cast it to timestamp or bigint"),
        ([("value", "binary"), ("headers", "map<string,binary>")], "o", "cast it to array<struct"),
        ([("key", "binary")], "o", "no column 'value'"),
        ([("value", "binary"), ("Value", "binary")], "o", "two columns 'value'"),
        ([("value", "binary"), ("log", "string")], "o", "names log 'o' for all"),
        ([("value", "binary")], None, "no log is named"),
    ],
)
def test_columns_that_no_record_has_are_refused(
    fields: list[tuple[str, str]], log: str | None, sentence: str
) -> None:
    with pytest.raises(InvalidColumns, match=sentence):
        SinkColumns.of(fields, log=log)


def test_rows_with_the_columns_of_a_table_of_one_log_are_inserted_into_it() -> None:
    table = with_options(TABLE, {"logs": " orders,", "uri": "file:///x", "pushdown": "true"})
    found = insertion_options({"inlineBytesMax": "0"}, table)
    assert found == {"log": "orders", "uri": "file:///x", "inlinebytesmax": "0"}
    assert insertion_options({}, with_options(TABLE, {"path": "orders"})) == {"log": "orders"}


def test_a_frame_that_was_made_of_a_table_is_no_insertion() -> None:
    table = with_options(TABLE, {"logs": "orders"})
    assert insertion_options({"path": "copies"}, table) is None
    assert insertion_options({}, StructType([*table.fields[:-1]])) is None
    assert insertion_options({}, StructType(table.fields).add("more", LongType())) is None
    retyped = StructType(table.fields[:-1]).add("value", LongType())
    assert insertion_options({}, retyped) is None
    assert insertion_options({}, with_options(TABLE, {})) is None


@pytest.mark.parametrize("which", [{"logs": "a,b"}, {"path": "a,b"}, {"logspattern": "a.*"}])
def test_nothing_is_inserted_into_a_table_of_several_logs(which: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="a table of one log"):
        insertion_options({}, with_options(TABLE, which))
