"""Bookies that lost files nobody told them of: what they still may be asked, and how it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from bookie.index.format import DIRECTORY as INDEX
from bookie.journal.format import DIRECTORY as JOURNAL
from bookie.journal.format import FILE_SUFFIX
from dlog.aio import Log
from dlog.cli.app import app
from dlog.local.zookeeper import dying_with_parent
from ledger.errors import RecoveryFailed
from ledger.metadata import LedgerState
from tests.bookie.processes import START_S_MAX, BookieProcess, SmallBookie, bookie
from tests.bookie.small_bookie import NAME
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VALUE_BYTES: Final = 4000
FIRST, MORE = 20, 200

WRITER: Final = """
import sys
from dlog import Log

log = Log.open("flights", uri=sys.argv[1])
print("open", flush=True)
count = 0
for line in sys.stdin:
    for _ in range(int(line)):
        log.append((b"%d" % count).zfill(int(sys.argv[2])))
        count += 1
    print(count, flush=True)
"""
"""Appends as many as each line tells, and prints how many were acknowledged in all."""


class Cluster:
    """Four bookies: one that loses files, a witness, one that lags behind, and a spare one."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.uri = f"file://{root}/metadata"
        self.lossy_directory = root / NAME
        self._root = root
        self._stack = stack

    def start_lossy(self, *options: str) -> BookieProcess:
        process = SmallBookie(self.uri, self.lossy_directory, *options)
        self._stack.callback(process.kill)
        process.ready()
        return process

    def start(self, name: str) -> BookieProcess:
        process = self._stack.enter_context(bookie(self.uri, self._root / name, f"--id={name}"))
        process.ready()
        return process

    @contextmanager
    def writer(self) -> Iterator[Callable[[int], int]]:
        """Yield what appends so many records and returns how many were acknowledged in all."""
        command = [sys.executable, "-c", WRITER, self.uri, str(VALUE_BYTES)]
        with subprocess.Popen(
            dying_with_parent(command, os.getpid()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            asked, told = process.stdin, process.stdout
            assert told.readline() == "open\n"

            def append(count: int) -> int:
                asked.write(f"{count}\n")
                return int(told.readline())

            try:
                yield append
            finally:
                process.kill()

    def dlog(self, *arguments: str) -> str:
        runner = CliRunner(env={"DLOG_URI": self.uri, "COLUMNS": "200"})
        result = runner.invoke(app, arguments, prog_name="dlog")
        assert result.exit_code == 0, result.output
        return result.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.dlog("bookie", "status", NAME, "--json"))
        return status

    def listed(self) -> dict[str, Any]:
        found = json.loads(self.dlog("bookie", "list", "--json"))
        [lossy] = [one for one in found if one["bookie"] == NAME]
        return dict(lossy)

    def state(self, ledger_id: int) -> str:
        """Return the state of a ledger, as the metadata store has it."""
        return str(json.loads(self.dlog("ledger", "show", str(ledger_id), "--json"))["state"])

    def take_over(self) -> None:
        async def scenario() -> None:
            async with asyncio.timeout(START_S_MAX):
                await (await Log.open("flights", uri=self.uri)).close()

        asyncio.run(scenario())

    def values(self) -> list[int]:
        async def scenario() -> list[int]:
            async with await Log.tail("flights", uri=self.uri, follow=False) as reader:
                return [int(record.value) async for record in reader]

        return asyncio.run(scenario())

    def use_another_log(self) -> None:
        async def scenario() -> None:
            log = await Log.open("trains", uri=self.uri)
            for number in range(10):
                await log.append(b"%d" % number)
            await log.close()
            async with await Log.tail("trains", uri=self.uri, follow=False) as reader:
                assert [int(record.value) async for record in reader] == list(range(10))

        asyncio.run(scenario())


def lose_index(directory: Path) -> None:
    for path in (directory / INDEX).rglob("*"):
        if path.is_file():
            path.unlink()


def lose_newest_journal(directory: Path) -> None:
    journals = sorted((directory / JOURNAL).glob(f"*{FILE_SUFFIX}"))
    assert len(journals) > 2, "it is one of several"
    journals[-1].unlink()


@pytest.mark.parametrize(
    ("lose", "options", "why"),
    [
        (lose_index, (), "index/roll is shorter"),
        (lose_newest_journal, ("lazy",), "journal"),
    ],
)
def test_a_bookie_without_its_files_makes_nobody_cut_off_acknowledged_records(
    lose: Callable[[Path], None], options: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        lossy = cluster.start_lossy(*options)
        witness, lagging = cluster.start("witness"), cluster.start("lagging")
        with cluster.writer() as append:
            append(FIRST)
            lagging.popen.send_signal(signal.SIGSTOP)
            acknowledged = append(MORE)
        lagging.kill()
        if not options:
            wait_until(lambda: is_checkpointed(cluster), "its index files have all")
        lossy.kill()
        witness.kill()
        lose(cluster.lossy_directory)
        lossy = cluster.start_lossy()
        for name in ("lagging", "spare"):
            cluster.start(name)

        wait_until(lambda: not cluster.status()["read_only"], "it knows what it has to doubt")
        [doubts] = [one for one in cluster.status()["warnings"] if "in limbo" in one]
        assert why in doubts
        wait_until(lambda: cluster.listed()["limbo"] == doubts, "the metadata store is told")
        assert f"bookie {NAME} is {doubts}" in cluster.dlog("bookie", "list")

        with pytest.raises(RecoveryFailed, match="Nothing was decided") as failure:
            cluster.take_over()
        assert failure.value.retryable
        assert cluster.state(failure.value.ledger_id) == LedgerState.IN_RECOVERY.name
        cluster.use_another_log()

        cluster.start("witness")
        cluster.take_over()
        assert cluster.values() == list(range(acknowledged))
        wait_until(lambda: not cluster.listed()["limbo"], "limbo is over")
        assert not cluster.listed()["read_only"]
        assert not any("in limbo" in one for one in cluster.status()["warnings"])
        lossy.stop()
        cluster.start_lossy()
        assert not cluster.listed()["limbo"]


def is_checkpointed(cluster: Cluster) -> bool:
    """Whether nothing would be read from the journal at a start."""
    [journal] = cluster.status()["journals"]
    mark = journal["mark_file"], journal["mark_offset"]
    return mark == (journal["end_file"], journal["end_offset"])
