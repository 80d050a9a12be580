"""The directories of a stopped bookie, locked, and so that nothing can be written to them; and the
errors of the tools that work on them.

CallerError
|- NotABookie           there is no directory, or nothing of a bookie in it
|- DataThere            a format was asked for where there is data
`- RebuildRefused       an index made now would answer "no such entry" where there was one
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bookie.config import BookieConfig
from bookie.disk.port import LOCK_FILE, Directories, Disk, DiskFile, DiskUsage
from bookie.entrylog import format as entrylog_format
from bookie.errors import DirectoriesChanged, DirectoryMisplaced
from bookie.identity import cookie
from bookie.identity.cookie import Cookie, read_cookie
from bookie.identity.stamp import places
from bookie.index import format as index_format
from bookie.journal import format as journal_format
from bookie.loss import census
from ledger.errors import CallerError

OWN_NAMES: Final = (
    cookie.PATH,
    census.PATH,
    census.LIMBO_PATH,
    journal_format.DIRECTORY,
    entrylog_format.DIRECTORY,
    index_format.DIRECTORY,
)
"""Names that a bookie creates in a directory, apart from its lock."""


class NotABookie(CallerError):
    def __init__(self, directory: str, reason: str) -> None:
        super().__init__(
            f"{directory} is not a bookie directory: {reason}; give the directories that the "
            "bookie was started with"
        )
        self.directory, self.reason = directory, reason


class DataThere(CallerError):
    def __init__(self, directory: str, what: str) -> None:
        super().__init__(
            f"{directory} holds {what}; wipe it only if all of its ledgers have other replicas"
        )
        self.directory, self.what = directory, what


class RebuildRefused(CallerError):
    def __init__(self, reasons: Sequence[str], count: int) -> None:
        more = f"; and {count - len(reasons)} more" if count > len(reasons) else ""
        super().__init__(
            f"the index cannot be rebuilt, and nothing was changed: {'; '.join(reasons)}{more}"
        )
        self.reasons, self.count = tuple(reasons), count


class BookieRegistered(CallerError):
    def __init__(self, bookie: str) -> None:
        super().__init__(
            f"a bookie {bookie} is registered, so it runs, or ended less than its session's "
            "timeout ago; stop it, wait a moment, then try again"
        )
        self.bookie = bookie


@contextmanager
def opened(
    main: Path,
    journals: Sequence[Path] = (),
    ledgers: Sequence[Path] = (),
    *,
    make: bool = False,
) -> Iterator[Directories]:
    """Lock a bookie's directories, given as it is given them, until the end of the block.

    Raises `NotABookie` if one is not there, unless they are to be made; `DirectoryInUse`,
    `DirectoryUnusable`, `DirectoryGivenTwice`."""
    directories = named(main, journals, ledgers, make=make)
    directories.lock()
    try:
        yield directories
    finally:
        directories.unlock()


def named(
    main: Path, journals: Sequence[Path], ledgers: Sequence[Path], *, make: bool = False
) -> Directories:
    """Return the directories without locking them. Raises `NotABookie`."""
    for path in (main, *journals, *ledgers):
        if not make and not path.is_dir():
            raise NotABookie(str(path), "it is not there")
    config = BookieConfig(
        uri="",
        directory=main,
        journal_directories=tuple(journals),
        ledger_directories=tuple(ledgers),
    )
    return config.open_directories()


def check_used(directories: Directories) -> None:
    """Raise `NotABookie` for a directory that no bookie ever used. The main one may be empty."""
    for disk in (*directories.journals, *directories.ledgers):
        if not any(name in OWN_NAMES for name in disk.list("")):
            raise NotABookie(disk.describe(""), "there are no data of a bookie in it")


def check_places(directories: Directories) -> Cookie | None:
    """Check that each directory is in its place, as far as cookies say; return the main one's.

    In another order a ledger would be looked for where it is not. Raises `DirectoriesChanged`,
    `DirectoryMisplaced` and `CookieDamaged`."""
    wanted = places(directories)
    together = "; ".join(wanted)
    found: Cookie | None = None
    for disk, place in zip(directories.every(), wanted, strict=True):
        here = read_cookie(disk)
        if here is not None and here.directories != together:
            raise DirectoriesChanged(disk.describe(""), here.directories, together)
        if here is not None and here.place != place:
            raise DirectoryMisplaced(disk.describe(""), here.place, place)
        found = found or here
    return found


def read_only(directories: Directories) -> Directories:
    """Return the same directories, not to be written."""
    wrapped = {id(disk): ReadOnlyDisk(disk) for disk in directories.every()}

    def of(disks: Sequence[Disk]) -> tuple[Disk, ...]:
        return tuple(wrapped[id(disk)] for disk in disks)

    main = wrapped[id(directories.main)]
    return Directories(main, of(directories.journals), of(directories.ledgers))


class _ReadOnlyFile:
    def __init__(self, file: DiskFile) -> None:
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    def write(self, buffers: Sequence[bytes | memoryview], offset: int) -> None:
        del buffers, offset
        raise _refusal(self.path)

    def read(self, length: int, offset: int) -> bytes:
        return self._file.read(length, offset)

    def size(self) -> int:
        return self._file.size()

    def identity(self) -> str:
        return self._file.identity()

    def preallocate(self, size_bytes: int) -> None:
        del size_bytes
        raise _refusal(self.path)

    def sync(self) -> None:
        """Nothing was written: nothing to do."""

    def forget(self, start: int, end: int) -> None:
        self._file.forget(start, end)

    def close(self) -> None:
        self._file.close()


class ReadOnlyDisk:
    """Refuses whatever would change something; the engine's own readers run on it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def lock(self) -> None:
        self._disk.lock()

    def unlock(self) -> None:
        self._disk.unlock()

    def create(self, path: str) -> DiskFile:
        raise _refusal(path)

    def open(self, path: str) -> DiskFile:
        return _ReadOnlyFile(self._disk.open(path))

    def rename(self, source: str, target: str) -> None:
        del source
        raise _refusal(target)

    def remove(self, path: str) -> None:
        raise _refusal(path)

    def list(self, directory: str) -> list[str]:
        return [name for name in self._disk.list(directory) if directory or name != LOCK_FILE]

    def make_directory(self, path: str) -> None:
        raise _refusal(path)

    def sync_directory(self, path: str) -> None:
        raise _refusal(path)

    def sync_files(self, files: Sequence[DiskFile]) -> None:
        """Nothing was written: nothing to do."""

    def usage(self) -> DiskUsage:
        return self._disk.usage()

    def describe(self, path: str) -> str:
        return self._disk.describe(path)

    def where(self) -> str:
        return self._disk.where()


def _refusal(path: str) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)
