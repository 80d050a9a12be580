"""The command line of one bookie: arguments, signals, logging, exit status.

Exit status 0 after a clean stop, 1 if it could not start or its storage failed. A failed
storage ends the process at once: threads that still hang in the disk are not waited for.
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bookie.config import BookieConfig
from bookie.process import run_bookie
from ledger import log_events
from ledger.errors import LogError

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bookie as *arguments* say; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.die_with_parent:
        die_with_parent()
    log_events.configure()
    try:
        config = BookieConfig(
            uri=options.uri,
            directory=options.dir,
            host=options.host,
            port=options.port,
            advertise=options.advertise,
            bookie=options.id,
            rack=options.rack,
        )
        asyncio.run(run_until_signal(config))
    except LogError as error:
        print(f"bookie: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        sys.stderr.flush()
        os._exit(1)
    return 0


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bookie", description=main.__doc__)
    add = parser.add_argument
    add("--uri", required=True, help="namespace: file:///directory or zk://host:port/root")
    add("--dir", required=True, type=Path, help="directory of this bookie's data")
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", default=0, type=int, help="default: the last one, at first any free one")
    add("--advertise", default="", help="host that clients are told (default: --host)")
    add(
        "--id",
        "--bookie",
        dest="id",
        default=None,
        help="name for the life of the data (default: host:port)",
    )
    add("--rack", default="", help="where this bookie stands, for placement")
    add("--die-with-parent", action="store_true", help="stop when the parent process ends")
    return parser
