"""The keeper as a process, on real bookies: found, started once, killed, stopped, and its end."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from dlog import Log
from dlog.columns import Columns
from dlog.errors import LostOwnership
from dlog.receipts import Receipt
from dlog.recordbatch import encode_batch
from dlog.spark.namespaces import Namespace
from dlog.spark.sink.keeper import client as client_module
from dlog.spark.sink.keeper.client import KeeperClient, Starter
from dlog.spark.sink.keeper.place import (
    Program,
    UnsafeDirectory,
    own_driver,
    place_of,
    remove_leftovers,
)
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

QUERY = b"q" * 16


class Driver:
    """A process that keepers take for their driver, and workers of it."""

    def __init__(self, uri: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        found = Program.of(self.process.pid)
        assert found is not None
        self.program, self.uri = found, uri
        self.place = place_of(found, Namespace(uri))
        self._clients: list[KeeperClient] = []

    def worker(self, **more: float) -> KeeperClient:
        start = Starter(self.place, Namespace(self.uri), self.program)
        self._clients.append(KeeperClient(self.place, start, **more))
        return self._clients[-1]

    def keepers(self) -> list[int]:
        """Return the processes that serve this driver."""
        marked = f"--name\0{self.place.name}".encode()
        return [pid for pid in _processes() if marked in _command(pid)]

    def end(self) -> None:
        for client in self._clients:
            client.close()
        self.process.kill()
        self.process.communicate()
        wait_until(lambda: not self.keepers(), "its keepers ended")
        for started in client_module._started:
            started.poll()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def driver(uri: str) -> Iterator[Driver]:
    made = Driver(uri)
    yield made
    made.end()


def commit(worker: KeeperClient, log: str, number: int, *values: bytes, run: str = "r1") -> None:
    payload = encode_batch(Columns(list(values)), base_index=0, base_timestamp_ms=1)
    worker.commit(
        log,
        Receipt(QUERY, number),
        [payload],
        run=run,
        entry_bytes_max=1 << 20,
        create=True,
        settings=None,
        final=False,
    )


def values(uri: str, log: str) -> list[bytes]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return [record.value for record in reader]


def test_workers_that_need_it_at_once_share_one_keeper(driver: Driver) -> None:
    workers = [driver.worker() for _ in range(4)]
    threads = [
        threading.Thread(target=commit, args=(worker, "shared", 0, b"x")) for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    wait_until(lambda: len(driver.keepers()) == 1, "those that came too late ended")
    assert values(driver.uri, "shared") == [b"x"]


def test_a_keeper_that_is_killed_again_and_again_loses_and_repeats_nothing(driver: Driver) -> None:
    """It is killed a moment after it has served, so at any step of the commits that follow."""
    worker = driver.worker()
    committed, done, random = 0, threading.Event(), Random(7)
    killed: list[int] = []

    def kill() -> None:
        seen = 0
        while not done.wait(random.uniform(0.0, 0.05)):
            if committed > seen:
                seen = committed
                for pid in driver.keepers():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        while len(killed) < 6:
            commit(worker, "killed", committed, b"%d" % committed)
            committed += 1
    finally:
        done.set()
        killing.join()
    # One that is killed right after it has served may take the news of the end with it: the end is
    # certain again once another one has taken the log over.
    commit(worker, "killed", committed, b"%d" % committed)
    committed += 1
    assert values(driver.uri, "killed") == [b"%d" % each for each in range(committed)]


def test_a_keeper_that_does_not_answer_is_replaced(driver: Driver) -> None:
    worker = driver.worker(silent_s=3.0)
    commit(worker, "stopped", 0, b"x")
    [stopped] = driver.keepers()
    os.kill(stopped, signal.SIGSTOP)
    commit(worker, "stopped", 1, b"y")
    assert stopped not in driver.keepers()
    assert values(driver.uri, "stopped") == [b"x", b"y"]


def test_the_next_keeper_knows_who_lost_the_log(driver: Driver) -> None:
    worker = driver.worker()
    commit(worker, "taken", 0, b"x")
    with Log.open("taken", uri=driver.uri) as log:
        log.append(b"mine")
        [keeper] = driver.keepers()
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not driver.keepers(), "the keeper ended")
        with pytest.raises(LostOwnership, match="took it over"):
            commit(worker, "taken", 1, b"y")
        log.append(b"still mine")
    commit(worker, "taken", 1, b"y", run="r2")
    assert values(driver.uri, "taken") == [b"x", b"mine", b"still mine", b"y"]


def test_the_keeper_ends_with_its_driver_and_leaves_no_file(uri: str) -> None:
    driver = Driver(uri)
    commit(driver.worker(), "left", 0, b"x")
    assert len(driver.keepers()) == 1
    driver.end()
    left = f"{driver.place.name}*"
    wait_until(lambda: not list(driver.place.directory.glob(left)), "its files were removed")
    assert values(uri, "left") == [b"x"]


def test_what_a_killed_driver_and_keeper_left_is_removed_by_the_next_keeper(
    uri: str, driver: Driver
) -> None:
    dead = Driver(uri)
    commit(dead.worker(), "dead", 0, b"x")
    lives = Driver(uri)
    commit(lives.worker(), "lives", 0, b"x")
    for each in (dead, lives):  # but not the driver of the second one
        [keeper] = each.keepers()
        os.kill(keeper, signal.SIGKILL)
    dead.end()
    wait_until(lambda: not lives.keepers(), "the keeper ended")
    stray = dead.place.directory / f"{'0' * 24}.log"
    stray.touch()
    os.utime(stray, (0, 0))
    assert list(dead.place.directory.glob(f"{dead.place.name}*"))
    commit(driver.worker(), "next", 0, b"x")
    assert not list(dead.place.directory.glob(f"{dead.place.name}*"))
    assert not stray.exists()
    assert lives.place.owners.exists()
    lives.end()
    lives.place.remove()


def test_what_a_driver_or_a_keeper_that_lives_may_need_is_not_left_over(
    uri: str, driver: Driver
) -> None:
    dead, kept = Driver(uri), Driver(uri)
    for each in (driver, dead, kept):
        with each.place.alone(each.program):
            each.place.owners.write_text("{}")
    dead.end()
    kept.end()
    with kept.place.alone(kept.program):
        remove_leftovers(place_of(driver.program, Namespace(uri + "2")))
        there = [each.place.owners.exists() for each in (driver, dead, kept)]
        assert there == [True, False, True]
    remove_leftovers(driver.place)
    assert not kept.place.owners.exists()
    driver.place.remove()


def test_a_lock_that_was_removed_is_held_by_nobody(uri: str) -> None:
    driver = Driver(uri)
    try:
        with driver.place.alone(driver.program) as first:
            assert first
            with driver.place.alone(driver.program) as second:
                assert not second
            driver.place.remove()
            with driver.place.alone(driver.program) as third:
                assert third
                assert driver.place.lock.read_text() == (
                    f"{driver.program.pid} {driver.program.started}"
                )
    finally:
        driver.end()
        driver.place.remove()


def test_who_waits_for_a_lock_that_is_removed_locks_the_one_that_is_there(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(uri)
    lock = driver.place.lock
    calls = 0

    def removed_before(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            lock.unlink()
        fcntl.flock(descriptor, operation)

    # Of this module alone: metadata stores of the same process lock files of their own.
    ours = SimpleNamespace(**vars(fcntl) | {"flock": removed_before})
    monkeypatch.setattr("dlog.spark.sink.keeper.place.fcntl", ours)
    try:
        with driver.place.alone(driver.program) as alone:
            assert alone
            assert calls == 2
            assert lock.exists()
    finally:
        driver.end()
        driver.place.remove()


def test_a_keeper_that_is_asked_to_end_closes_its_logs_and_another_follows(driver: Driver) -> None:
    worker = driver.worker()
    commit(worker, "ended", 0, b"x")
    [keeper] = driver.keepers()
    os.kill(keeper, signal.SIGTERM)
    wait_until(lambda: not driver.keepers(), "the keeper ended")
    commit(worker, "ended", 1, b"y")
    assert values(driver.uri, "ended") == [b"x", b"y"]


def test_each_driver_and_each_namespace_has_a_place_of_its_own(uri: str) -> None:
    me = own_driver()
    assert place_of(me, Namespace(uri)) == place_of(me, Namespace(uri))
    assert place_of(me, Namespace(uri)) != place_of(me, Namespace(uri + "2"))
    assert place_of(Program(me.pid, "another life"), Namespace(uri)) != place_of(me, Namespace(uri))


def test_a_directory_that_others_may_use_is_refused(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    me = own_driver()
    directory = tmp_path / f"dlog-spark-{os.getuid()}"
    directory.mkdir(mode=0o755)
    with pytest.raises(UnsafeDirectory, match="others may use it"):
        place_of(me, Namespace(uri))
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(UnsafeDirectory, match="no directory"):
        place_of(me, Namespace(uri))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 80)))
    (tmp_path / ("x" * 80)).mkdir()
    with pytest.raises(UnsafeDirectory, match="too long for a socket"):
        place_of(me, Namespace(uri))
