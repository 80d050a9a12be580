"""Rows as Arrow lays them out become record batches, without an object for each record.

A record batch has Arrow's own layout of values and keys (`dlog.recordbatch` has the bytes), so
its columns are cut out of Arrow's buffers. Only headers are put together record by record, where
there are any.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dlog.arrow import are_valid, integers, same
from dlog.errors import RecordTooLarge
from dlog.headers import are_paired, encode_headers
from dlog.position import NO_TXID, timestamp_error
from dlog.recordbatch import Buffer, Flag, assemble
from dlog.spark.errors import InvalidRow, TxidsUnordered
from dlog.spark.sink.columns import SinkColumns

BATCH_BYTES_MAX: Final = 512 * 1024
"""Of the records of one batch; one alone may have more."""
BATCH_RECORDS_MAX: Final = 64 * 1024

_Ends = npt.NDArray[np.int32]
_INT32: Final = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True)
class Encoded:
    """One record batch, uncompressed, whose first record has index 0."""

    payload: bytes
    records: int


@dataclass(frozen=True, slots=True)
class _Blob:
    """Byte strings behind each other: *ends* has where each begins, and where the last one ends."""

    ends: _Ends
    data: memoryview

    def cut(self, begin: int, end: int) -> "_Blob":
        ends = self.ends[begin : end + 1]
        return _Blob(ends - ends[0], self.data[ends[0] : ends[-1]])


class Encoder:
    """Encodes the rows of one task for one log; keeps the last txid, which must not decrease."""

    def __init__(self, log: str, columns: SinkColumns, *, record_bytes_max: int) -> None:
        self._log, self._columns = log, columns
        self._record_bytes_max = record_bytes_max
        self._last_txid = NO_TXID

    def encode(self, rows: pa.RecordBatch, *, now_ms: int) -> Iterator[Encoded]:
        """Yield the batches of *rows*, in order; *now_ms* is the time of rows that have none.

        Raises `InvalidRow`, `TxidsUnordered`, `RecordTooLarge`, `InvalidHeaders`."""
        columns = self._columns
        for name, place in columns.given_by_log:
            if rows.column(place).null_count < len(rows):
                raise InvalidRow(
                    name, "is what the log gives a record; leave it out of what is inserted"
                )
        values = _required(rows, columns.value, "value")
        blobs = [_blob(values)]
        keys = validity = None
        if columns.key is not None and (given := rows.column(columns.key)).null_count < len(given):
            keys = _blob(given)
            blobs.append(keys)
            validity = are_valid(given)
        headers = paired = None
        if columns.headers is not None and rows.column(columns.headers).flatten():
            headers, paired = _headers(rows.column(columns.headers))
            blobs.append(headers)
        times = None if columns.timestamp is None else _times(rows.column(columns.timestamp))
        txids = None if self._has_no_txids(rows) else self._txids(rows)
        for begin, end in self._cuts(blobs):
            yield _batch(
                blobs[0].cut(begin, end),
                keys and keys.cut(begin, end),
                None if validity is None else validity[begin:end],
                headers and headers.cut(begin, end),
                paired is not None and bool(paired[begin:end].any()),
                None if times is None else _deltas(times, begin, end, now_ms),
                None if txids is None else txids[begin:end],
                now_ms,
            )

    def _has_no_txids(self, rows: pa.RecordBatch) -> bool:
        place = self._columns.txid
        if place is None:
            return True
        return self._columns.txid_may_be_null and rows.column(place).null_count == len(rows)

    def _txids(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        assert self._columns.txid is not None
        column = _required(rows, self._columns.txid, "txid").cast(pa.int64())
        txids = integers(column)
        if not len(txids):
            return txids
        before = np.concatenate(([self._last_txid], txids[:-1]))
        wrong = np.flatnonzero(txids < np.maximum(before, NO_TXID + 1))
        if len(wrong):
            txid, last = int(txids[wrong[0]]), int(before[wrong[0]])
            raise TxidsUnordered(self._log, f"{txid} comes after {last} in one partition")
        self._last_txid = int(txids[-1])
        return txids

    def _cuts(self, blobs: Sequence[_Blob]) -> Iterator[tuple[int, int]]:
        """Yield from where to where each batch goes, greedily."""
        ends = np.zeros(len(blobs[0].ends), dtype=np.int64)
        for blob in blobs:
            ends += blob.ends
        count = len(ends) - 1
        if count:
            size = int(np.max(ends[1:] - ends[:-1]))
            if size > self._record_bytes_max:
                raise RecordTooLarge(self._log, size, self._record_bytes_max)
        begin = 0
        while begin < count:
            full = int(np.searchsorted(ends, ends[begin] + BATCH_BYTES_MAX, side="right")) - 1
            end = min(max(full, begin + 1), begin + BATCH_RECORDS_MAX, count)
            yield begin, end
            begin = end


def _batch(
    values: _Blob,
    keys: _Blob | None,
    validity: npt.NDArray[np.bool_] | None,
    headers: _Blob | None,
    has_pairs: bool,  # noqa: FBT001 - a column's, beside the others
    deltas: npt.NDArray[np.int64] | None,
    txids: npt.NDArray[np.int64] | None,
    base_timestamp_ms: int,
) -> Encoded:
    """Return the batch: columns in the order of `dlog.recordbatch`."""
    flags = 0
    columns: list[Buffer] = [values.ends.data.cast("B")]
    if deltas is not None and deltas.any():
        flags |= Flag.TIMES
        if deltas.min() < _INT32.min or deltas.max() > _INT32.max:
            flags |= Flag.WIDE_TIMES
            columns.append(deltas.data.cast("B"))
        else:
            columns.append(deltas.astype(np.int32).data.cast("B"))
    if txids is not None:
        flags |= Flag.TXIDS
        columns.append(np.ascontiguousarray(txids).data.cast("B"))
    blobs = [values.data]
    if keys is not None and (validity is None or validity.any()):
        flags |= Flag.KEYS
        columns.append(keys.ends.data.cast("B"))
        if validity is not None and not validity.all():
            flags |= Flag.KEY_NULLS
            columns.append(np.packbits(validity, bitorder="little").data.cast("B"))
        blobs.append(keys.data)
    if headers is not None and len(headers.data):
        flags |= Flag.HEADERS | (Flag.PAIRS if has_pairs else 0)
        columns.append(headers.ends.data.cast("B"))
        blobs.append(headers.data)
    count = len(values.ends) - 1
    payload = assemble(
        flags,
        count,
        columns,
        [(len(blob), [blob]) for blob in blobs],
        base_index=0,
        base_timestamp_ms=base_timestamp_ms,
        first_txid=NO_TXID if txids is None else int(txids[0]),
        last_txid=NO_TXID if txids is None else int(txids[-1]),
    )
    return Encoded(payload, count)


def _required(rows: pa.RecordBatch, place: int, name: str) -> pa.Array:
    column = rows.column(place)
    if column.null_count:
        raise InvalidRow(name, "is null; leave such rows out, or give it a default (coalesce)")
    return column


def _blob(column: pa.Array) -> _Blob:
    """Return the bytes of a column of strings; a null is as the empty one."""
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        column = column.cast(pa.binary())  # large ones
    if column.null_count:
        column = pc.coalesce(column, same("", len(column)).cast(column.type))
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return _Blob(np.zeros(1, dtype=np.int32), memoryview(b""))
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    whole = memoryview(b"" if data is None else data)
    return _Blob(ends, whole)


def _times(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """Return milliseconds, and which rows have none."""
    known = are_valid(column)
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        times = integers(micros) // 1000
    else:
        times = integers(column.cast(pa.int64()))
    unknown = None
    if known is not None:
        unknown = ~known
        times = np.where(known, times, 0)
    if len(times):
        for extreme in (int(times.min()), int(times.max())):
            if (reason := timestamp_error(extreme)) is not None:
                raise InvalidRow("timestamp", f"has {extreme}: {reason}")
    return times, unknown


def _deltas(
    times: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None],
    begin: int,
    end: int,
    base_ms: int,
) -> npt.NDArray[np.int64]:
    numbers, unknown = times
    deltas = numbers[begin:end] - base_ms
    if unknown is not None:
        deltas[unknown[begin:end]] = 0
    return deltas


def _headers(column: pa.Array) -> tuple[_Blob, npt.NDArray[np.bool_]]:
    """Return the headers of each row as they are stored, and of which rows a name comes twice or a
    value is null."""
    encoded: list[bytes] = []
    for headers in column.to_pylist():
        pairs: list[tuple[str, bytes | None]] = []
        for header in headers or ():
            if header is None or header["key"] is None:
                raise InvalidRow("headers", "has a header without a name")
            pairs.append((header["key"], header["value"]))
        encoded.append(encode_headers(pairs) or b"")
    ends = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(each) for each in encoded], out=ends[1:])
    paired = np.fromiter(map(are_paired, encoded), dtype=np.bool_, count=len(encoded))
    return _Blob(ends, memoryview(b"".join(encoded))), paired
