"""Runs the demo: starts the roles, kills the leader half way, and judges the outcome.

Call: python -m examples.flights [--zookeeper] [--keep]
"""

import argparse
import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from examples.flights.report import Outcome, last_line, table
from examples.flights.run import run_demo
from examples.flights.supervisor import RoleFailed

_INTERRUPTED = 130


async def main(arguments: argparse.Namespace, console: Console) -> int:
    """Return the exit status of the demo."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _cancel_once, task)
    try:
        with _directory(keep=arguments.keep, console=console) as directory:
            outcome = await run_demo(directory, zookeeper=arguments.zookeeper, console=console)
    except RoleFailed as failure:
        console.print(f"demo failed: {failure}", style="red", markup=False, highlight=False)
        return 1
    except asyncio.CancelledError:
        console.print("interrupted; every process has ended")
        return _INTERRUPTED
    return _judge(outcome, console)


def _judge(outcome: Outcome, console: Console) -> int:
    console.print(table(outcome))
    print(last_line(outcome), flush=True)
    return 0 if outcome.exact else 1


def _cancel_once(task: asyncio.Task[object]) -> None:
    # A second Ctrl-C must not cut short the ending of the processes.
    if not task.cancelling():
        task.cancel()


@contextlib.contextmanager
def _directory(*, keep: bool, console: Console) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="dlog-flights-"))
    try:
        yield directory
    finally:
        if keep:
            console.print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.flights", description=__doc__)
    parser.add_argument("--zookeeper", action="store_true", help="on a real ZooKeeper")
    parser.add_argument("--keep", action="store_true", help="keep the directory and its logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse(), Console(highlight=False, soft_wrap=True))))
