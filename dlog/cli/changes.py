"""``dlog changes``: what operators changed, out of the log `_audit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.argument_values import parse_time
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, print_table, shown_time
from dlog.cli.runner import run_at, told
from dlog.starts import TIME_HELP

if TYPE_CHECKING:
    from dlog.changes import Change

app = typer.Typer()


@app.callback()
def _changes() -> None:
    """Make `list` a command of its own, although it is the only one."""


@app.command(
    "list",
    epilog=examples(
        "dlog changes list",
        "dlog changes list --since 7d",
        "dlog changes list --follow --json",
        "dlog changes list --json | jq .command",
    ),
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
                async for each in follow_changes(client, since_ms=since_ms):
                    print_json(facts_of(each)) if as_json else typer.echo(_line(each))
                return
            found = await last_changes(client, since_ms=since_ms, changes_max=limit)
        if as_json:
            for each in found:
                print_json(facts_of(each))
        elif found:
            print_table(
                ("when", "who", "from", "what", "outcome"),
                ((shown_time(c.begun_ms), c.who, c.place, _what(c), _outcome(c)) for c in found),
            )
        else:
            told("no change was recorded" + (" since then" if since else ""))

    run_at(uri, command())


def facts_of(change: "Change") -> dict[str, object]:
    return {
        "number": change.number,
        "who": change.who,
        "place": change.place,
        "command": change.command,
        "arguments": dict(change.arguments),
        "begun_ms": change.begun_ms,
        "ended_ms": change.ended_ms,
        "outcome": str(change.outcome),
        "error": change.error,
    }


def _what(change: "Change") -> str:
    given = (f"{name}={_shown(value)}" for name, value in change.arguments.items())
    return " ".join([change.command, *given])


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


def _outcome(change: "Change") -> str:
    return f"{change.outcome}: {change.error}" if change.error else str(change.outcome)


def _line(change: "Change") -> str:
    at = shown_time(change.ended_ms or change.begun_ms)
    return "\t".join((at, change.who, change.place, _what(change), _outcome(change)))
