"""Record batches of a log as Arrow record batches, without touching a record: for Spark and tables.

The value column of a record batch is laid out as Arrow's, so its buffers are taken as they
are; keys and txids likewise. What follows from the place (log, offset, dlsn) is computed in
columns. Spark compares the schema of the first batch with its own type by type, so
`ARROW_SCHEMA` here and `SPARK_SCHEMA` (`dlog.row_schema`) say the same thing twice. Only the
column of headers, which is there if it was asked for, is put together record by record, where a
batch has any; its type is that of Spark's Kafka source, and it is empty where a record has none
(decision 60).

Arrays are made of buffers: `pa.array`, `pa.scalar`, `to_numpy`, and functions of `pyarrow.compute`
that are given a value of Python import pandas where it is installed, a third of a second of each
worker's processor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dlog.headers import Pairs
from dlog.position import NO_TXID, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from dlog.recordbatch import RecordBatch
from dlog.row_schema import COLUMNS

ARROW_SCHEMA: Final = pa.schema(
    [
        ("log", pa.string()),
        ("offset", pa.int64()),
        ("dlsn", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("txid", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW_SCHEMA_WITH_HEADERS: Final = ARROW_SCHEMA.append(pa.field("headers", HEADERS))
_INT64: Final = pa.int64()
ROWS_MAX: Final = 65_536
NO_TIME: Final = np.iinfo(np.int64).min
"""Stands for the time of a record that an older program wrote with one outside of the years 1 to
9999, in the wrong unit: its timestamp is null."""
BYTES_MAX: Final = 1 << 20
"""Small entries are put together into batches of about this size: each costs Spark a round trip.

Large ones stay as they are: memory by the megabyte comes fresh from the kernel each time, and costs
more than what is done with it."""


@lru_cache(maxsize=16)
def schema_of(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of rows that have these *columns*, in this order."""
    return pa.schema([ARROW_SCHEMA_WITH_HEADERS.field(name) for name in columns])


def to_arrow(
    log: str,
    batch: RecordBatch,
    *,
    first_offset: int,
    segment: int,
    entry: int,
    columns: tuple[str, ...] = COLUMNS,
) -> pa.RecordBatch:
    """Return *columns* of all records of *batch*, whose first one has *first_offset*."""
    count = batch.count
    makers: dict[str, Callable[[], pa.Array]] = {
        "log": lambda: same(log, count),
        "offset": lambda: numbers(np.arange(first_offset, first_offset + count, dtype=np.int64)),
        "dlsn": lambda: _dlsns(f"{segment}:{entry}:".encode(), count),
        "timestamp": lambda: timestamps(micros_of(batch)),
        "txid": lambda: _txids(batch),
        "key": lambda: _keys(batch),
        "value": lambda: _binary(count, batch.value_offsets, batch.values),
        "headers": lambda: _headers(batch),
    }
    made = [makers[name]() for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(columns))


def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together until ROWS_MAX or BYTES_MAX is reached."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch_bytes = batch.nbytes
        if waiting and (rows + batch.num_rows > ROWS_MAX or size + batch_bytes > BYTES_MAX):
            yield _together(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch_bytes
    if waiting:
        yield _together(waiting)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@lru_cache(maxsize=16)
def same(text: str, count: int) -> pa.Array:
    """Return *text* so many times; batches of a log tend to have the same few sizes."""
    data = text.encode()
    ends = ends_of(np.full(count, len(data), dtype=np.int64))
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)]
    )


def ends_of(lengths: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int32]:
    """Return 0, and where each value of such a length ends. Raises `OverflowError` beyond 2 GiB:
    offsets of 32 bits would wrap, and values be read at the wrong places."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]} bytes or values are too many for one batch of Arrow")
    return ends.astype(np.int32)


def byte_strings(kind: pa.DataType, strings: Sequence[bytes | None]) -> pa.Array:
    """Return *strings* as an array of strings or of bytes, as *kind* says; None as null."""
    valid = None
    if None in strings:
        present = (value is not None for value in strings)
        valid = _bitmap(np.fromiter(present, dtype=np.bool_, count=len(strings)))
    whole = [value or b"" for value in strings]
    ends = ends_of(np.fromiter(map(len, whole), dtype=np.int64, count=len(whole)))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(whole))]
    return pa.Array.from_buffers(kind, len(whole), buffers)


def numbers(
    each: npt.NDArray[np.int64],
    kind: pa.DataType = _INT64,
    *,
    are_null: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Return *each*, of eight bytes, as *kind*; null where *are_null* says so."""
    known = None if are_null is None or not are_null.any() else _bitmap(~are_null)
    return pa.Array.from_buffers(kind, len(each), [known, pa.py_buffer(each)])


def header_lists(counts: npt.NDArray[np.int32], pairs: Sequence[Pairs]) -> pa.Array:
    """Return the headers of records: *counts* says how many each has, *pairs* has them of those
    that have any."""
    ends = ends_of(counts)
    flat = [*chain.from_iterable(pairs)]
    columns = [
        byte_strings(pa.string(), [name.encode() for name, _ in flat]),
        byte_strings(pa.binary(), [value for _, value in flat]),
    ]
    structs = pa.Array.from_buffers(HEADERS.value_type, len(flat), [None], children=columns)
    buffers = [None, pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS, len(counts), buffers, children=[structs])


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return an array of 64-bit integers as it lies in memory; a null is any number."""
    assert column.type.bit_width == 64, "eight bytes each"
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype=np.int64)
    return np.frombuffer(data, dtype=np.int64)[column.offset : column.offset + len(column)]


def are_valid(column: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which are not null; None: all of them."""
    if not column.null_count:
        return None
    if (bits := column.buffers()[0]) is None:
        return np.zeros(len(column), dtype=np.bool_)
    end = column.offset + len(column)
    found = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=end, bitorder="little")
    return found[column.offset :].astype(np.bool_)


def _bitmap(bits: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _dlsns(prefix: bytes, count: int) -> pa.Array:
    """Return *prefix* and "0", *prefix* and "1", ...: by columns of characters."""
    ends, characters, widths = _numbered(len(prefix), count)
    characters, at = characters.copy(), 0
    for rows, width in widths:
        block = characters[at : at + rows * width].reshape(rows, width)
        block[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
        at += rows * width
    return pa.Array.from_buffers(pa.string(), count, [None, ends, pa.py_buffer(characters)])


@lru_cache(maxsize=16)
def _numbered(
    prefix_bytes: int, count: int
) -> tuple[pa.Buffer, npt.NDArray[np.uint8], list[tuple[int, int]]]:
    """Return where each text of `_dlsns` ends, their characters with nothing where the prefix goes,
    and how many texts there are of which length."""
    blocks, widths, first = [], [], 0
    for digits in range(1, len(str(count)) + 1):
        numbers = np.arange(first, min(count, 10**digits))
        first = 10**digits
        block = np.zeros((len(numbers), prefix_bytes + digits), dtype=np.uint8)
        for digit in range(digits):
            block[:, -1 - digit] = ord("0") + numbers // 10**digit % 10
        blocks.append(block.reshape(-1))
        widths.append(block.shape)
    lengths = np.concatenate([np.full(rows, width) for rows, width in widths])
    ends = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.py_buffer(ends), np.concatenate(blocks), widths


def micros_of(batch: RecordBatch) -> npt.NDArray[np.int64]:
    """Return the timestamps of *batch* in microseconds; `NO_TIME` for what no calendar has."""
    base_ms = batch.header.base_timestamp_ms
    if batch.time_deltas is None:
        is_time = TIMESTAMP_MS_MIN <= base_ms <= TIMESTAMP_MS_MAX
        return np.full(batch.count, base_ms * 1000 if is_time else NO_TIME, dtype=np.int64)
    kind = np.int32 if batch.time_deltas.format == "i" else np.int64
    times_ms = np.frombuffer(batch.time_deltas, dtype=kind).astype(np.int64) + base_ms
    are_times = (times_ms >= TIMESTAMP_MS_MIN) & (times_ms <= TIMESTAMP_MS_MAX)
    micros = times_ms * 1000
    return micros if are_times.all() else np.where(are_times, micros, NO_TIME)


def timestamps(micros: npt.NDArray[np.int64]) -> pa.Array:
    kind = ARROW_SCHEMA.field("timestamp").type
    return numbers(micros, kind, are_null=micros == NO_TIME)


def txids(given: npt.NDArray[np.int64]) -> pa.Array:
    return numbers(given, are_null=given == NO_TXID)


def _txids(batch: RecordBatch) -> pa.Array:
    if batch.txids is None:
        return pa.nulls(batch.count, pa.int64())
    return txids(np.frombuffer(batch.txids, dtype=np.int64))


def _keys(batch: RecordBatch) -> pa.Array:
    if batch.key_offsets is None or batch.keys is None:
        return pa.nulls(batch.count, pa.binary())
    return _binary(batch.count, batch.key_offsets, batch.keys, validity=batch.key_validity)


def _headers(batch: RecordBatch) -> pa.Array:
    headers = batch.headers_list()
    if headers is None:
        return header_lists(np.zeros(batch.count, dtype=np.int32), [])
    pairs = [each.pairs() for each in headers]
    return header_lists(np.fromiter(map(len, pairs), dtype=np.int32, count=batch.count), pairs)


def _binary(
    count: int, offsets: memoryview, data: memoryview, *, validity: memoryview | None = None
) -> pa.Array:
    bitmap = None if validity is None else pa.py_buffer(validity)
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
