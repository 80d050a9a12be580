"""Files of the embedded store: the database, its witness, and one file per session beside them.

A session's file is locked (flock) by its process as long as that lives, and holds the time of
its last heartbeat. So others see at once that a process died, however it did, and after
the session's timeout that one is stopped. The clock is the machine's monotonic one, which all
processes of one boot share.

What a store has lost is given up at an operator's word and never by itself (`accept_loss`). What is
there must be whole in itself: some commit, every row as it was then. It becomes the newest commit,
with a number that no commit had, so that whatever was newer is refused from then on.
"""

import errno
import fcntl
import os
import shutil
import sqlite3
import struct
import tempfile
import time
import uuid
import weakref
from collections.abc import Collection
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple, Self

from ledger.errors import CallerError, DamagedMetadata, MetadataDenied
from ledger.metastore.sqlite_format import (
    FORMAT_WITHOUT_NAMES,
    check_format,
    check_place,
    check_tables,
    file_is_empty,
    format_of,
    make,
    mark_of,
    reporting_damage,
    upgrade,
    verify,
    whole_state,
)
from ledger.metastore.sqlite_tree import RESTORE, SqlTree, no_mark, older, read_state
from ledger.metastore.sqlite_witness import DIGEST_BYTES, WITNESS, CommitMarker, Witness, next_chain
from ledger.process import make_private

DATABASE: Final = "metadata.sqlite"
USER_ADVICE: Final = "run this as the user that the directory belongs to, or give its group rights"
_SESSIONS: Final = "sessions"
_BEAT: Final = struct.Struct("<d")
_WAL_KEPT_BYTES: Final = 4 << 20
_NEVER_FIRST: Final = (f"{DATABASE}-wal", _SESSIONS)
"""Made after the database, or after the first mark: they are left of one that was there."""
_Identity = tuple[int, int]


def holds_a_store(directory: Path) -> bool:
    """Return whether anything of an embedded store is in *directory*, be it damaged. Raises
    `MetadataDenied`."""
    try:
        return any((directory / name).exists() for name in (DATABASE, WITNESS, *_NEVER_FIRST))
    except PermissionError as error:
        reason = f"this user may not look into {directory}"
        raise MetadataDenied(f"file://{directory}", "open", reason, USER_ADVICE) from error


def is_full(error: Exception) -> bool:
    """Return whether there was no space on the disk."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL


def is_denied(error: Exception) -> bool:
    """Return whether the user of this process has too few rights."""
    if isinstance(error, PermissionError):
        return True
    codes = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def boot_id() -> str:
    """Return a name of this boot of the machine; heartbeats of another one mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"  # not Linux: a reboot frees the locks, which says as much


class Database:
    """The database in *directory*, whose files' identity is fixed when it is first opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / DATABASE
        self._witness_path = directory / WITNESS
        self._identity: tuple[_Identity, _Identity] | None = None

    def create(self, *, timeout_s: float) -> None:
        """Make the database if nothing of one is there, upgrade an older one, and verify it all.

        Raises `DamagedMetadata`, `NamespaceMismatch`, `OSError`, `sqlite3.Error`."""
        make_private(self.directory)
        with closing(Witness(self._witness_path)) as witness, reporting_damage(str(self.path)):
            with witness.locked(timeout_s):
                self._prepare(witness, timeout_s)
            with closing(self.connection("ro", timeout_s)) as connection:
                verify(connection, witness, str(self.path))
                known = {row[0] for row in connection.execute("SELECT id FROM session")}
        self._identity = (_identity(self.path), _identity(self._witness_path))
        self._sweep(known)

    def connect(self, *, timeout_s: float) -> SqlTree:
        """Return the tree through a connection of its own, which waits *timeout_s* for others.

        Raises `DamagedMetadata`, `OSError`, `sqlite3.Error`."""
        self.check_present()
        where = str(self.path)
        with ExitStack() as undo, reporting_damage(where):
            witness = Witness(self._witness_path)
            undo.callback(witness.close)
            mark = mark_of(witness)
            connection = self.connection("rw", timeout_s)
            undo.callback(connection.close)
            check_tables(connection, where)
            check_place(read_state(connection, where), mark, witness, where)
            undo.pop_all()
        return SqlTree(connection, witness, where=where, timeout_s=timeout_s)

    def verify(self, *, timeout_s: float) -> None:
        """Check all of it, beside others that use it.

        Raises `DamagedMetadata`, `NamespaceMismatch`, `OSError`, `sqlite3.Error`."""
        self.check_present()
        where = str(self.path)
        with (
            reporting_damage(where),
            closing(Witness(self._witness_path)) as witness,
            closing(self.connection("ro", timeout_s)) as connection,
        ):
            verify(connection, witness, where)

    def check_present(self) -> None:
        """Raises `OSError` iff a file was removed, moved or replaced.

        An open file goes on working after that, but nobody else would ever see it."""
        if (_identity(self.path), _identity(self._witness_path)) != self._identity:
            raise FileNotFoundError(f"{self.path} was replaced by another database")

    def session_path(self, session_id: str) -> Path:
        return self.directory / _SESSIONS / session_id

    def _prepare(self, witness: Witness, timeout_s: float) -> None:
        """Make or upgrade the database, or check that it is where the witness says.

        Requires the witness's lock. Changes nothing of what is damaged."""
        where = str(self.path)
        if witness.read() is None:
            self._begin(witness, where, timeout_s)
        mark = mark_of(witness)
        (self.directory / _SESSIONS).mkdir(exist_ok=True, mode=0o700)
        if mark.generation == 0:
            self._make(mark, where, timeout_s)
        elif file_is_empty(self.path):
            raise DamagedMetadata(where, f"it is gone; {RESTORE}")
        else:
            self._upgrade(mark, where, timeout_s)
        with closing(self.connection("ro", timeout_s)) as connection:
            check_format(connection, where)
            SqlTree(connection, witness, where=where, timeout_s=timeout_s).check_witness()

    def _begin(self, witness: Witness, where: str, timeout_s: float) -> None:
        """Write the first mark, unless something is there that had one before.

        A crash may have torn a first mark; nothing followed from that one."""
        if not file_is_empty(self.path):
            with closing(self.connection("ro", timeout_s)) as connection:
                if format_of(connection, where):
                    raise no_mark(witness)
        elif any((self.directory / name).exists() for name in _NEVER_FIRST):
            raise DamagedMetadata(where, f"it is gone; {RESTORE}")
        witness.begin(CommitMarker(0, os.urandom(DIGEST_BYTES)))
        _sync_directory(self.directory)
        _sync_directory(self.directory.parent)

    def _make(self, mark: CommitMarker, where: str, timeout_s: float) -> None:
        self.path.touch(mode=0o600)  # what SQLite makes beside it is for the same readers
        # "rwc" is used here only: a database that is gone later must not come back empty.
        with closing(self.connection("rwc", timeout_s)) as connection:
            if format_of(connection, where) == 0:
                make(connection, mark)
        _sync_directory(self.directory)

    def _upgrade(self, mark: CommitMarker, where: str, timeout_s: float) -> None:
        """Upgrade a database that has a witness, if it is of an earlier format."""
        with closing(self.connection("ro", timeout_s)) as connection:
            if format_of(connection, where) != FORMAT_WITHOUT_NAMES:
                return
            self.check_unused("by an earlier version")
            state = whole_state(connection, where)
        if not state.follows(mark):
            raise older(where, state, mark)
        with closing(self.connection("rw", timeout_s)) as connection:
            upgrade(connection, where, CommitMarker(state.generation, state.chain))

    def check_unused(self, by_whom: str) -> None:
        """Raises `OSError` if a process has the store open."""
        for path in (self.directory / _SESSIONS).glob("*"):
            with OtherSession(path) as other:
                if not other.is_unlocked():
                    raise OSError(f"{self.path} is in use {by_whom}: end that first")

    def connection(self, mode: str, timeout_s: float) -> sqlite3.Connection:
        """Return a connection as `connect` uses it, without any check."""
        uri = f"{self.path.as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _sweep(self, known: Collection[str]) -> None:
        """Remove files of sessions that died before they were entered in the database."""
        for path in sorted((self.directory / _SESSIONS).iterdir()):
            if path.name not in known:
                with OtherSession(path) as other:
                    if other.is_unlocked():
                        path.unlink(missing_ok=True)


def _identity(path: Path) -> _Identity:
    found = path.stat()
    return found.st_dev, found.st_ino


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class OwnSession:
    """The file of a session of this process, locked while it is open."""

    def __init__(self, database: Database) -> None:
        while True:
            self.session_id = uuid.uuid4().hex
            self._path = database.session_path(self.session_id)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if self._is_there():  # else it was swept away before we had the lock
                break
            os.close(self._fd)
        _own_sessions.add(self)
        self.beat(time.monotonic())

    def beat(self, now: float) -> None:
        """Show the others that this process lives. Raises `OSError`."""
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


class NothingLost(CallerError):
    def __init__(self, directory: Path) -> None:
        super().__init__(f"the metadata store in {directory} is whole: there is nothing to give up")


class Loss(NamedTuple):
    """What an embedded store lost."""

    generation: int
    """Of the newest commit that is there."""
    witnessed: int | None
    """Of the newest one that there was; None: the witness is gone or damaged too."""
    copy: Path | None
    """Where the files are as they were found; None: nothing was changed."""


def accept_loss(directory: Path, *, really: bool, timeout_s: float) -> Loss:
    """Take the newest commit that is there for the newest there was, if *really*; return what
    is lost by that.

    Requires that nothing uses the store. Raises `NothingLost`; `DamagedMetadata` if what is
    there is not whole in itself; `NamespaceMismatch`, `OSError`, `sqlite3.Error`."""
    database = Database(directory)
    where = str(database.path)
    with (
        closing(Witness(directory / WITNESS)) as witness,
        reporting_damage(where),
        witness.locked(timeout_s),
    ):
        database.check_unused("by another process")
        with closing(database.connection("ro", timeout_s)) as connection:
            state, mark = whole_state(connection, where), witness.read()
        if mark is not None and state.follows(mark):
            raise NothingLost(directory)
        loss = Loss(state.generation, None if mark is None else mark.generation, None)
        if not really:
            return loss
        copy = Path(tempfile.mkdtemp(prefix="before-loss-", dir=directory))
        for name in (DATABASE, f"{DATABASE}-wal", WITNESS):
            if (directory / name).exists():
                shutil.copy2(directory / name, copy)
        os.sync()
        generation = max(loss.generation, loss.witnessed or 0) + 1
        chain = next_chain(state.chain, generation, state.total)
        with closing(database.connection("rw", timeout_s)) as connection:
            connection.execute(
                "UPDATE state SET generation = ?, before = ?, chain = ?",
                (generation, state.chain, chain),
            )
        witness.begin(CommitMarker(generation, chain))
        return loss._replace(copy=copy)
