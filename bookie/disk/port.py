"""The port to a disk, and the real one: files by path relative to one directory.

Everything the storage engine asks of an operating system goes through here, so that the
same engine runs on the simulated disk of the tests. What a crash may do, and so what callers
must expect (all of it is played through by `tests/simulation/disk.py`):

    data not synced since it was written may be there, be lost, or be there in part
    a file created, renamed or removed is so for sure only after `sync_directory` of its parent
    a synced write stays; a failed sync leaves nothing to rely on and must never be retried

Methods block and raise `OSError`. No space is `DiskFull`, an error of its own, except for syncs:
whatever reason a sync gives, what was to be durable may be lost. Any method may be called from any
thread; closing a file while another thread uses it is the caller's fault.

A bookie has one or more of them (`Directories`). All records of a ledger go to one journal, and all
its entries to one ledger directory, both chosen by its id (rule 63). The choice is never written
down, so the numbers of directories and their order are fixed for the life of the data; the cookies
hold them (`bookie.identity.cookie`).
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Final, Protocol, Self

from bookie.errors import DirectoryInUse, DirectoryUnusable
from ledger.process import make_private

_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BYTES: Final = 256
_MASK: Final = Struct("=I")
_BORN: Final = Struct("=qI")
_BORN_AT: Final = 80
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
LOCK_FILE: Final = "LOCK"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_IOV_MAX: Final = 512
_SYNC_THREADS: Final = 8


def birth_time(descriptor: int) -> str:
    """Return when the open file was made, to the nanosecond; empty if the system does not know."""
    born = getattr(os.fstat(descriptor), "st_birthtime_ns", None)
    if born is not None:  # some systems, and Python from 3.12 on
        return f"{born:x}"
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, answer)
    except (AttributeError, OSError):  # a C library without the call
        return ""
    if failed or not _MASK.unpack_from(answer)[0] & _STATX_BTIME:
        return ""
    seconds, nanoseconds = _BORN.unpack_from(answer, _BORN_AT)
    return f"{seconds * 1_000_000_000 + nanoseconds:x}"


@cache
def running_system() -> str:
    """Return what changes with every boot of the machine; where nothing does, its name."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename


class DiskFull(OSError):
    """There is no space for what was to be written; nothing that was promised is hurt by it.

    Of a write, a part may be there. The same step may be tried again later."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Of the whole file system a directory is on, as far as it is there for this process."""

    total_bytes: int
    free_bytes: int

    @property
    def used_share(self) -> float:
        """From 0 to 1; a file system without a size counts as full."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


def disk_error(number: int, path: str, *, sync: bool = False) -> OSError:
    """Return what a disk raises for error *number* at *path*; by a sync, never `DiskFull`."""
    kind = DiskFull if number in _FULL and not sync else OSError
    return kind(number, os.strerror(number), path)


class DiskFile(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """Relative to the disk's root; for messages."""

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        """Write all of *buffers*, one after the other, from *offset* on."""

    def read(self, length: int, offset: int) -> bytes:
        """Return *length* bytes from *offset*; fewer only at the end of the file."""

    def size(self) -> int: ...

    def identity(self) -> str:
        """Return what distinguishes this file from a copy of it: it stays over renames, writes and
        restarts, and goes with the file. See `is_same_file`."""

    def preallocate(self, size_bytes: int) -> None:
        """Grow the file with zeros to *size_bytes*; if it is that large already, take the space
        of the first *size_bytes* that it does not have yet."""

    def sync(self) -> None:
        """Make data and size durable (fdatasync)."""

    def forget(self, start: int, end: int) -> None:
        """Let memory go that the system keeps of bytes that are synced and not read again soon."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory that belongs to one bookie."""

    def lock(self) -> None:
        """Take the directory for this object, until `unlock`; again is fine.

        Raises `DirectoryInUse`, `DirectoryUnusable`."""

    def unlock(self) -> None: ...

    def create(self, path: str) -> DiskFile:
        """Create an empty file for reading and writing, in place of one that is there."""

    def open(self, path: str) -> DiskFile:
        """Open for reading and writing. Raises `FileNotFoundError`."""

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, in place of a file that is there."""

    def remove(self, path: str) -> None: ...

    def list(self, directory: str) -> list[str]:
        """Return the names in *directory*, sorted; none if there is no such directory."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; one that is there is fine."""

    def sync_directory(self, path: str) -> None:
        """Make the names in *path* durable; "" is the root."""

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """Make all of *files* durable; faster than one after the other.

        Raises `OSError` if that failed for any of them."""

    def usage(self) -> DiskUsage:
        """Return the space of the file system, and what is left of it for this process."""

    def describe(self, path: str) -> str:
        """Return where *path* is, as a person would look for it."""

    def where(self) -> str:
        """Return which running system and which device of it the directory is on.

        As long as that is the same, who holds the directory's lock is the only one."""


def is_same_file(one: str, other: str) -> bool:
    """Whether two identities can be of one file: inode and birth time, as far as both have it."""
    inode, _, born = one.partition("/")
    other_inode, _, other_born = other.partition("/")
    return inode == other_inode and (not born or not other_born or born == other_born)


class RealFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        return self._path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        try:
            for start in range(0, len(buffers), _IOV_MAX):
                group = list(buffers[start : start + _IOV_MAX])
                size_bytes = sum(map(len, group))
                written = os.pwritev(self._descriptor, group, offset)
                if written < size_bytes:
                    self._write_rest(b"".join(group), written, offset)
                offset += size_bytes
        except OSError as error:
            if error.errno in _FULL:
                raise disk_error(error.errno, self._path) from error
            raise

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        view = memoryview(data)
        while written < len(view):
            count = os.pwrite(self._descriptor, view[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, "nothing could be written", self._path)
            written += count

    def read(self, length: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def identity(self) -> str:
        return f"{os.fstat(self._descriptor).st_ino:x}/{birth_time(self._descriptor)}"

    def preallocate(self, size_bytes: int) -> None:
        size_now = self.size()
        start = size_now if size_bytes > size_now else 0
        if size_bytes > start:
            with _reporting_full(self._path):
                os.posix_fallocate(self._descriptor, start, size_bytes - start)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def forget(self, start: int, end: int) -> None:
        if hasattr(os, "posix_fadvise"):  # not everywhere; it is advice
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """The directory *root* of this machine, created if it is not there."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        make_private(self.root)
        self._lock: int | None = None

    def lock(self) -> None:
        if self._lock is not None:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self.root / LOCK_FILE, flags, 0o600)
        except OSError as error:  # nothing may be written here, or it is full
            raise DirectoryUnusable(str(self.root), str(error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise DirectoryInUse(str(self.root), holder) from None
        except OSError as error:
            os.close(descriptor)
            raise DirectoryUnusable(str(self.root), str(error)) from error
        self._lock = descriptor
        with suppress(OSError):  # a full disk can still be locked; the name is for a person
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def create(self, path: str) -> DiskFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with _reporting_full(path):
            return RealFile(path, os.open(self.root / path, flags, 0o600))

    def open(self, path: str) -> DiskFile:
        return RealFile(path, os.open(self.root / path, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, source: str, target: str) -> None:
        with _reporting_full(target):
            (self.root / source).rename(self.root / target)

    def remove(self, path: str) -> None:
        (self.root / path).unlink()

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.root / directory).iterdir())
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        with _reporting_full(path):
            make_private(self.root / path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(self.root / path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        if len(files) < _SYNC_THREADS:
            for file in files:
                file.sync()
            return
        # File systems write the commits of many waiting threads as one.
        with ThreadPoolExecutor(_SYNC_THREADS, "bookie-sync") as pool:
            for _ in pool.map(lambda file: file.sync(), files):
                pass

    def usage(self) -> DiskUsage:
        space = os.statvfs(self.root)
        # Blocks kept for the administrator are neither used nor free: they are not there.
        total = space.f_blocks - space.f_bfree + space.f_bavail
        return DiskUsage(total * space.f_frsize, space.f_bavail * space.f_frsize)

    def describe(self, path: str) -> str:
        return str(self.root / path)

    def where(self) -> str:
        return f"{running_system()}/{self.root.stat().st_dev:x}"


@contextmanager
def _reporting_full(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_error(error.errno, path) from error
        raise


@dataclass(frozen=True, slots=True)
class Directories:
    """By default one directory is all of them; the same object then stands in each place."""

    main: Disk
    """Where the bookie is configured to live."""
    journals: tuple[Disk, ...]
    ledgers: tuple[Disk, ...]

    def __post_init__(self) -> None:
        assert self.journals, "a bookie has a journal"
        assert self.ledgers, "a bookie has a ledger directory"

    @classmethod
    def single(cls, disk: Disk) -> Self:
        return cls(disk, (disk,), (disk,))

    def every(self) -> tuple[Disk, ...]:
        """Return each directory once, the main one first."""
        disks = (self.main, *self.journals, *self.ledgers)
        return tuple({id(disk): disk for disk in disks}.values())

    def journal_of(self, ledger_id: int) -> int:
        return ledger_id % len(self.journals)

    def ledger_directory_of(self, ledger_id: int) -> int:
        return ledger_id % len(self.ledgers)

    def lock(self) -> None:
        """Take all directories, or none. Raises `DirectoryInUse`, `DirectoryUnusable`."""
        try:
            for disk in self.every():
                disk.lock()
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        for disk in self.every():
            disk.unlock()
