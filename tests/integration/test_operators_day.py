"""The operator's day: each block of commands of docs/operations.md, on real processes.

A line that starts a bookie leaves it running; comments name what is done on a machine."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from dlog.aio import Log
from dlog.local.cluster import LocalCluster
from ledger.metastore import open_store
from ledger.registry import find_registration
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

OPERATIONS: Final = Path(__file__).parents[2] / "docs" / "operations.md"
LOG: Final = "orders"
SEGMENTS: Final = 12
BOOKIES: Final = 4
LOST: Final = 1
"""The bookie that the day is about."""


def tasks() -> Iterator[tuple[str, list[str]]]:
    """Yield title and blocks of each task of the day."""
    day = OPERATIONS.read_text(encoding="utf-8").split("\n## The operator's day\n")[1]
    day = "### Look\n" + day.split("\n## ")[0]
    for chapter in re.split(r"^### ", day, flags=re.MULTILINE)[1:]:
        yield chapter.splitlines()[0], re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)


TASKS: Final = dict(tasks())


RUN: Final = {
    "Look": 1,
    "Replace a disk, or a machine that is gone": 1,
    "Replace a machine that still works": 1,
    "Grow": 1,
    "Shrink": 1,
    "Rolling restart": 1,
    "Upgrade": 0,  # `make upgrade-test` does what it says, with two releases
    "Throttle repair while it runs": 1,
    "Restore the metadata store from a backup": 2,
    "Move the metadata to another ZooKeeper": 1,  # `test_namespace_copy` and `test_restore`
    "The last resort: close-at": 0,  # `test_cli_restore`
}
"""How many blocks of each task are run, below unless another test is named."""


def test_no_block_is_left_out() -> None:
    assert {title: len(blocks) for title, blocks in TASKS.items()} == RUN


class Day:
    """A cluster with a log, its processes, and what was started by hand."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self._started: list[subprocess.Popen[bytes]] = []
        self._cluster: LocalCluster | None = None
        self._written = 0

    @property
    def cluster(self) -> LocalCluster:
        assert self._cluster is not None
        return self._cluster

    async def start(self) -> None:
        self._cluster = await self._stack.enter_async_context(
            LocalCluster(self._directory, bookies=BOOKIES, autorecovery=True)
        )

    async def stop(self) -> None:
        for process in self._started:
            process.terminate()
            process.wait(PATIENCE_S)
        self._started.clear()
        await self._stack.aclose()

    async def write(self) -> None:
        async with await Log.open(LOG, uri=self.cluster.uri) as log:
            for _ in range(SEGMENTS):
                for _ in range(10):
                    await log.append(b"record %d" % self._written + bytes(1000))
                    self._written += 1
                await log.roll()

    def lose_disk(self) -> None:
        self.cluster.kill_bookie(LOST)
        shutil.rmtree(self.cluster.processes[LOST].directory)

    async def run(self, block: str) -> str:
        """Do all that *block* says; return what was printed."""
        printed = ""
        for line in block.replace("/data", str(self._directory)).splitlines():
            if line.startswith("# "):
                await self._do(line.removeprefix("# "))
            elif line.startswith("dlog bookie start "):
                await self._start_bookie(shlex.split(line)[1:])
            else:
                printed += await self._command(line)
        return printed

    async def _do(self, what: str) -> None:
        if what == "stop everything":
            await self.stop()
        elif what == "start everything":
            await self.start()
        else:
            verb, name = what.split()
            number = int(name.removeprefix("bookie-"))
            done = {"stop": self.cluster.stop_bookie, "restart": self.cluster.restart_bookie}
            await done[verb](number)

    async def _start_bookie(self, arguments: list[str]) -> None:
        process = self._spawn(arguments)
        self._started.append(process)
        name = arguments[arguments.index("--id") + 1]
        store = await open_store(self.cluster.uri)

        async def is_registered() -> bool:
            assert process.poll() is None, "it ended"
            return await find_registration(store, name) is not None

        await eventually(is_registered, f"{name} is registered")
        await store.close()

    def _spawn(self, arguments: list[str]) -> "subprocess.Popen[bytes]":
        with (self._directory / "started.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dlog.cli", *arguments], stderr=log, env=self._environment()
            )

    async def _command(self, line: str) -> str:
        words = shlex.split(line)
        if words[0] == "dlog":
            words = [sys.executable, "-m", "dlog.cli", *words[1:]]
        process = await asyncio.create_subprocess_exec(
            *words,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S * 4):
            out, err = await process.communicate()
        assert process.returncode == 0, f"{line}\n{out.decode()}\n{err.decode()}"
        return f"$ {line}\n{out.decode()}"

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "DLOG_URI": self.cluster.uri}


@asynccontextmanager
async def day(directory: Path) -> AsyncIterator[Day]:
    made = Day(directory)
    try:
        await made.start()
        await made.write()
        yield made
    finally:
        await made.stop()


def said(printed: str, line: str) -> str:
    """Return what the last run of a command printed that begins with *line*."""
    return next(part for part in reversed(printed.split("$ ")) if part.startswith(line))


async def test_look_throttle_repair_and_restart_all(tmp_path: Path) -> None:
    """Of one cluster: after none of these is anything elsewhere."""
    async with day(tmp_path) as made:
        looked = await made.run(TASKS["Look"][0])
        throttled = await made.run(TASKS["Throttle repair while it runs"][0])
        restarted = await made.run(TASKS["Rolling restart"][0])
    assert "no ledger is known to be underreplicated" in looked
    assert f"bookie-{LOST}" in said(looked, "dlog bookie where")
    status = said(throttled, "dlog autorecovery status")
    assert "each copies 8.0 MiB/s, 1 ledger at a time" in status
    assert restarted.count("no ledger is known to be underreplicated") == 2


async def test_replace_a_disk(tmp_path: Path) -> None:
    async with day(tmp_path) as made:
        made.lose_disk()
        printed = await made.run(TASKS["Replace a disk, or a machine that is gone"][0])
    assert "nothing names it, and its name is retired" in said(printed, "dlog bookie replace")
    where = said(printed, "dlog bookie where")
    assert "bookie-9" in where
    assert f"bookie-{LOST}" not in where


@pytest.mark.long("chaos-repair")
async def test_replace_a_machine_that_works(tmp_path: Path) -> None:
    async with day(tmp_path) as made:
        printed = await made.run(TASKS["Replace a machine that still works"][0])
    assert "stop it, then its name can be retired" in printed
    assert "its name is retired" in said(printed, "dlog bookie decommission")


async def test_grow(tmp_path: Path) -> None:
    async with day(tmp_path) as made:
        printed = await made.run(TASKS["Grow"][0])
    planned = said(printed, "dlog bookie rebalance --dry-run").splitlines()
    moved = said(printed, "dlog bookie rebalance --rate").splitlines()
    assert planned[-1].replace("would move", "moved") == moved[-1]
    assert not moved[-1].startswith("0 ledgers")


@pytest.mark.long("chaos-repair")
async def test_shrink(tmp_path: Path) -> None:
    async with day(tmp_path) as made:
        printed = await made.run(TASKS["Shrink"][0])
    assert f"bookie-{LOST}" not in said(printed, "dlog bookie list")
    assert f"bookie-{LOST}" not in said(printed, "dlog bookie where")


@pytest.mark.long("chaos-repair")
async def test_restore(tmp_path: Path) -> None:
    async with day(tmp_path) as made:
        backup, restore = TASKS["Restore the metadata store from a backup"]
        await made.run(backup)
        await made.write()
        printed = await made.run(restore)
        await made.write()
        whole = await made.run(f"dlog log verify {LOG}")
    assert f"{SEGMENTS * 10} records" in said(printed, "dlog log verify")
    assert f"{2 * SEGMENTS * 10} records" in said(whole, "dlog log verify"), "it goes on"
