"""Open files, kept open for the next use, but never more than so many.

A file in use is never closed; unused ones are closed longest unused first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from bookie.disk.port import Disk, DiskFile


@dataclass(slots=True)
class _Open:
    file: DiskFile
    users: int = 0
    forgotten: bool = False


class FileCache:
    """Safe to be used from any thread."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        assert files_max > 0
        self._disk = disk
        self._files_max = files_max
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()

    @contextmanager
    def use(self, path: str) -> Iterator[DiskFile]:
        """Open *path*, or take it as it is. Raises `FileNotFoundError`."""
        with self._lock:
            entry = self._open.get(path)
            if entry is None:
                entry = self._open[path] = _Open(self._disk.open(path))
            self._open.move_to_end(path)
            entry.users += 1
            self._close_unused()
        try:
            yield entry.file
        finally:
            with self._lock:
                entry.users -= 1
                if entry.forgotten and not entry.users:
                    entry.file.close()

    def has(self, path: str) -> bool:
        """Whether there is a file *path*."""
        with suppress(FileNotFoundError), self.use(path):
            return True
        return False

    def forget(self, path: str) -> None:
        """Keep *path* open only for those who use it now: its name means another file, or none,
        from now on."""
        with self._lock:
            entry = self._open.pop(path, None)
            if entry is None:
                return
            entry.forgotten = True
            if not entry.users:
                entry.file.close()

    def close(self) -> None:
        with self._lock:
            for entry in self._open.values():
                entry.file.close()
            self._open.clear()

    def _close_unused(self) -> None:
        excess = len(self._open) - self._files_max
        if excess <= 0:
            return
        unused = [path for path, entry in self._open.items() if not entry.users]
        for path in unused[:excess]:
            self._open.pop(path).file.close()
