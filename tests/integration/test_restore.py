"""A metadata store that is restored to a backup, or moved, on real processes: logs go on."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from dlog.aio import Log
from dlog.local.cluster import MANAGED, LocalCluster
from dlog.local.zookeeper import ManagedZooKeeper, dying_with_parent
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

LOG: Final = "orders"
COUNT: Final = 20
BOOKIES: Final = 3
STORES: Final = ["file", pytest.param("zookeeper", marks=pytest.mark.long("chaos-repair"))]

WRITER: Final = """
import sys
from dlog import Log

log = Log.open(sys.argv[2], uri=sys.argv[1])
for number in range(int(sys.argv[3])):
    log.append(b"record %d" % number)
print("written", flush=True)
sys.stdin.read()
"""
"""Appends records, and stays; killed, it leaves its ledger open."""


@asynccontextmanager
async def cluster(directory: Path, store: str) -> AsyncIterator[LocalCluster]:
    made = LocalCluster(
        directory, bookies=BOOKIES, zookeeper=MANAGED if store == "zookeeper" else None
    )
    async with made:
        yield made


def metadata(directory: Path, store: str) -> Path:
    return directory / ("zookeeper" if store == "zookeeper" else "metadata")


def put_back(backup: Path, directory: Path) -> None:
    shutil.move(directory, directory.with_name("broken"))
    shutil.copytree(backup, directory, symlinks=True)


async def command(uri: str, *words: str, exits: int = 0) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dlog.cli",
        *words,
        env={**os.environ, "DLOG_URI": uri},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S * 4):
        out, err = await process.communicate()
    assert process.returncode == exits, f"{words}\n{out.decode()}\n{err.decode()}"
    return out.decode()


def left_open_by_a_killed_writer(uri: str) -> None:
    arguments = [sys.executable, "-c", WRITER, uri, LOG, str(COUNT)]
    with subprocess.Popen(
        dying_with_parent(arguments, os.getpid()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)


async def write(uri: str, *values: bytes) -> None:
    async with await Log.open(LOG, uri=uri) as log:
        for value in values:
            await log.append(value)


async def contents(uri: str) -> list[str]:
    return (await command(uri, "log", "tail", LOG)).splitlines()


async def accepted(directory: Path, store: str) -> None:
    """Say that the restore is meant, while no bookie runs."""
    if store == "file":
        await command(f"file://{directory}/metadata", "metadata", "accept-restore", "--yes")
        return
    made = ManagedZooKeeper(directory / "zookeeper")
    await made.start()
    try:
        await command(made.uri("/dlog"), "metadata", "accept-restore", "--yes")
    finally:
        await made.stop()


@pytest.mark.parametrize("store", STORES)
async def test_a_log_that_was_open_in_the_backup_is_closed_and_appended_to(
    tmp_path: Path, store: str
) -> None:
    directory, backup = tmp_path / "c", tmp_path / "backup"
    async with cluster(directory, store) as made:
        left_open_by_a_killed_writer(made.uri)
    shutil.copytree(metadata(directory, store), backup, symlinks=True)
    async with cluster(directory, store) as made:
        await write(made.uri, b"after the backup")
    put_back(backup, metadata(directory, store))
    await accepted(directory, store)
    async with cluster(directory, store) as made:
        assert "closed at" in await command(made.uri, "metadata", "reconcile")
        await write(made.uri, b"again")
        found = await contents(made.uri)
    assert found == [*(f"record {number}" for number in range(COUNT)), "again"]


@pytest.mark.parametrize("store", STORES)
async def test_bookies_that_have_collected_since_the_backup_are_writable_again(
    tmp_path: Path, store: str
) -> None:
    directory, backup = tmp_path / "c", tmp_path / "backup"
    async with cluster(directory, store) as made:
        await write(made.uri, b"first", b"second")
    shutil.copytree(metadata(directory, store), backup, symlinks=True)
    async with cluster(directory, store) as made:
        await write(made.uri, b"after the backup")
        for number in range(BOOKIES):
            await command(made.uri, "bookie", "gc", f"bookie-{number}")
    put_back(backup, metadata(directory, store))
    await accepted(directory, store)
    async with cluster(directory, store) as made:
        await command(made.uri, "metadata", "reconcile")
        await write(made.uri, b"third")
        await write(made.uri, b"fourth")
        assert await contents(made.uri) == ["first", "second", "third", "fourth"]
        assert (await command(made.uri, "bookie", "list")).count("writable") == BOOKIES


async def test_without_a_word_no_bookie_starts_beside_an_older_store(tmp_path: Path) -> None:
    directory, backup = tmp_path / "c", tmp_path / "backup"
    async with cluster(directory, "file") as made:
        await write(made.uri, b"first")
    shutil.copytree(metadata(directory, "file"), backup)
    async with cluster(directory, "file") as made:
        await write(made.uri, b"second")
    put_back(backup, metadata(directory, "file"))
    with pytest.raises(Exception, match="accept-restore"):
        async with cluster(directory, "file"):
            pass


async def test_a_namespace_that_is_copied_to_another_zookeeper_goes_on_there(
    tmp_path: Path,
) -> None:
    old, new = ManagedZooKeeper(tmp_path / "old"), ManagedZooKeeper(tmp_path / "new")
    try:
        await asyncio.gather(old.start(), new.start())
        uri = old.uri("/prod")
        async with LocalCluster(tmp_path / "c", bookies=BOOKIES, zookeeper=uri):
            await write(uri, b"first", b"second")
            left_open_by_a_killed_writer(uri)
        moved = new.uri("/dlog")
        await command(uri, "metadata", "copy", uri, moved)
        await old.stop()
        async with LocalCluster(tmp_path / "c", bookies=BOOKIES, zookeeper=moved):
            await write(moved, b"third")
            records = [f"record {number}" for number in range(COUNT)]
            assert await contents(moved) == ["first", "second", *records, "third"]
            for number in range(BOOKIES):
                await command(moved, "bookie", "gc", f"bookie-{number}")
            status = await command(moved, "bookie", "status")
            assert "older-namespace" not in status
            assert "in limbo" not in status
    finally:
        await asyncio.gather(old.stop(), new.stop())
