"""``dlog consumer``: named consumers of logs, where they are, and how far behind."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.argument_values import parse_start
from dlog.cli.names import complete_position
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_time, write_text
from dlog.cli.runner import FAILED, run_at
from dlog.starts import START_HELP

if TYPE_CHECKING:
    from dlog.aio.admin import ConsumerInfo

app = typer.Typer()

ConsumerName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")]


@app.command(
    "list", epilog=examples("dlog consumer list flights", "dlog consumer list flights --json")
)
def list_(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """List the consumers of a log with their positions. With --json, one line for all."""

    async def command() -> None:
        from dlog.aio.admin import list_consumers

        found = await list_consumers(log, uri=uri)
        if as_json:
            print_json([consumer_facts(each) for each in found])
        elif found:
            print_table(
                ("consumer", "position", "lag", "trimmed", "in use by", "changed"),
                (
                    (
                        each.name,
                        each.position,
                        each.lag,
                        each.trimmed,
                        each.in_use_by or "-",
                        shown_time(each.updated_ms),
                    )
                    for each in found
                ),
            )
        else:
            typer.echo(f"log {log!r} has no consumers", err=True)

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog consumer show flights printer",
        "dlog consumer show flights printer --json | jq .position",
    )
)
def show(log: LogName, name: ConsumerName, uri: Uri = None, as_json: Json = False) -> None:
    """Show a consumer: its position, its lag, and who uses it."""

    async def command() -> None:
        from dlog.aio.admin import consumer_info

        found = await consumer_info(name, log, uri=uri)
        if as_json:
            print_json(consumer_facts(found))
            return
        print_facts(
            {
                "consumer": found.name,
                "log": found.log,
                "position": found.position,
                "lag": found.lag,
                "trimmed": found.trimmed,
                "epoch": found.epoch,
                "exclusive": "yes" if found.exclusive else "no",
                "in use by": found.in_use_by or "-",
                "owner": found.owner or "-",
                "changed": shown_time(found.updated_ms),
            }
        )

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog consumer reset flights printer --to start",
        "dlog consumer reset flights printer --to time:2h",
        "dlog consumer reset flights printer --to 1000 --json",
    )
)
def reset(
    log: LogName,
    name: ConsumerName,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            autocompletion=complete_position,
            help=f"Where it continues: {START_HELP}.",
        ),
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Move a consumer to another position; print the offset.

    Processes that have it open can no longer commit, and must open it again."""
    position = parse_start(to, "--to")

    async def command() -> None:
        from dlog.aio.admin import reset_consumer

        offset = await reset_consumer(name, log, position, uri=uri)
        if as_json:
            print_json({"log": log, "consumer": name, "position": offset})
        else:
            write_text(f"{offset}\n")

    run_at(uri, command())


@app.command(epilog=examples("dlog consumer delete flights printer --yes"))
def delete(
    log: LogName,
    name: ConsumerName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Delete a consumer and its position. Refused while a process uses it exclusively."""
    if not yes:
        typer.confirm(f"Delete consumer {name!r} of log {log!r}?", abort=True, err=True)

    async def command() -> None:
        from dlog.aio.admin import delete_consumer

        await delete_consumer(name, log, uri=uri)
        if as_json:
            print_json({"log": log, "consumer": name, "deleted": True})
        else:
            typer.echo(f"consumer {name!r} of log {log!r} was deleted", err=True)

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog consumer lag flights",
        "dlog consumer lag flights printer",
        "dlog consumer lag flights --max 10000 || echo 'too far behind'",
    )
)
def lag(
    log: LogName,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this consumer.")
    ] = None,
    lag_max: Annotated[
        int | None,
        typer.Option("--max", help="Exit with 1 if the lag is larger.", min=0, show_default=False),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Print how many records consumers have not processed yet; for one, only the number.

    Includes records that were trimmed before they were processed."""

    async def command() -> list["ConsumerInfo"]:
        from dlog.aio.admin import consumer_info, list_consumers

        if name is None:
            return await list_consumers(log, uri=uri)
        return [await consumer_info(name, log, uri=uri)]

    found = run_at(uri, command())
    if as_json:
        print_json({each.name: {"lag": each.lag, "trimmed": each.trimmed} for each in found})
    elif name is not None:
        write_text(f"{found[0].lag + found[0].trimmed}\n")
    else:
        write_text("".join(f"{each.name}\t{each.lag + each.trimmed}\n" for each in found))
    if lag_max is not None and any(each.lag + each.trimmed > lag_max for each in found):
        raise typer.Exit(FAILED)


def consumer_facts(found: "ConsumerInfo") -> dict[str, object]:
    return {
        "consumer": found.name,
        "log": found.log,
        "position": found.position,
        "lag": found.lag,
        "trimmed": found.trimmed,
        "epoch": found.epoch,
        "exclusive": found.exclusive,
        "in_use_by": found.in_use_by,
        "owner": found.owner,
        "updated_ms": found.updated_ms,
    }
