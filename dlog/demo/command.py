"""What a demo does as a command: its directory, Ctrl-C, and how it says that a role failed."""

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console

from dlog.demo.supervisor import RoleFailed

_INTERRUPTED: Final = 130


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
