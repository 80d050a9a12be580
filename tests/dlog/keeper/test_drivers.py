"""Which driver a worker works for, also one whose daemon has died."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, TEST_S

pytestmark = pytest.mark.integration

DAEMON = """
import os, socket, sys
from dlog.spark.sink.keeper.place import own_driver

family, address, orphan = sys.argv[1:]
listening = socket.socket(getattr(socket, family))
listening.bind(address if family == "AF_UNIX" else ("127.0.0.1", 0))
listening.listen()
print(listening.getsockname()[1] if family == "AF_INET" else address, flush=True)
connection, _ = listening.accept()
ours, theirs = os.pipe()
daemon = os.getpid()
if os.fork():
    if orphan == "orphan":
        os._exit(0)
    os.wait()
else:
    listening.close()
    os.close(theirs)
    if orphan == "orphan":
        os.read(ours, 1)
        while os.getppid() == daemon:
            os.sched_yield()
    connection.sendall(str(own_driver().pid).encode())
"""
JVM = """
import os, socket, subprocess, sys

python, daemon, kind, address, orphan = sys.argv[1:]
family = {"IPv4": "AF_INET", "IPv6": "AF_INET", "UNIX": "AF_UNIX"}[kind]
started = subprocess.Popen([python, "-c", daemon, family, address, orphan], stdout=subprocess.PIPE)
said = started.stdout.readline().decode().strip()
if kind == "UNIX":
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(said)
elif kind == "IPv6":  # as a JVM writes an address of IPv4
    connection = socket.socket(socket.AF_INET6)
    connection.connect(("::ffff:127.0.0.1", int(said)))
else:
    connection = socket.create_connection(("127.0.0.1", int(said)))
print(os.getpid(), connection.recv(100).decode())
started.wait()
"""


@pytest.mark.parametrize("worker", ["child", "orphan"])
@pytest.mark.parametrize("kind", ["IPv4", "IPv6", "UNIX"])
def test_a_worker_finds_its_jvm_also_when_its_daemon_has_died(
    tmp_path: Path, kind: str, worker: str
) -> None:
    """Otherwise it would start a keeper of its own, which fences the first one."""
    jvm = tmp_path / "java"
    jvm.symlink_to(Path(sys.executable).resolve())
    done = subprocess.run(
        [jvm, "-c", JVM, sys.executable, DAEMON, kind, str(tmp_path / "socket"), worker],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    itself, found = done.stdout.split()
    assert found == itself


def test_who_has_no_jvm_is_its_own_driver_so_that_no_keeper_stays_behind() -> None:
    asked = (
        "import os; from dlog.spark.sink.keeper.place import own_driver, Program;"
        "assert own_driver() == Program.of(os.getpid())"
    )
    subprocess.run([sys.executable, "-c", asked], timeout=TEST_S, check=True)
