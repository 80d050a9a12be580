"""Runs one bookie as the command line says: signals, logging, exit status.

Exit status 0 after a clean stop, 1 if it could not start or its storage failed, 2 for wrong
options, 3 if its name is retired or its identity another one's: another start would end in the
same way. A failed storage ends the process at once: threads that still hang in the disk are not
waited for.
"""

import asyncio
import os
import signal
import sys
from typing import Final

from bookie.autorecovery_supervisor import keep_autorecovery
from bookie.config import BookieConfig
from bookie.errors import BookieRetired, BookieSuperseded
from bookie.process import run_bookie
from bookie.server.limits import raise_descriptor_limit
from bookie.start_options import (
    AUTORECOVERY,
    DIE_WITH_PARENT,
    METRICS_HOST,
    METRICS_PORT,
    Given,
    config_of,
    program,
)
from ledger import log_events
from ledger.errors import LogError
from ledger.log_events import get_logger
from ledger.metering.declaration import Exposed
from ledger.metering.http_server import served
from ledger.options import HOST_DEFAULT
from ledger.process import die_with_parent, keep_loaded
from ledger.security.certificates import Security
from ledger.supervisor import READY, STOPPING, kept_alive, tell

IDENTITY_LOST: Final = 3
"""Exit status."""

_log = get_logger(__name__)


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
    where = given[METRICS_HOST], given[METRICS_PORT]
    try:
        asyncio.run(run_until_signal(config, autorecovery=given[AUTORECOVERY], metrics=where))
    except LogError as error:
        print(f"bookie: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        os._exit(IDENTITY_LOST if isinstance(error, BookieRetired | BookieSuperseded) else 1)


async def run_until_signal(
    config: BookieConfig,
    *,
    autorecovery: bool = False,
    metrics: tuple[str, int | None] = (HOST_DEFAULT, None),
) -> None:
    """Run a bookie until SIGTERM or SIGINT, then stop it cleanly; a second one ends it at once.

    With *autorecovery* a process of repair runs beside it. *metrics* is where metrics are served,
    host and port."""
    exposed = Exposed()
    security = await Security.settled(config.tls, serves=True)
    with served(exposed, *metrics, _log.info, security=security):
        await _run_until_signal(config, exposed, security, metrics if autorecovery else None)


def _on_ready(_name: str, _address: str) -> None:
    keep_loaded()
    tell(READY)


async def _run_until_signal(
    config: BookieConfig,
    exposed: Exposed,
    security: Security | None,
    repair_beside: tuple[str, int | None] | None,
) -> None:
    running = asyncio.ensure_future(
        run_bookie(config, on_ready=_on_ready, exposed=exposed, security=security)
    )
    helping = None
    if repair_beside is not None:
        host, port = repair_beside
        metrics = None if port is None else (host, port + 1 if port else 0)
        helping = asyncio.ensure_future(
            keep_autorecovery(config.uri, metrics=metrics, tls=config.tls)
        )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if running.cancelling():
            # Cutting the clean stop short would leave its threads running, and the process with
            # them. What is acknowledged is in the journal: an end without ceremony is safe.
            os._exit(1)
        tell(STOPPING)
        running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with kept_alive():
        await asyncio.wait([running])
    if helping is not None:
        helping.cancel()
        await asyncio.gather(helping, return_exceptions=True)
    if not running.cancelled():
        running.result()
