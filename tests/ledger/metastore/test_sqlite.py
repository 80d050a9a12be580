"""The embedded store on bad days: a dead disk, a locked database, stale sessions."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ledger.errors import (
    DamagedMetadata,
    MetadataDenied,
    MetadataFull,
    MetadataUnavailable,
    NamespaceMismatch,
)
from ledger.metastore import check_store_there, open_store
from ledger.metastore.sqlite import SqliteStore
from ledger.metastore.sqlite_files import Database, OwnSession, is_denied, is_full
from ledger.metastore.sqlite_keeper import POLL_S, SessionKeeper
from ledger.metastore.sqlite_tree import CHANGES_KEPT
from tests.ledger.metastore.backends import Backend, gone, hold, renewed, settled
from tests.waiting import PATIENCE_S, eventually, until


@pytest.mark.slow
async def test_a_directory_that_is_gone_is_told_in_time_and_its_return_is_noticed(
    sqlite: Backend, tmp_path: Path
) -> None:
    here, away = tmp_path / "namespace", tmp_path / "away"

    session_timeout_s = 0.9
    async with sqlite.one(session_timeout_s=session_timeout_s) as store:
        assert isinstance(store, SqliteStore)
        await hold(store, "/e")
        here.rename(away)
        session, lease = store.session, store._lease
        for call in (store.get("/a"), store.create("/a"), store.sync()):
            with pytest.raises(MetadataUnavailable):
                async with asyncio.timeout(PATIENCE_S):
                    await call
        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()
        assert lease is not None
        assert lease._trusted_s < session_timeout_s  # before anybody else could think so
        with pytest.raises(MetadataUnavailable):
            await store.create("/e2", ephemeral=True)
        assert not here.exists()
        away.rename(here)
        await renewed(store)
        assert store.session is not session
        assert await store.exists("/e") is None
        await hold(store, "/e")
        assert session.lost.is_set()


async def test_another_database_in_the_old_ones_place_is_not_taken_for_it(
    sqlite: Backend, tmp_path: Path
) -> None:
    async with sqlite.one(session_timeout_s=0.6) as store:
        await store.create("/a", b"first")
        (tmp_path / "namespace").rename(tmp_path / "old")
        async with sqlite.one() as other:
            await other.create("/a", b"second")
            with pytest.raises(MetadataUnavailable) as caught:
                await store.get("/a")
            assert "replaced" in str(caught.value)
            async with asyncio.timeout(PATIENCE_S):
                await store.session.lost.wait()


def test_a_locked_database_stops_writes_in_time_and_no_reads(
    sqlite: Backend, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with sqlite.one() as store, sqlite.one() as impatient:
            assert isinstance(impatient, SqliteStore)
            impatient._writer._timeout_s = 0.5
            await store.create("/a", b"v")
            locker = sqlite3.connect(tmp_path / "namespace" / "metadata.sqlite")
            locker.execute("BEGIN IMMEDIATE")

            tries = 0

            async def told_why() -> bool:
                nonlocal tries
                tries += 1
                with pytest.raises(MetadataUnavailable) as caught:
                    async with asyncio.timeout(PATIENCE_S):
                        await impatient.set("/a", b"w")
                return "locked" in str(caught.value)

            await eventually(told_why, "it says that the database is locked")
            assert (await store.get("/a")).value == b"v"
            locker.close()
            # One whose outcome was unknown, as it was not told in time, may have been done by now.
            assert 1 <= await store.set("/a", b"w") <= 1 + tries
            assert not store.session.lost.is_set()

    asyncio.run(scenario())


def test_a_place_that_cannot_be_a_directory_is_told_as_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(MetadataUnavailable):
        asyncio.run(open_store(f"file://{tmp_path}/file/namespace"))


def test_a_file_that_is_no_database_of_ours_is_refused(sqlite: Backend, tmp_path: Path) -> None:
    path = tmp_path / "namespace" / "metadata.sqlite"
    path.parent.mkdir()
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE t (c)")
    foreign.close()
    with pytest.raises(NamespaceMismatch):
        asyncio.run(sqlite.open())
    path.write_bytes(b"something else entirely, and long enough" * 100)
    with pytest.raises(DamagedMetadata):
        asyncio.run(sqlite.open())


def test_a_database_of_a_later_format_is_refused(sqlite: Backend, tmp_path: Path) -> None:
    asyncio.run(open_and_close(sqlite))
    later = sqlite3.connect(tmp_path / "namespace" / "metadata.sqlite")
    later.execute("PRAGMA user_version = 4")
    later.close()
    with pytest.raises(NamespaceMismatch) as caught:
        asyncio.run(sqlite.open())
    assert "format 4" in str(caught.value)


async def test_many_processes_may_make_the_namespace_at_once(sqlite: Backend) -> None:
    stores = await asyncio.gather(*(sqlite.open() for _ in range(8)))
    await asyncio.gather(*(store.create("/n-", sequential=True) for store in stores))
    assert len(await stores[0].children("/")) == 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_sessions_of_an_earlier_boot_and_half_made_ones_are_cleared(
    sqlite: Backend, tmp_path: Path
) -> None:
    async with sqlite.one() as store:
        database = Database(tmp_path / "namespace")
        database.create(timeout_s=PATIENCE_S)
        earlier = OwnSession(database)  # locked and beating, but of another boot
        tree = database.connect(timeout_s=PATIENCE_S)
        tree.add_session(earlier.session_id, "another-boot", 1000.0)
        tree.create("/e", b"", owner=earlier.session_id, sequential=False)
        tree.close()
        await gone(store, "/e")
        file = database.session_path(earlier.session_id)
        await until(lambda: not file.exists(), "nothing is left of the session")
        earlier.close()
        half_made = tmp_path / "namespace" / "sessions" / "half-made"
        half_made.write_bytes(b"")
        async with sqlite.one():
            assert not half_made.exists()


async def test_a_session_that_another_process_ended_is_told_and_replaced(
    sqlite: Backend, tmp_path: Path
) -> None:
    async with sqlite.one() as store:
        session = store.session
        await store.create("/e", ephemeral=True)
        database = Database(tmp_path / "namespace")
        database.create(timeout_s=PATIENCE_S)
        tree = database.connect(timeout_s=PATIENCE_S)
        tree.end_session(session.session_id)
        tree.close()
        async with asyncio.timeout(PATIENCE_S):
            await session.lost.wait()
        await renewed(store)
        assert await store.exists("/e") is None
        await store.create("/e", ephemeral=True)


def test_closing_leaves_no_session_behind(sqlite: Backend, tmp_path: Path) -> None:
    asyncio.run(open_and_close(sqlite))
    assert list((tmp_path / "namespace" / "sessions").iterdir()) == []


@pytest.mark.integration
def test_a_forked_child_does_not_keep_its_dead_parents_session(sqlite: Backend) -> None:
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    parent = context.Process(target=hold_fork_and_die, args=(sqlite.uri, writer))
    parent.start()
    child_pid = reader.recv()
    parent.join()

    async def scenario() -> None:
        async with sqlite.one() as store:
            await gone(store, "/e")

    try:
        asyncio.run(scenario())
    finally:
        os.kill(child_pid, signal.SIGKILL)


def hold_fork_and_die(uri: str, writer: "multiprocessing.connection.Connection") -> None:
    async def hold() -> None:
        store = await open_store(uri)
        await store.create("/e", ephemeral=True)
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        writer.send(child)
        os._exit(1)

    asyncio.run(hold())


def test_a_loop_that_ends_without_closing_its_store_ends_the_session(sqlite: Backend) -> None:
    async def forget() -> None:
        store = await sqlite.open()
        await store.create("/e", ephemeral=True)

    async def look() -> None:
        async with sqlite.one() as store:
            await gone(store, "/e")

    asyncio.run(forget())
    asyncio.run(look())


async def test_a_watcher_that_finds_a_gap_in_the_changes_takes_it_that_all_changed(
    sqlite: Backend, tmp_path: Path
) -> None:
    async with sqlite.one() as store:
        await store.create("/a")
        watch = store.watch("/never/changed")
        await settled(watch)
        other = sqlite3.connect(tmp_path / "namespace" / "metadata.sqlite")
        with other:
            other.execute(
                "INSERT INTO change SELECT max(number) + ?, '/elsewhere' FROM change",
                (CHANGES_KEPT,),
            )
        other.close()
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


def test_the_list_of_changes_stays_bounded(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.create(timeout_s=PATIENCE_S)
    tree = database.connect(timeout_s=PATIENCE_S)
    connection = tree._connection
    connection.execute("PRAGMA synchronous = OFF")
    tree.create("/a", b"", owner=None, sequential=False)
    assert [path for _, path in tree.changes_after(0)] == ["/a", "/"]
    connection.execute("INSERT INTO change VALUES (?, '/b')", (CHANGES_KEPT - 10,))
    for _ in range(30):
        tree.set("/a", b"", -1)
    changes = tree.changes_after(0)
    tree.close()
    assert [path for _, path in changes] == ["/b", *["/a"] * 30]
    assert changes[-1][0] == CHANGES_KEPT + 20


@pytest.mark.slow
async def test_an_idle_store_does_not_wait_busily(
    sqlite: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[float, float]] = []
    honest = SessionKeeper._step

    def step(self: SessionKeeper, now: float) -> None:
        steps.append((now, time.process_time()))
        honest(self, now)

    monkeypatch.setattr(SessionKeeper, "_step", step)
    async with sqlite.one():
        await until(lambda: len(steps) > 20, "its thread has looked twenty times")
    (began_s, cpu_s), (ended_s, cpu_end_s) = steps[0], steps[20]
    assert ended_s - began_s > 20 * POLL_S * 0.9
    assert cpu_end_s - cpu_s < 0.5 * (ended_s - began_s)  # a tenth; a busy loop takes all of it


async def open_and_close(backend: Backend) -> None:
    store = await backend.open()
    await store.create("/e", ephemeral=True)
    await store.close()


async def test_a_full_disk_of_the_store_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def small(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.execute("PRAGMA max_page_count = 1")  # it cannot become smaller than it is
        return connection

    store = await open_store(f"file://{tmp_path}")
    await store.create("/a")
    await store.close()
    monkeypatch.setattr(sqlite3, "connect", small)
    store = await open_store(f"file://{tmp_path}")

    async def fill() -> None:
        for _ in range(100):
            await store.create("/a/", bytes(4000), sequential=True)

    with pytest.raises(MetadataFull, match="the disk of its directory is full") as told:
        await fill()
    assert told.value.retryable
    await store.close()


def test_a_directory_that_may_not_be_looked_into_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(MetadataDenied, match="run this as the user that the directory belongs to"):
        check_store_there(f"file://{tmp_path}")


def test_a_store_that_may_only_be_read_refuses_writes_as_denied(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as made:
        made.execute("CREATE TABLE t (x)")
    with (
        closing(sqlite3.connect(f"file:{tmp_path}/db?mode=ro", uri=True)) as connection,
        pytest.raises(sqlite3.Error) as told,
    ):
        connection.execute("INSERT INTO t VALUES (1)")
    assert is_denied(told.value)
    assert not is_full(told.value)
