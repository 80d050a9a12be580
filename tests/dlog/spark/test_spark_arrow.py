"""Record batches become Arrow batches with the same records, and without copies of them."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from dlog.arrow import (
    ARROW_SCHEMA,
    ARROW_SCHEMA_WITH_HEADERS,
    ROWS_MAX,
    ends_of,
    gather,
    to_arrow,
)
from dlog.columns import Columns
from dlog.headers import encode_headers
from dlog.position import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from dlog.recordbatch import Codec, RecordBatch, decode_batch, encode_batch
from dlog.row_schema import COLUMNS, COLUMNS_WITH_HEADERS

VALUES = [b"a", b"", b"ccc"]


def batch_of(
    values: list[bytes], *, codec: Codec = Codec.NONE, **columns: list[object]
) -> RecordBatch:
    records = Columns(values, **columns)  # type: ignore[arg-type]
    payload = encode_batch(records, base_index=0, base_timestamp_ms=1_000, codec=codec)
    return decode_batch(payload)


def arrow(batch: RecordBatch, *, include_headers: bool = False) -> pa.RecordBatch:
    made = to_arrow(
        "flights",
        batch,
        first_offset=40,
        segment=3,
        entry=17,
        columns=COLUMNS_WITH_HEADERS if include_headers else COLUMNS,
    )
    made.validate(full=True)
    return made


def test_each_record_becomes_a_row_with_its_place() -> None:
    rows = arrow(batch_of(VALUES)).to_pylist()
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert rows[2] == {
        "log": "flights",
        "offset": 42,
        "dlsn": "3:17:2",
        "timestamp": moment,
        "txid": None,
        "key": None,
        "value": b"ccc",
    }
    assert [row["value"] for row in rows] == VALUES
    assert [row["offset"] for row in rows] == [40, 41, 42]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 99, 100, 101, 1234, 65_536])
def test_places_are_numbered_through(count: int) -> None:
    made = arrow(batch_of([b""] * count))
    assert made["dlsn"].to_pylist() == [f"3:17:{slot}" for slot in range(count)]
    assert set(made["log"].to_pylist()) == {"flights"}


def test_one_batch_does_not_change_the_places_of_another() -> None:
    batch = batch_of([b""] * 12)
    one = to_arrow("a", batch, first_offset=0, segment=1, entry=2)
    other = to_arrow("b", batch, first_offset=0, segment=8, entry=9)
    assert one["dlsn"].to_pylist() == [f"1:2:{slot}" for slot in range(12)]
    assert other["dlsn"].to_pylist() == [f"8:9:{slot}" for slot in range(12)]


def test_optional_columns_keep_their_gaps() -> None:
    made = arrow(
        batch_of(
            VALUES, keys=[b"k", None, b""], txids=[None, 5, 6], timestamps_ms=[999, 1000, 2000]
        )
    )
    assert made["key"].to_pylist() == [b"k", None, b""]
    assert made["txid"].to_pylist() == [None, 5, 6]
    assert [moment.timestamp() for moment in made["timestamp"].to_pylist()] == [0.999, 1.0, 2.0]


def test_headers_are_a_column_of_pairs_in_their_order_if_they_are_asked_for() -> None:
    given: list[list[tuple[str, bytes | None]]] = [
        [("b", b"\xff"), ("a", b"")],
        [],
        [("größe", b"3"), ("größe", None), ("größe", b"")],
    ]
    batch = batch_of(VALUES, headers=[encode_headers(each) for each in given])
    made = arrow(batch, include_headers=True)
    assert made.schema.equals(ARROW_SCHEMA_WITH_HEADERS)
    assert made["headers"].to_pylist() == [
        [{"key": "b", "value": b"\xff"}, {"key": "a", "value": b""}],
        [],
        [
            {"key": "größe", "value": b"3"},
            {"key": "größe", "value": None},
            {"key": "größe", "value": b""},
        ],
    ]
    assert arrow(batch).schema.equals(ARROW_SCHEMA)


def test_the_column_of_headers_is_empty_where_no_record_has_any() -> None:
    made = arrow(batch_of(VALUES), include_headers=True)
    assert made.schema.equals(ARROW_SCHEMA_WITH_HEADERS)
    assert made["headers"].to_pylist() == [[], [], []]
    assert made.slice(1, 1)["headers"].to_pylist() == [[]]


def test_batches_with_and_without_headers_are_put_together() -> None:
    headed = batch_of([b"x"], headers=[encode_headers({"a": b"1"})])
    pieces = [arrow(each, include_headers=True) for each in (batch_of(VALUES), headed)]
    [together] = gather(pieces)
    assert together["headers"].to_pylist() == [[], [], [], [{"key": "a", "value": b"1"}]]


@pytest.mark.parametrize("given", [2**62, -(2**62), TIMESTAMP_MS_MAX + 1, TIMESTAMP_MS_MIN - 1])
def test_a_time_that_no_calendar_has_is_null_and_others_stay(given: int) -> None:
    """Older programs took any; a product with 1,000 would wrap to another year."""
    made = arrow(batch_of(VALUES, timestamps_ms=[1000, given, 2000]))
    assert made["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000, None, 2_000_000]


def test_timestamps_far_from_the_first_one_are_kept() -> None:
    far = 1_000 + 2**40
    made = arrow(batch_of(VALUES, timestamps_ms=[1000, far, far]))
    assert made["timestamp"].cast(pa.int64()).to_pylist() == [1_000_000, far * 1000, far * 1000]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_gives_the_same_rows(codec: Codec) -> None:
    assert arrow(batch_of(VALUES, codec=codec))["value"].to_pylist() == VALUES


def test_values_are_not_copied() -> None:
    payload = encode_batch(Columns([b"x" * 1000] * 50), base_index=0, base_timestamp_ms=0)
    made = arrow(decode_batch(payload))
    start = pa.py_buffer(payload).address
    data = made["value"].buffers()[2]
    assert data is not None
    assert start < data.address < start + len(payload)


def test_every_batch_has_the_declared_schema() -> None:
    assert arrow(batch_of(VALUES)).schema.equals(ARROW_SCHEMA)


def test_small_batches_are_put_together_and_keep_their_order() -> None:
    pieces = [arrow(batch_of([bytes([n])] * 10)) for n in range(200)]
    together = list(gather(pieces))
    assert len(together) == 1
    assert together[0]["value"].to_pylist() == [bytes([n]) for n in range(200) for _ in range(10)]


def test_a_gathered_batch_stays_below_the_limit_of_rows() -> None:
    piece = arrow(batch_of([b""] * (ROWS_MAX // 2 + 1)))
    assert [made.num_rows for made in gather([piece] * 3)] == [piece.num_rows] * 3


def test_empty_batches_vanish() -> None:
    empty = arrow(batch_of(VALUES)).slice(0, 0)
    assert list(gather([empty, empty])) == []


def test_values_beyond_what_offsets_of_arrow_say_are_an_error_and_no_wrapped_offsets() -> None:
    assert ends_of(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    with pytest.raises(OverflowError, match="too many for one batch"):
        ends_of(np.array([2**30, 2**30]))
