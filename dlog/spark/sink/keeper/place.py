"""Where the keeper of this application is found: a socket in a directory that is ours alone.

Its name follows from the driver's JVM and from the namespace. Workers descend from that JVM by way
of a daemon. That one may die (for lack of memory, say), while Spark goes on using the workers that
it left behind; those still have their connection to the JVM.

What killed keepers of dead drivers left beside the socket is removed by the next keeper. Nobody
needs the files of a place whose lock nobody holds and whose driver, whose id the lock file has, is
not there any more. They are removed under that lock, and it goes last; a keeper that waits for a
lock that was removed notices, and locks the one that is there now (`KeeperPlace.alone`).
"""

import fcntl
import hashlib
import itertools
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dlog.spark.namespaces import Namespace
from ledger.errors import CallerError

_ANCESTORS_MAX: Final = 64
_JVM: Final = "java"
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group at the other end: unix(7)."""
SOCKET_PATH_BYTES_MAX: Final = 100
"""The kernel takes 107."""
_LOCKS_MAX: Final = 10
FILES_MAX: Final = 1000
"""How many files are looked at."""
UNKNOWN_S: Final = 24 * 3600.0
"""Files that do not say whose they are, are left alone for so long."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process, told from another one that has its id later: an id comes again, but not together
    with the time at which its process began."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "Program | None":
        """Return the process that has this id now; None: there is none, or it has ended."""
        fields = _stat(pid)
        return None if fields is None or fields[1] in {"Z", "X"} else cls(pid, fields[20])


def own_driver() -> Program:
    """Return the JVM that this process works for; without one, this process, so that a keeper never
    outlives everybody who may ask it."""
    for pid in itertools.chain(_own_ancestors(), _own_peers()):
        if _is_jvm(pid) and (found := Program.of(pid)) is not None:
            return found
    own = Program.of(os.getpid())
    assert own is not None, "who runs has not ended"
    return own


def _own_ancestors() -> Iterator[int]:
    pid = os.getpid()
    for _ in range(_ANCESTORS_MAX):
        fields = _stat(pid)
        if fields is None:
            return
        pid = int(fields[2])
        yield pid


def _own_peers() -> Iterator[int]:
    """Yield processes of this machine to which this one has a connection."""
    own = _sockets(os.getpid())
    for descriptor in own.values():
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family == socket.AF_UNIX:
                size = _CREDENTIALS.size
                asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                yield _CREDENTIALS.unpack(asked)[0]
    table = list(_tcp_connections())
    far = {(remote, local) for local, remote, inode in table if inode in own}
    wanted = {inode for local, remote, inode in table if (local, remote) in far}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or not _is_jvm(int(path.name)):
            continue
        if not wanted.isdisjoint(_sockets(int(path.name))):
            yield int(path.name)


def _sockets(pid: int) -> dict[str, int]:
    """Return the sockets of a process: inodes, with a descriptor of each."""
    found: dict[str, int] = {}
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(path.readlink())
            except FileNotFoundError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                found[target[8:-1]] = int(path.name)
    except OSError:
        pass  # it has ended, or belongs to somebody else
    return found


def _tcp_connections() -> Iterator[tuple[str, str, str]]:
    """Yield local end, remote end and inode of this machine's connections: proc(5)."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:
            continue  # without IPv6
        for line in lines:
            fields = line.split()
            # The last 32 bits tell enough, and are the same for an IPv4 address written as IPv6.
            yield fields[1][-13:], fields[2][-13:], fields[9]


def _is_jvm(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] == _JVM


def _stat(pid: int) -> list[str] | None:
    """Return command, state, parent and so on, as in proc(5); None: there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    command, _, rest = text.partition("(")[2].rpartition(")")
    return [command, *rest.split()]


class UnsafeDirectory(CallerError):
    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(
            f"directory {directory}, for the sockets of Spark sinks: {reason}; remove it, or set "
            "TMPDIR to a directory of your own"
        )
        self.directory, self.reason = directory, reason


@dataclass(frozen=True, slots=True)
class KeeperPlace:
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

        The file says whose it is, so that `remove_leftovers` knows when nobody needs it."""
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


def place_of(driver: Program, namespace: Namespace) -> KeeperPlace:
    """Return where the keeper of *driver* for *namespace* is: who connects otherwise, with another
    certificate, has another one. Raises `UnsafeDirectory`."""
    directory = private_directory()
    identity = f"{driver.pid} {driver.started} {namespace.uri} {namespace.given}".encode()
    place = KeeperPlace(directory, hashlib.sha256(identity).hexdigest()[:24])
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


def remove_leftovers(place: KeeperPlace) -> None:
    """Remove those beside *place*, as far as that can be done."""
    with suppress(OSError):
        files = sorted(place.directory.iterdir())[:FILES_MAX]
        for name in sorted({path.stem for path in files} - {place.name}):
            _look_at(KeeperPlace(place.directory, name))


def _look_at(place: KeeperPlace) -> None:
    try:
        descriptor = os.open(place.lock, os.O_RDWR)
    except FileNotFoundError:  # its keeper never began
        if _age_s(place.errors) > UNKNOWN_S:
            place.remove()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, place.lock) and _is_left(place, descriptor):
            place.remove()
    except BlockingIOError:  # a keeper that lives
        pass
    finally:
        os.close(descriptor)


def _is_left(place: KeeperPlace, descriptor: int) -> bool:
    pid, _, started = os.pread(descriptor, 100, 0).decode(errors="replace").partition(" ")
    if pid.isdecimal() and started:
        return Program.of(int(pid)) != Program(int(pid), started)
    return _age_s(place.lock) > UNKNOWN_S


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
