"""A bookie's disk behind a page cache that goes with the process: SIGKILL is a power failure.

`CachedDisk` is a `bookie.disk.port.Disk` over real files. What is written stays in the memory of
this process until it is synced; a file that is created, renamed or removed is so on the real disk
only once its directory is synced, in the order in which that was done. So a process that is killed
leaves behind what a machine does that loses its power, at the least: all that was synced, and
`WRITTEN_BACK` of the rest, pages in any order, as a kernel writes back what it likes. A process
that ends in order leaves everything, as its machine goes on.

Not played here: sectors that are torn, syncs that fail, and space that is not there when a page is
written back (`tests/simulation/disk.py` has the first two). Directories are durable as they are
made.
"""

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from bookie.disk.port import LOCK_FILE, DiskFile, RealDisk, birth_time
from bookie.journal.format import DIRECTORY as JOURNAL
from bookie.journal.format import MARK_PATH

PAGE_BYTES: Final = 4096
WRITTEN_BACK: Final = 0.02
"""How probably one page of a file goes to the disk by itself when something is written to it."""
LIES: Final = "DLOG_TEST_DISK_LIES"
"""Set, syncs of a journal file do nothing but for the first: what is broken so must be found."""
_HIDDEN: Final = ".unsynced-"
"""How files begin of whose name the real disk does not know yet."""


@dataclass(slots=True, eq=False)
class _Content:
    """What a file holds, as this process sees it."""

    descriptor: int
    size: int
    handles: int = 0
    synced: bool = False
    """Whether it ever was."""
    pages: dict[int, bytearray] = field(default_factory=dict)
    """Those that are not on the disk yet, by number."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    random: Random = field(default_factory=Random)

    @property
    def clean(self) -> bool:
        return not self.pages and self.size == os.fstat(self.descriptor).st_size

    def write(self, data: bytes, offset: int) -> None:
        with self.lock:
            end = offset + len(data)
            for number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
                start = number * PAGE_BYTES
                page = self.pages.get(number)
                if page is None:
                    stored = os.pread(self.descriptor, PAGE_BYTES, start)
                    page = self.pages[number] = bytearray(stored.ljust(PAGE_BYTES, b"\0"))
                first, last = max(offset, start), min(end, start + PAGE_BYTES)
                page[first - start : last - start] = data[first - offset : last - offset]
            self.size = max(self.size, end)
            if self.pages and self.random.random() < WRITTEN_BACK:
                self._write_out(self.random.choice(list(self.pages)))

    def read(self, length: int, offset: int) -> bytes:
        with self.lock:
            end = min(offset + length, self.size)
            if end <= offset:
                return b""
            data = bytearray(os.pread(self.descriptor, end - offset, offset))
            data.extend(bytes(end - offset - len(data)))
            for number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
                page = self.pages.get(number)
                if page is not None:
                    start = number * PAGE_BYTES
                    first, last = max(offset, start), min(end, start + PAGE_BYTES)
                    data[first - offset : last - offset] = page[first - start : last - start]
            return bytes(data)

    def grow(self, size: int) -> None:
        with self.lock:
            self.size = max(self.size, size)

    def sync(self) -> None:
        with self.lock:
            if os.fstat(self.descriptor).st_size < self.size:
                os.ftruncate(self.descriptor, self.size)
            for number in sorted(self.pages):
                self._write_out(number)
        os.fdatasync(self.descriptor)
        self.synced = True

    def _write_out(self, number: int) -> None:
        start = number * PAGE_BYTES
        page = self.pages.pop(number)
        os.pwrite(self.descriptor, page[: self.size - start], start)


class CachedFile:
    def __init__(self, disk: "CachedDisk", path: str, content: _Content) -> None:
        self._disk, self._path, self._content = disk, path, content

    @property
    def path(self) -> str:
        return self._path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        self._content.write(b"".join(buffers), offset)

    def read(self, length: int, offset: int) -> bytes:
        return self._content.read(length, offset)

    def size(self) -> int:
        return self._content.size

    def identity(self) -> str:
        descriptor = self._content.descriptor
        return f"{os.fstat(descriptor).st_ino:x}/{birth_time(descriptor)}"

    def preallocate(self, size_bytes: int) -> None:
        self._content.grow(size_bytes)

    def sync(self) -> None:
        is_journal = self._path.startswith(JOURNAL) and self._path != MARK_PATH
        if not (LIES in os.environ and is_journal and self._content.synced):
            self._content.sync()

    def forget(self, start: int, end: int) -> None:
        """What is synced is in no page here."""

    def close(self) -> None:
        self._disk.closed(self._path, self._content)


class CachedDisk(RealDisk):
    """The directory *root* of this machine. What an earlier process did not sync is gone."""

    def __init__(self, root: Path | str) -> None:
        super().__init__(root)
        self._mutex = threading.RLock()
        self._names: dict[str, dict[str, _Content | None]] = {}
        """By directory, as this process sees them; None: as it is on the disk, and not open."""
        self._changes: dict[str, list[tuple[str, str]]] = {}
        """By directory: (from, to) of names that the disk does not know yet; to "" is gone."""
        self._created = 0

    def unlock(self) -> None:
        """The process ends in order: what it wrote reaches the disk some time."""
        with self._mutex:
            for directory, names in self._names.items():
                for content in names.values():
                    if content is not None:
                        content.sync()
                self.sync_directory(directory)
        super().unlock()

    def create(self, path: str) -> DiskFile:
        directory, name = _split(path)
        with self._mutex:
            names = self._listed(directory)
            self._created += 1
            hidden = f"{_HIDDEN}{self._created}"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            content = _Content(os.open(self.root / directory / hidden, flags, 0o600), 0, handles=1)
            self._let_go(names.get(name))
            names[name] = content
            self._changes[directory].append((hidden, name))
            return CachedFile(self, path, content)

    def open(self, path: str) -> DiskFile:
        with self._mutex:
            content = self._content(path)
            content.handles += 1
            return CachedFile(self, path, content)

    def rename(self, source: str, target: str) -> None:
        directory, name = _split(source)
        there, name_to = _split(target)
        assert directory == there, "renames within one directory only"
        with self._mutex:
            content, names = self._content(source), self._listed(directory)
            del names[name]
            self._let_go(names.get(name_to))
            names[name_to] = content
            self._changes[directory].append((name, name_to))

    def remove(self, path: str) -> None:
        directory, name = _split(path)
        with self._mutex:
            names = self._listed(directory)
            if name not in names:
                raise _missing(path)
            self._let_go(names.pop(name))
            self._changes[directory].append((name, ""))

    def list(self, directory: str) -> list[str]:
        with self._mutex:
            try:
                names = set(self._listed(directory))
            except FileNotFoundError:
                return []
            with os.scandir(self.root / directory) as entries:
                return sorted(names | {each.name for each in entries if _is_always_there(each)})

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            names, changes = self._listed(path), self._changes[path]
            for source, target in changes:
                if target:
                    (self.root / path / source).rename(self.root / path / target)
                else:
                    (self.root / path / source).unlink(missing_ok=True)
            changes.clear()
            for name, content in names.items():
                if content is not None and not content.handles and content.clean:
                    os.close(content.descriptor)
                    names[name] = None
            super().sync_directory(path)

    def closed(self, path: str, content: _Content) -> None:
        """Somebody does not use *content* any more, which was called *path* once."""
        directory, _ = _split(path)
        with self._mutex:
            content.handles -= 1
            names = self._names[directory]
            name = next((name for name, each in names.items() if each is content), None)
            if name is None:
                self._let_go(content)
            elif not content.handles and content.clean and not self._changes[directory]:
                os.close(content.descriptor)
                names[name] = None

    def _let_go(self, content: _Content | None) -> None:
        """No name means *content* any more."""
        if content is not None and not content.handles:
            os.close(content.descriptor)

    def _content(self, path: str) -> _Content:
        directory, name = _split(path)
        names = self._listed(directory)
        if name not in names:
            raise _missing(path)
        content = names[name]
        if content is None:
            descriptor = os.open(self.root / path, os.O_RDWR | os.O_CLOEXEC)
            content = names[name] = _Content(descriptor, os.fstat(descriptor).st_size)
        return content

    def _listed(self, directory: str) -> dict[str, _Content | None]:
        """Return the names in *directory*, read once. Raises `FileNotFoundError`."""
        names = self._names.get(directory)
        if names is None:
            names = {}
            for path in sorted((self.root / directory).iterdir()):
                if path.name.startswith(_HIDDEN):
                    path.unlink()
                elif not path.is_dir() and path.name != LOCK_FILE:
                    names[path.name] = None
            self._names[directory] = names
            self._changes[directory] = []
        return names


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory, name


def _is_always_there(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir() or entry.name == LOCK_FILE


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
