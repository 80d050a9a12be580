"""Embedded stores as files: taken as they lie, put down elsewhere, read without an event loop."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from ledger.errors import DamagedMetadata, NamespaceMismatch
from ledger.metastore.port import ANY_VERSION, Versioned
from ledger.metastore.sqlite_files import Database
from ledger.metastore.sqlite_tree import SqlTree
from ledger.metastore.sqlite_witness import (
    EMPTY_TOTAL,
    CommitMarker,
    Witness,
    added,
    next_chain,
    node_digest,
    row_digest,
)
from tests.waiting import PATIENCE_S, eventually

DATABASE: Final = "metadata.sqlite"
WAL: Final = "metadata.sqlite-wal"
WITNESS: Final = "metadata.witness"
PAGE_BYTES: Final = 4096
LASTING: Final = (DATABASE, WAL, WITNESS)
"""The files that hold what was committed."""
VALUE: Final = b"a value that is somewhat long, so that it can be damaged"

Files = dict[str, bytes]
Content = dict[str, Versioned]


def opened(directory: Path) -> SqlTree:
    database = Database(directory)
    database.create(timeout_s=PATIENCE_S)
    return database.connect(timeout_s=PATIENCE_S)


def taken(directory: Path) -> Files:
    """Return the files as a power loss of this moment would leave them at best."""
    return {
        name: (directory / name).read_bytes() for name in LASTING if (directory / name).exists()
    }


def put(directory: Path, files: Files) -> None:
    """Let *directory* be a store of just these files, which nobody has open."""
    (directory / "sessions").mkdir(parents=True, exist_ok=True)
    (directory / f"{DATABASE}-shm").unlink(missing_ok=True)
    for name in LASTING:
        if name in files:
            (directory / name).write_bytes(files[name])
        else:
            (directory / name).unlink(missing_ok=True)


def content_of(tree: SqlTree, above: str = "/") -> Content:
    """Return all nodes below *above*."""
    found: Content = {}
    for name in tree.children(above):
        path = f"{above.rstrip('/')}/{name}"
        found[path] = tree.get(path)
        found |= content_of(tree, path)
    return found


def found_in(directory: Path) -> Content | str:
    """Return what an open finds, or why it is refused."""
    try:
        tree = opened(directory)
    except (DamagedMetadata, NamespaceMismatch) as error:
        return str(error)
    try:
        return content_of(tree)
    finally:
        tree.close()


def flip(directory: Path, at: int, bit: int = 0) -> None:
    """Flip one bit of the database in place, as a disk does under those who have it open."""
    fd = os.open(directory / DATABASE, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
    finally:
        os.close(fd)


async def emptied(directory: Path) -> None:
    """Let nothing be in the write-ahead log alone, beside processes that run."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as connection:

        async def is_done() -> bool:
            ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return not busy

        await eventually(is_done, "the write-ahead log is empty")


def place_of(directory: Path, table: str, entry: bytes) -> int:
    """Return where *entry* ends in the root page of a table or index, which must be all of it."""
    with closing(sqlite3.connect(directory / DATABASE)) as connection:
        query = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (page,) = connection.execute(query, (table,)).fetchone()
    content = (directory / DATABASE).read_bytes()[(page - 1) * PAGE_BYTES :][:PAGE_BYTES]
    assert content.count(entry) == 1, content
    return int((page - 1) * PAGE_BYTES + content.index(entry) + len(entry) - 1)


def used(tree: SqlTree) -> None:
    """Do some commits of each kind."""
    for n in range(3):
        tree.create(f"/logs/l{n}", VALUE, owner=None, sequential=False)
    tree.create("/queue/n-", VALUE, owner=None, sequential=True)
    tree.set("/logs/l1", VALUE * 2, ANY_VERSION)
    tree.add_session("s", "boot", 10)
    tree.create("/held", VALUE, owner="s", sequential=False)
    tree.delete("/logs/l2", ANY_VERSION)


def to_format_2(directory: Path) -> None:
    """Make the store in *directory* one of before lists of children were proven."""
    with closing(sqlite3.connect(directory / DATABASE, isolation_level=None)) as connection:
        rows = connection.execute(
            "SELECT path, parent, name, version, made, owner, value FROM node"
        ).fetchall()
        connection.execute("BEGIN")
        connection.execute("DROP TABLE node")
        connection.execute("ALTER TABLE session RENAME TO session_now")
        for statement in _BEFORE:
            connection.execute(statement)
        total = EMPTY_TOTAL
        for *head, value in rows:
            digest = node_digest(tuple(head), value)
            connection.execute(
                "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*head, value, digest)
            )
            total = added(total, digest)
        connection.execute("INSERT INTO session SELECT id, boot, timeout_s FROM session_now")
        connection.execute("DROP TABLE session_now")
        others = [("session", row) for row in connection.execute("SELECT * FROM session")]
        others += [("change", row) for row in connection.execute("SELECT * FROM change")]
        for table, row in others:
            total = added(total, row_digest(table, row))
        chain = next_chain(bytes(16), 7, total)
        connection.execute(
            "UPDATE state SET generation = 7, total = ?, before = ?, chain = ?",
            (total, bytes(16), chain),
        )
        connection.execute("PRAGMA user_version = 2")
        connection.execute("COMMIT")
    with closing(Witness(directory / WITNESS)) as witness:
        witness.begin(CommitMarker(7, chain))


_BEFORE: Final = (
    "CREATE TABLE session (id TEXT NOT NULL PRIMARY KEY, boot TEXT NOT NULL,"
    " timeout_s REAL NOT NULL)",
    """CREATE TABLE node (
    path TEXT NOT NULL PRIMARY KEY,
    parent TEXT,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    made INTEGER NOT NULL,
    owner TEXT,
    value BLOB NOT NULL,
    digest BLOB NOT NULL
)""",
    "CREATE UNIQUE INDEX node_by_parent ON node (parent, name)",
    "CREATE INDEX node_by_owner ON node (owner) WHERE owner IS NOT NULL",
)
