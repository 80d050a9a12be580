"""Rows of a write become record batches: the same bytes of records, cut where they should be."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from dlog.columns import Columns
from dlog.errors import InvalidHeaders, RecordTooLarge
from dlog.headers import encode_headers
from dlog.recordbatch import HEADER_BYTES, decode_batch, encode_batch
from dlog.spark.errors import InvalidRow, TxidsUnordered
from dlog.spark.sink.columns import SinkColumns
from dlog.spark.sink.encode import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, Encoder

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def encoder(*names: str, record_bytes_max: int = 1 << 20) -> Encoder:
    places = {name: place for place, name in enumerate(names)}
    return Encoder("orders", SinkColumns(**places), record_bytes_max=record_bytes_max)


def payloads(rows: pa.RecordBatch, **more: int) -> list[bytes]:
    made = encoder(*rows.schema.names, **more)
    return [each.payload for each in made.encode(rows, now_ms=NOW_MS)]


def rows_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def only(rows: pa.RecordBatch) -> bytes:
    [payload] = payloads(rows)
    return payload


def test_rows_become_the_bytes_that_the_same_records_do() -> None:
    values, keys = [b"a", b"", b"ccc"], [b"k", None, b"kkk"]
    txids, times = [5, 5, 9], [NOW_MS, NOW_MS + 7, NOW_MS - 3]
    headers = [{"trace": b"\xff", "b": b""}, {}, {"größe": b"3"}]
    rows = rows_of(
        value=pa.array(values),
        key=pa.array(keys, pa.binary()),
        txid=pa.array(txids),
        timestamp=pa.array(times),
        headers=pa.array(
            [[{"key": n, "value": v} for n, v in h.items()] for h in headers], HEADERS
        ),
    )
    records = Columns(values, keys, list(txids), list(times), [encode_headers(h) for h in headers])
    assert only(rows) == encode_batch(records, base_index=0, base_timestamp_ms=NOW_MS)


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
def test_values_alone_become_the_bytes_that_the_same_records_do(kind: pa.DataType) -> None:
    values = ["eins", "", "zwei"]
    records = Columns([value.encode() for value in values])
    expected = encode_batch(records, base_index=0, base_timestamp_ms=NOW_MS)
    assert only(rows_of(value=pa.array(values, pa.string()).cast(kind))) == expected


def test_a_slice_of_rows_is_encoded_from_where_it_begins() -> None:
    rows = rows_of(
        value=pa.array([b"%d" % n for n in range(20)]),
        key=pa.array([None if n % 3 else b"k%d" % n for n in range(20)], pa.binary()),
        txid=pa.array(range(20)),
    )
    batch = decode_batch(only(rows.slice(7, 10)))
    assert batch.value_list() == [b"%d" % n for n in range(7, 17)]
    assert batch.key_list() == [None if n % 3 else b"k%d" % n for n in range(7, 17)]
    assert batch.txid_list() == list(range(7, 17))


def test_timestamps_are_milliseconds_rounded_down_and_now_where_there_is_none() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    rows = rows_of(
        value=pa.array([b"a", b"b"]),
        timestamp=pa.array([moment, None], pa.timestamp("us", tz="UTC")),
    )
    assert decode_batch(only(rows)).timestamps_ms() == [-1, NOW_MS]
    rows = rows_of(value=pa.array([b"a", b"b"]), timestamp=pa.array([2**47, None]))
    assert decode_batch(only(rows)).timestamps_ms() == [2**47, NOW_MS]


def test_what_no_row_has_costs_no_byte() -> None:
    rows = rows_of(
        value=pa.array([b"12345678"] * 3),
        key=pa.nulls(3, pa.binary()),
        headers=pa.array([[], None, []], HEADERS),
        timestamp=pa.nulls(3, pa.int64()),
    )
    assert len(only(rows)) == HEADER_BYTES + 16 + 24


def test_rows_are_cut_at_half_a_mebibyte_and_at_64_ki_rows() -> None:
    values = [bytes([n % 251]) * 1000 for n in range(2_000)]
    batches = [decode_batch(p) for p in payloads(rows_of(value=pa.array(values)))]
    assert [value for batch in batches for value in batch.value_list()] == values
    assert [batch.count for batch in batches] == [524, 524, 524, 428]
    assert max(batch.header.value_bytes for batch in batches) <= BATCH_BYTES_MAX
    tiny = rows_of(value=pa.array([b""] * (BATCH_RECORDS_MAX + 1)))
    assert [decode_batch(p).count for p in payloads(tiny)] == [BATCH_RECORDS_MAX, 1]


def test_a_large_record_is_a_batch_of_its_own() -> None:
    values = [b"a", b"b" * 700_000, b"c"]
    batches = [decode_batch(p) for p in payloads(rows_of(value=pa.array(values)))]
    assert [batch.value_list() for batch in batches] == [[value] for value in values]


def test_a_record_that_the_log_does_not_allow_is_refused_with_its_key_counted() -> None:
    rows = rows_of(value=pa.array([b"12345"]), key=pa.array([b"123456"]))
    assert payloads(rows, record_bytes_max=11)
    with pytest.raises(RecordTooLarge, match="record of 11 bytes is over the limit of 10"):
        payloads(rows, record_bytes_max=10)


def test_a_row_without_a_value_or_a_txid_is_refused() -> None:
    with pytest.raises(InvalidRow, match="column 'value' is null"):
        payloads(rows_of(value=pa.array([b"a", None])))
    with pytest.raises(InvalidRow, match="column 'txid' is null"):
        payloads(rows_of(value=pa.array([b"a", b"b"]), txid=pa.array([1, None])))
    with pytest.raises(InvalidRow, match="years 1 to 9999"):
        payloads(rows_of(value=pa.array([b"a"]), timestamp=pa.array([2**63 - 1])))


def test_txids_may_repeat_and_must_not_decrease_also_from_rows_to_rows() -> None:
    made = encoder("value", "txid")
    rows = rows_of(value=pa.array([b"a", b"b"]), txid=pa.array([7, 7]))
    assert list(made.encode(rows, now_ms=0))
    assert list(made.encode(rows, now_ms=0))
    with pytest.raises(TxidsUnordered, match=r"6 comes after 7.*sortWithinPartitions"):
        list(made.encode(rows_of(value=pa.array([b"a"]), txid=pa.array([6])), now_ms=0))


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([{"key": None, "value": b""}], "without a name"),
        ([None], "without a name"),
    ],
)
def test_a_header_without_a_name_is_refused(pairs: list[object], reason: str) -> None:
    with pytest.raises(InvalidRow, match=reason):
        payloads(rows_of(value=pa.array([b"a"]), headers=pa.array([pairs], HEADERS)))


def test_too_many_headers_are_refused() -> None:
    pairs = [{"key": "a", "value": b"1"}] * 65
    with pytest.raises(InvalidHeaders, match="65; give a record 64 at most"):
        payloads(rows_of(value=pa.array([b"a"]), headers=pa.array([pairs], HEADERS)))


def test_a_name_that_comes_twice_and_a_null_value_are_encoded_as_by_an_append() -> None:
    pairs = [("a", b"1"), ("b", None), ("a", b"2")]
    rows = [[{"key": name, "value": value} for name, value in pairs], [], None]
    [payload] = payloads(
        rows_of(value=pa.array([b"x", b"y", b"z"]), headers=pa.array(rows, HEADERS))
    )
    records = Columns([b"x", b"y", b"z"], headers=[encode_headers(pairs), None, None])
    assert payload == encode_batch(records, base_index=0, base_timestamp_ms=NOW_MS)
    assert payload[4] == 5


def test_no_rows_become_no_batches() -> None:
    assert payloads(rows_of(value=pa.array([], pa.binary()))) == []


TABLE = [
    ("log", "string"), ("offset", "bigint"), ("dlsn", "string"), ("timestamp", "timestamp"),
    ("txid", "bigint"), ("key", "binary"), ("value", "binary"),
]  # fmt: skip


def inserted(**columns: list[object]) -> list[bytes]:
    """Insert rows into a table, which Spark completes with nulls."""
    kinds = {"string": pa.string(), "bigint": pa.int64(), "timestamp": pa.timestamp("us", "UTC")}
    rows = rows_of(
        **{
            name: pa.array(columns.get(name, [None] * 3), kinds.get(kind, pa.binary()))
            for name, kind in TABLE
        }
    )
    made = Encoder("orders", SinkColumns.of_table(TABLE), record_bytes_max=100)
    return [each.payload for each in made.encode(rows, now_ms=NOW_MS)]


def test_rows_that_are_inserted_have_what_the_insertion_names() -> None:
    values: list[object] = [b"a", b"b", b"c"]
    [plain] = inserted(value=values)
    assert plain == only(rows_of(value=pa.array(values)))
    [rich] = inserted(value=values, txid=[1, 1, 2], key=[b"k", None, None])
    assert decode_batch(rich).txid_list() == [1, 1, 2]
    assert decode_batch(rich).key_list() == [b"k", None, None]


@pytest.mark.parametrize("column", ["log", "offset", "dlsn", "txid"])
def test_what_the_log_gives_and_half_a_column_of_txids_are_not_inserted(column: str) -> None:
    given: object = 7 if column in {"offset", "txid"} else "orders"
    with pytest.raises(InvalidRow, match=f"column '{column}'"):
        inserted(value=[b"a", b"b", b"c"], **{column: [None, given, None]})
