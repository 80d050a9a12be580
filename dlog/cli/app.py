"""The commands of ``dlog``, put together."""

import os
import sys
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from dlog.cli import completion, console, demo, health, init, print_version, up
from dlog.cli.commands import examples_of, include
from dlog.cli.options import Uri
from dlog.cli.runner import FAILED
from dlog.installation import OtherDlogInstalled, check_own_package

_HELP = """A replicated log: append records, tail them, inspect them.

Start a cluster on this machine with 'dlog up', then in another terminal:
'echo hello | dlog log append greetings' and 'dlog log tail greetings'."""

_EPILOG = "\n\n".join(
    [
        "Exit codes: 0 done; 1 refused or failed, stderr says why and what to do; "
        "2 the command line is wrong; 130 interrupted.",
        "Environment: DLOG_URI names the namespace, DLOG_CONFIG a TOML file of settings, "
        "DLOG_KEY_FILE the keys of encrypted logs; "
        "DLOG_DEBUG=1 shows tracebacks and the program's own log on stderr.",
        examples_of("dlog up", "seq 100 | dlog log append numbers", "dlog log tail numbers -f"),
    ]
)

_GROUPS: Final = {
    "log": ("log.app", "Create, read, write, inspect, maintain and delete logs."),
    "consumer": ("consumer", "Named consumers of a log: list, show, reset, delete."),
    "kafka": (
        "kafka",
        """A gateway for Kafka's clients, and the topics that they see.

Needs 'dlog-ledgers[kafka]'. See docs/kafka.md.""",
    ),
    "leader": ("leader", "Elections: who leads a log, and which candidates wait."),
    "replica": (
        "replica",
        "Running replicas of state machines, and their snapshots: list, show, write, verify.",
    ),
    "janitor": (
        "janitor",
        "Apply retention, finish deletions, remove leaked ledgers.",
    ),
    "archiver": ("archiver", "Move sealed segments of logs to object storage."),
    "table": (
        "table",
        """Archived records of a log as a table of Parquet files: show, list, verify, write again.

Needs 'dlog-ledgers[table]'. See docs/tables.md.""",
    ),
    "ledger": ("ledger", "Inspect ledgers, the segments that logs are made of; recover one."),
    "bookie": (
        "bookie.app",
        "Run a storage server, list and operate running ones; the commands with --dir work on "
        "the files of a stopped bookie.",
    ),
    "autorecovery": ("autorecovery", "Restore underreplicated ledgers to full replication."),
    "access": (
        "rights:access",
        """Who may do what: grants of roles to identities.

They apply where DLOG_TLS=required, because only there every client has an identity. An identity is
a name in a certificate: uri:..., dns:... or cn:.... What is not granted is refused. Grants are in
the metadata store: on ZooKeeper 'protect' lets only operators change them.
See docs/security.md.""",
    ),
    "changes": (
        "changes",
        """What operators changed: who, when, from where, what, and the outcome.

Changes are recorded in the log '_audit', created with the first change. See docs/operations.md.""",
    ),
    "cluster": (
        "metadata:cluster",
        """The formats that the programs of a cluster may write, after an upgrade.

A cluster has a level. Formats that older programs cannot read are written only from their level on.
You raise the level explicitly; it never falls. See docs/operations.md.""",
    ),
    "quota": (
        "rights:quota",
        """How much may be appended and read a second.

Clients beyond their quota are delayed, not refused. All clients of a quota share it.
A quota of an identity needs TLS, which tells bookies the identity; one of logs does not. See
docs/security.md.""",
    ),
    "metadata": ("metadata:metadata", "Continue after the metadata store was damaged or restored."),
    "perf": ("perf", "Measure a cluster: throughput and latency of appends and reads."),
    "debug": ("debug", "Collect what a problem report needs."),
    "tls": (
        "credentials:tls",
        "Create TLS certificates with an authority of your own, and show their contents. Needs "
        "'dlog-ledgers[tls]'. See docs/security.md.",
    ),
    "key": (
        "credentials:key",
        "Create keys that encrypt logs, and re-wrap the data keys of a log. Needs "
        "'dlog-ledgers[encryption]'. See docs/security.md.",
    ),
}
"""Groups of commands: the module, with the name of the variable if it is not `app`; the help."""

app = typer.Typer(
    name="dlog",
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LateGroup(TyperGroup):
    """One of `_GROUPS`. Its module is imported when somebody asks for its commands: a run needs
    those of one group at most, and all of them take several times as long to import as it takes."""

    _found: MutableMapping[str, Any] | None = None

    @property
    def commands(self) -> MutableMapping[str, Any]:
        if self._found is None:
            module, _, variable = _GROUPS[self.name or ""][0].partition(":")
            group: typer.Typer = getattr(import_module(f"dlog.cli.{module}"), variable or "app")
            group.rich_markup_mode = app.rich_markup_mode
            self._found = get_group(group).commands
        return self._found

    @commands.setter
    def commands(self, _: object) -> None:
        """Leave out what typer knows of the group: nothing."""


include(app, up.app, init.app, health.app, console.app, demo.app, completion.app)
for _name, (_, _help) in _GROUPS.items():
    app.add_typer(
        typer.Typer(cls=LateGroup, help=_help, no_args_is_help=True),
        name=_name,
    )


def _print_version(asked: bool) -> None:
    if not asked:
        return
    print_version()
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
            help="Command that provides the keys of encrypted logs, as DLOG_KEY_COMMAND.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of the package, its wire protocol and its formats, and exit.",
        ),
    ] = False,
) -> None:
    """Process the options that come before a command."""
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


def run() -> None:
    """Run the command that the command line names."""
    _write_any_letter()
    check_own_package_or_exit()
    app(prog_name="dlog")


def run_bookie() -> None:
    """Run ``bookie start`` alone, which is what the command line has options of."""
    _write_any_letter()
    check_own_package_or_exit()
    from bookie.start_options import program
    from dlog.cli.bookie.app import start

    program(start)(prog_name="bookie")


def _write_any_letter() -> None:
    r"""Write letters that a terminal's encoding has not as ``\u65e5``: names of logs have any."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
