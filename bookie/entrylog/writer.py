"""Writes entries to entry logs: at checkpoints only, in the order given, rolled by size.

A start begins a new log, so nothing is ever written behind bytes that a crash left.
Used by one thread at a time, except `is_writing`.
"""

from collections.abc import Iterable
from contextlib import suppress

from bookie.disk.port import Disk
from bookie.entrylog.format import DIRECTORY
from bookie.entrylog.log_file import LogFile, LogIds
from bookie.pieces import Piece


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
