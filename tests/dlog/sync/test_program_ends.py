"""A program ends without closing its log. In processes of its own, on real bookies."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.local.cluster import LocalCluster

pytestmark = pytest.mark.integration

APPENDS = 1000

BLOCKING = """
import os, signal, sys, warnings
from dlog import Log

def bookies(signum):
    for pid in sys.argv[2:]:
        os.kill(int(pid), signum)

log = Log.open("log", uri=sys.argv[1])
bookies(signal.SIGSTOP)  # so that all of it is pending
for number in range(1000):
    log.append_async(b"%d" % number)
"""
RESUMES = """
def show(message, *_):
    print(message, file=sys.stderr)
    bookies(signal.SIGCONT)

warnings.showwarning = show
"""
RAISES = """
raise RuntimeError("the program's own")
"""
FORKS = """
if os.fork() == 0:
    bookies = lambda _: None
    sys.exit()
os.wait()
"""
IMPATIENT = """
from dlog.sync import loop_thread
loop_thread.EXIT_FLUSH_S = 0.2
"""
ASYNCHRONOUS = """
import asyncio, os, signal, sys
from dlog.aio import Log

async def main():
    log = await Log.open("log", uri=sys.argv[1])
    for pid in sys.argv[2:]:
        os.kill(int(pid), signal.SIGSTOP)
    for number in range(1000):
        log.append_async(b"%d" % number)

asyncio.run(main())
"""
UNCLOSED = """
import sys
from dlog import Log
from ledger import writer

writer.PUBLISH_QUIET_S = 3600.0  # whatever is put off, it is for longer than this takes
log = Log.open("log", uri=sys.argv[1])
for number in range(5):
    log.append(b"%d" % number)
"""


async def run(program: str, *arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-c", program, *arguments, stderr=subprocess.PIPE
    )
    _, stderr = await process.communicate()
    return process.returncode, stderr.decode()


async def records(uri: str) -> int:
    async with await Log.open("log", uri=uri):
        return await Log.end_of("log", uri=uri)


@pytest.mark.parametrize(
    ("rest", "status"), [("", 0), (FORKS, 0), (RAISES, 1)], ids=["ends", "forks", "raises"]
)
async def test_what_was_appended_is_flushed_and_counted(
    rest: str, status: int, tmp_path: Path
) -> None:
    async with LocalCluster(tmp_path, bookies=3) as cluster:
        pids = [str(process.pid) for process in cluster.processes]
        ended, stderr = await run(BLOCKING + RESUMES + rest, cluster.uri, *pids)
        assert ended == status, stderr
        assert stderr.count("log 'log' was not closed: 1,000 appends were pending") == 1, stderr
        assert "appends_unconfirmed_at_exit" not in stderr
        assert await records(cluster.uri) == APPENDS


@pytest.mark.parametrize("program", [BLOCKING + IMPATIENT, ASYNCHRONOUS], ids=["sync", "async"])
async def test_what_cannot_be_flushed_is_counted_for_everybody_to_see(
    program: str, tmp_path: Path
) -> None:
    async with LocalCluster(tmp_path, bookies=3) as cluster:
        pids = [process.pid for process in cluster.processes]
        ended, stderr = await run(program, cluster.uri, *map(str, pids))
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert ended == 0, stderr
        assert stderr.count("appends_unconfirmed_at_exit log='log' records=1000") == 1, stderr


async def test_a_reader_to_the_end_has_all_of_a_program_that_ended_without_closing(
    tmp_path: Path,
) -> None:
    """Nobody opens the log again, so nobody recovers what the bookies were not told."""
    async with LocalCluster(tmp_path, bookies=3) as cluster:
        ended, stderr = await run(UNCLOSED, cluster.uri)
        assert ended == 0, stderr
        async with Log.tail("log", uri=cluster.uri, stop="end") as tail:
            assert [record.value async for record in tail] == [b"%d" % n for n in range(5)]
        assert await Log.end_of("log", uri=cluster.uri) == 5
