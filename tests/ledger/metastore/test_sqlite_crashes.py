"""The embedded store after crashes: what was acknowledged is there, whatever the disk kept.

Power losses are made of the files before, in the midst of and after a commit: what was not synced
yet may have reached the disk in any part, in sectors. Killed processes are real ones.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.errors import MetadataUnavailable, NodeExists
from ledger.metastore import MetadataStore, sqlite_files, sqlite_format, sqlite_tree
from ledger.metastore.port import ANY_VERSION
from ledger.metastore.sqlite_files import Database
from ledger.metastore.sqlite_witness import CommitMarker, Witness
from tests.ledger.metastore.backends import Backend
from tests.ledger.metastore.sqlite_stores import (
    DATABASE,
    VALUE,
    WAL,
    WITNESS,
    Content,
    Files,
    content_of,
    found_in,
    opened,
    put,
    taken,
    to_format_2,
    used,
)
from tests.waiting import PATIENCE_S, eventually

SECTOR_BYTES: Final = 512


def partly(before: bytes, after: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """Yield *count* contents of which some sectors are already *after*: beginnings, and any."""
    size = max(len(before), len(after))
    sectors = [at for at in range(0, size, SECTOR_BYTES) if before[at:] != after[at:]]
    changed = [
        at for at in sectors if before[at : at + SECTOR_BYTES] != after[at : at + SECTOR_BYTES]
    ]
    for turn in range(count):
        first = rng.randrange(len(changed) + 1) if changed else 0
        done = set(changed[:first]) if turn % 2 else {at for at in changed if rng.random() < 0.5}
        content = bytearray(before.ljust(size, b"\0") if done else before)
        for at in sorted(done):
            content[at : at + SECTOR_BYTES] = after[at : at + SECTOR_BYTES]
        if done:
            del content[max(len(before), max(done) + SECTOR_BYTES) :]
        yield bytes(content)


class Crashes:
    """Takes the files around each commit."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.committed: Files = {}
        """As they were when the database had committed, and the witness did not know yet."""
        write = Witness.write

        def observed(witness: Witness, mark: CommitMarker) -> None:
            self.committed = taken(directory)
            write(witness, mark)

        monkeypatch.setattr(Witness, "write", observed)

    def possible(self, before: Files, after: Files, rng: random.Random) -> Iterator[Files]:
        """Yield files that a power loss may leave until the commit is told."""
        committed = self.committed
        for wal in partly(before.get(WAL, b""), committed.get(WAL, b""), rng, 6):
            yield before | {WAL: wal}
        # What the commit copied from its log to the database when that was synced.
        for database in partly(before[DATABASE], committed[DATABASE], rng, 3):
            yield committed | {DATABASE: database}
        for witness in partly(committed[WITNESS], after[WITNESS], rng, 3):
            yield committed | {WITNESS: witness}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long("chaos-bookie"))])
def test_a_power_loss_anywhere_leaves_the_commit_before_or_this_one(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    here, copy = tmp_path / "whole", tmp_path / "copy"
    tree = opened(here)
    tree._connection.execute("PRAGMA wal_autocheckpoint = 7")
    crashes = Crashes(here, monkeypatch)
    for n in range(12):
        before, content_before = taken(here), content_of(tree)
        match n % 3:
            case 0:
                tree.create(
                    f"/a/{n}", VALUE * rng.choice([0, 1, 200]), owner=None, sequential=False
                )
            case 1:
                tree.set("/a/0", VALUE * rng.choice([1, 90]), ANY_VERSION)
            case _:
                tree.create("/b/n-", b"", owner=None, sequential=True)
        after, content = taken(here), content_of(tree)
        for files in crashes.possible(before, after, rng):
            put(copy, files)
            found = found_in(copy)
            assert found in (content_before, content)
            assert found_in(copy) == found  # and stays so
            used = opened(copy)
            used.create("/after", b"", owner=None, sequential=False)
            used.close()
            assert isinstance(found_in(copy), dict)
        put(copy, after)
        assert found_in(copy) == content
    tree.close()


def test_a_power_loss_while_a_store_is_made_leaves_one_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    crashes = Crashes(tmp_path / "whole", monkeypatch)
    opened(tmp_path / "whole").close()
    committed = crashes.committed
    first = committed[WITNESS]
    states: list[Files] = [{}, {WITNESS: b""}, {WITNESS: first}]
    states += [{WITNESS: torn} for torn in (first[:4000], bytes(len(first)), first[:600])]
    states.append({WITNESS: committed[WITNESS], DATABASE: b""})
    states += [committed | {WAL: wal} for wal in partly(b"", committed[WAL], rng, 20)]
    for n, files in enumerate(states):
        directory = tmp_path / str(n)
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        if files.get(WITNESS) == first:  # it is durable
            (directory / "sessions").mkdir()
        assert found_in(directory) == {}
        opened(directory).close()


def made_before(directory: Path) -> Content:
    """Make a store of the format before this one; return what is in it."""
    tree = opened(directory)
    used(tree)
    content = content_of(tree)
    tree.close()
    to_format_2(directory)
    return content


def test_a_store_of_the_format_before_is_upgraded(tmp_path: Path) -> None:
    content = made_before(tmp_path)
    assert found_in(tmp_path) == content
    tree = opened(tmp_path)
    assert tree.create("/queue/n-", b"", owner=None, sequential=True) == "/queue/n-0000000001"
    assert [session for session, _, _ in tree.sessions()] == ["s"]
    tree.close()


def test_a_store_of_a_format_that_no_release_wrote_is_refused(tmp_path: Path) -> None:
    made_before(tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        connection.execute("PRAGMA user_version = 1")
    before = taken(tmp_path)
    found = found_in(tmp_path)
    assert isinstance(found, str)
    assert "a database of format 1" in found
    assert "format 2 or 3" in found
    assert taken(tmp_path)[DATABASE] == before[DATABASE]


@pytest.mark.slow
def test_a_power_loss_during_an_upgrade_leaves_a_store_that_can_be_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    content = made_before(tmp_path / "whole")
    before = taken(tmp_path / "whole")
    committed: Files = {}

    def upgrade(*arguments: Any) -> None:
        sqlite_format.upgrade(*arguments)
        committed.update(taken(tmp_path / "whole"))  # closing it empties the write-ahead log

    monkeypatch.setattr(sqlite_files, "upgrade", upgrade)
    opened(tmp_path / "whole").close()
    assert committed[WAL], "the upgrade is one commit"
    for wal in partly(b"", committed[WAL], rng, 40):
        put(tmp_path / "copy", before | {WAL: wal})
        assert found_in(tmp_path / "copy") == content
        assert found_in(tmp_path / "copy") == content


@pytest.mark.integration
def test_a_store_that_an_earlier_version_has_open_is_not_upgraded(
    sqlite: Backend, tmp_path: Path
) -> None:
    made_before(tmp_path / "namespace")
    session = tmp_path / "namespace" / "sessions" / "held"
    with subprocess.Popen(
        [sys.executable, "-c", _FLOCK, str(session)], stdout=subprocess.PIPE, text=True
    ) as earlier:
        try:
            assert earlier.stdout is not None
            assert earlier.stdout.readline() == "locked\n"
            with pytest.raises(MetadataUnavailable, match="in use by an earlier version"):
                asyncio.run(sqlite.open())
        finally:
            earlier.kill()
    asyncio.run(sqlite.open())


_FLOCK: Final = """
import fcntl, signal, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
signal.pause()
"""

_WRITER: Final = """
import sys
from pathlib import Path
from ledger.metastore.sqlite_files import Database

database = Database(Path(sys.argv[1]))
database.create(timeout_s=60.0)
tree = database.connect(timeout_s=60.0)
while True:
    path = tree.create("/n/" + sys.argv[2], b"", owner=None, sequential=True)
    if len(path) % 2:
        tree.set(path, b"x" * 3000, 0)
    print(path, flush=True)
"""


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.integration
def test_what_was_acknowledged_to_writers_that_are_killed_is_there(tmp_path: Path) -> None:
    rng = random.Random(0)
    acknowledged: set[str] = set()

    def writer_of(n: int) -> "subprocess.Popen[str]":
        name = f"w{n}-" + "x" * (n % 2)
        return start([sys.executable, "-c", _WRITER, str(tmp_path), name])

    writers = [writer_of(n) for n in range(3)]
    try:
        for n in range(12):
            writer = writers.pop(0)
            assert writer.stdout is not None
            for _ in range(rng.randrange(1, 40)):
                acknowledged.add(writer.stdout.readline().strip())
            writer.kill()
            acknowledged |= {line.strip() for line in writer.stdout if line.endswith("\n")}
            writer.wait()
            writer.stdout.close()
            writers.append(writer_of(n))
            if n % 4 == 3:  # all at once: nobody has the database open any more
                for each in writers:
                    each.kill()
                    assert each.stdout is not None
                    acknowledged |= {line.strip() for line in each.stdout if line.endswith("\n")}
                    each.wait()
                    each.stdout.close()
                content = found_in(tmp_path)
                assert isinstance(content, dict), content
                assert acknowledged - {""} <= content.keys()
                writers = [writer_of(each) for each in range(3)]
    finally:
        for each in writers:
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()
    assert len(acknowledged) > 50


_STOPPED: Final = """
import os, signal, sys
from pathlib import Path
from ledger.metastore.sqlite_files import Database
from ledger.metastore.sqlite_witness import Witness

def stand_still(*_):
    print("stopped", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

write = Witness.write
def stopped_write(witness, mark):
    stand_still()
    write(witness, mark)

database = Database(Path(sys.argv[1]))
database.create(timeout_s=60.0)
tree = database.connect(timeout_s=60.0)
if sys.argv[2] == "reading":
    tree._connection.execute("BEGIN")
    tree.get("/a")
    stand_still()
    tree._connection.execute("ROLLBACK")
else:
    if sys.argv[2] == "committed":
        Witness.write = stopped_write
    else:
        advance = tree._advance
        tree._advance = lambda state: (stand_still(), advance(state))[1]
    tree.set("/a", b"w", 0)
print("done", flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize("where", ["writing", "committed"])
@pytest.mark.parametrize("ended", [signal.SIGCONT, signal.SIGKILL])
def test_a_process_that_stands_still_in_a_commit_stops_writes_alone(
    where: str, ended: signal.Signals, sqlite: Backend, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with sqlite.one(session_timeout_s=3.0, timeout_s=1.5) as store:
            await store.create("/a", b"v")
            session = store.session
            command = [sys.executable, "-c", _STOPPED, str(tmp_path / "namespace"), where]
            with start(command) as process:
                try:
                    assert process.stdout is not None
                    assert await asyncio.to_thread(process.stdout.readline) == "stopped\n"
                    seen = b"w" if where == "committed" else b"v"
                    for _ in range(3):  # for longer than the session would live without heartbeats
                        assert (await store.get("/a")).value == seen
                        with pytest.raises(MetadataUnavailable):
                            await store.create("/b")
                    assert store.session is session
                    assert not session.lost.is_set()
                    process.send_signal(ended)

                    await eventually(lambda: created(store, "/c"), "writes go on")
                    done = where == "committed" or ended == signal.SIGCONT
                    assert (await store.get("/a")).value == (b"w" if done else b"v")
                finally:
                    process.kill()

    asyncio.run(scenario())
    assert isinstance(found_in(tmp_path / "namespace"), dict)


async def created(store: MetadataStore, path: str) -> bool:
    try:
        await store.create(path)
    except MetadataUnavailable:
        return False
    except NodeExists:  # made by a call that got no answer in time
        return True
    return True


@pytest.mark.slow
def test_a_reader_that_stands_still_cannot_let_the_write_ahead_log_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tree, "WAL_BYTES_HIGH", 100_000)
    monkeypatch.setattr(sqlite_tree, "WAL_BYTES_MAX", 300_000)
    tree, reader = opened(tmp_path), Database(tmp_path)
    reader.create(timeout_s=PATIENCE_S)
    still = reader.connect(timeout_s=PATIENCE_S)
    tree.create("/a", b"", owner=None, sequential=False)
    still._connection.execute("BEGIN")
    still.get("/a")

    def write_much() -> None:
        for _ in range(100):
            tree.set("/a", VALUE * 300, ANY_VERSION)

    with pytest.raises(OSError, match="continue or end that process"):
        write_much()
    assert (tmp_path / WAL).stat().st_size < 400_000
    assert still.get("/a").value == b""
    still._connection.execute("ROLLBACK")
    tree.set("/a", b"now", ANY_VERSION)
    assert (tmp_path / WAL).stat().st_size < 100_000
    tree.close()
    still.close()


@pytest.mark.slow
def test_readers_one_after_the_other_do_not_let_the_write_ahead_log_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_tree, "WAL_BYTES_HIGH", 500_000)
    tree = opened(tmp_path)
    tree.create("/a", b"", owner=None, sequential=False)
    over = threading.Event()

    def read() -> None:
        reader = opened(tmp_path)
        while not over.is_set():
            reader._connection.execute("BEGIN")
            for _ in range(20):
                reader.get("/a")
            reader._connection.execute("ROLLBACK")
        reader.close()

    readers = [threading.Thread(target=read) for _ in range(3)]
    for each in readers:
        each.start()
    try:
        sizes = []
        for _ in range(300):
            tree.set("/a", VALUE * 300, ANY_VERSION)
            sizes.append((tmp_path / WAL).stat().st_size)
    finally:
        over.set()
        for each in readers:
            each.join()
    tree.close()
    assert max(sizes) < 6 << 20  # of 18 MB that were written


@pytest.mark.integration
def test_the_witness_of_a_forked_child_does_not_keep_writers_out(tmp_path: Path) -> None:
    tree = opened(tmp_path)
    with tree._witness.locked(PATIENCE_S):
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        tree.close()  # as if the parent had been killed
    try:
        again = opened(tmp_path)
        again.create("/a", b"", owner=None, sequential=False)
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
