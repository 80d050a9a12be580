"""What a supervisor as systemd hears of a process."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.supervisor import ALIVE, READY, kept_alive, tell
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "n"))
        supervisor.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "n"))
        yield supervisor


def test_what_is_told_is_one_datagram(heard: socket.socket) -> None:
    tell(READY)
    assert heard.recv(100) == b"READY=1"


def test_a_socket_without_a_file_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"dlog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + name)
        supervisor.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        tell(READY)
        assert supervisor.recv(100) == b"READY=1"


@pytest.mark.parametrize("nobody", ["", "/none/such", "vsock:1:2", "@nobody-listens-here"])
def test_without_somebody_who_listens_nothing_fails(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", nobody)
    tell(READY)


async def test_a_watchdog_is_fed_while_the_event_loop_turns(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    heard.setblocking(False)
    told: list[bytes] = []

    def again() -> bool:
        try:
            told.append(heard.recv(100))
        except BlockingIOError:
            return False
        return len(told) > 2

    async with kept_alive():
        await until(again, "it was fed")
    assert set(told) == {ALIVE.encode()}


@pytest.mark.parametrize("others", [("3000", "1"), ("", ""), ("none", ""), ("0", "")])
async def test_the_watchdog_of_somebody_else_is_not_fed(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch, others: tuple[str, str]
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", others[0])
    if others[1]:
        monkeypatch.setenv("WATCHDOG_PID", others[1])
    async with kept_alive():
        pass
    heard.setblocking(False)
    with pytest.raises(BlockingIOError):
        heard.recv(100)


@pytest.mark.integration
def test_a_program_of_dlog_keeps_what_it_loaded_out_of_its_collections() -> None:
    """In another process: there is no way back."""
    program = (
        "import asyncio, gc, os; from dlog.cli.runner import until_signal\n"
        "async def work(): print(gc.get_freeze_count() > 10_000)\n"
        "asyncio.run(until_signal(work()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "True\n"
