"""One entry log while it is being written, and the ids that new ones get.

Used by one thread at a time, except `LogIds`.
"""

import threading
from collections.abc import Sequence
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
