"""Files of a table: Parquet, written row group by row group, and read again for a range of offsets.

A file has rows of one day (or of any, as the log's setting says) in the order of offsets, with
statistics of offset, timestamp and txid for each row group, and checksums for each page. It is
made on the local disk and then uploaded. Columns are those of a row in Spark but `log`, which is
the same for all rows and may change; the day is in the name of the folder.

Bounds: `OPEN_FILES_MAX` files at once, each with `GROUP_BYTES` in memory.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dlog.arrow import (
    BYTES_MAX,
    NO_TIME,
    ROWS_MAX,
    are_valid,
    gather,
    integers,
    numbers,
    same,
    schema_of,
)
from dlog.arrow_batches import rows_of
from dlog.chunk import Chunk
from dlog.protocol.table import TableFile, times_overlap
from dlog.row_schema import COLUMNS_WITH_HEADERS

COLUMNS: Final = COLUMNS_WITH_HEADERS[1:]
"""Of a file."""
FILE_BYTES: Final = 64 << 20
"""A file is closed as soon as it has as many, so it is larger by one row group at most."""
GROUP_BYTES: Final = 16 << 20
GROUP_ROWS: Final = 1 << 18
OPEN_FILES_MAX: Final = 8
"""Days at once; beyond it the file that has waited for longest is closed."""
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows without a timestamp, as other programs name it."""
_DAY_US: Final = 86_400_000_000
_PLAIN: Final = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "txid": "DELTA_BINARY_PACKED",
    "dlsn": "DELTA_BYTE_ARRAY",
    "value": "PLAIN",
}
"""How columns are encoded that have no dictionary."""
_WITH_DICTIONARY: Final = ["key", "headers.list.element.key"]
_WITH_STATISTICS: Final = ["offset", "timestamp", "txid"]


@dataclass(slots=True)
class _OpenFile:
    path: str
    local: Path
    writer: Any
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0
    rows: int = 0
    first: int = -1
    last: int = -1
    first_us: int | None = None
    last_us: int | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        offsets = integers(rows.column(0))
        self.first = int(offsets[0]) if self.first < 0 else self.first
        self.last = int(offsets[-1])
        times = _times(rows)
        times = times[times != NO_TIME]
        if len(times):
            first_us, last_us = int(times.min()), int(times.max())
            self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
            self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)
        self.rows += rows.num_rows
        self.waiting.append(rows)
        self.waiting_bytes += rows.nbytes
        self.waiting_rows += rows.num_rows
        if self.waiting_bytes >= GROUP_BYTES or self.waiting_rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what waits as a row group."""
        if self.waiting:
            rows = pa.Table.from_batches(self.waiting)
            self.writer.write_table(rows, row_group_size=rows.num_rows)
            self.waiting, self.waiting_bytes, self.waiting_rows = [], 0, 0

    @property
    def is_full(self) -> bool:
        return bool(self.local.stat().st_size + self.waiting_bytes >= FILE_BYTES)

    def close(self) -> TableFile:
        self.flush()
        self.writer.close()
        return TableFile(
            path=self.path,
            rows=self.rows,
            bytes=self.local.stat().st_size,
            first=self.first,
            last=self.last,
            first_us=self.first_us,
            last_us=self.last_us,
        )


class RowFiles:
    """Writes rows to files in *directory*; each that is complete is returned with its local path.

    *name* begins the name of each file; *by_day*: one day's rows each."""

    def __init__(self, directory: Path, name: str, *, by_day: bool) -> None:
        self._directory, self._name, self._by_day = directory, name, by_day
        self._open: dict[str, _OpenFile] = {}
        """By folder, in the order of use."""
        self._files = 0
        self.bytes = 0
        """Of the rows that were added, as they are in memory."""

    def add(self, log: str, chunks: Iterable[Chunk]) -> list[tuple[TableFile, Path]]:
        """Add the records of *chunks*, which follow those before; return files that are full."""
        done: list[tuple[TableFile, Path]] = []
        for rows in gather(rows_of(log, chunks, columns=COLUMNS)):
            self.bytes += rows.nbytes
            for folder, part in self._parts(rows):
                done += self._add(folder, part)
        return done

    def end(self) -> list[tuple[TableFile, Path]]:
        """Return the files that are left."""
        return [self._close(folder) for folder in list(self._open)]

    def _add(self, folder: str, rows: pa.RecordBatch) -> list[tuple[TableFile, Path]]:
        done: list[tuple[TableFile, Path]] = []
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                done.append(self._close(next(iter(self._open))))
            file = self._begin(folder)
        self._open[folder] = file
        file.add(rows)
        if file.is_full:
            done.append(self._close(folder))
        return done

    def _begin(self, folder: str) -> _OpenFile:
        self._files += 1
        name = f"{self._name}-{self._files}.parquet"
        local = self._directory / name
        writer = pq.ParquetWriter(
            local,
            schema_of(COLUMNS),
            compression="zstd",
            compression_level=1,
            use_dictionary=_WITH_DICTIONARY,
            column_encoding=_PLAIN,
            write_statistics=_WITH_STATISTICS,
            write_page_checksum=True,
        )
        return _OpenFile(f"{folder}/{name}" if folder else name, local, writer)

    def _close(self, folder: str) -> tuple[TableFile, Path]:
        file = self._open.pop(folder)
        return file.close(), file.local

    def _parts(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each folder, in the order of offsets."""
        if not self._by_day:
            yield "", rows
            return
        times = _times(rows)
        days = np.where(times == NO_TIME, NO_TIME, times // _DAY_US)
        if days[0] == days[-1] and (days == days[0]).all():
            yield _folder(int(days[0])), rows
            return
        for day in np.unique(days):
            chosen = np.flatnonzero(days == day).astype(np.int64)
            yield _folder(int(day)), rows.take(numbers(chosen))


def _times(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    column = rows.column(COLUMNS.index("timestamp"))
    valid, times = are_valid(column), integers(column)
    return times if valid is None else np.where(valid, times, NO_TIME)


def _folder(day: int) -> str:
    if day == NO_TIME:
        return f"day={NO_DAY}"
    return f"day={datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()}"


Read = Callable[[int, int], bytes]
"""Returns the bytes from one place of a file to another; blocks."""


class _Source(io.RawIOBase):
    """A file in object storage, for the library."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        stop = self._size if size < 0 else min(self._size, self._at + size)
        data = self._read(self._at, stop) if self._at < stop else b""
        self._at += len(data)
        return data


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows of a file may be left out; rows in between that do not pass may stay."""

    first: int
    """Rows have this offset at least: exactly so."""
    end: int
    """And a lower one than this: exactly so."""
    first_us: int | None = None
    """Row groups without a row from this time on are left out."""
    last_us: int | None = None
    """Row groups without a row up to this time are left out."""


def rows_in(
    log: str, file: TableFile, read: Read, wanted: RowFilter, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield *columns* of the rows of *file* that are *wanted*.

    Raises `ValueError` or `OSError`, or what is `pa.ArrowException`, if it is damaged."""
    parquet = pq.ParquetFile(
        _Source(read, file.bytes), pre_buffer=True, page_checksum_verification=True
    )
    if parquet.metadata.num_rows != file.rows:
        raise ValueError(f"it has {parquet.metadata.num_rows} rows instead of {file.rows}")
    stored = [name for name in columns if name != "log"]
    groups = [
        group
        for group in range(parquet.num_row_groups)
        if _may_pass(parquet.metadata.row_group(group), wanted)
    ]
    is_whole = wanted.first <= file.first and file.last < wanted.end
    names = stored if is_whole or "offset" in stored else ["offset", *stored]
    size = max((_batch_rows(parquet.metadata.row_group(group)) for group in groups), default=1)
    for rows in parquet.iter_batches(batch_size=size, row_groups=groups, columns=names):
        chosen = rows if is_whole else _chosen(rows, wanted)
        if chosen.num_rows:
            made = [
                same(log, chosen.num_rows) if name == "log" else chosen.column(name)
                for name in columns
            ]
            yield pa.RecordBatch.from_arrays(made, schema=schema_of(columns))


def _batch_rows(group: Any) -> int:
    """Return how many rows have about `BYTES_MAX`: larger batches cost Spark more than smaller."""
    rows, size = int(group.num_rows), int(group.total_byte_size)
    return max(1, min(ROWS_MAX, BYTES_MAX * rows // max(1, size)))


def _chosen(rows: pa.RecordBatch, wanted: RowFilter) -> pa.RecordBatch:
    offsets = integers(rows.column("offset"))
    begin, end = np.searchsorted(offsets, [wanted.first, wanted.end])
    return rows.slice(int(begin), int(end - begin))


def _may_pass(group: Any, wanted: RowFilter) -> bool:
    offsets = group.column(0).statistics
    if offsets.max_raw < wanted.first or offsets.min_raw >= wanted.end:
        return False
    times = group.column(COLUMNS.index("timestamp")).statistics
    if times is None or not times.has_min_max:
        return True
    return times_overlap(times.min_raw, times.max_raw, wanted.first_us, wanted.last_us)


class OffsetCheck:
    """Reads whole files, and counts how often each offset from *first* up to *end* is there."""

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end
        self._found: list[npt.NDArray[np.int64]] = []
        self.rows = 0

    def add(self, file: TableFile, data: bytes) -> str:
        """Count the rows of *file*, whose bytes are *data*; return what is wrong with it."""
        if len(data) != file.bytes:
            return f"it has {len(data)} bytes instead of {file.bytes}"
        wanted = RowFilter(0, np.iinfo(np.int64).max)
        try:
            whole = [
                rows.column(0)
                for rows in rows_in("", file, lambda a, b: data[a:b], wanted, COLUMNS)
            ]
        except (ValueError, OSError, pa.ArrowException) as error:
            return str(error).partition("\n")[0]
        offsets = np.concatenate([integers(column) for column in whole])
        self._found.append(offsets)
        self.rows += len(offsets)
        if (int(offsets[0]), int(offsets[-1])) != (file.first, file.last):
            return f"its offsets are {offsets[0]} to {offsets[-1]}, not {file.first} to {file.last}"
        return ""

    def problems(self) -> list[str]:
        """Return which offsets are missing, or there more than once, the first few of them."""
        found = np.sort(np.concatenate(self._found)) if self._found else np.zeros(0, np.int64)
        expected = np.arange(self._first, self._end)
        missing = np.setdiff1d(expected, found)
        excess = np.setdiff1d(found, expected)
        twice = found[:-1][found[1:] == found[:-1]] if len(found) else found
        return [
            f"offset {offsets[0]} {what}, and {len(offsets) - 1} more"
            for offsets, what in (
                (missing, "is missing"),
                (excess, "is not of the table"),
                (twice, "is there twice"),
            )
            if len(offsets)
        ]
