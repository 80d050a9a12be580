"""``dlog bookie``: the storage servers."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from bookie.start_options import TLS, Given, add_start
from dlog.cli.bookie import (
    decommission_command,
    dumps,
    offline,
    operator_commands,
    ready,
    rebalance_command,
    recover_command,
    replace_command,
    where,
)
from dlog.cli.connections import opened_store
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, print_table, shown_time, write_text
from dlog.cli.runner import FAILED, failed, run_at
from dlog.config import load, resolve_uri
from ledger.errors import LogError

app = typer.Typer()
operator_commands.add_to(app)
decommission_command.add_to(app)
ready.add_to(app)
recover_command.add_to(app)
replace_command.add_to(app)
rebalance_command.add_to(app)
where.add_to(app)
offline.add_to(app)
dumps.add_to(app)


def start(given: Given) -> None:
    """Run a bookie as ``python -m bookie`` does, in the namespace of this process unless given."""
    try:
        uri = resolve_uri(given["uri"])
        settings = load().model_dump() if given["tls"] is None else {}
    except LogError as error:
        raise failed(str(error)) from error
    configured = {name: settings[name] for name in TLS if settings and given[name] is None}
    from bookie import command

    command.start({**given, **configured, "uri": uri})


add_start(app, start)


@app.command(
    "list",
    epilog=examples("dlog bookie list", "dlog bookie list --json", "dlog bookie list --retired"),
)
def list_bookies(
    *,
    retired: Annotated[
        bool,
        typer.Option(
            "--retired", help="List the names that no bookie can ever use again, and why."
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the registered bookies, and why those in limbo are.

    Exits with 1 if a registration cannot be read: it is reported, and the others are listed."""
    if retired:
        run_at(uri, _list_retired(uri, as_json=as_json))
        return

    async def command() -> bool:
        from ledger.registry import BookieDirectory, limbo_of

        async with opened_store(uri) as store:
            directory = BookieDirectory(store)
            await directory.start()
            found, damaged = directory.available(), directory.damaged()
            await directory.close()
            limbo = await limbo_of(store, [each.bookie for each in found])
        for error in damaged:
            typer.echo(f"dlog: left out: {error}", err=True)
        if as_json:
            print_json(
                [
                    {
                        "bookie": each.bookie,
                        "address": each.address,
                        "rack": each.rack,
                        "read_only": each.read_only,
                        "limbo": limbo.get(each.bookie, ""),
                        "incarnation": each.incarnation,
                    }
                    for each in found
                ]
            )
        elif found:
            print_table(
                ("bookie", "address", "rack", "state"),
                (
                    (
                        each.bookie,
                        each.address,
                        each.rack or "-",
                        ("read-only" if each.read_only else "writable")
                        + (", in limbo" if each.bookie in limbo else ""),
                    )
                    for each in found
                ),
            )
            for bookie, why in limbo.items():
                write_text(f"bookie {bookie} is {why}\n")
        else:
            typer.echo("no bookie is registered", err=True)
        sys.stdout.flush()
        return not damaged

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _list_retired(uri: str | None, *, as_json: bool) -> None:
    from ledger.membership import retired_names

    async with opened_store(uri) as store:
        names = await retired_names(store)
    if as_json:
        print_json([asdict(name) for name in names])
    else:
        print_table(
            ("bookie", "retired", "named by ledgers", "why"),
            (
                (n.bookie, shown_time(n.retired_ms), "no" if n.emptied else "maybe", n.reason)
                for n in names
            ),
        )
