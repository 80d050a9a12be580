"""Starts the roles of the demo, listens to them, and ends every process at the end.

Each role leads a process group of its own, so that Ctrl-C on the terminal reaches the demo only,
and the demo ends the roles in its order. What a role leaves behind (Spark has a Java machine and
many workers, some in groups of their own) becomes a child of the demo, and is ended last.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

Event = Mapping[str, object]
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOG_LINES_SHOWN: Final = 25
_GRACE_S: Final = 0.5
_GRACE_OF_FIRST_S: Final = 8.0
_SWEEPS_MAX: Final = 100
_POLL_S: Final = 0.01
_LINE_BYTES_MAX: Final = 1 << 20
_INTERRUPTED: Final = 130


class RoleFailed(Exception):
    """A role ended, or did not say in time, what the demo waits for."""


@dataclass(slots=True)
class RunningRole:
    """One role's process: what it said, and a way to speak to it."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    latest: dict[str, Event] = field(default_factory=dict)
    """The newest event of each kind."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ended: bool = False
    _listener: asyncio.Task[None] | None = None

    async def wait_for(self, event: str, timeout_s: float) -> Event:
        """Return the role's newest *event*, waiting for the first one."""
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(lambda: event in self.latest or self._ended)
        except TimeoutError:
            raise self.failed(f"did not say {event!r} in {timeout_s:g} s") from None
        if event not in self.latest:
            raise self.failed(f"ended before it said {event!r}")
        return self.latest[event]

    async def tell(self, word: str) -> None:
        """Send a line to the role."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        await self.process.stdin.drain()

    def kill(self) -> float:
        """Kill the role where it stands; return the moment."""
        now = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        return now

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the role and to all that it started in its group, as Spark's JVM."""
        os.killpg(self.process.pid, number)

    def check(self) -> None:
        """Raise RoleFailed if the role has ended with an error."""
        if self.process.returncode not in (None, 0):
            raise self.failed(f"ended with status {self.process.returncode}")

    async def stop(self, grace_s: float) -> None:
        """Ask the role to end; kill it, and all of its group, if it does not."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        while self.process.returncode is None:  # noqa: ASYNC110 - `wait` waits for its pipes, too
            await asyncio.sleep(_POLL_S)
        if self._listener is not None:
            self._listener.cancel()
        # What it left behind may hold the other ends of its pipes longer than our loop lives.
        self.process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - no other way

    def listen(self) -> None:
        """Begin to take in what the role says."""
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            event = json.loads(line)
            async with self._news:
                self.latest[event["event"]] = event
                self._news.notify_all()
        await self.process.wait()
        async with self._news:
            self._ended = True
            self._news.notify_all()

    def failed(self, what: str) -> RoleFailed:
        """Return the error that says *what* of this role, with the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n  ".join(lines[-_LOG_LINES_SHOWN:])
        return RoleFailed(f"{self.name} {what}; the end of {self.log}:\n  {tail}")


class Supervisor:
    """The roles that run, in the order of their start."""

    def __init__(self, directory: Path, package: str) -> None:
        self._directory, self._package = directory, package
        self.environment: Mapping[str, str] = {}
        """What roles that are started from now on have in theirs, besides ours."""
        self._roles: list[RunningRole] = []
        self._dismissed: list[RunningRole] = []

    async def start(self, name: str, *arguments: str) -> RunningRole:
        """Start role *name* as a process of its own."""
        log = self._directory / f"{name}.log"
        log.touch(mode=0o600)
        with log.open("ab") as stderr:  # of all the lives of a role that is started again
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{self._package}.{name}",
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, **self.environment},
                limit=_LINE_BYTES_MAX,
            )
        role = RunningRole(name, process, log)
        role.listen()
        self._roles.append(role)
        return role

    def check(self) -> None:
        """Raise RoleFailed if a role has failed that nobody waits for at the moment."""
        for role in self._roles:
            role.check()

    def dismiss(self, role: RunningRole) -> None:
        """Expect *role* to be dead from now on."""
        self._roles.remove(role)
        self._dismissed.append(role)

    async def stop(self) -> None:
        """End every role: all but the first at once, then that one, on which they all rest."""
        first_to_go = self._roles[1:] + self._dismissed
        await asyncio.gather(*(role.stop(_GRACE_S) for role in first_to_go))
        for role in self._roles[:1]:
            await role.stop(_GRACE_OF_FIRST_S)


@contextlib.asynccontextmanager
async def supervisor(directory: Path, *, package: str = "dlog.demo") -> AsyncIterator[Supervisor]:
    """Run roles, modules of *package*, whose processes all end with the block."""
    others = child_processes()
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    running = Supervisor(directory, package)
    try:
        yield running
    finally:
        await asyncio.shield(running.stop())
        await asyncio.shield(_end_orphans(others))
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


async def _end_orphans(others: frozenset[int]) -> None:
    """Kill the children that roles left; their own children then come up in the next sweep."""
    for _ in range(_SWEEPS_MAX):
        children = sorted(child_processes() - others)
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, child, 0)


def child_processes() -> frozenset[int]:
    """Return the children of all threads. A thread that ends leaves its own to another one, which
    may have been read before: all are read again then."""
    for _ in range(_SWEEPS_MAX):
        listings = sorted(Path("/proc/self/task").glob("*/children"))
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return frozenset(
                int(pid) for listing in listings for pid in listing.read_text("ascii").split()
            )
    message = "threads of this process end faster than its children can be listed"
    raise RuntimeError(message)


async def command(
    demo: Callable[[Path], Awaitable[int]], *, name: str, keep: bool, console: Console
) -> int:
    """Run *demo* with a directory for all its files; return the exit status.

    The directory is removed afterwards, unless it is to *keep*."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _cancel_once, task)
    try:
        with _directory(name, keep=keep, console=console) as directory:
            return await demo(directory)
    except RoleFailed as failure:
        console.print(f"demo failed: {failure}", style="red", markup=False, highlight=False)
        return 1
    except asyncio.CancelledError:
        console.print("interrupted; every process has ended")
        return _INTERRUPTED


def _cancel_once(task: asyncio.Task[object]) -> None:
    # A second Ctrl-C must not cut short the ending of the processes.
    if not task.cancelling():
        task.cancel()


@contextlib.contextmanager
def _directory(name: str, *, keep: bool, console: Console) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=f"dlog-{name}-"))
    try:
        yield directory
    finally:
        if keep:
            console.print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
