"""Writes entries to entry logs: at checkpoints only, in the order given, rolled by size.

A start begins a new log, so nothing is ever written behind bytes that a crash left.
Used by one thread at a time, except `is_writing` and `LogIds`.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final

from bookie.disk.port import Disk
from bookie.entrylog.format import (
    DIRECTORY,
    HEADER_BYTES,
    LOG_ID_MAX,
    SUFFIX,
    UNFINISHED_SUFFIX,
    encode_header,
    logs_of,
    path_of,
)
from bookie.entrylog.ledger_map import LedgerMapBuilder, encode_map
from bookie.pieces import Piece

_WRITE_BYTES: Final = 1024 * 1024
_UNSYNCED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Synced before more is written: the journal's syncs wait for all that the disk was given."""
_LEDGER_AT: Final = 8
_LEDGER: Final = Struct("<q")


class LogIds:
    """Gives out the log ids of one ledger directory, to flushes and to compaction.

    None is given twice: each is larger than that of every file there is, and the newest log
    is never removed (BK-142, #3680). Safe to be used from any thread."""

    def __init__(self, disk: Disk) -> None:
        names = disk.list(DIRECTORY)
        here = (*logs_of(names), *logs_of(names, UNFINISHED_SUFFIX))
        self._last = max(here, default=0)
        self._lock = threading.Lock()

    def take(self) -> int:
        with self._lock:
            assert self._last < LOG_ID_MAX, "entry log ids are used up"
            self._last += 1
            return self._last


class LogFile:
    """Appends frames to a new log; not durable before `sync`, which leaves the name to others."""

    def __init__(self, disk: Disk, log_id: int, *, suffix: str = SUFFIX) -> None:
        self.log_id = log_id
        self.path = path_of(log_id, suffix)
        self._file = disk.create(self.path)
        self._buffers: list[bytes | memoryview] = [encode_header(log_id)]
        self._buffered_bytes = HEADER_BYTES
        self._written = 0
        self._durable = 0
        """Bytes that are, by a `sync` or ahead of it."""
        self._synced = 0
        self._frames_end = 0
        self._map = LedgerMapBuilder()

    @property
    def end(self) -> int:
        """Where the next frame goes."""
        return self._written + self._buffered_bytes

    @property
    def frames_end(self) -> int:
        """Where the frames end, before the map if there is one."""
        return self._frames_end or self.end

    @property
    def is_synced(self) -> bool:
        """Whether nothing was appended since the last `sync`."""
        return self.end == self._synced

    @property
    def is_full_of_ledgers(self) -> bool:
        return self._map.is_full

    def append(self, piece: Piece) -> int:
        """Append *piece*; return the offset of its first frame."""
        offset = self.end
        frames = piece.view()
        ledger_id = _LEDGER.unpack_from(frames, _LEDGER_AT)[0]
        self._map.add(ledger_id, len(frames), piece.end - piece.begin)
        self._put(frames)
        return offset

    def finish(self, sources: Sequence[int] = ()) -> None:
        """Put the ledger map behind the frames; nothing may be appended after it."""
        self._frames_end = self.end
        ledger_map = self._map.build(self.end, sources)
        self._put(encode_map(self.log_id, ledger_map, self.end))
        self.flush()

    def flush(self) -> None:
        """Write what is buffered. Of much, a part is made durable at once."""
        if self._buffers:
            self._file.write(self._buffers, self._written)
            self._written += self._buffered_bytes
            self._buffers = []
            self._buffered_bytes = 0
        if self._written - self._durable >= _UNSYNCED_BYTES_MAX:
            self._make_durable()

    def sync(self) -> None:
        self.flush()
        self._make_durable()
        self._synced = self._written

    def close(self) -> None:
        """Close it as it is on disk; what is buffered is dropped."""
        self._file.close()

    def _make_durable(self) -> None:
        if self._durable < self._written:
            self._file.sync()
            self._durable = self._written

    def _put(self, data: bytes | memoryview) -> None:
        self._buffers.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes >= _WRITE_BYTES:
            self.flush()


class EntryLogWriter:
    """See the module's docstring.

    After a `DiskFull`, `abandon` must come before the next `write`."""

    def __init__(self, disk: Disk, *, log_bytes_max: int, ids: LogIds | None = None) -> None:
        self.ids = ids or LogIds(disk)
        self._disk = disk
        self._log_bytes_max = log_bytes_max
        self._log: LogFile | None = None
        self._finished: list[LogFile] = []
        """Logs that are full, but not synced."""
        self._new_names = False
        self.ends: dict[int, int] = {}
        """The logs that the last `sync` made durable, and where the frames of each end."""
        self._writing: frozenset[int] = frozenset()
        self._synced: frozenset[int] = frozenset()
        """The log that goes on, if any: the index may name what is in it."""

    def is_writing(self, log_id: int) -> bool:
        """Whether the log is not finished, or not synced. What such a log holds may not be in the
        index yet, so nobody else may touch it; to be asked while no flush is under way."""
        return log_id in self._writing

    def write(self, pieces: Iterable[Piece]) -> list[tuple[int, int]]:
        """Append *pieces*; return the (log id, offset) of each. Not durable before `sync`."""
        places = []
        for piece in pieces:
            log = self._current()
            places.append((log.log_id, log.append(piece)))
        return places

    def sync(self) -> None:
        """Make everything durable that was written since the last call."""
        for log in self._finished:
            log.sync()
        if self._log is not None and not self._log.is_synced:
            self._log.sync()
        if self._new_names:
            self._disk.sync_directory(DIRECTORY)
            self._new_names = False
        present = () if self._log is None else (self._log,)
        self.ends = {log.log_id: log.frames_end for log in (*self._finished, *present)}
        for log in self._finished:
            log.close()
        self._finished.clear()
        self._keep()

    def abandon(self) -> None:
        """Forget everything that was written since the last `sync`, so that it can be done again.

        Nothing of it is named anywhere yet. Logs that hold nothing else are removed, as their
        space is what is missing."""
        logs, self._finished = self._finished, []
        if self._log is not None and (logs or not self._log.is_synced):
            logs.append(self._log)
            self._log = None
        for log in logs:
            log.close()
            if log.log_id not in self._synced:
                with suppress(OSError):  # garbage that a collection will find
                    self._disk.remove(log.path)
        self._keep()

    def close(self, *, finish: bool = True) -> None:
        """Close the files. If *finish*, give the last log its map, or leave it without one if
        that does not work."""
        for log in self._finished:
            log.close()
        if self._log is None:
            return
        if finish and self._log.is_synced:
            with suppress(OSError):
                self._log.finish()
                self._log.sync()
        self._log.close()

    def _current(self) -> LogFile:
        """Return the log to write to, a new one if the present one is full."""
        log = self._log
        if log is not None:
            if log.end < self._log_bytes_max and not log.is_full_of_ledgers:
                return log
            log.finish()
            self._finished.append(log)
            self._log = None
        new = LogFile(self._disk, self.ids.take())
        self._new_names = True
        self._writing |= {new.log_id}
        self._log = new
        return new

    def _keep(self) -> None:
        """Take note that nothing is unfinished but the present log, which is synced."""
        self._writing = self._synced = frozenset(() if self._log is None else (self._log.log_id,))
