"""The tree of nodes in SQLite: what each operation does inside one transaction.

Tables: `node` (the tree; `made` counts the children ever made, for sequential names), `session`
(the sessions that may own ephemeral nodes) and `change` (paths by a growing number: watchers
read what is new; only the newest are kept, and who finds a gap takes it that all changed).
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, assert_never

from ledger.errors import (
    BadVersion,
    InvalidPath,
    NamespaceMismatch,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.metastore.paths import (
    ROOT,
    name_of,
    numbered,
    parent_of,
)
from ledger.metastore.port import (
    ANY_VERSION,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    SetOp,
    Versioned,
)

CHANGES_KEPT: Final = 10_000
_FORMAT_VERSION: Final = 1
_APPLICATION_ID: Final = 0x646C6F67  # "dlog"
_SCHEMA: Final = """
CREATE TABLE node (
    path TEXT NOT NULL PRIMARY KEY,
    parent TEXT,
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    made INTEGER NOT NULL,
    owner TEXT
);
CREATE UNIQUE INDEX node_by_parent ON node (parent, name);
CREATE INDEX node_by_owner ON node (owner) WHERE owner IS NOT NULL;
CREATE TABLE session (id TEXT NOT NULL PRIMARY KEY, boot TEXT NOT NULL, timeout_s REAL NOT NULL);
CREATE TABLE change (number INTEGER PRIMARY KEY, path TEXT NOT NULL);
INSERT INTO node VALUES ('/', NULL, '', x'', 0, 0, NULL);
"""


class SessionEnded(Exception):
    """An ephemeral node was asked for by a session that is no more. Internal."""


def prepare(connection: sqlite3.Connection, where: str) -> None:
    """Make the tables if the database is empty, else check that they are ours.

    Requires that nobody else prepares at the same time."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables == 0:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID};"
            f"PRAGMA user_version = {_FORMAT_VERSION}; COMMIT;"
        )
        return
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != _APPLICATION_ID:
        raise NamespaceMismatch(f"another program's database at {where}", "one of dlog")
    if version != _FORMAT_VERSION:
        raise NamespaceMismatch(
            f"a database of format {version} at {where}", f"format {_FORMAT_VERSION}"
        )


class SqlTree:
    """The tree seen through one connection, used by one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, path: str) -> Versioned:
        query = "SELECT value, version FROM node WHERE path = ?"
        row: tuple[bytes, int] | None = self._connection.execute(query, (path,)).fetchone()
        if row is None:
            raise NoSuchNode(path)
        return Versioned(row[0], row[1])

    def exists(self, path: str) -> int | None:
        query = "SELECT version FROM node WHERE path = ?"
        row: tuple[int] | None = self._connection.execute(query, (path,)).fetchone()
        return None if row is None else row[0]

    def children(self, path: str) -> list[str]:
        with self._reading():  # both statements see one state
            if self.exists(path) is None:
                raise NoSuchNode(path)
            query = "SELECT name FROM node WHERE parent = ? ORDER BY name"
            return [name for (name,) in self._connection.execute(query, (path,))]

    def create(self, path: str, value: bytes, *, owner: str | None, sequential: bool) -> str:
        with self._writing():
            self._check_session(owner)
            parent = parent_of(path)
            missing = []
            while self.exists(parent) is None:
                missing.append(parent)
                parent = parent_of(parent)
            for above in reversed(missing):
                self._insert(above, b"", None)
            if sequential:
                query = "SELECT made FROM node WHERE path = ?"
                (made,) = self._connection.execute(query, (parent_of(path),)).fetchone()
                path = numbered(path, made)
            self._insert(path, value, owner)
        return path

    def set(self, path: str, value: bytes, version: int) -> int:
        with self._writing():
            return self._set(path, value, version)

    def delete(self, path: str, version: int) -> None:
        with self._writing():
            self._delete(path, version)

    def multi(self, ops: Sequence[Op], *, owner: str) -> None:
        with self._writing():
            for op in ops:
                self._apply(op, owner)

    def add_session(self, session_id: str, boot: str, timeout_s: float) -> None:
        with self._writing():
            row = (session_id, boot, timeout_s)
            self._connection.execute("INSERT INTO session VALUES (?, ?, ?)", row)

    def sessions(self) -> list[tuple[str, str, float]]:
        """Return id, boot and timeout of all sessions."""
        return self._connection.execute("SELECT id, boot, timeout_s FROM session").fetchall()

    def has_session(self, session_id: str) -> bool:
        return self._finds("SELECT 1 FROM session WHERE id = ?", session_id)

    def end_session(self, session_id: str) -> None:
        """Delete a session and its ephemeral nodes. Idempotent."""
        with self._writing():
            self._connection.execute("DELETE FROM session WHERE id = ?", (session_id,))
            query = "SELECT path FROM node WHERE owner = ? ORDER BY path"
            for (path,) in self._connection.execute(query, (session_id,)).fetchall():
                self._delete(path, ANY_VERSION)

    def last_change(self) -> int:
        query = "SELECT coalesce(max(number), 0) FROM change"
        row: tuple[int] = self._connection.execute(query).fetchone()
        return row[0]

    def changes_after(self, number: int) -> list[tuple[int, str]]:
        """Return the changes after *number* that are kept; a first one beyond the next: a gap."""
        query = "SELECT number, path FROM change WHERE number > ? ORDER BY number"
        return self._connection.execute(query, (number,)).fetchall()

    def _apply(self, op: Op, owner: str) -> None:
        match op:
            case CheckOp(path, version):
                self._check(path, version)
            case CreateOp(path, value, ephemeral):
                self._check_session(owner if ephemeral else None)
                self._insert(path, value, owner if ephemeral else None)
            case SetOp(path, value, version):
                self._set(path, value, version)
            case DeleteOp(path, version):
                self._delete(path, version)
            case _:
                assert_never(op)

    def _insert(self, path: str, value: bytes, owner: str | None) -> None:
        parent = parent_of(path)
        if self.exists(parent) is None:
            raise NoSuchNode(parent)
        if self.exists(path) is not None:
            raise NodeExists(path)
        if self._finds("SELECT 1 FROM node WHERE path = ? AND owner IS NOT NULL", parent):
            raise InvalidPath(path, f"{parent} is ephemeral and can have no children")
        self._connection.execute("UPDATE node SET made = made + 1 WHERE path = ?", (parent,))
        node = (path, parent, name_of(path), value, 0, 0, owner)
        self._connection.execute("INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?)", node)
        self._note(path, parent)

    def _set(self, path: str, value: bytes, version: int) -> int:
        changed = self._check(path, version) + 1
        query = "UPDATE node SET value = ?, version = ? WHERE path = ?"
        self._connection.execute(query, (value, changed, path))
        self._note(path)
        return changed

    def _delete(self, path: str, version: int) -> None:
        self._check(path, version)
        if path == ROOT:
            raise InvalidPath(path, "the root cannot be deleted")
        if self._finds("SELECT 1 FROM node WHERE parent = ? LIMIT 1", path):
            raise NodeNotEmpty(path)
        self._connection.execute("DELETE FROM node WHERE path = ?", (path,))
        self._note(path, parent_of(path))

    def _check(self, path: str, version: int) -> int:
        found = self.exists(path)
        if found is None:
            raise NoSuchNode(path)
        if version not in (ANY_VERSION, found):
            raise BadVersion(path, version)
        return found

    def _check_session(self, owner: str | None) -> None:
        if owner is not None and not self.has_session(owner):
            raise SessionEnded

    def _note(self, *paths: str) -> None:
        for path in paths:
            cursor = self._connection.execute("INSERT INTO change (path) VALUES (?)", (path,))
            assert cursor.lastrowid is not None
            kept_from = cursor.lastrowid - CHANGES_KEPT
            self._connection.execute("DELETE FROM change WHERE number <= ?", (kept_from,))

    def _finds(self, query: str, argument: str) -> bool:
        return self._connection.execute(query, (argument,)).fetchone() is not None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # Takes the write lock at once: a read that turns into a write could not wait for it.
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._connection.execute(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
