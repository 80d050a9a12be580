"""The tree of nodes in SQLite: what each operation does inside one transaction.

Tables: `node` (the tree; `made` counts the children ever made, for sequential names; `children`
and `names` are number and checksum of those that there are), `session`
(the sessions that may own ephemeral nodes), `change` (paths by a growing number: watchers
read what is new; only the newest are kept, and who finds a gap takes it that all changed) and
`state` (generation, total and chain: `sqlite_witness`). Each commit moves the state along,
and the witness after it (`sqlite_witness`); a node is checked whenever it is read.

Rows have digests, indexes have none. So what an index says is proven by rows:

    a list of children   their number and the sum of their names' digests are in the parent's row
    an absence           the parent's row counts no children; or the proven list of them lacks the
                         name; or, of more than `PROVEN_BY_LIST_MAX` children, the index of the
                         parents does not find the name either
    a creation           SQLite looks for the path and for the name in two indexes, and refuses
    a session's nodes    each is read, and the session's row counts them
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self, assert_never

from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    InvalidPath,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.metastore.ops import (
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
from ledger.metastore.sqlite_witness import (
    EMPTY_TOTAL,
    CommitMarker,
    Witness,
    added,
    name_digest,
    names_total,
    next_chain,
    node_digest,
    row_digest,
    taken,
)

CHANGES_KEPT: Final = 2_000
WAL_BYTES_HIGH: Final = 16 << 20
"""Of the write-ahead log: from here on each commit waits a little for readers to empty it."""
WAL_BYTES_MAX: Final = 256 << 20
"""From here on nothing is written until it could be emptied."""
_WAIT_FOR_READERS_MS: Final = 100
PROVEN_BY_LIST_MAX: Final = 2_000
"""A list of so many children is taken to prove that one is absent: some milliseconds."""
RESTORE: Final = (
    "stop all that use this directory, keep a copy of it, and put back a backup of the whole "
    "directory; nothing in it was changed"
)
GIVE_UP: Final = "if there is none, 'dlog metadata accept-loss' gives up what is missing"


class Node(NamedTuple):
    """A row of the table `node`, but for its value and its digest, which come last."""

    path: str
    parent: str | None
    name: str
    version: int
    made: int
    children: int
    names: bytes
    owner: str | None

    def with_child(self, name: str) -> Self:
        names = added(self.names, name_digest(name))
        return self._replace(made=self.made + 1, children=self.children + 1, names=names)

    def without_child(self, name: str) -> Self:
        names = taken(self.names, name_digest(name))
        return self._replace(children=self.children - 1, names=names)


class SessionRow(NamedTuple):
    """A row of the table `session`, but for its digest, which comes last."""

    session_id: str
    boot: str
    timeout_s: float
    owned: int
    """How many ephemeral nodes there are of it."""

    def stored(self) -> tuple[object, ...]:
        return (*self, row_digest("session", self[:]))


class State(NamedTuple):
    """The row of the table `state`: what the newest commit left."""

    generation: int
    total: bytes
    before: bytes
    """The chain of the commit before."""
    chain: bytes

    def is_whole(self) -> bool:
        # Of whatever type the values are: damage can change that.
        types = (int, bytes, bytes, bytes)
        return (
            all(isinstance(value, kind) for value, kind in zip(self, types, strict=True))
            and 0 < self.generation < 1 << 63
            and next_chain(self.before, self.generation, self.total) == self.chain
        )

    def follows(self, mark: CommitMarker) -> bool:
        """Return whether this is the commit at *mark*, or the one after it."""
        if self.generation == mark.generation:
            return self.chain == mark.chain
        return self.generation == mark.generation + 1 and self.before == mark.chain


def read_state(connection: sqlite3.Connection, where: str) -> State:
    """Raises `DamagedMetadata`."""
    rows = connection.execute("SELECT generation, total, before, chain FROM state").fetchall()
    state = State(*rows[0]) if len(rows) == 1 else None
    if state is None or not state.is_whole():
        raise DamagedMetadata(where, f"its state does not fit its checksum; {RESTORE}")
    return state


def older(where: str, state: State, mark: CommitMarker) -> DamagedMetadata:
    """Return the error of a database that is not where its witness says it must be."""
    if state.generation < mark.generation:
        lost = mark.generation - state.generation
        what = f"the newest {lost} commits are missing: it, or its write-ahead log, is damaged"
    elif state.generation > mark.generation + 1:
        what = f"the witness knows only commits up to {mark.generation}: it is damaged"
    else:
        what = "another history is in its witness: one of them is damaged"
    found = f"at commit {state.generation}, {what} or an older copy"
    return DamagedMetadata(where, f"{found}; {RESTORE}; {GIVE_UP}")


def no_mark(witness: Witness) -> DamagedMetadata:
    """Return the error of a witness that is damaged, or was missing."""
    return DamagedMetadata(str(witness.path), f"it holds no mark; {RESTORE}; {GIVE_UP}")


class SessionEnded(Exception):
    """An ephemeral node was asked for by a session that is no more. Internal."""


class SqlTree:
    """The tree seen through one connection, used by one thread, which closes it."""

    def __init__(
        self, connection: sqlite3.Connection, witness: Witness, *, where: str, timeout_s: float
    ) -> None:
        """*where*: path of the database. A write waits *timeout_s* for those of others."""
        self._connection = connection
        self._witness = witness
        self._where = where
        self._timeout_s = timeout_s
        self._total = b""

    def close(self) -> None:
        self._connection.close()
        self._witness.close()

    def get(self, path: str) -> Versioned:
        node, value = self._found(path)
        return Versioned(value, node.version)

    def exists(self, path: str) -> int | None:
        node = self._find(path)
        return None if node is None else node[0].version

    def data_version(self) -> int:
        """Return a number that is another one once somebody else has committed."""
        row: tuple[int] = self._connection.execute("PRAGMA data_version").fetchone()
        return row[0]

    def children(self, path: str) -> list[str]:
        with self._reading():  # both statements see one state
            return self._names_below(self._found(path)[0])

    def create(self, path: str, value: bytes, *, owner: str | None, sequential: bool) -> str:
        with self._writing():
            self._check_session(owner)
            parent = parent_of(path)
            missing = []
            while self._row(parent) is None:
                missing.append(parent)
                parent = parent_of(parent)
            for above in reversed(missing):
                self._insert(above, b"", None)
            if sequential:
                path = numbered(path, self._found(parent_of(path))[0].made)
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
            row = SessionRow(session_id, boot, float(timeout_s), 0)
            self._change_one("INSERT INTO session VALUES (?, ?, ?, ?, ?)", *row.stored())
            self._add(row_digest("session", row.stored()))

    def sessions(self) -> list[tuple[str, str, float]]:
        """Return id, boot and timeout of all sessions."""
        return [row[:3] for row in self._session_rows()]

    def has_session(self, session_id: str) -> bool:
        return self._session(session_id) is not None

    def end_session(self, session_id: str) -> None:
        """Delete a session and its ephemeral nodes. Idempotent."""
        with self._writing():
            query = "SELECT path FROM node WHERE owner = ? ORDER BY path"
            for (path,) in self._connection.execute(query, (session_id,)).fetchall():
                if not isinstance(path, str) or self._found(path)[0].owner != session_id:
                    raise self._damaged(f"node {path} is listed as of another session")
                self._delete(path, ANY_VERSION)
            session = self._session(session_id)
            if session is not None:
                if session.owned:
                    raise self._damaged(f"nodes of session {session_id} are not found")
                self._change_one("DELETE FROM session WHERE id = ?", session_id)
                self._take(row_digest("session", session.stored()))

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
        parent, above = self._found(parent_of(path))
        if self._row(path) is not None:
            raise NodeExists(path)
        if parent.owner is not None:
            raise InvalidPath(path, f"{parent.path} is ephemeral and can have no children")
        node = Node(path, parent.path, name_of(path), 0, 0, 0, EMPTY_TOTAL, owner)
        self._change(parent, above, parent.with_child(node.name), above)
        digest = node_digest(node, value)
        query = "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._change_one(query, *node, value, digest)
        self._add(digest)
        self._count_owned(owner, 1)
        self._note(path, parent.path)

    def _change(self, node: Node, value: bytes, changed: Node, to_value: bytes) -> None:
        digest = node_digest(changed, to_value)
        query = (
            "UPDATE node SET value = ?, version = ?, made = ?, children = ?, names = ?, digest = ?"
            " WHERE path = ?"
        )
        row = (to_value, changed.version, changed.made, changed.children, changed.names, digest)
        self._change_one(query, *row, node.path)
        self._take(node_digest(node, value))
        self._add(digest)

    def _set(self, path: str, value: bytes, version: int) -> int:
        node, before = self._check(path, version)
        changed = node._replace(version=node.version + 1)
        self._change(node, before, changed, value)
        self._note(path)
        return changed.version

    def _delete(self, path: str, version: int) -> None:
        node, value = self._check(path, version)
        if path == ROOT:
            raise InvalidPath(path, "the root cannot be deleted")
        if node.children:
            raise NodeNotEmpty(path)
        parent, above = self._found(parent_of(path))
        self._change(parent, above, parent.without_child(node.name), above)
        self._change_one("DELETE FROM node WHERE path = ?", path)
        self._take(node_digest(node, value))
        self._count_owned(node.owner, -1)
        self._note(path, parent.path)

    def _count_owned(self, owner: str | None, change: int) -> None:
        session = None if owner is None else self._session(owner)
        if session is not None:
            changed = session._replace(owned=session.owned + change)
            query = "UPDATE session SET owned = ?, digest = ? WHERE id = ?"
            self._change_one(query, *changed.stored()[3:], changed.session_id)
            self._take(row_digest("session", session.stored()))
            self._add(row_digest("session", changed.stored()))

    def _session(self, session_id: str) -> SessionRow | None:
        for row in self._session_rows():
            if row.session_id == session_id:
                return row
        if self._finds("SELECT 1 FROM session WHERE id = ?", session_id):
            raise self._damaged(f"session {session_id} is there, but is not found")
        return None

    def _session_rows(self) -> list[SessionRow]:
        rows = []
        for stored in self._connection.execute("SELECT * FROM session"):  # there are few
            row = SessionRow(*stored[:-1])
            if row.stored() != stored:
                reason = f"session {row.session_id} does not fit its checksum"
                raise self._damaged(reason)
            rows.append(row)
        return rows

    def _check(self, path: str, version: int) -> tuple[Node, bytes]:
        node, value = self._found(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path, version)
        return node, value

    def _found(self, path: str) -> tuple[Node, bytes]:
        node = self._find(path)
        if node is None:
            raise NoSuchNode(path)
        return node

    def _find(self, path: str) -> tuple[Node, bytes] | None:
        """Return node and value; None: there is none, as rows prove."""
        node = self._row(path)
        if node is None:
            with self._reading():  # in one state
                node = self._row(path)
                if node is None:
                    self._prove_absent(path)
        return node

    def _prove_absent(self, path: str) -> None:
        """Raise `DamagedMetadata` if *path*, which one index does not find, is there."""
        found = path == ROOT
        above = None if path == ROOT else self._find(parent_of(path))
        if above is not None and above[0].children:
            parent = above[0]
            if parent.children <= PROVEN_BY_LIST_MAX:
                found = name_of(path) in self._names_below(parent)
            else:
                query = "SELECT 1 FROM node WHERE parent = ? AND name = ?"
                found = self._finds(query, parent.path, name_of(path))
        if found:
            raise self._damaged(f"node {path} is there, but is not found")

    def _names_below(self, parent: Node) -> list[str]:
        """Return the names of all children, sorted, as the row of *parent* proves."""
        query = "SELECT name FROM node WHERE parent = ? ORDER BY name"
        names = [name for (name,) in self._connection.execute(query, (parent.path,))]
        if len(names) != parent.children or names_total(names) != parent.names:
            raise self._damaged(
                f"the list of what is below {parent.path} does not fit its checksum"
            )
        return sorted(names)

    def _row(self, path: str) -> tuple[Node, bytes] | None:
        """Return node and value; None: the index of the paths does not find it."""
        query = "SELECT * FROM node WHERE path = ?"
        row = self._connection.execute(query, (path,)).fetchone()
        if row is None:
            return None
        *fields, value, digest = row
        node = Node(*fields)
        if node.path != path or node_digest(node, value) != digest:
            raise self._damaged(f"node {path} does not fit its checksum")
        return node, value

    def _damaged(self, reason: str) -> DamagedMetadata:
        return DamagedMetadata(self._where, f"{reason}; {RESTORE}")

    def _check_session(self, owner: str | None) -> None:
        if owner is not None and not self.has_session(owner):
            raise SessionEnded

    def _note(self, *paths: str) -> None:
        for path in paths:
            cursor = self._connection.execute("INSERT INTO change (path) VALUES (?)", (path,))
            assert cursor.lastrowid is not None
            self._add(row_digest("change", (cursor.lastrowid, path)))
            kept_from = cursor.lastrowid - CHANGES_KEPT
            query = "SELECT number, path FROM change WHERE number <= ?"
            for row in self._connection.execute(query, (kept_from,)).fetchall():
                self._change_one("DELETE FROM change WHERE number = ?", row[0])
                self._take(row_digest("change", row))

    def _add(self, digest: bytes) -> None:
        self._total = added(self._total, digest)

    def _take(self, digest: bytes) -> None:
        self._total = taken(self._total, digest)

    def _finds(self, query: str, *arguments: str) -> bool:
        return self._connection.execute(query, arguments).fetchone() is not None

    def _change_one(self, statement: str, *arguments: object) -> None:
        """Do what changes exactly one row; an index may find none, or two."""
        if self._connection.execute(statement, arguments).rowcount != 1:
            raise self._damaged(f"a row is not found: {statement.partition(' WHERE')[0]}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Let all reads of the block see one state."""
        if self._connection.in_transaction:
            yield
            return
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Do the block in a transaction, alone, and let the witness follow its commit."""
        with self._witness.locked(self._timeout_s):
            self._keep_wal_bounded()
            # Takes SQLite's lock at once: a read that turns into a write could not wait for it.
            with self._transaction("BEGIN IMMEDIATE"):
                state = self.check_witness()
                self._total = state.total
                yield
                mark = self._advance(state)
            if mark is not None:
                self._witness.write(mark)

    def check_witness(self) -> State:
        """Return the state; let the witness follow, if the last committer could not.

        Requires the lock. Raises `DamagedMetadata` if the database is not where it must be."""
        state, mark = read_state(self._connection, self._where), self._witness.read()
        if mark is None:
            raise no_mark(self._witness)
        if not state.follows(mark):
            raise older(self._where, state, mark)
        if state.generation > mark.generation:
            for path in (self._where, f"{self._where}-wal"):
                _sync(path)  # a process that died may not have synced what we read
            self._witness.write(CommitMarker(state.generation, state.chain))
        return state

    def _advance(self, state: State) -> CommitMarker | None:
        if self._total == state.total:
            return None
        generation = state.generation + 1
        chain = next_chain(state.chain, generation, self._total)
        query = "UPDATE state SET generation = ?, total = ?, before = ?, chain = ?"
        self._connection.execute(query, (generation, self._total, state.chain, chain))
        return CommitMarker(generation, chain)

    def _keep_wal_bounded(self) -> None:
        """Empty a write-ahead log that readers have kept from being emptied for long.

        Requires the lock. Those who begin to read meanwhile do not need it any more, so only a
        process that stands still in the middle of a read can be in the way."""
        if self._wal_bytes() < WAL_BYTES_HIGH:
            return
        with contextlib.suppress(sqlite3.Error):  # the next one tries again
            self._connection.execute(f"PRAGMA busy_timeout = {_WAIT_FOR_READERS_MS}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.execute(f"PRAGMA busy_timeout = {int(self._timeout_s * 1000)}")
        if (size_bytes := self._wal_bytes()) >= WAL_BYTES_MAX:
            reason = (
                f"the write-ahead log has {size_bytes} bytes: a process that stands still reads"
            )
            raise OSError(f"{reason} in it; continue or end that process")

    def _wal_bytes(self) -> int:
        try:
            return Path(f"{self._where}-wal").stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self._connection.execute(begin)
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")


def _sync(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
