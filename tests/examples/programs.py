"""Runs the examples as a user would, and hears what they print."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.waiting import SESSION_S, TEST_S

ROOT = Path(__file__).parents[2]


class Program:
    def __init__(self, process: Process) -> None:
        self.process = process

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def hear(self, word: str = "") -> str:
        """Return the next line that it prints, which must contain *word*."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TEST_S):
            line = (await self.process.stdout.readline()).decode().strip()
        assert word in line, f"{line!r}, and not {word!r}"
        return line

    def kill(self) -> None:
        self.process.kill()

    async def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit status and what it said about it."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TEST_S):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def program(
    name: str, *arguments: str, uri: str = "", session_timeout_s: float = SESSION_S
) -> AsyncIterator[Program]:
    """Run an example; what it prints on standard error is told by `interrupt` only."""
    settings = {"DLOG_URI": uri} if uri else {}
    settings["DLOG_SESSION_TIMEOUT_S"] = str(session_timeout_s)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"examples.{name}",
        *arguments,
        cwd=ROOT,
        env={**os.environ, **settings},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
