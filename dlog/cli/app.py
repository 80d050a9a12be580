"""The commands of ``dlog``, put together."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from io import TextIOWrapper
from typing import Annotated

import typer

from bookie.start_options import program
from dlog.cli import (
    access,
    autorecovery,
    changes,
    cluster,
    completing,
    consumer,
    debug,
    janitor,
    keys,
    leader,
    ledger,
    metadata,
    perf,
    quota,
    tls,
)
from dlog.cli.bookie import app as bookie
from dlog.cli.console import EPILOG as CONSOLE_EPILOG
from dlog.cli.console import console
from dlog.cli.demo import EPILOG as DEMO_EPILOG
from dlog.cli.demo import demo
from dlog.cli.health import DOCTOR_EPILOG, STATUS_EPILOG, doctor, status
from dlog.cli.init import EPILOG as INIT_EPILOG
from dlog.cli.init import init
from dlog.cli.log import app as log
from dlog.cli.options import Uri, examples
from dlog.cli.recording import note_commands
from dlog.cli.runner import FAILED
from dlog.cli.up import EPILOG as UP_EPILOG
from dlog.cli.up import up
from dlog.installed import OtherDlogInstalled, check_own_package

_HELP = """A replicated log: append records, tail them, look inside.

Start a cluster on this machine with 'dlog up', then in another terminal:
'echo hello | dlog log append greetings' and 'dlog log tail greetings'."""

_EPILOG = "\n\n".join(
    [
        "Exit codes: 0 done; 1 refused or failed, stderr says why and what to do; "
        "2 the command line is wrong; 130 interrupted.",
        "Environment: DLOG_URI names the namespace, DLOG_CONFIG a TOML file of settings, "
        "DLOG_KEY_FILE the keys of encrypted logs; "
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
app.command(epilog=INIT_EPILOG)(init)
app.command(epilog=STATUS_EPILOG)(status)
app.command(epilog=DOCTOR_EPILOG)(doctor)
app.command(epilog=CONSOLE_EPILOG)(console)
app.command(epilog=DEMO_EPILOG)(demo)
app.command(epilog=completing.EPILOG)(completing.completion)
app.add_typer(log.app, name="log")
app.add_typer(consumer.app, name="consumer")
app.add_typer(leader.app, name="leader")
app.add_typer(janitor.app, name="janitor")
app.add_typer(ledger.app, name="ledger")
app.add_typer(bookie.app, name="bookie")
app.add_typer(autorecovery.app, name="autorecovery")
app.add_typer(access.app, name="access")
app.add_typer(changes.app, name="changes")
app.add_typer(cluster.app, name="cluster")
app.add_typer(quota.app, name="quota")
app.add_typer(metadata.app, name="metadata")
app.add_typer(perf.app, name="perf")
app.add_typer(debug.app, name="debug")
app.add_typer(tls.app, name="tls")
app.add_typer(keys.app, name="key")
note_commands(app)


def _print_version(asked: bool) -> None:
    if not asked:
        return
    import platform

    from dlog.installed import formats, other_dlog
    from ledger.distribution import DISTRIBUTION, own_version

    typer.echo(f"{DISTRIBUTION} {own_version()} (Python {platform.python_version()})")
    typer.echo("; ".join(f"{name} {each}" for name, each in formats().items()))
    if (found := other_dlog()) is not None:
        typer.echo(f"beside it, and overwriting files of it: {found}, another project", err=True)
    raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    uri: Uri = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the keys of encrypted logs, as DLOG_KEY_FILE.",
            show_default=False,
        ),
    ] = None,
    key_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Command that has the keys of encrypted logs, as DLOG_KEY_COMMAND.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of the package, of its wire and of its formats, and exit.",
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""
    # As if the environment said it: what the command is given counts more.
    _set(context, {"DLOG_URI": uri})
    if key_file is not None or key_command is not None:
        _set(context, {"DLOG_KEY_FILE": key_file or "", "DLOG_KEY_COMMAND": key_command or ""})


def _set(context: typer.Context, variables: Mapping[str, str | None]) -> None:
    """Set what is not None for as long as the command runs."""
    for variable, value in variables.items():
        if value is not None:
            context.call_on_close(partial(_restore, variable, os.environ.get(variable)))
            os.environ[variable] = value


def _restore(variable: str, value: str | None) -> None:
    os.environ.pop(variable, None)
    if value is not None:
        os.environ[variable] = value


def check_own_package_or_exit() -> None:
    """Leave with one sentence if another project's package may have replaced files of ours."""
    try:
        check_own_package()
    except OtherDlogInstalled as error:
        if "--version" not in sys.argv:
            typer.echo(f"dlog: {error}", err=True)
            sys.exit(FAILED)


def main() -> None:
    """Run ``dlog``."""
    _write_any_letter()
    check_own_package_or_exit()
    app(prog_name="dlog")


def bookie_main() -> None:
    """Run ``bookie``: the same as ``dlog bookie start``."""
    _write_any_letter()
    check_own_package_or_exit()
    program(bookie.start)(prog_name="bookie")


def _write_any_letter() -> None:
    r"""Write letters that a terminal's encoding has not as ``\u65e5``: names of logs have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
