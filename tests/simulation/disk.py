"""A disk in memory that forgets at a crash what a real one may forget.

Each file remembers which writes were not synced, each directory which changes of its names.
`crash` decides for each of them: kept, lost, or (writes) kept in some of their sectors. The
decisions come from the random generator given, so a seed replays them.

`kill` ends the process alone: what it wrote, renamed and removed without a sync is there for
the next one to see, and lost if the power goes after that. A sync that fails is worse: what it
should have written is on the disk in part, at random, is never written again by a later sync, and
can be read until the system forgets it, which it does for some files at the next `kill`.

Besides: errors on chosen operations (`fail`), `DiskFull` beyond `capacity_bytes`, and power
loss at the n-th operation (`crash_at`), which raises `PowerLost` there and for everything
after it until `crash` is called.
"""

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from typing import Final

from bookie.disk.port import DiskFile, DiskUsage, disk_error
from bookie.errors import DirectoryInUse

SECTOR_BYTES: Final = 512
_UNLIMITED_BYTES: Final = 1 << 50
_NUMBERS: Final = count(1)
"""Of all files ever made."""


class PowerLost(BaseException):
    """Not an `Exception`: nothing in the code under test may catch and survive it."""


class Loss(Enum):
    """What happens to what was not synced."""

    LOST = "lost"
    KEPT = "kept"
    TORN = "torn"
    """Each write and each change of a name is kept, lost or (writes) kept in part, at random."""


@dataclass(slots=True)
class _Content:
    """The bytes of one file, whatever its name."""

    durable: bytearray = field(default_factory=bytearray)
    now: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    number: int = field(default_factory=partial(next, _NUMBERS))
    """What distinguishes it from a copy."""
    is_false: bool = False
    """Whether what can be read is not what is on the disk, nor will be: a sync has failed."""

    def write(self, data: bytes, offset: int) -> None:
        _put(self.now, data, offset)
        self.unsynced.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _put(self.durable, data, offset)
        self.unsynced.clear()

    def fail(self, kept: "Loss", lot: random.Random) -> None:
        """Let the system take for clean what it could not write, apart from what is *kept*."""
        self._keep_some(kept, lot)
        self.is_false = True

    def keep_half(self) -> None:
        """Let every second sector of each write reach the disk."""
        for offset, data in self.unsynced:
            for start in range(-(offset % SECTOR_BYTES), len(data), 2 * SECTOR_BYTES):
                part = data[max(0, start) : start + SECTOR_BYTES]
                _put(self.durable, part, offset + max(0, start))
        self.unsynced.clear()

    def evict(self) -> None:
        """Forget what can be read and is not on the disk, except what is to be written yet."""
        self.now = bytearray(self.durable)
        for offset, data in self.unsynced:
            _put(self.now, data, offset)
        self.is_false = False

    def crash(self, loss: Loss, lot: random.Random) -> bool:
        """Return whether some write was kept in part."""
        torn = self._keep_some(loss, lot)
        self.now = bytearray(self.durable)
        self.is_false = False
        return torn

    def _keep_some(self, loss: Loss, lot: random.Random) -> bool:
        torn = False
        for offset, data in self.unsynced:
            if loss is Loss.KEPT or (loss is Loss.TORN and lot.random() < 0.4):
                _put(self.durable, data, offset)
            elif loss is Loss.TORN and lot.random() < 0.5:
                self._write_sectors(offset, data, lot)
                torn = True
        self.unsynced.clear()
        return torn

    def _write_sectors(self, offset: int, data: bytes, lot: random.Random) -> None:
        start = 0
        while start < len(data):
            end = min(len(data), start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
            if lot.random() < 0.5:
                _put(self.durable, data[start:end], offset + start)
            start = end


@dataclass(slots=True)
class _Directory:
    """Names of one directory; a change gives a name its content, or None for gone."""

    durable: dict[str, _Content] = field(default_factory=dict)
    now: dict[str, _Content] = field(default_factory=dict)
    unsynced: list[dict[str, _Content | None]] = field(default_factory=list)

    def change(self, names: dict[str, _Content | None]) -> None:
        _rename(self.now, names)
        self.unsynced.append(names)

    def sync(self) -> None:
        for names in self.unsynced:
            _rename(self.durable, names)
        self.unsynced.clear()

    def crash(self, loss: Loss, lot: random.Random) -> None:
        for names in self.unsynced:
            if loss is Loss.KEPT or (loss is Loss.TORN and lot.random() < 0.5):
                _rename(self.durable, names)
        self.unsynced.clear()
        self.now = dict(self.durable)


class SimFile:
    def __init__(self, disk: "SimDisk", path: str, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._life = disk.lives
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        data = b"".join(buffers)
        self._step("write")
        self._disk.reserve(self._path, offset + len(data) - len(self._content.now))
        self._content.write(data, offset)

    def read(self, length: int, offset: int) -> bytes:
        self._step("read", counts=False)
        return bytes(self._content.now[offset : offset + length])

    def size(self) -> int:
        self._step("size", counts=False)
        return len(self._content.now)

    def identity(self) -> str:
        return f"{self._content.number:016x}/"  # of one length: sizes do not depend on it

    def preallocate(self, size_bytes: int) -> None:
        self._step("preallocate")
        missing = size_bytes - len(self._content.now)
        if missing > 0:
            self._disk.reserve(self._path, missing)
            self._content.write(bytes(missing), len(self._content.now))

    def forget(self, start: int, end: int) -> None:
        """There is nothing but memory."""

    def sync(self) -> None:
        try:
            self._step("sync")
        except OSError:
            self._content.fail(self._disk.kept_by_failed_syncs, self._disk.lot)
            raise
        self._content.sync()

    def close(self) -> None:
        assert not self._closed, f"{self._path} closed twice"
        self._closed = True

    def _step(self, operation: str, *, counts: bool = True) -> None:
        assert not self._closed, f"{operation} on the closed {self._path}"
        assert self._life == self._disk.lives, f"{self._path} was opened before the crash"
        self._disk.step(operation, self._path, counts=counts)


class SimDisk:
    """See the module's docstring; the same calls as `bookie.disk.port.Disk`."""

    def __init__(self, lot: random.Random | int = 0, *, capacity_bytes: int | None = None) -> None:
        self.lot = random.Random(lot) if isinstance(lot, int) else lot
        self.capacity_bytes = capacity_bytes
        self.system = "simulated"
        """What `where` says: it is another one on another machine."""
        self.lives = 0
        self.operations = 0
        """How many operations changed something, since the start."""
        self.crash_at: int | None = None
        self.kept_by_failed_syncs = Loss.TORN
        self.forgotten_after_failed_syncs = 0.3
        """How probably the next process cannot read any more what a sync did not write."""
        self.torn: list[str] = []
        """Files of which the last crash kept a write in part."""
        self._crash_before: tuple[str, str] | None = None
        self._off = False
        self._locked = False
        self._directories: dict[str, _Directory] = {"": _Directory()}
        self._durable_directories: dict[str, None] = {"": None}
        self._failing: list[tuple[str, str, int]] = []
        self._bad: tuple[str, str] | None = None

    def crash(self, loss: Loss = Loss.TORN, *, halves: bool = False) -> None:
        """Lose power, and come back with what was synced and as much else as *loss* says; or, of
        writes, with *halves*."""
        self._end_process()
        if halves:
            for content in self._contents():
                content.keep_half()
        torn = [content for content in self._contents() if content.crash(loss, self.lot)]
        self.torn = [path for path in self.files() if any(self._content(path) is c for c in torn)]
        for path in sorted(self._directories):
            self._directories[path].crash(loss, self.lot)
            self._crash_directory(path, loss)

    def kill(self) -> None:
        """End the process that uses the disk: its files are closed, nothing is lost yet, except
        some of what a failed sync has left in memory."""
        self._end_process()
        for content in self._contents():
            if content.is_false and self.lot.random() < self.forgotten_after_failed_syncs:
                content.evict()

    def _contents(self) -> list[_Content]:
        """Return all that any name means, or may mean after a crash."""
        contents = {
            id(content): content
            for directory in self._directories.values()
            for content in (
                *directory.durable.values(),
                *directory.now.values(),
                *(c for names in directory.unsynced for c in names.values() if c is not None),
            )
        }
        return list(contents.values())

    def _end_process(self) -> None:
        self.lives += 1
        self.crash_at = self._crash_before = None
        self._off = self._locked = False
        self._bad = None

    def crash_before(self, operation: str, path: str) -> None:
        """Lose power when the next *operation* on a path that begins with *path* begins."""
        self._crash_before = (operation, path)

    def fail(self, operation: str, path: str = "", number: int = errno.EIO) -> None:
        """Let the next *operation* on a path that begins with *path* raise, once."""
        self._failing.append((operation, path, number))

    def go_bad(self, operation: str, path: str) -> None:
        """Let every *operation* on a path that begins with *path* raise, until `heal_bad`.

        A restart ends it too."""
        self._bad = (operation, path)

    def heal_bad(self) -> None:
        self._bad = None

    def files(self) -> list[str]:
        """Return the paths of all files, in order."""
        return [
            f"{path}/{name}" if path else name
            for path in sorted(self._directories)
            for name in sorted(self._directories[path].now)
        ]

    def used_bytes(self) -> int:
        return sum(len(c.now) for d in self._directories.values() for c in d.now.values())

    def heal(self) -> None:
        """Forget what was ordered and did not happen yet; give space."""
        self.crash_at = self._crash_before = None
        self.capacity_bytes = None
        self._failing.clear()
        self._bad = None

    def damage(self, path: str, offset: int, data: bytes) -> None:
        """Change bytes behind everybody's back, for good."""
        content = self._content(path)
        _put(content.now, data, offset)
        _put(content.durable, data, offset)

    def cut(self, path: str, size_bytes: int) -> None:
        """Shorten a file behind everybody's back, for good."""
        content = self._content(path)
        del content.now[size_bytes:]
        del content.durable[size_bytes:]

    def lose(self, path: str) -> None:
        """Remove a file behind everybody's back, for good."""
        directory, name = self._parent(path)
        directory.now.pop(name, None)
        directory.durable.pop(name, None)

    def content(self, path: str) -> bytes:
        return bytes(self._content(path).now)

    def copy(self, *, by_files: bool = False) -> "SimDisk":
        """Return a disk with the same files, all synced: as a snapshot of the device has them, or
        copied *by_files*, which makes other files of the same bytes."""
        other = SimDisk(self.lot.randrange(1 << 32), capacity_bytes=self.capacity_bytes)
        for path, directory in self._directories.items():
            names = {
                name: _Content(
                    bytearray(content.now),
                    bytearray(content.now),
                    number=next(_NUMBERS) if by_files else content.number,
                )
                for name, content in directory.now.items()
            }
            other._directories[path] = _Directory(names, dict(names))
            other._durable_directories[path] = None
        return other

    def step(self, operation: str, path: str, *, counts: bool = True) -> None:
        """Take note of an operation; raise what was ordered for it."""
        if self._off:
            raise PowerLost(operation)
        if self._crash_before is not None:
            wanted, prefix = self._crash_before
            if wanted == operation and path.startswith(prefix):
                self._off = True
                raise PowerLost(f"{operation} {path}")
        if counts:
            self.operations += 1
            if self.crash_at is not None and self.operations >= self.crash_at:
                self._off = True
                raise PowerLost(f"operation {self.operations}: {operation} {path}")
        if self._bad is not None and operation == self._bad[0] and path.startswith(self._bad[1]):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        for failing in self._failing:
            wanted, prefix, number = failing
            if wanted == operation and path.startswith(prefix):
                self._failing.remove(failing)
                raise disk_error(number, path, sync=operation.startswith("sync"))

    def reserve(self, path: str, more_bytes: int) -> None:
        if self.capacity_bytes is None or more_bytes <= 0:
            return
        if self.used_bytes() + more_bytes > self.capacity_bytes:
            raise disk_error(errno.ENOSPC, path)

    def lock(self) -> None:
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def lock_as_another(self) -> None:
        """What a second bookie on this disk would get."""
        if self._locked:
            raise DirectoryInUse("simulated disk")

    def create(self, path: str) -> DiskFile:
        self.step("create", path)
        directory, name = self._parent(path)
        content = _Content()
        directory.change({name: content})
        return SimFile(self, path, content)

    def open(self, path: str) -> DiskFile:
        self.step("open", path, counts=False)
        return SimFile(self, path, self._content(path))

    def rename(self, source: str, target: str) -> None:
        self.step("rename", target)
        directory, name = self._parent(source)
        directory_to, name_to = self._parent(target)
        assert directory is directory_to, "renames within one directory only"
        directory.change({name: None, name_to: self._content(source)})

    def remove(self, path: str) -> None:
        self.step("remove", path)
        self._content(path)
        directory, name = self._parent(path)
        directory.change({name: None})

    def list(self, directory: str) -> list[str]:
        self.step("list", directory, counts=False)
        inside = f"{directory}/" if directory else ""
        names = {
            path[len(inside) :].split("/")[0]
            for path in self._directories
            if path.startswith(inside) and path != directory
        }
        here = self._directories.get(directory)
        return sorted(names | set(here.now if here else ()))

    def make_directory(self, path: str) -> None:
        self.step("make_directory", path)
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            self._directories.setdefault("/".join(parts[:end]), _Directory())

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory", path)
        self._directories[path].sync()
        for other in self._directories:
            if other and other.rpartition("/")[0] == path:
                self._durable_directories[other] = None

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        for file in files:
            file.sync()

    def usage(self) -> DiskUsage:
        total = _UNLIMITED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total, max(0, total - self.used_bytes()))

    def describe(self, path: str) -> str:
        return f"simulated disk:{path}"

    def where(self) -> str:
        return self.system

    def _crash_directory(self, path: str, loss: Loss) -> None:
        """Forget a directory whose own name was not synced, and all that is in it."""
        parent_is_there = not path or path.rpartition("/")[0] in self._directories
        kept = path in self._durable_directories or loss is Loss.KEPT
        if not kept and loss is Loss.TORN:
            kept = self.lot.random() < 0.5
        if kept and parent_is_there:
            self._durable_directories[path] = None
        else:
            del self._directories[path]
            self._durable_directories.pop(path, None)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        if parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._directories[parent], name

    def _content(self, path: str) -> _Content:
        directory, name = self._parent(path)
        content = directory.now.get(name)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if offset > len(target):
        target.extend(bytes(offset - len(target)))
    target[offset : offset + len(data)] = data


def _rename(names: dict[str, _Content], changes: dict[str, _Content | None]) -> None:
    for name, content in changes.items():
        if content is None:
            names.pop(name, None)
        else:
            names[name] = content
