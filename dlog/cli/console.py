"""``dlog console``: the cluster in a browser."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, examples
from dlog.cli.render.output import print_json
from dlog.cli.runner import failed, run_at, told, until_signal
from dlog.config import load
from ledger.metering.options import HOST_DEFAULT, PORT_MAX, MetricsHost, MetricsPort

if TYPE_CHECKING:
    from types import ModuleType

    from dlog.console.serving import Served

EPILOG = examples(
    "dlog console",
    "dlog console --port 8081 --metrics-port 9100",
    "dlog console --allow-changes",
    "dlog console --host 0.0.0.0 --tls --allow-host console.example.org --token-file token",
)
PORT_DEFAULT = 8080
MISSING = "the console needs its extra: pip install 'dlog-ledgers[console]'"


def console(
    *,
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=PORT_MAX)
    ] = PORT_DEFAULT,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; any but this machine's own needs --tls."),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name that browsers know it by; repeat it for several.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that opens the console, 16 characters or more. Default: one "
            "is made and printed if it is needed.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Let who logs in with the token truncate, seal, set up, verify and delete logs, "
            "and give orders to bookies; 'dlog changes list' says who did.",
        ),
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", help="Serve HTTPS, with the certificate of DLOG_TLS_CERT.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show the cluster in a browser until SIGTERM or Ctrl-C.

    What is wrong comes first, and what to do about it; then bookies, logs, records and ledgers, all
    kept up to date. It only looks, and changes nothing without --allow-changes. Where others can
    reach it, it is served by TLS alone and asks everybody for a token; with --token-file it does so
    here, too. Who wants to change something is always asked for it."""

    async def command() -> None:
        serving = serving_console()
        from dlog.console.metrics import METRICS
        from dlog.metrics import expose
        from ledger.metering.exposing import Exposed, Readiness
        from ledger.metering.serving import served
        from ledger.security.certificates import Security

        options = serving.ConsoleOptions(
            host=host,
            port=port,
            hosts=allow_host or (),
            token=token_file.read_text().strip() if token_file is not None else "",
            allow_changes=allow_changes,
            tls=tls,
        )
        security = await Security.settled(load().secured)
        exposed = Exposed()
        with served(exposed, metrics_host, metrics_port, told, security=security):
            async with (
                connected(uri) as client,
                serving.console(client, options, security=security) as found,
            ):
                expose(exposed)
                exposed.add(METRICS)
                exposed.readiness = lambda: Readiness(ready=True, state="serving")
                say_where(found, as_json=as_json)
                await until_signal(_for_ever())

    run_at(uri, command())


def serving_console() -> "ModuleType":
    """Return the module that serves the console; leave with a sentence if its extra is missing."""
    try:
        from dlog.console import serving
    except ImportError as error:
        raise failed(f"{MISSING} ({error})") from error
    return serving


def say_where(found: "Served", *, as_json: bool) -> None:
    """Say on stdout where the console is, and its token if that was made for it."""
    if as_json:
        print_json({"console": found.address, "token": found.token if found.made else None})
        return
    typer.echo(f"console: {found.address}")
    if found.made:
        typer.echo(f"token:   {found.token}")


async def _for_ever() -> None:
    await asyncio.Event().wait()
