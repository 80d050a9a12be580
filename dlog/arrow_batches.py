"""Chunks of a log as Arrow batches; small entries together, column by column.

Who appends little at a time leaves entries of a few records, and to make Arrow's arrays of an entry
costs 0.1 ms, however few they are. So what is small is put together before, with no step per
record.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlog.arrow import (
    byte_strings,
    header_lists,
    micros_of,
    numbers,
    same,
    schema_of,
    timestamps,
    to_arrow,
    txids,
)
from dlog.chunk import Chunk
from dlog.headers import Pairs
from dlog.position import NO_TXID
from dlog.recordbatch import RecordBatch
from dlog.row_schema import COLUMNS

SMALL_BYTES: Final = 64 << 10
"""Of the records of an entry; to put larger ones together costs more than it saves."""

_Blob = tuple[npt.NDArray[np.int32], memoryview]
"""Where each of some byte strings ends, the first one's beginning before it; and the bytes."""


def rows_of(
    log: str, chunks: Iterable[Chunk], *, columns: tuple[str, ...] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """Yield *columns* of the records of *chunks*, which follow each other without a gap."""
    small: list[Chunk] = []
    for chunk in chunks:
        if chunk.batch.header.body_bytes <= SMALL_BYTES:
            small.append(chunk)
            continue
        yield from _joined(log, small, columns)
        small = []
        yield _one(log, chunk, columns)
    yield from _joined(log, small, columns)


def _one(log: str, chunk: Chunk, columns: tuple[str, ...]) -> pa.RecordBatch:
    rows = to_arrow(
        log,
        chunk.batch,
        first_offset=chunk.place.first_offset,
        segment=chunk.place.segment,
        entry=chunk.place.entry,
        columns=columns,
    )
    return rows.slice(chunk.skip, chunk.take)


def _joined(
    log: str, chunks: Sequence[Chunk], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    if not chunks:
        return
    if len(chunks) == 1:
        yield _one(log, chunks[0], columns)
        return
    count = sum(chunk.take for chunk in chunks)
    begin = chunks[0].begin
    has_txids = any(chunk.batch.txids is not None for chunk in chunks)
    has_keys = any(chunk.batch.keys is not None for chunk in chunks)
    makers: dict[str, Callable[[], pa.Array]] = {
        "log": lambda: same(log, count),
        "offset": lambda: numbers(np.arange(begin, begin + count, dtype=np.int64)),
        "dlsn": lambda: _dlsns(chunks),
        "timestamp": lambda: timestamps(_taken(chunks, micros_of)),
        "txid": lambda: (
            txids(_taken(chunks, _txids_of)) if has_txids else pa.nulls(count, pa.int64())
        ),
        "key": lambda: _keys(chunks) if has_keys else pa.nulls(count, pa.binary()),
        "value": lambda: _binary([_cut(chunk, _values_of(chunk.batch)) for chunk in chunks]),
        "headers": lambda: _headers(chunks),
    }
    made = [makers[name]() for name in columns]
    yield pa.RecordBatch.from_arrays(made, schema=schema_of(columns))


def _taken(
    chunks: Sequence[Chunk], column: Callable[[RecordBatch], npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    parts = [column(chunk.batch)[chunk.skip : chunk.skip + chunk.take] for chunk in chunks]
    return np.concatenate(parts)


def _dlsns(chunks: Sequence[Chunk]) -> pa.Array:
    named = [b"%d:%d" % (chunk.place.segment, chunk.place.entry) for chunk in chunks]
    places = byte_strings(pa.string(), named)
    whose = np.repeat(np.arange(len(chunks)), [chunk.take for chunk in chunks])
    slots = np.concatenate([np.arange(chunk.skip, chunk.skip + chunk.take) for chunk in chunks])
    in_entry = numbers(slots).cast(pa.string())
    colons = same(":", len(slots))
    return pc.binary_join_element_wise(places.take(numbers(whose)), in_entry, colons)


def _txids_of(batch: RecordBatch) -> npt.NDArray[np.int64]:
    if batch.txids is None:
        return np.full(batch.count, NO_TXID, dtype=np.int64)
    return np.frombuffer(batch.txids, dtype=np.int64)


def _keys(chunks: Sequence[Chunk]) -> pa.Array:
    blobs = [_cut(chunk, _keys_of(chunk.batch)) for chunk in chunks]
    there = [_there(chunk.batch)[chunk.skip : chunk.skip + chunk.take] for chunk in chunks]
    return _binary(blobs, np.packbits(np.concatenate(there), bitorder="little"))


def _headers(chunks: Sequence[Chunk]) -> pa.Array:
    """Return what `arrow.to_arrow` does; without a step for a record of an entry without any."""
    counts: list[npt.NDArray[np.int32]] = []
    pairs: list[Pairs] = []
    for chunk in chunks:
        headers = chunk.batch.headers_list()
        if headers is None:
            counts.append(np.zeros(chunk.take, dtype=np.int32))
            continue
        taken = [each.pairs() for each in headers[chunk.skip : chunk.skip + chunk.take]]
        counts.append(np.fromiter(map(len, taken), dtype=np.int32, count=chunk.take))
        pairs += taken
    return header_lists(np.concatenate(counts), pairs)


def _there(batch: RecordBatch) -> npt.NDArray[np.uint8]:
    """Return 1 for each record that has a key."""
    if batch.keys is None:
        return np.zeros(batch.count, dtype=np.uint8)
    if batch.key_validity is None:
        return np.ones(batch.count, dtype=np.uint8)
    bits = np.frombuffer(batch.key_validity, dtype=np.uint8)
    return np.unpackbits(bits, count=batch.count, bitorder="little")


def _values_of(batch: RecordBatch) -> _Blob:
    return np.frombuffer(batch.value_offsets, dtype=np.int32), batch.values


def _keys_of(batch: RecordBatch) -> _Blob:
    if batch.keys is None or batch.key_offsets is None:
        return np.zeros(batch.count + 1, dtype=np.int32), memoryview(b"")
    return np.frombuffer(batch.key_offsets, dtype=np.int32), batch.keys


def _cut(chunk: Chunk, blob: _Blob) -> _Blob:
    ends = blob[0][chunk.skip : chunk.skip + chunk.take + 1]
    return ends, blob[1][ends[0] : ends[-1]]


def _binary(blobs: Sequence[_Blob], there: npt.NDArray[np.uint8] | None = None) -> pa.Array:
    lengths = np.concatenate([np.diff(ends) for ends, _ in blobs])
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    data = b"".join(data for _, data in blobs)
    bitmap = None if there is None else pa.py_buffer(there)
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)
