"""``dlog changes``: what operators changed, out of the log `_audit`."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, parse_time
from dlog.cli.output import Column, View, format_time, json_column, print_json, text_column, warn
from dlog.cli.runner import run_at
from dlog.starts import TIME_HELP

if TYPE_CHECKING:
    from dlog.changes import Change

app = CommandGroup("operations#who-changed-what")


def _command_line(change: "Change") -> str:
    given = (f"{name}={_quoted(value)}" for name, value in change.arguments.items())
    return " ".join([change.command, *given])


def _quoted(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_quoted, value))
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


_CHANGE: "Final[View[Change]]" = View(
    json_column("number", lambda change: change.number),
    text_column("when", lambda change: format_time(change.begun_ms)),
    Column("who", lambda change: change.who, form=str),
    Column("place", lambda change: change.place, "from", str),
    json_column("command", lambda change: change.command),
    json_column("arguments", lambda change: dict(change.arguments)),
    text_column("what", _command_line),
    json_column("begun_ms", lambda change: change.begun_ms),
    json_column("ended_ms", lambda change: change.ended_ms),
    json_column("outcome", lambda change: str(change.outcome)),
    json_column("error", lambda change: change.error),
    text_column("outcome", lambda c: f"{c.outcome}: {c.error}" if c.error else str(c.outcome)),
)


@app.callback()
def _changes() -> None:
    """Make `list` a command of its own, although it is the only one."""


@app.define(
    READS,
    "dlog changes list",
    "dlog changes list --since 7d",
    "dlog changes list --follow --json",
    "dlog changes list --json | jq .command",
    name="list",
)
def list_(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"Only from this time on: {TIME_HELP}.", show_default=False
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print each change as it begins and as it ends, until Ctrl-C."
        ),
    ] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", help="At most this many, the last ones.", min=1, max=10_000),
    ] = 1000,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List changes by operators, oldest first. With --json, one line for each.

    A change that is only 'begun' is still running, or its process was killed."""
    since_ms = None if since is None else parse_time(since, "--since")

    async def command() -> None:
        from dlog.changes import follow_changes, last_changes

        async with connected(uri) as client:
            if follow:
                async for change in follow_changes(client, since_ms=since_ms):
                    print_json(_CHANGE.json(change)) if as_json else typer.echo(_line(change))
                return
            changes = await last_changes(client, since_ms=since_ms, changes_max=limit)
        if as_json:
            for change in changes:
                print_json(_CHANGE.json(change))
        elif changes:
            _CHANGE.table(changes)
        else:
            warn("no change was recorded" + (" since then" if since else ""))

    run_at(uri, command())


def _line(change: "Change") -> str:
    cells = _CHANGE.lines(change) | {"when": format_time(change.ended_ms or change.begun_ms)}
    return "\t".join(map(str, cells.values()))
