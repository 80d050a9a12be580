"""``dlog consumer``: named consumers of logs, where they are, and how far behind."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup
from dlog.cli.completion import complete_position
from dlog.cli.options import Json, LogName, Uri, Yes, parse_start
from dlog.cli.output import Column, View, answer, format_time, print_json, report, write_text
from dlog.cli.runner import FAILED, confirm, run_at
from dlog.starts import START_HELP

if TYPE_CHECKING:
    from dlog.aio.admin import ConsumerInfo

app = CommandGroup("cli#consumers")

_CONSUMER: "Final[View[ConsumerInfo]]" = View(
    Column("consumer", lambda consumer: consumer.name),
    Column("log", lambda consumer: consumer.log),
    Column("position", lambda consumer: consumer.position),
    Column("lag", lambda consumer: consumer.lag),
    Column("trimmed", lambda consumer: consumer.trimmed),
    Column("epoch", lambda consumer: consumer.epoch),
    Column("exclusive", lambda consumer: consumer.exclusive),
    Column("in_use_by", lambda consumer: consumer.in_use_by),
    Column("owner", lambda consumer: consumer.owner),
    Column("updated_ms", lambda consumer: consumer.updated_ms, "changed", format_time),
)
_LISTED: Final = _CONSUMER.only("consumer", "position", "lag", "trimmed", "in use by", "changed")

ConsumerName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the consumer.")]


@app.define(READS, "dlog consumer list flights", "dlog consumer list flights --json", name="list")
def list_(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """List the consumers of a log with their positions. With --json, one line for all."""

    async def command() -> None:
        from dlog.aio.admin import list_consumers

        consumers = await list_consumers(log, uri=uri)
        view = _CONSUMER if as_json else _LISTED
        view.print_all(consumers, f"log {log!r} has no consumers", as_json=as_json)

    run_at(uri, command())


@app.define(
    READS,
    "dlog consumer show flights printer",
    "dlog consumer show flights printer --json | jq .position",
)
def show(log: LogName, name: ConsumerName, uri: Uri = None, as_json: Json = False) -> None:
    """Show a consumer: its position, its lag, and who uses it."""

    async def command() -> None:
        from dlog.aio.admin import consumer_info

        _CONSUMER.print(await consumer_info(name, log, uri=uri), as_json=as_json)

    run_at(uri, command())


@app.define(
    CHANGES,
    "dlog consumer reset flights printer --to start",
    "dlog consumer reset flights printer --to time:2h",
    "dlog consumer reset flights printer --to 1000 --json",
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
        answer({"log": log, "consumer": name, "position": offset}, f"{offset}\n", as_json=as_json)

    run_at(uri, command())


@app.define(CHANGES, "dlog consumer delete flights printer --yes")
def delete(
    log: LogName,
    name: ConsumerName,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Delete a consumer and its position. Refused while a process uses it exclusively."""
    confirm(f"Delete consumer {name!r} of log {log!r}?", yes=yes)

    async def command() -> None:
        from dlog.aio.admin import delete_consumer

        await delete_consumer(name, log, uri=uri)
        done = {"log": log, "consumer": name, "deleted": True}
        report(done, f"consumer {name!r} of log {log!r} was deleted", as_json=as_json)

    run_at(uri, command())


@app.define(
    READS,
    "dlog consumer lag flights",
    "dlog consumer lag flights printer",
    "dlog consumer lag flights --max 10000 || echo 'too far behind'",
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

    consumers = run_at(uri, command())
    behind = {consumer.name: consumer.lag + consumer.trimmed for consumer in consumers}
    if as_json:
        print_json({c.name: {"lag": c.lag, "trimmed": c.trimmed} for c in consumers})
    elif name is not None:
        write_text(f"{behind[name]}\n")
    else:
        write_text("".join(f"{name}\t{count}\n" for name, count in behind.items()))
    if lag_max is not None and max(behind.values(), default=0) > lag_max:
        raise typer.Exit(FAILED)
