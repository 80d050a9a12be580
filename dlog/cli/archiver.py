"""``dlog archiver``: moves sealed segments of all logs to object storage."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.commands import CommandGroup, changes_if
from dlog.cli.log.archive import REPORT
from dlog.cli.log.maintenance import ERROR
from dlog.cli.options import Json, Uri
from dlog.cli.output import format_size, print_json, warn
from dlog.cli.runner import run_check, run_passes
from ledger.options import HOST_DEFAULT, MetricsHost, MetricsPort, duration, size
from ledger.values import DURATION_HELP, SIZE_HELP, counted

if TYPE_CHECKING:
    from dlog.aio.maintain.archiver import ArchiverPass

app = CommandGroup("cli#the-archiver")


@app.callback()
def _archiver() -> None:
    """Make `run` a command of its own, although it is the only one."""


@app.define(
    changes_if("once"),
    "dlog archiver run",
    "dlog archiver run --interval 10m --rate 50M --json",
    "dlog archiver run --once",
    name="run",
)
def run_archiver(
    *,
    once: Annotated[
        bool,
        typer.Option("--once", help="Make one pass, even if another archiver works, and exit."),
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
    bytes_per_s: Annotated[
        int,
        typer.Option(
            "--rate",
            help=f"Upload so much a second at most: {SIZE_HELP}. 0: no limit.",
            parser=size(),
            metavar="SIZE",
            show_default="0",
        ),
    ] = 0,
    elect: Annotated[
        bool, typer.Option(help="Stay idle while another archiver of the namespace works.")
    ] = True,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST_DEFAULT,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Archive all logs that have object storage until SIGTERM or Ctrl-C, pass after pass.

    A pass does for each of them what 'dlog log archive' does. Stopping it in the middle is safe,
    and so is running several. Prints the result of each pass. With --once, exits with 1 if part of
    the work failed."""

    async def command() -> bool:
        from dlog.aio.maintain.archiver import Archiver, ArchiverConfig

        config = ArchiverConfig(interval_s=interval_s, bytes_per_s=bytes_per_s, elect=elect)
        return await run_passes(
            lambda client: Archiver(client, config),
            partial(_show_pass, as_json=as_json),
            lambda done: not (done.failures or done.troubles),
            once=once,
            uri=uri,
            metrics=(metrics_host, metrics_port),
        )

    run_check(uri, command())


def _show_pass(done: "ArchiverPass", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "logs": done.logs,
                "reports": [REPORT.json(report) for report in done.reports],
                "troubles": ERROR.rows(done.troubles),
            }
        )
        return
    archived = sum(len(report.archived) for report in done.reports)
    sys.stdout.write(
        f"looked after {counted(done.logs, 'log')}: {counted(archived, 'segment')} archived, "
        f"{format_size(sum(report.bytes for report in done.reports))} written, "
        f"{counted(sum(len(r.released) for r in done.reports), 'ledger')} deleted\n"
    )
    sys.stdout.flush()
    for report in done.reports:
        for failure in report.failures:
            warn(f"log {report.log!r}, segment {failure.segment}: {failure.error}")
        if report.table_error is not None:
            warn(f"log {report.log!r}, its table: {report.table_error}")
    for trouble in done.troubles:
        warn(f"{trouble.what}: {trouble.error}")
