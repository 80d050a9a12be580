"""Writes entries to entry logs: at checkpoints only, in the order given, rolled by size.

A start begins a new log, so nothing is ever written behind bytes that a crash left.
Used by one thread at a time.
"""

from collections.abc import Iterable
from typing import Final

from bookie.disk import Disk, DiskFile
from bookie.entrylog.format import (
    DIRECTORY,
    HEADER_BYTES,
    LOG_ID_MAX,
    SUFFIX,
    encode_header,
    path_of,
)
from bookie.pieces import Piece

_WRITE_BYTES: Final = 1024 * 1024


class EntryLogWriter:
    """See the module's docstring."""

    def __init__(self, disk: Disk, *, log_bytes_max: int) -> None:
        self._disk = disk
        self._log_bytes_max = log_bytes_max
        names = [name for name in disk.list(DIRECTORY) if name.endswith(SUFFIX)]
        self._log_id = max((int(name.removesuffix(SUFFIX), 16) for name in names), default=0)
        self._file: DiskFile | None = None
        self._end = 0
        self._unsynced: list[DiskFile] = []
        self._new_names = False
        self._buffers: list[bytes | memoryview] = []
        self._buffered_bytes = 0

    def write(self, pieces: Iterable[Piece]) -> list[tuple[int, int]]:
        """Append *pieces*; return the (log id, offset) of each. Not durable before `sync`."""
        places = []
        for piece in pieces:
            file = self._current()
            places.append((self._log_id, self._end + self._buffered_bytes))
            self._buffers.append(piece.view())
            self._buffered_bytes += piece.size_bytes
            if self._buffered_bytes >= _WRITE_BYTES:
                self._flush(file)
        return places

    def sync(self) -> None:
        """Make everything durable that was written since the last call."""
        if self._file is not None:
            self._flush(self._file)
        for file in self._unsynced:
            file.sync()
            if file is not self._file:
                file.close()
        self._unsynced.clear()
        if self._new_names:
            self._disk.sync_directory(DIRECTORY)
            self._new_names = False

    def close(self) -> None:
        files = {id(file): file for file in self._unsynced}
        if self._file is not None:
            files[id(self._file)] = self._file
        for file in files.values():
            file.close()

    def _current(self) -> DiskFile:
        """Return the log to write to, a new one if the present one is full."""
        if self._file is not None:
            if self._end + self._buffered_bytes < self._log_bytes_max:
                return self._file
            self._flush(self._file)
        self._log_id += 1
        assert self._log_id <= LOG_ID_MAX, "entry log ids are used up"
        self._file = self._disk.create(path_of(self._log_id))
        self._new_names = True
        self._end = 0
        self._buffers = [encode_header(self._log_id)]
        self._buffered_bytes = HEADER_BYTES
        return self._file

    def _flush(self, file: DiskFile) -> None:
        if not self._buffers:
            return
        if file not in self._unsynced:
            self._unsynced.append(file)
        file.write(self._buffers, self._end)
        self._end += self._buffered_bytes
        self._buffers = []
        self._buffered_bytes = 0
