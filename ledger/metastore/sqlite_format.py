"""What the embedded store's database looks like; making it, upgrading it, and verifying all of it.

Whatever only looks opens the database read-only: then SQLite neither empties nor removes the
write-ahead log, and a damaged one stays as evidence.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ledger.errors import DamagedMetadata, NamespaceMismatch
from ledger.metastore.sqlite_tree import (
    RESTORE,
    Node,
    SessionRow,
    State,
    no_mark,
    older,
    read_state,
)
from ledger.metastore.sqlite_witness import (
    EMPTY_TOTAL,
    CommitMarker,
    Witness,
    added,
    names_total,
    next_chain,
    node_digest,
    row_digest,
)

FORMAT_VERSION: Final = 3
FORMAT_WITHOUT_NAMES: Final = 2
"""Its rows have digests, and nothing proves a list of children."""
_KNOWN: Final = f"format {FORMAT_WITHOUT_NAMES} or {FORMAT_VERSION}"
_APPLICATION_ID: Final = 0x646C6F67  # "dlog"
_SCHEMA: Final = (
    """CREATE TABLE node (
    path TEXT NOT NULL PRIMARY KEY,
    parent TEXT,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    made INTEGER NOT NULL,
    children INTEGER NOT NULL,
    names BLOB NOT NULL,
    owner TEXT,
    value BLOB NOT NULL,
    digest BLOB NOT NULL
)""",
    "CREATE UNIQUE INDEX node_by_parent ON node (parent, name)",
    "CREATE INDEX node_by_owner ON node (owner) WHERE owner IS NOT NULL",
    "CREATE TABLE session (id TEXT NOT NULL PRIMARY KEY, boot TEXT NOT NULL,"
    " timeout_s REAL NOT NULL, owned INTEGER NOT NULL, digest BLOB NOT NULL)",
    "CREATE TABLE change (number INTEGER PRIMARY KEY, path TEXT NOT NULL)",
    "CREATE TABLE state (generation INTEGER NOT NULL, total BLOB NOT NULL,"
    " before BLOB NOT NULL, chain BLOB NOT NULL)",
)
_NAMES_COLUMNS: Final = "    children INTEGER NOT NULL,\n    names BLOB NOT NULL,\n"
_OWNED_COLUMNS: Final = ", owned INTEGER NOT NULL, digest BLOB NOT NULL"
_SCHEMAS: Final = {
    FORMAT_WITHOUT_NAMES: tuple(
        sql.replace(_NAMES_COLUMNS, "").replace(_OWNED_COLUMNS, "") for sql in _SCHEMA
    ),
    FORMAT_VERSION: _SCHEMA,
}
_ROOT: Final = Node("/", None, "", 0, 0, 0, EMPTY_TOTAL, None)
_NODES_BEFORE: Final = "SELECT path, parent, name, version, made, owner, value FROM node_before"
_OTHER_ROWS: Final = (
    ("session", "SELECT * FROM session"),
    ("change", "SELECT * FROM change"),
)

_NOT_DAMAGE: Final = (
    "SQLITE_BUSY",
    "SQLITE_CANTOPEN",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_LOCKED",
    "SQLITE_NOMEM",
    "SQLITE_PERM",
    "SQLITE_PROTOCOL",
    "SQLITE_READONLY",
)
"""What SQLite says of disks, rights and locks. All else that our few statements fail with is
something in the files."""
_SHORT_READ: Final = "SQLITE_IOERR_SHORT_READ"
_NOT_TEXT: Final = "Could not decode to UTF-8"
"""What the module `sqlite3` says, without a name, of text that is none."""


@contextmanager
def reporting_damage(where: str) -> Iterator[None]:
    """Raise `DamagedMetadata` for what SQLite says of damage."""
    try:
        yield
    except UnicodeDecodeError as error:  # the name of something, in a message of SQLite's
        raise DamagedMetadata(where, f"{error}; {RESTORE}") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        environment = name.startswith(_NOT_DAMAGE) and name != _SHORT_READ
        if environment or not (name or str(error).startswith(_NOT_TEXT)):
            raise
        raise DamagedMetadata(where, f"{error}; {RESTORE}") from error


def format_of(connection: sqlite3.Connection, where: str) -> int:
    """Return the format version; 0: nothing was made yet. Raises `NamespaceMismatch`."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if version == application == tables == 0:
        return 0
    if application != _APPLICATION_ID:
        raise NamespaceMismatch(f"another program's database at {where}", "one of dlog")
    if version not in _SCHEMAS:
        raise NamespaceMismatch(f"a database of format {version} at {where}", _KNOWN)
    return int(version)


def make(connection: sqlite3.Connection, mark: CommitMarker) -> None:
    """Make the tables as the commit after *mark*. Requires the witness's lock."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    _insert_node(connection, _ROOT, b"")
    _commit_after(connection, mark)


def upgrade(connection: sqlite3.Connection, where: str, mark: CommitMarker) -> None:
    """Give a database of the format before proofs of its lists, as the commit after *mark*.

    Requires that nobody else uses it. Raises `DamagedMetadata`."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    _check_structure(connection, where)
    connection.execute("DROP TABLE state")
    connection.execute("DROP INDEX node_by_parent")
    connection.execute("DROP INDEX node_by_owner")
    connection.execute("ALTER TABLE node RENAME TO node_before")
    sessions, changes = (connection.execute(query).fetchall() for _, query in _OTHER_ROWS)
    connection.execute("DROP TABLE session")
    connection.execute("DROP TABLE change")
    for statement in _SCHEMA:
        connection.execute(statement)
    below, owned = defaultdict[object, list[object]](list), Counter[object]()
    for parent, name in connection.execute("SELECT parent, name FROM node_before"):
        below[parent].append(name)
    for path, parent, name, version, made, owner, value in connection.execute(_NODES_BEFORE):
        names = below[path]
        owned[owner] += 1
        total = names_total(names)
        node = Node(path, parent, name, version, made, len(names), total, owner)
        _insert_node(connection, node, value)
    connection.execute("DROP TABLE node_before")
    for session_id, boot, timeout_s in sessions:
        session = SessionRow(session_id, boot, timeout_s, owned[session_id])
        connection.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", session.stored())
    connection.executemany("INSERT INTO change VALUES (?, ?)", changes)
    _commit_after(connection, mark)


def _insert_node(connection: sqlite3.Connection, node: Node, value: bytes) -> None:
    query = "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    connection.execute(query, (*node, value, node_digest(node, value)))


def _commit_after(connection: sqlite3.Connection, mark: CommitMarker) -> None:
    total = _total(connection, "the database that is made")
    chain = next_chain(mark.chain, mark.generation + 1, total)
    state = State(mark.generation + 1, total, mark.chain, chain)
    connection.execute("INSERT INTO state VALUES (?, ?, ?, ?)", state)
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    connection.execute("COMMIT")


def verify(connection: sqlite3.Connection, witness: Witness, where: str) -> None:
    """Check every row, every index and the newest commit, in one state; needs no lock.

    Raises `DamagedMetadata`, `NamespaceMismatch`."""
    mark = mark_of(witness)
    check_place(whole_state(connection, where), mark, witness, where)


def whole_state(connection: sqlite3.Connection, where: str) -> State:
    """Return the state, with which all there is agrees, whether it is the newest or not.

    Raises `DamagedMetadata`, `NamespaceMismatch`."""
    connection.execute("BEGIN")
    try:
        state = _checked(connection, where)
        if _total(connection, where) != state.total:
            raise DamagedMetadata(where, f"its rows do not add up to its checksum; {RESTORE}")
    finally:
        connection.execute("ROLLBACK")
    return state


def check_place(state: State, before: CommitMarker, witness: Witness, where: str) -> None:
    """Check that *state*, read after the mark *before*, is a commit that may be the newest.

    Raises `DamagedMetadata`."""
    if state.follows(before):
        return
    now = mark_of(witness)
    # Others committed meanwhile: none begins before the witness knows the one before.
    went_on = now.generation > before.generation
    if not (went_on and before.generation < state.generation <= now.generation + 1):
        raise older(where, state, now)


def mark_of(witness: Witness) -> CommitMarker:
    """Return the newest mark. Raises `DamagedMetadata`."""
    mark = witness.read()
    if mark is None:
        raise no_mark(witness)
    return mark


def check_format(connection: sqlite3.Connection, where: str) -> None:
    """Raises `DamagedMetadata`, `NamespaceMismatch`."""
    if format_of(connection, where) != FORMAT_VERSION:
        raise DamagedMetadata(where, f"its tables are gone, or of an earlier format; {RESTORE}")


def check_tables(connection: sqlite3.Connection, where: str, version: int = FORMAT_VERSION) -> None:
    """Raises `DamagedMetadata` if the tables are not those of this format."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    schema = connection.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    if mode != "wal" or Counter(sql for (sql,) in schema) != Counter(_SCHEMAS.get(version, ())):
        raise DamagedMetadata(where, f"its tables are not those that were made; {RESTORE}")


def _checked(connection: sqlite3.Connection, where: str) -> State:
    check_tables(connection, where, format_of(connection, where))
    _check_structure(connection, where)
    return read_state(connection, where)


def _check_structure(connection: sqlite3.Connection, where: str) -> None:
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise DamagedMetadata(where, f"{found}; {RESTORE}")


def _total(connection: sqlite3.Connection, where: str) -> bytes:
    total = EMPTY_TOTAL
    for *node, value, stored in connection.execute("SELECT * FROM node"):
        digest = node_digest(tuple(node), value)
        if digest != stored:
            raise DamagedMetadata(where, f"node {node[0]} does not fit its checksum; {RESTORE}")
        total = added(total, digest)
    for table, query in _OTHER_ROWS:
        for row in connection.execute(query):
            total = added(total, row_digest(table, row))
    return total


def file_is_empty(path: Path) -> bool:
    """Return whether there is no file, or one without content."""
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True
