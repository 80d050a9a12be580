"""``dlog bookie gc|compact|readonly``: orders to bookies that run, and connections to them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer
from google.protobuf.message import Message

from dlog.cli.commands import CHANGES, CommandGroup
from dlog.cli.completion import bookie_named, complete_bookie, near_bookies
from dlog.cli.connections import opened_store
from dlog.cli.options import Json, Uri
from dlog.cli.output import format_duration, format_size, print_json, progress_line, write_text
from dlog.cli.runner import failed, run_at, run_check
from dlog.config import load
from ledger.values import counted

if TYPE_CHECKING:
    from ledger.transport.operator import BookieOperator
    from ledger.wire import bookie_pb2 as pb

NAMES_HELP: Final = "Names of bookies, as 'dlog bookie list' shows them."


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


Names = Annotated[
    list[str], typer.Argument(metavar="BOOKIE...", autocompletion=complete_bookie, help=NAMES_HELP)
]


app = CommandGroup("operations#operating-running-bookies")


def message_json(message: Message) -> dict[str, object]:
    """Return all fields of *message*, also those that have their default."""
    return {field.name: _value(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _value(value: object) -> object:
    if isinstance(value, Message):
        return message_json(value)
    if isinstance(value, str | int | float | bool):
        return value
    assert isinstance(value, Sequence)
    return [_value(each) for each in value]


@app.define(
    CHANGES,
    "dlog bookie gc bookie-0",
    "dlog bookie gc bookie-0 --allow-deletions 120",
    "dlog bookie gc bookie-0 --allow-deletions all --json",
)
def gc(
    bookies: Names,
    *,
    allow_deletions: Annotated[
        str | None,
        typer.Option(
            metavar="N|all",
            help="Delete up to this many ledgers of each bookie that the metadata store does not "
            "know, although their deletion was not recorded.",
            show_default=False,
        ),
    ] = None,
    allow_evictions: Annotated[
        str | None,
        typer.Option(
            metavar="N|all",
            help="Evict up to this many copies of each bookie that no ledger references any "
            "more, although they are many.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Remove the data of deleted ledgers now, not in the next run; wait until it is done.

    Also looks for copies that repair has moved elsewhere, and evicts those first seen at least
    an hour ago.

    A bookie keeps ledgers that disappeared from the metadata store without a record of their
    deletion, if they are more than a tenth in a day, and all of them if the store was restored
    from a backup: 'dlog bookie status' reports it. First find out what happened to the store;
    --allow-deletions deletes them permanently. Nor are more than a quarter of its ledgers
    evicted in a day without --allow-evictions. Exits with 1 if ledgers were kept.

    Interrupting the command does not stop the bookie."""
    deletions = _count_or_all(allow_deletions, "--allow-deletions")
    evictions = _count_or_all(allow_evictions, "--allow-evictions")

    async def command() -> bool:
        whole = True
        async with connected_operators(bookies, uri) as operators:
            for name, operator in operators.items():
                with progress_line() as report:
                    report(f"bookie {name} collects", 0, 0)
                    done = await operator.collect(
                        allow_deletions=deletions, allow_evictions=evictions
                    )
                whole = show_run(name, done, as_json=as_json) and whole
        return whole

    run_check(uri, command())


@app.define(
    CHANGES, "dlog bookie compact bookie-0", "dlog bookie compact bookie-0 bookie-1 --major"
)
def compact(
    bookies: Names,
    *,
    major: Annotated[
        bool,
        typer.Option("--major", help="Also entry logs with more live data, as the daily run does."),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Rewrite entry logs with little live data, one bookie after the other; wait until it is
    done.

    The bookies serve meanwhile; each moves data at its configured rate."""

    async def command() -> bool:
        whole = True
        async with connected_operators(bookies, uri) as operators:
            for name, operator in operators.items():
                with progress_line() as report:
                    report(f"bookie {name} compacts", 0, 0)
                    done = await operator.compact(major=major)
                whole = show_run(name, done, as_json=as_json) and whole
        return whole

    run_check(uri, command())


@app.define(CHANGES, "dlog bookie readonly on bookie-0", "dlog bookie readonly off bookie-0")
def readonly(
    switch: Annotated[Switch, typer.Argument(help="Whether new entries are refused.")],
    bookies: Names,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Make bookies refuse new entries, even after restarts; or accept them again.

    A read-only bookie still serves reads, fences and recovery; writers change to others. 'off'
    does not override other reasons, such as a full disk: they are printed."""

    async def command() -> None:
        async with connected_operators(bookies, uri) as operators:
            for name, operator in operators.items():
                reply = await operator.set_read_only(read_only=switch is Switch.ON)
                if as_json:
                    print_json({"bookie": name, **message_json(reply)})
                    continue
                state = "read-only" if reply.read_only else "writable"
                reasons = f": {'; '.join(reply.reasons)}" if reply.reasons else ""
                write_text(f"bookie {name} is {state}{reasons}\n")

    run_at(uri, command())


@asynccontextmanager
async def connected_operators(
    names: Sequence[str], uri: str | None
) -> "AsyncIterator[dict[str, BookieOperator]]":
    """Yield a connection to each of the bookies named, by default to all that are registered."""
    from dlog.health.survey import NoOrders, operator_of, taking_orders
    from ledger.registry import BookieDirectory
    from ledger.security.certificates import Security

    settings = load()
    security = await Security.settled(settings.secured)
    async with opened_store(uri) as store:
        directory = BookieDirectory(store)
        await directory.start()
        try:
            named = [await bookie_named(store, name) for name in names]
            wanted = named or [each.bookie for each in directory.available()]
            try:
                reachable = [taking_orders(directory, name, security=security) for name in wanted]
            except NoOrders as error:
                raise failed(f"{error}{await near_bookies(store, named)}") from error
        finally:
            await directory.close()
    async with AsyncExitStack() as stack:
        yield {
            bookie.bookie: await stack.enter_async_context(
                operator_of(bookie, timeout_s=settings.timeout_s, security=security)
            )
            for bookie in reachable
        }


def show_run(name: str, done: "pb.CollectorRun", *, as_json: bool) -> bool:
    """Return whether it came to its end."""
    if as_json:
        print_json({"bookie": name, **message_json(done)})
    else:
        print_run(name, done)
    return not done.failure and not done.alarms


def _count_or_all(text: str | None, option: str) -> int | None:
    """Return how many; -1: all. None if nothing was given."""
    if text is None:
        return None
    if text == "all":
        return -1
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is neither a number nor 'all'", param_hint=option)
    return int(text)


def print_run(bookie: str, done: "pb.CollectorRun") -> None:
    write_text(
        f"bookie {bookie}: {done.kind} took {format_duration(done.took_s)}, removed "
        f"{counted(done.ledgers, 'ledger')}, evicted {done.evicted}, removed "
        f"{counted(done.logs, 'entry log')}, freed "
        f"{format_size(done.bytes_freed)}, moved {format_size(done.bytes_moved)}\n"
    )
    for alarm in done.alarms:
        write_text(f"bookie {bookie}: ALARM: {alarm.kind}: {alarm.reason}\n")
    if done.failure:
        write_text(f"bookie {bookie}: FAILED: {done.failure}\n")
    if done.suspended:
        write_text(f"bookie {bookie}: logs were left as they are: {done.suspended}\n")
    for damage in done.damages:
        write_text(f"bookie {bookie}: DAMAGED: {damage}\n")
