"""Small entries become one Arrow batch, with the rows that each of them gives alone."""

from itertools import product

import pyarrow as pa

from dlog.chunk import Chunk
from dlog.columns import Columns
from dlog.position import Place
from dlog.recordbatch import RecordBatch, decode_batch, encode_batch
from dlog.spark.arrow import to_arrow
from dlog.spark.joining import SMALL_BYTES, rows_of

VALUES = [b"a", b"", b"ccc", b"dd"]
KINDS: tuple[dict[str, list[object]], ...] = (
    {},
    {"keys": [b"k", None, b"", b"kkk"]},
    {"keys": [b"k", b"l", b"m", b"n"], "txids": [1, 2, 3, 4]},
    {"txids": [None, 5, 6, None]},
    {"timestamps_ms": [999, 1000, 2000, 2001]},
    {"timestamps_ms": [1000, 1000 + 2**40, 7, 8]},
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


def alone(chunk: Chunk) -> pa.RecordBatch:
    rows = to_arrow(
        "log",
        chunk.batch,
        first_offset=chunk.place.first_offset,
        segment=chunk.place.segment,
        entry=chunk.place.entry,
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


def test_headers_are_read_entry_by_entry() -> None:
    made = list(rows_of("log", chunks_of([batch_of(0), batch_of(1)]), include_headers=True))
    assert [each["headers"].to_pylist() for each in made] == [[[], [], [], []]] * 2
