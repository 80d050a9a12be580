"""Where the keeper of this application is found: a socket in a directory that is ours alone.

Its name follows from the driver's JVM (`drivers`) and from the namespace.
"""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlog.spark.namespaces import Namespace
from dlog.spark.sink.keeper.drivers import Program
from ledger.errors import CallerError

SOCKET_PATH_BYTES_MAX: Final = 100
"""The kernel takes 107."""
_LOCKS_MAX: Final = 10


class UnsafeDirectory(CallerError):
    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"directory {directory}, for the sockets of Spark sinks: {reason}; remove it, or set "
            "TMPDIR to a directory of your own"
        )
        self.directory, self.reason = directory, reason


@dataclass(frozen=True, slots=True)
class Place:
    """The files of one keeper."""

    directory: Path
    name: str

    @property
    def socket(self) -> Path:
        return self.directory / f"{self.name}.sock"

    @property
    def lock(self) -> Path:
        """Held by the keeper as long as it lives."""
        return self.directory / f"{self.name}.lock"

    @property
    def owners(self) -> Path:
        """Who has which log (`ownership`), for the keeper's successor."""
        return self.directory / f"{self.name}.json"

    @property
    def errors(self) -> Path:
        """Where the keeper writes what it has to say."""
        return self.directory / f"{self.name}.log"

    @contextmanager
    def alone(self, driver: Program) -> Iterator[bool]:
        """Hold the lock meanwhile, for the keeper of *driver*; False: another process has it.

        The file says whose it is, so that `leftovers` knows when nobody needs it any more."""
        descriptor = None
        for _ in range(_LOCKS_MAX):
            descriptor = _locked(self.lock)
            if descriptor is None or is_at(descriptor, self.lock):
                break
            os.close(descriptor)  # it was removed before it was locked
            descriptor = None
        if descriptor is None:
            yield False
            return
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{driver.pid} {driver.started}".encode(), 0)
            yield True
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the files, as the driver has ended. Requires the lock, which goes last."""
        for suffix in ("sock", "json", "new", "log", "lock"):
            (self.directory / f"{self.name}.{suffix}").unlink(missing_ok=True)


def place_of(driver: Program, namespace: Namespace) -> Place:
    """Return where the keeper of *driver* for *namespace* is: who connects otherwise, with another
    certificate, has another one. Raises `UnsafeDirectory`."""
    directory = private_directory()
    identity = f"{driver.pid} {driver.started} {namespace.uri} {namespace.given}".encode()
    place = Place(directory, hashlib.sha256(identity).hexdigest()[:24])
    if len(os.fsencode(place.socket)) > SOCKET_PATH_BYTES_MAX:
        raise UnsafeDirectory(directory, f"its path is too long for a socket ({place.socket})")
    return place


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether *path* still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _locked(path: Path) -> int | None:
    """Return the file, locked; None: another process has locked it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def private_directory() -> Path:
    """Return the directory of this user's Spark applications. Raises `UnsafeDirectory`."""
    directory = Path(tempfile.gettempdir()) / f"dlog-spark-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeDirectory(directory, "it is no directory")
    if found.st_uid != os.getuid():
        raise UnsafeDirectory(directory, "it belongs to another user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        raise UnsafeDirectory(directory, "others may use it")
    return directory
