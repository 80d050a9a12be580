"""Runs one bookie as the command line says: signals, logging, exit status.

Exit status 0 after a clean stop, 1 if it could not start or its storage failed, 2 for wrong
options. A failed storage ends the process at once: threads that still hang in the disk are not
waited for.
"""

import asyncio
import ctypes
import os
import signal
import sys
from typing import Final

from bookie.config import BookieConfig
from bookie.process import run_bookie
from bookie.server.descriptors import raise_descriptor_limit
from bookie.start_options import DIE_WITH_PARENT, Given, config_of, program
from ledger import log_events
from ledger.errors import LogError

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Run a bookie as the arguments of this process say, and exit."""
    program(start)(prog_name="bookie")


def start(given: Given) -> None:
    """Run a bookie as *given* says until a signal stops it.

    Raises `typer.BadParameter`; what keeps it from running ends the process with status 1."""
    config = config_of(given)
    if given[DIE_WITH_PARENT]:
        die_with_parent()
    log_events.configure()
    raise_descriptor_limit()
    try:
        asyncio.run(run_until_signal(config))
    except LogError as error:
        print(f"bookie: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        os._exit(1)


async def run_until_signal(config: BookieConfig) -> None:
    """Run a bookie until SIGTERM or SIGINT, then stop it cleanly; a second one ends it at once."""
    running = asyncio.ensure_future(run_bookie(config))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if running.cancelling():
            # Cutting the clean stop short would leave its threads running, and the process with
            # them. What is acknowledged is in the journal: an end without ceremony is safe.
            os._exit(1)
        running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()


def die_with_parent() -> None:
    """Let the kernel send SIGTERM when the parent ends; Linux only, else do nothing."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked
