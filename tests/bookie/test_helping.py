"""The process of repair beside a bookie."""

import asyncio
import errno
import sys
from pathlib import Path

import pytest

from bookie.autorecovery_supervisor import keep_autorecovery
from dlog.local.bookie_process import BookieProcess
from dlog.measuring.takeovers import Load, _Leader
from tests.waiting import until


async def test_a_process_of_repair_that_cannot_be_started_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    log_path = tmp_path / "missing" / "autorecovery.log"
    keeping = asyncio.ensure_future(keep_autorecovery("memory://x", log_path=log_path))
    await until(lambda: "autorecovery_ended" in caplog.text, "it was reported")
    assert not keeping.done()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_no_process_that_another_one_starts_has_the_namespace_on_its_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All users of a machine see command lines, and the namespace may have a password."""
    uri = "zk://127.0.0.1:1/root?auth=digest:me:planted-password"
    started: list[tuple[tuple[str, ...], dict[str, str]]] = []

    async def start(*command: str, env: dict[str, str], **_: object) -> None:
        started.append((command, env))
        raise OSError(errno.EAGAIN, "nothing is started here")

    def spawn(command: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append((tuple(command), env))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr("dlog.local.bookie_process.subprocess.Popen", spawn)
    keeping = asyncio.ensure_future(keep_autorecovery(uri))
    await until(lambda: bool(started), "a process of repair")
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    BookieProcess("b1", tmp_path, bookie="b1", uri=uri, log_path=tmp_path / "log").start()
    with pytest.raises(OSError, match="nothing is started here"):
        async with _Leader.started("log", uri, Load(1.0, 1), 1):
            pass
    assert len(started) == 3
    for command, env in started:
        assert not any("planted" in each for each in command), command
        assert env["DLOG_URI"] == uri
