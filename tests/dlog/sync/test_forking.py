"""A process that uses logs forks. Real bookies, because fakes survive what threads do not."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.local.cluster import LocalCluster
from tests.waiting import TEST_S

pytestmark = pytest.mark.integration

PROGRAM = """
import os, signal, sys
from dlog import Log, LogError, Replica, Standby, StateMachine, admin

class Nothing(StateMachine):
    def apply(self, command):
        return None

def attempt(work):
    try:
        return work()
    except LogError as error:
        return type(error).__name__

def in_child(work):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is a failure, not a hanging test
        os.write(writing, str(attempt(work)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    print(os.read(reading, 1000).decode(), flush=True)

uri = sys.argv[1]
def opens():
    with Log.open("from a child", uri=uri) as log:
        return log.append(b"x").offset

in_child(opens)  # before this process has connected
log = Log.open("log", uri=uri)
log.append(b"a")
reader = Log.tail("log", uri=uri)
next(reader)
in_child(lambda: log.append(b"b"))
in_child(lambda: log.append_many([b"b"]))
in_child(lambda: log.flush())
in_child(lambda: log.close())
in_child(lambda: next(reader))
many = Log.tail_many(["log"], uri=uri)
consumer = Log.consumer("worker", "log", uri=uri)
watch = admin.watch_logs(uri=uri)
standby = Standby.open("followed", lambda batch: None, uri=uri)
replica = Replica.open("replicated", Nothing(), uri=uri)
for handle in (reader, many, consumer, watch, standby, replica):
    in_child(handle.close)
in_child(lambda: replica.submit(b"x"))
in_child(lambda: replica.read(repr))
for name in ("error", "role", "leader", "applied", "epoch"):
    in_child(lambda: getattr(replica, name))
in_child(lambda: replica.age_s())
in_child(consumer.commit)
in_child(lambda: next(watch))
in_child(standby.promote)
in_child(opens)
print(log.append(b"c").offset)
log.close()
for handle in (reader, many, consumer, watch, standby, replica):
    handle.close()
"""


def test_children_get_a_clear_error_or_work_and_never_hang(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with asyncio.timeout(100), LocalCluster(tmp_path, bookies=3) as cluster:
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", PROGRAM, cluster.uri],
                capture_output=True,
                text=True,
                timeout=TEST_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

    assert asyncio.run(scenario()).split() == [
        "0",
        *["UsedAfterFork"] * 22,
        "ForkedAfterConnecting",
        "1",
    ]


WORKERS = """
import os, sys
from dlog import Log, LogError
from tests.waiting import wait_until

opened, taken, told = os.pipe(), os.pipe(), os.pipe()
second = os.fork()
if second == 0:
    os.read(opened[0], 1)
    with Log.open("events", uri=sys.argv[1]):
        os.write(taken[1], b"x")
        os.read(told[0], 1)
    os._exit(0)

log = Log.open("events", uri=sys.argv[1])
log.append(b"a")
os.write(opened[1], b"x")
os.read(taken[0], 1)
errors = []

def is_named():
    try:
        log.append(b"b")
    except LogError as error:
        errors.append(error)
    return f":{second} opened it, by its name on this machine: two workers" in str(errors[-1])

wait_until(is_named, "the other worker is named")
os.write(told[1], b"x")
os.waitpid(second, 0)
print(type(errors[-1]).__name__)
"""


def test_a_worker_whose_sibling_took_its_log_is_told_which_one(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with asyncio.timeout(100), LocalCluster(tmp_path, bookies=3) as cluster:
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", WORKERS, cluster.uri],
                cwd=Path(__file__).parents[3],
                capture_output=True,
                text=True,
                timeout=TEST_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

    assert asyncio.run(scenario()) == "LostOwnership\n"
