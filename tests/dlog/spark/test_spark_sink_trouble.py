"""A streaming query into a log while what it stands on is away, or is killed: it goes on, and each
row is there once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dlog import Log
from dlog.local.cluster import LocalCluster
from dlog.local.zookeeper import ManagedZooKeeper, dying_with_parent
from dlog.spark.namespaces import Namespace
from dlog.spark.sink.keeper.place import Program, place_of
from tests.dlog.spark.feeding import Feed
from tests.dlog.spark.orphans import ROWS, spellings
from tests.dlog.spark.processes import children, matching
from tests.dlog.spark.running import QUERY_TIMEOUT_S, wait_until
from tests.dlog.spark.sessions import ROOT, environment

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

AWAY_S = float(os.environ.get("DLOG_TEST_AWAY_S", "12"))
"""Longer than a call to the metadata store (10 s), a bookie (5 s) or a session (10 s) lasts.
`make chaos-spark` has 30."""


LONG = pytest.mark.long("chaos-spark")


class Machines:
    """Bookies on a ZooKeeper, all of which can be away."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self.zookeeper = ManagedZooKeeper(directory / "zookeeper")
        self._loop.run_until_complete(self.zookeeper.start())
        uri = self.zookeeper.uri("/sink")
        self.cluster = LocalCluster(directory / "cluster", zookeeper=uri)
        self._loop.run_until_complete(self.cluster.__aenter__())
        self.uri = self.cluster.uri

    def close(self) -> None:
        self._loop.run_until_complete(self.cluster.__aexit__(None, None, None))
        self._loop.run_until_complete(self.zookeeper.stop())
        self._loop.close()

    def bookie_pids(self) -> list[int]:
        return [process.pid for process in self.cluster.processes]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"))
    yield made
    made.close()


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Feed:
    return Feed(spark, tmp_path)


def values(uri: str, log: str) -> list[bytes]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return [record.value for record in reader]


class Stopped:
    """Processes that stand still inside, at least until AWAY_S have passed."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def __enter__(self) -> None:
        self._since = time.monotonic()
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        threading.Event().wait(max(0.0, self._since + AWAY_S - time.monotonic()))
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("who", "rows"),
    [
        ("the metadata store", 10),
        pytest.param("the metadata store", 100_000, marks=LONG),
        pytest.param("all bookies", 10, marks=LONG),
        ("all bookies", 100_000),
    ],
)
def test_a_query_survives_what_it_stands_on_being_away(
    machines: Machines, feed: Feed, who: str, rows: int
) -> None:
    log = f"{who.rsplit(maxsplit=1)[-1]}{rows}"
    feed.put(rows)
    query = feed.writer(machines.uri).start(log)
    wait_until(query, lambda: _batches(query) >= 1)
    away = [machines.zookeeper.pid] if who == "the metadata store" else machines.bookie_pids()
    with Stopped(away):
        feed.put(rows)
    wait_until(query, lambda: _batches(query) >= 2)
    query.stop()
    assert values(machines.uri, log) == feed.all()


def test_a_query_survives_that_the_keeper_is_killed_again_and_again(
    machines: Machines, feed: Feed
) -> None:
    spark = feed.session
    driver = Program.of(_jvm(spark))
    assert driver is not None
    place = place_of(driver, Namespace(machines.uri))
    query = feed.writer(machines.uri).start("killed")
    for number in range(4):
        feed.put(10 if number % 2 else 30_000)
        wait_until(query, lambda: bool(_keepers(place.name)))
        if number % 3 == 0:
            wait_until(query, lambda number=number: _batches(query) >= number + 1)  # type: ignore[misc]
        for pid in _keepers(place.name):
            os.kill(pid, signal.SIGKILL)
    wait_until(query, lambda: _batches(query) >= 4)
    query.stop()
    assert values(machines.uri, "killed") == feed.all()


@pytest.mark.skipif(AWAY_S < 30, reason="Spark ends idle workers after a minute: make chaos-spark")
def test_a_query_whose_idle_workers_were_ended_goes_on(machines: Machines, feed: Feed) -> None:
    feed.put(10)
    query = feed.writer(machines.uri).start("idle")
    wait_until(query, lambda: _batches(query) >= 1)
    used = set(_workers(feed.session))
    assert used
    wait_until(query, lambda: not used & set(_workers(feed.session)))
    for rows in (100_000, 10):
        feed.put(rows)
    wait_until(query, lambda: _batches(query) >= 3)
    query.stop()
    assert values(machines.uri, "idle") == feed.all()


@LONG
def test_workers_whose_daemon_was_killed_find_the_keeper_of_their_driver(
    machines: Machines, tmp_path: Path
) -> None:
    before = _keepers_of(machines.uri)  # other tests' ones
    command = [sys.executable, "-m", "tests.dlog.spark.orphans", machines.uri, str(tmp_path)]
    with (tmp_path / "application.log").open("wb") as said:
        process = subprocess.Popen(
            dying_with_parent(command, os.getpid()),
            cwd=ROOT,
            env={**os.environ, **environment()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
    with process:
        ending = threading.Timer(5 * QUERY_TIMEOUT_S, process.kill)  # whatever it hangs in
        ending.start()
        try:
            assert process.stdout is not None
            jvm = process.stdout.readline()
            assert jvm, (tmp_path / "application.log").read_text()
            driver = Program.of(int(jvm))
            assert driver is not None
            names = {place_of(driver, Namespace.of(each)).name for each in spellings(machines.uri)}
            keepers = {pid for name in names for pid in _keepers(name)}
            assert len(keepers) == len(names) == 2
            assert _keepers_of(machines.uri) - before == keepers
        finally:
            ending.cancel()
            process.kill()
    assert values(machines.uri, "orphans") == [b"%d" % row for row in range(ROWS)]


def _batches(query: object) -> int:
    """Return how many batches with rows were committed."""
    progress = query.recentProgress  # type: ignore[attr-defined]
    return sum(1 for each in progress if each["numInputRows"])


def _workers(spark: SparkSession) -> list[int]:
    daemons = children(_jvm(spark), b"pyspark.daemon")
    return [pid for daemon in daemons for pid in children(daemon, b"pyspark.daemon")]


def _jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def _keepers(name: str) -> list[int]:
    return matching(lambda _, command: f"--name\0{name}".encode() in command)


def _keepers_of(uri: str) -> set[int]:
    def is_one(pid: int, command: bytes) -> bool:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return b"dlog.spark.sink.keeper" in command and uri.encode() in environment

    return set(matching(is_one))
