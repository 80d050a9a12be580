"""A disk in memory for bookies in the process of a test: the port `bookie.disk.port.Disk`.

What was written survives the bookie that wrote it, as the page cache survives a killed
process; it is gone with the object. Power loss is the simulator's business.
"""

import errno
import os
import threading
from collections.abc import Sequence
from itertools import count
from typing import Final

from bookie.disk.port import DiskFile, DiskFull, DiskUsage

_NUMBERS: Final = count(1)
"""Of all files, so that a copy has another one."""


class MemoryDisk:
    """Holds at most *bytes_max* bytes; beyond that writes fail as on a full disk."""

    def __init__(self, name: str, bytes_max: int) -> None:
        self.used_bytes = 0
        self._name = name
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._files: dict[str, MemoryContent] = {}
        self._directories: dict[str, None] = {}

    def lock(self) -> None:
        """Nobody else has this object."""

    def unlock(self) -> None:
        """See `lock`."""

    def create(self, path: str) -> "MemoryFile":
        self.remove_if_there(path)
        content = self._files[path] = MemoryContent()
        return MemoryFile(self, path, content)

    def open(self, path: str) -> "MemoryFile":
        return MemoryFile(self, path, self._content(path))

    def rename(self, source: str, target: str) -> None:
        content = self._content(source)
        self.remove_if_there(target)
        del self._files[source]
        self._files[target] = content

    def remove(self, path: str) -> None:
        self._content(path)
        self.remove_if_there(path)

    def remove_if_there(self, path: str) -> None:
        with self._lock:
            self.used_bytes -= len(self._files.pop(path, b""))

    def list(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        every = (*self._files, *self._directories)
        below = (path[len(prefix) :] for path in every if path.startswith(prefix))
        return sorted({rest.partition("/")[0] for rest in below})

    def make_directory(self, path: str) -> None:
        self._directories[path] = None

    def sync_directory(self, path: str) -> None:
        """There is nothing to lose."""

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """There is nothing to lose."""

    def usage(self) -> DiskUsage:
        return DiskUsage(self._bytes_max, max(0, self._bytes_max - self.used_bytes))

    def describe(self, path: str) -> str:
        return f"{self._name}/{path}"

    def where(self) -> str:
        return "memory"

    def write(self, content: bytearray, data: bytes, offset: int) -> None:
        with self._lock:
            missing = offset - len(content)
            grown = max(0, missing + len(data))
            if self.used_bytes + grown > self._bytes_max:
                raise DiskFull(errno.ENOSPC, os.strerror(errno.ENOSPC), self._name)
            self.used_bytes += grown
            if missing > 0:
                content.extend(bytes(missing))
            content[offset : offset + len(data)] = data

    def _content(self, path: str) -> "MemoryContent":
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class MemoryContent(bytearray):
    """The bytes of one file, whatever its name."""

    def __init__(self) -> None:
        super().__init__()
        self.number = next(_NUMBERS)


class MemoryFile:
    """An open file; stays readable after its name was removed."""

    def __init__(self, disk: MemoryDisk, path: str, content: MemoryContent) -> None:
        self._path = path
        self._disk = disk
        self._content = content

    @property
    def path(self) -> str:
        return self._path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._disk.write(self._content, b"".join(buffers), offset)

    def read(self, length: int, offset: int) -> bytes:
        return bytes(self._content[offset : offset + length])

    def size(self) -> int:
        return len(self._content)

    def identity(self) -> str:
        return f"{self._content.number:x}/"

    def preallocate(self, size_bytes: int) -> None:
        if size_bytes > len(self._content):
            self._disk.write(self._content, b"", size_bytes)

    def sync(self) -> None:
        """There is nothing to lose."""

    def forget(self, start: int, end: int) -> None:
        """There is nothing but memory."""

    def close(self) -> None:
        """There is nothing to free."""
