"""``dlog janitor``: looks after logs that nobody writes now."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.commands import CommandGroup, changes_if
from dlog.cli.log.maintenance import ERROR, UNLISTED
from dlog.cli.options import Json, Uri
from dlog.cli.output import (
    print_json,
)
from dlog.cli.runner import run_check, run_passes
from ledger.options import HOST_DEFAULT, MetricsHost, MetricsPort, duration
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from dlog.aio.maintain.janitor import JanitorPass

app = CommandGroup("cli#the-janitor")


@app.callback()
def _janitor() -> None:
    """Make `run` a command of its own, although it is the only one."""


@app.define(
    changes_if("once"),
    "dlog janitor run",
    "dlog janitor run --interval 10m --json",
    "dlog janitor run --once",
    name="run",
)
def run_janitor(
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Make one pass, even if another janitor works, and exit.")
    ] = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval",
            "--interval-s",
            help=f"Pause between two passes: {DURATION_HELP}.",
            parser=duration(least=0.001),
            metavar="DURATION",
            show_default="60s",
        ),
    ] = 60.0,
    orphans_max: Annotated[
        int, typer.Option(help="Leaked ledgers that a pass removes, at most.", min=0)
    ] = 1000,
    elect: Annotated[
        bool, typer.Option(help="Stay idle while another janitor of the namespace works.")
    ] = True,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Maintain all logs of the namespace until SIGTERM or Ctrl-C, one pass after the other.

    A pass applies retention, also to logs without a writer, finishes interrupted deletions, and
    deletes ledgers that are provably of no use to any log. Stopping it in the middle is safe,
    and so is running several. Prints the result of each pass. With --once, exits with 1 if part
    of the work failed."""

    async def command() -> bool:
        from dlog.aio.maintain.janitor import Janitor, JanitorConfig

        config = JanitorConfig(interval_s=interval_s, orphans_max=orphans_max, elect=elect)
        return await run_passes(
            lambda client: Janitor(client, config),
            partial(_show_pass, as_json=as_json),
            lambda done: not done.troubles,
            once=once,
            uri=uri,
            metrics=(metrics_host, metrics_port),
        )

    run_check(uri, command())


def _show_pass(done: "JanitorPass", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "logs": done.logs,
                "records_trimmed": done.records_trimmed,
                "ledgers_deleted": done.ledgers_deleted,
                "logs_deleted": list(done.logs_deleted),
                "orphans": UNLISTED.rows(done.orphans),
                "troubles": ERROR.rows(done.troubles),
            }
        )
        return
    sys.stdout.write(
        f"maintained {counted(done.logs, 'log')}: "
        f"{counted(done.records_trimmed, 'record')} trimmed, "
        f"{counted(done.ledgers_deleted, 'ledger')} deleted, "
        f"{counted(len(done.orphans), 'orphan')} removed, "
        f"{counted(len(done.logs_deleted), 'deletion')} of logs finished\n"
    )
    sys.stdout.flush()
    for trouble in done.troubles:
        typer.echo(f"dlog: {trouble.what}: {trouble.error}", err=True)
