"""``python -m bookie.autorecovery``: a process of repair, until SIGTERM or SIGINT.

What ``dlog bookie start --autorecovery`` runs beside the bookie; people run ``dlog autorecovery
start``. Exit status 0 after a stop, 1 if the metadata store refuses."""

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from bookie.autorecovery.options import RATE, DelayS, GraceS, Ledgers, Rate
from bookie.autorecovery.process import AutorecoveryConfig, config_of, run_autorecovery
from ledger import log_events
from ledger.client import ClientConfig, LedgerClient
from ledger.errors import LogError, MetricsNotServed
from ledger.log_events import get_logger
from ledger.metastore.uri import URI_VARIABLE
from ledger.metering.declaration import Exposed
from ledger.metering.http_server import served
from ledger.options import HOST_DEFAULT, VARIABLES, MetricsHost, MetricsPort
from ledger.process import die_with_parent, keep_loaded, yield_processor
from ledger.security.certificates import Security
from ledger.security.settings import TlsSettings, tls_settings

_log = get_logger(__name__)


def main(
    *,
    uri: Annotated[str, typer.Option(envvar=URI_VARIABLE, help="Namespace of the cluster.")],
    parent: Annotated[
        int | None, typer.Option(help="Process id of who starts this: stop when it ends.")
    ] = None,
    delay_s: DelayS = 300.0,
    grace_s: GraceS = 30.0,
    rate: Rate = RATE,
    ledgers: Ledgers = 4,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
) -> None:
    """Run a process of repair until SIGTERM or SIGINT."""
    if parent is not None:
        die_with_parent(parent)
    yield_processor()
    log_events.configure()
    try:
        config = config_of(delay_s, grace_s, rate, ledgers)
        tls = tls_settings(*map(os.environ.get, VARIABLES))
        asyncio.run(_until_signal(uri, config, metrics_host, metrics_port, tls))
    except LogError as error:
        print(f"autorecovery: {error}", file=sys.stderr, flush=True)  # noqa: T201 - for a person
        raise typer.Exit(1) from error


async def _until_signal(
    uri: str, config: AutorecoveryConfig, host: str, port: int | None, tls: TlsSettings
) -> None:
    exposed = Exposed()
    with ExitStack() as serving:
        try:
            security = await Security.settled(tls)
            serving.enter_context(served(exposed, host, port, _log.info, security=security))
        except MetricsNotServed as error:  # repair continues without metrics
            _log.warning(str(error))
        await _until_stopped(uri, config, exposed, tls)


async def _until_stopped(
    uri: str, config: AutorecoveryConfig, exposed: Exposed, tls: TlsSettings
) -> None:
    running = asyncio.ensure_future(_run(uri, config, exposed, tls))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()


async def _run(uri: str, config: AutorecoveryConfig, exposed: Exposed, tls: TlsSettings) -> None:
    client = await LedgerClient.connect(uri, ClientConfig(tls=tls))
    keep_loaded()
    try:
        await run_autorecovery(client, config, exposed)
    finally:
        await client.close()


if __name__ == "__main__":
    typer.run(main)
