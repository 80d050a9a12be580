"""Files of the embedded store: the database, and one file per session beside it.

A session's file is locked (flock) by its process as long as that lives, and holds the time of
its last heartbeat. So others see at once that a process died, however it did, and after
the session's timeout that one is stopped. The clock is the machine's monotonic one, which all
processes of one boot share.
"""

import fcntl
import os
import sqlite3
import struct
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from ledger.metastore.sqlite_tree import prepare

_DATABASE: Final = "metadata.sqlite"
_SESSIONS: Final = "sessions"
_PREPARE_LOCK: Final = "prepare.lock"
_BEAT: Final = struct.Struct("<d")
_WAL_KEPT_BYTES: Final = 4 << 20
_PREPARE_POLL_S: Final = 0.01


def boot_id() -> str:
    """Return a name of this boot of the machine; heartbeats of another one mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"  # not Linux: a reboot frees the locks, which tells as much


class Database:
    """The database file in *directory*, whose identity is fixed when it is first opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / _DATABASE
        self._identity: tuple[int, int] | None = None

    def create(self, *, timeout_s: float) -> None:
        """Make directory, database and tables if they are not there."""
        (self.directory / _SESSIONS).mkdir(parents=True, exist_ok=True)
        with _locked(self.directory / _PREPARE_LOCK, timeout_s):
            # "rwc" is used here only: a database that is gone later must not come back empty.
            connection = self._connect("rwc", timeout_s)
            try:
                prepare(connection, str(self.path))
            finally:
                connection.close()
            found = self.path.stat()
            self._identity = (found.st_dev, found.st_ino)
            self._sweep()

    def connect(self, *, timeout_s: float) -> sqlite3.Connection:
        """Return a connection that waits *timeout_s* for others' locks."""
        self.check_present()
        return self._connect("rw", timeout_s)

    def check_present(self) -> None:
        """Raises `OSError` iff the database was removed, moved or replaced.

        An open file goes on working after that, but nobody else would ever see it."""
        found = self.path.stat()
        if (found.st_dev, found.st_ino) != self._identity:
            raise FileNotFoundError(f"{self.path} was replaced by another database")

    def session_path(self, session_id: str) -> Path:
        return self.directory / _SESSIONS / session_id

    def _connect(self, mode: str, timeout_s: float) -> sqlite3.Connection:
        uri = f"{self.path.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        return connection

    def _sweep(self) -> None:
        """Remove files of sessions that died before they were entered in the database."""
        connection = self._connect("rw", 0.0)
        try:
            known = {row[0] for row in connection.execute("SELECT id FROM session")}
        finally:
            connection.close()
        for path in sorted((self.directory / _SESSIONS).iterdir()):
            if path.name not in known:
                with OtherSession(path) as other:
                    if other.is_unlocked():
                        path.unlink(missing_ok=True)


class OwnSession:
    """The file of a session of this process, locked while it is open."""

    def __init__(self, database: Database) -> None:
        while True:
            self.session_id = uuid.uuid4().hex
            self._path = database.session_path(self.session_id)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if self._is_there():  # else it was swept away before we had the lock
                break
            os.close(self._fd)
        _own_sessions.add(self)
        self.beat(time.monotonic())

    def beat(self, now: float) -> None:
        """Tell the others that this process lives. Raises `OSError`."""
        if not self._is_there():
            raise FileNotFoundError(f"{self._path} was removed")
        os.pwrite(self._fd, _BEAT.pack(now), 0)

    def close(self) -> None:
        """Free the lock and remove the file. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._path.unlink(missing_ok=True)
            os.close(fd)

    def abandon(self) -> None:
        """Free the lock and leave the rest to the others: they will find it. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False


class OtherSession:
    """The file of somebody's session, open for looking at it."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._fd = -1

    def is_dead(self, *, now: float, timeout_s: float) -> bool:
        """Return True iff its process ended, or has not been heard of for *timeout_s*."""
        return self.is_unlocked() or now - self._last_beat(now) > timeout_s

    def is_unlocked(self) -> bool:
        """Return True iff no process holds the file."""
        if self._fd < 0:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_beat(self, now: float) -> float:
        stored = os.pread(self._fd, _BEAT.size, 0)
        if len(stored) < _BEAT.size:
            return now  # locked, and about to beat for the first time
        (beat,) = _BEAT.unpack(stored)
        return float(beat)


_own_sessions: Final[weakref.WeakSet[OwnSession]] = weakref.WeakSet()


def _abandon_after_fork() -> None:
    # A child's copy of the open file would keep the parent's lock alive.
    for session in list(_own_sessions):
        session.abandon()


os.register_at_fork(after_in_child=_abandon_after_fork)


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{path} is held by another process") from None
                time.sleep(_PREPARE_POLL_S)
        yield
    finally:
        os.close(fd)
