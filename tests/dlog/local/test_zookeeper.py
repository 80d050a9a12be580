import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.local.errors import ChildFailed
from dlog.local.zookeeper import ManagedZooKeeper
from tests.waiting import PATIENCE_S, alive, wait_until

pytestmark = pytest.mark.zookeeper


async def test_it_serves_when_started_stops_and_comes_back_on_its_port(tmp_path: Path) -> None:
    server = ManagedZooKeeper(tmp_path / "zk")
    async with server:
        first = server.pid
        assert b"Mode: standalone" in four_letters(server.port, b"srvr")
        fixed = ManagedZooKeeper(tmp_path / "zk", port=server.port)
    assert not server.running
    assert not alive(first)
    await fixed.start()
    fixed.kill()
    assert not fixed.running
    await fixed.stop()


def test_a_server_that_cannot_start_is_told_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    server = ManagedZooKeeper(tmp_path)
    with pytest.raises(ChildFailed) as caught:
        asyncio.run(server.start())
    assert "exit code" in str(caught.value)
    assert "SLF4J" in caught.value.log_tail


async def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ManagedZooKeeper(tmp_path / "zk", port=taken.getsockname()[1])
        with pytest.raises(ChildFailed) as caught:
            await server.start()
        assert "in use" in str(caught.value)
        assert not server.running


def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys, time\n"
        "from dlog.local.zookeeper import ManagedZooKeeper\n"
        "server = ManagedZooKeeper(pathlib.Path(sys.argv[1]))\n"
        "asyncio.run(server.start())\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "zk")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not alive(pid), "it has ended too")


def four_letters(port: int, command: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(command)
        return connection.makefile("rb").read()
