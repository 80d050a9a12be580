"""The commands of ``dlog``, put together."""

from typing import Annotated

import typer

from bookie.start_options import program
from dlog.cli import autorecovery, completing, consumer, janitor, leader, ledger, metadata
from dlog.cli.bookie import app as bookie
from dlog.cli.health import DOCTOR_EPILOG, STATUS_EPILOG, doctor, status
from dlog.cli.log import app as log
from dlog.cli.options import examples
from dlog.cli.up import EPILOG as UP_EPILOG
from dlog.cli.up import up

_HELP = """A replicated log: append records, tail them, look inside.

Start a cluster on this machine with 'dlog up', then in another terminal:
'echo hello | dlog log append greetings' and 'dlog log tail greetings'."""

_EPILOG = "\n\n".join(
    [
        "Exit codes: 0 done; 1 refused or failed, stderr says why and what to do; "
        "2 the command line is wrong; 130 interrupted.",
        "Environment: DLOG_URI names the namespace, DLOG_CONFIG a TOML file of settings; "
        "DLOG_DEBUG=1 shows tracebacks and the program's own log on stderr.",
        examples("dlog up", "seq 100 | dlog log append numbers", "dlog log tail numbers -f"),
    ]
)

app = typer.Typer(
    name="dlog",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=UP_EPILOG)(up)
app.command(epilog=STATUS_EPILOG)(status)
app.command(epilog=DOCTOR_EPILOG)(doctor)
app.command(epilog=completing.EPILOG)(completing.completion)
app.add_typer(log.app, name="log")
app.add_typer(consumer.app, name="consumer")
app.add_typer(leader.app, name="leader")
app.add_typer(janitor.app, name="janitor")
app.add_typer(ledger.app, name="ledger")
app.add_typer(bookie.app, name="bookie")
app.add_typer(autorecovery.app, name="autorecovery")
app.add_typer(metadata.app, name="metadata")


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(version("dlog"))
    except PackageNotFoundError:
        typer.echo("unknown: run from its source, not installed")
    raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""


def main() -> None:
    """Run ``dlog``."""
    app(prog_name="dlog")


def bookie_main() -> None:
    """Run ``bookie``: the same as ``dlog bookie start``."""
    program(bookie.start)(prog_name="bookie")
