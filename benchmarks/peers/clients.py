"""Client processes of the benchmark, one for each way to use a system; `commands` says what they
understand."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.peers.jars import PeerMissing
from dlog.local.zookeeper import dying_with_parent

_ANSWER_S: Final = 300.0
_START_S: Final = 60.0
_STOP_S: Final = 10.0
_LINE_BYTES_MAX: Final = 64 << 20
"""A hundred thousand latencies are a line of a megabyte."""


class Client:
    """A process that answers commands. Made by `start`, ended by `stop`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path) -> Self:
        """Start *command*, and return once it has connected. Raises `PeerMissing`."""
        with log.open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *dying_with_parent(command, os.getpid()),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                limit=_LINE_BYTES_MAX,
                start_new_session=True,  # Ctrl-C is for the one who started it
            )
        client = cls(name, process, log)
        try:
            await client._answer(_START_S)
        except BaseException:
            await client.stop()
            raise
        return client

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, *words: object) -> Mapping[str, Any]:
        """Send a command; return its answer. Raises `PeerMissing` with what went wrong."""
        assert self._process.stdin is not None
        self._process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        answer = await self._answer(_ANSWER_S)
        if "error" in answer:
            raise PeerMissing(f"{self._name} cannot {words[0]}: {answer['error']} ({self._log})")
        return answer

    async def _answer(self, seconds: float) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._process.stdout.readline()
                while line and not line.startswith(b"{"):  # a library's, not an answer
                    line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise PeerMissing(f"{self._name} did not answer within {seconds:.0f} s") from error
        if not line:
            said = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise PeerMissing(f"{self._name} ended: {said} ({self._log})")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    async def stop(self) -> None:
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
