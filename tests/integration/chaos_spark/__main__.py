"""`make chaos-spark`: a streaming query from log to log while its driver, its keeper, its Python
workers and bookies are killed; at the end the two logs must be the same, row by row."""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlog.aio import Log
from dlog.aio.admin import log_info
from dlog.errors import NoSuchLog
from dlog.local.cluster import LocalCluster
from dlog.local.java import java_environment
from dlog.local.zookeeper import dying_with_parent
from tests.integration.chaos_spark.plan import (
    BURSTS,
    COPIES,
    EVENTS,
    Chance,
    Trouble,
    differences,
    value_of,
)

ROOT: Final = Path(__file__).parents[3]
CATCH_UP_S: Final = 300.0
"""How long the query may take for what is left once nobody is killed any more."""
LOOK_S: Final = 0.5
ROWS_PER_S: Final = 4_000


class Application:
    """The driver and its processes; started again whenever it has ended."""

    def __init__(self, uri: str, directory: Path) -> None:
        self._directory = directory
        self._command = dying_with_parent(
            [sys.executable, "-m", "tests.integration.chaos_spark.driver", uri, str(directory)],
            os.getpid(),
        )
        self._environment = {
            **os.environ,
            **java_environment(),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(directory / "tmp"),
        }
        (directory / "tmp").mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = self.ended = 0

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.ended += self._process is not None and self._process.returncode != -signal.SIGKILL
        with (self._directory / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def kill(self) -> bool:
        """Kill driver and JVM; workers and keeper have to notice by themselves."""
        if self._process is None or self._process.poll() is not None:
            return False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return True

    def keepers(self) -> list[int]:
        return self._ours(b"dlog.spark.sink.keeper")

    def workers(self) -> list[int]:
        return self._ours(b"pyspark.daemon") + self._ours(b"pyspark/daemon.py")

    def _ours(self, marked: bytes) -> list[int]:
        ours = f"TMPDIR={self._directory / 'tmp'}\0".encode()

        def is_one(process: Path) -> bool:
            command = (process / "cmdline").read_bytes()
            return marked in command and ours in (process / "environ").read_bytes()

        return _processes(is_one)


def _processes(test: Callable[[Path], bool]) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").iterdir():
        with suppress(OSError):
            if path.name.isdecimal() and test(path):
                found.append(int(path.name))
    return found


class Run:
    def __init__(self, cluster: LocalCluster, directory: Path, seconds: float, seed: str) -> None:
        self._cluster = cluster
        self._chance, self._seconds = Chance(seed), seconds
        self._application = Application(cluster.uri, directory)
        self._troubles: Counter[Trouble] = Counter()
        self._over = asyncio.Event()
        self._bookie_away = False
        """Until it is registered again: one that is starting runs already."""
        self._rows = 0

    async def run(self) -> str:
        """Return the line of figures. Raises AssertionError if the logs differ."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._append())
            group.create_task(self._trouble())
            keeping = group.create_task(self._keep_running())
            await asyncio.sleep(self._seconds)
            self._over.set()
            caught_up_s = await self._catch_up()
            keeping.cancel()
        found = await self._copies()
        self._application.kill()
        wrong = differences(found, self._rows)
        info = (await log_info(COPIES, uri=self._cluster.uri)).manifest
        assert not wrong, f"{', '.join(wrong)} of {self._rows} rows, {self._figures()}"
        return (
            f"{self._rows} rows in {time.monotonic() - began:.0f} s, each once and in order; "
            f"{self._figures()}; {len(info.segments)} segments, epoch {info.epoch}, "
            f"caught up after {caught_up_s:.0f} s"
        )

    def _figures(self) -> str:
        killed = ", ".join(f"{self._troubles[each]} {each.value}" for each in Trouble)
        return f"killed {killed}; {self._application.ended} queries failed and were started again"

    async def _append(self) -> None:
        random = self._chance.random.__class__(self._chance.seed + " source")
        async with await Log.open(EVENTS, uri=self._cluster.uri) as log:
            while not self._over.is_set():
                count = random.choice(BURSTS)
                rows = range(self._rows, self._rows + count)
                await log.append_many([value_of(row) for row in rows], txids=list(rows))
                self._rows += count
                await self._pause(max(0.05, count / ROWS_PER_S))

    async def _keep_running(self) -> None:
        while True:
            self._application.keep_running()
            await asyncio.sleep(LOOK_S)

    async def _trouble(self) -> None:
        """Kill something now and then; first something has to be there, or time goes by unused."""
        async with asyncio.TaskGroup() as away:
            while not self._over.is_set():
                await self._pause(self._chance.pause_s())
                trouble = self._chance.trouble()
                if self._over.is_set() or not self._kill(trouble, away):
                    continue
                self._troubles[trouble] += 1
                if trouble is Trouble.DRIVER:
                    await self._until_it_writes()

    def _kill(self, trouble: Trouble, away: asyncio.TaskGroup) -> bool:
        if trouble is Trouble.DRIVER:
            return self._application.kill()
        if trouble is Trouble.BOOKIE:
            if self._bookie_away:
                return False  # one at a time: with two of three away there is no quorum
            index = self._chance.random.randrange(len(self._cluster.processes))
            self._cluster.kill_bookie(index)
            self._bookie_away = True
            away.create_task(self._bring_back(index))
            return True
        found = (
            self._application.keepers()
            if trouble is Trouble.KEEPER
            else self._application.workers()
        )
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._chance.random.choice(found), signal.SIGKILL)
        return True

    async def _bring_back(self, index: int) -> None:
        await asyncio.sleep(self._chance.away_s())
        await self._cluster.restart_bookie(index)
        self._bookie_away = False

    async def _until_it_writes(self) -> None:
        before = await self._count()
        while not self._over.is_set() and await self._count() == before:
            await self._pause(LOOK_S)

    async def _catch_up(self) -> float:
        began = time.monotonic()
        while await self._count() < self._rows:
            waited_s = time.monotonic() - began
            assert waited_s < CATCH_UP_S, f"{await self._count()} of {self._rows} rows"
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    async def _count(self) -> int:
        try:
            return (await log_info(COPIES, uri=self._cluster.uri)).tail.next_offset
        except NoSuchLog:
            return 0

    async def _copies(self) -> list[bytes]:
        async with await Log.tail(COPIES, uri=self._cluster.uri, stop="end") as reader:
            return [record.value async for record in reader]

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()


async def _main(seconds: float, seed: str, directory: Path) -> str:
    async with LocalCluster(directory / "cluster", bookies=4) as cluster:
        return await Run(cluster, directory, seconds, seed).run()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos-spark")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlog-spark-", ignore_cleanup_errors=True) as directory:
        line = asyncio.run(_main(options.seconds, options.seed, Path(directory)))
    print(f"seed {options.seed}: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
