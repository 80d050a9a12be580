"""Small entries become one Arrow batch, with the rows that each of them gives alone."""

from itertools import product

import pyarrow as pa

from dlog.arrow import to_arrow
from dlog.arrow_batches import SMALL_BYTES, rows_of
from dlog.chunk import Chunk
from dlog.columns import Columns
from dlog.headers import encode_headers
from dlog.position import Place
from dlog.recordbatch import RecordBatch, decode_batch, encode_batch
from dlog.row_schema import COLUMNS, COLUMNS_WITH_HEADERS

VALUES = [b"a", b"", b"ccc", b"dd"]
KINDS: tuple[dict[str, list[object]], ...] = (
    {},
    {"keys": [b"k", None, b"", b"kkk"]},
    {"keys": [b"k", b"l", b"m", b"n"], "txids": [1, 2, 3, 4]},
    {"txids": [None, 5, 6, None]},
    {"timestamps_ms": [999, 1000, 2000, 2001]},
    {"timestamps_ms": [1000, 1000 + 2**40, 7, 8]},
    {"headers": [encode_headers({"a": b"1", "b": b""}), None, None, encode_headers({"ü": b"x"})]},
    {"headers": [None, None, None, encode_headers({"a": b"2"})], "keys": [None, b"k", None, b""]},
    {"headers": [encode_headers([("a", b"2"), ("a", None)]), None, None, None]},
)


def batch_of(number: int, values: list[bytes] = VALUES) -> RecordBatch:
    records = Columns(values, **KINDS[number])  # type: ignore[arg-type]
    return decode_batch(encode_batch(records, base_index=0, base_timestamp_ms=1_000 + number))


def chunks_of(batches: list[RecordBatch], skip: int = 0, left: int = 0) -> list[Chunk]:
    """Return all of *batches*, but for *skip* records of the first and *left* of the last."""
    chunks, offset = [], 40
    for entry, batch in enumerate(batches):
        begin = skip if entry == 0 else 0
        end = batch.count - (left if entry == len(batches) - 1 else 0)
        chunks.append(Chunk(batch, Place(3, 17 + entry, offset), begin, end - begin))
        offset += batch.count
    return chunks


def alone(chunk: Chunk, columns: tuple[str, ...] = COLUMNS) -> pa.RecordBatch:
    rows = to_arrow(
        "log",
        chunk.batch,
        first_offset=chunk.place.first_offset,
        segment=chunk.place.segment,
        entry=chunk.place.entry,
        columns=columns,
    )
    return rows.slice(chunk.skip, chunk.take)


def test_what_is_joined_is_what_each_entry_gives_alone() -> None:
    for first, second, third in product(range(len(KINDS)), repeat=3):
        batches = [batch_of(number) for number in (first, second, third)]
        for skip, left in ((0, 0), (1, 2), (3, 3)):
            chunks = chunks_of(batches, skip, left)
            [made] = rows_of("log", chunks)
            made.validate(full=True)
            assert made.equals(pa.concat_batches([alone(chunk) for chunk in chunks]))


def test_large_entries_stay_as_they_are_and_in_their_place() -> None:
    large = [bytes(SMALL_BYTES + 1), b"", b"", b""]
    batches = [batch_of(0), batch_of(1), batch_of(2, large), batch_of(3), batch_of(0, large)]
    made = list(rows_of("log", chunks_of(batches)))
    assert [each.num_rows for each in made] == [8, 4, 4, 4]
    offsets = [offset for each in made for offset in each["offset"].to_pylist()]
    assert offsets == list(range(40, 60))


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    columns = ("value", "offset")
    for batches in ([batch_of(1)], [batch_of(1), batch_of(2), batch_of(6)]):
        chunks = chunks_of(batches, 1, 1)
        whole = pa.Table.from_batches(rows_of("log", chunks))
        made = pa.Table.from_batches(rows_of("log", chunks, columns=columns))
        assert made.equals(whole.select(columns))


def test_entries_are_joined_with_their_headers_too() -> None:
    for numbers in product((0, 2, 6, 7), repeat=3):
        for skip, left in ((0, 0), (1, 2), (3, 3)):
            chunks = chunks_of([batch_of(number) for number in numbers], skip, left)
            [made] = rows_of("log", chunks, columns=COLUMNS_WITH_HEADERS)
            made.validate(full=True)
            apart = [alone(chunk, COLUMNS_WITH_HEADERS) for chunk in chunks]
            assert made.equals(pa.concat_batches(apart))
