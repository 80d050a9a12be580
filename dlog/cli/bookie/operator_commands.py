"""``dlog bookie status|gc|compact|readonly``: bookies that run, asked over the network."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.bookie.operating_shown import (
    message_facts,
    print_overview,
    print_run,
    print_status,
    shown_duration,
    shown_size,
    work_facts,
)
from dlog.cli.connections import opened_store
from dlog.cli.names import bookie_named, complete_bookie, near_bookies
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, shown_progress, write_text
from dlog.cli.runner import FAILED, failed, run_at
from dlog.config import load
from ledger.errors import LogError
from ledger.ids import BookieId
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.status import BookieWork
    from dlog.health.signs import Sign
    from ledger.transport.operator import BookieOperator
    from ledger.wire import bookie_pb2 as pb

_NAMES: Final = "Names of bookies, as 'dlog bookie list' shows them."


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


Names = Annotated[
    list[str], typer.Argument(metavar="BOOKIE...", autocompletion=complete_bookie, help=_NAMES)
]
SomeNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BOOKIE]...",
        autocompletion=complete_bookie,
        help=f"{_NAMES} Default: all registered bookies.",
    ),
]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie status",
            "dlog bookie status 10.0.0.7:3181",
            "dlog bookie status --json | jq 'select(.read_only) | .reasons'",
        )
    )(status)
    app.command(
        epilog=examples(
            "dlog bookie gc bookie-0",
            "dlog bookie gc bookie-0 --allow-deletions 120",
            "dlog bookie gc bookie-0 --allow-deletions all --json",
        )
    )(gc)
    app.command(
        epilog=examples(
            "dlog bookie compact bookie-0",
            "dlog bookie compact bookie-0 bookie-1 --major",
        )
    )(compact)
    app.command(
        epilog=examples("dlog bookie readonly on bookie-0", "dlog bookie readonly off bookie-0")
    )(readonly)


def status(bookies: SomeNames = None, uri: Uri = None, as_json: Json = False) -> None:
    """Show the state of bookies: in detail for those that are named, else an overview.

    For a named bookie, also shows what is left to repair of the entries it should hold:
    ledgers, rate, remaining time. With --json, one line for each. Exits with 1 if a bookie does
    not answer, and, unless some are named, if a known one is not registered: 'dlog status' has
    details."""

    async def command() -> bool:
        missed = [] if bookies else await _missed(uri)
        for sign in missed:
            typer.echo(f"dlog: {sign.what}. {sign.action}", err=True)
        async with _operators(bookies or (), uri) as operators:
            replies = await asyncio.gather(
                *(operator.status() for operator in operators.values()), return_exceptions=True
            )
        answered: dict[str, pb.StatusReply] = {}
        for name, reply in zip(operators, replies, strict=True):
            if isinstance(reply, LogError):
                typer.echo(f"dlog: {reply}", err=True)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answered[name] = reply
        if answered and (as_json or bookies):
            work = await _open_work_of(answered, uri)
            for name, reply in answered.items():
                if as_json:
                    print_json({**message_facts(reply), "repair": work_facts(work[name])})
                else:
                    print_status(reply, work[name])
        elif answered:
            print_overview(list(answered.values()))
            await _print_open_work(uri)
        elif not operators:
            typer.echo("no bookie is registered", err=True)
        return len(answered) == len(operators) and not any(sign.is_wrong for sign in missed)

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _missed(uri: str | None) -> "list[Sign]":
    """Return the signs of bookies that are known and not there."""
    from dlog.health.bookies import away_sign
    from ledger.membership import attendance

    async with opened_store(uri) as store:
        known = (await attendance(store)).bookies
    return [
        away_sign([(each.bookie, each.address)], leaving=each.leaving)
        for each in known
        if each.is_missed
    ]


async def _open_work_of(bookies: Iterable[str], uri: str | None) -> "dict[str, BookieWork]":
    from bookie.autorecovery.status import open_work_of

    names = [BookieId(bookie) for bookie in bookies]
    async with opened_store(uri) as store:
        return dict(zip(names, await open_work_of(store, names), strict=True))


async def _print_open_work(uri: str | None) -> None:
    """Say what is left to repair, if anything is."""
    from bookie.autorecovery.status import open_work

    async with opened_store(uri) as store:
        work = await open_work(store)
    if work.ledgers:
        left = f", {shown_duration(work.left_s)} left" if work.left_s else ""
        lack = "lacks" if work.ledgers == 1 else "lack"
        write_text(
            f"\n{counted(work.ledgers, 'ledger')} {lack} copies: "
            f"{shown_size(work.bytes_per_s)}/s are copied{left}; see 'dlog autorecovery status'\n"
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
        async with _operators(bookies, uri) as operators:
            for name, operator in operators.items():
                with shown_progress() as report:
                    report(f"bookie {name} collects", 0, 0)
                    done = await operator.collect(
                        allow_deletions=deletions, allow_evictions=evictions
                    )
                whole = _show_run(name, done, as_json=as_json) and whole
        return whole

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


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
        async with _operators(bookies, uri) as operators:
            for name, operator in operators.items():
                with shown_progress() as report:
                    report(f"bookie {name} compacts", 0, 0)
                    done = await operator.compact(major=major)
                whole = _show_run(name, done, as_json=as_json) and whole
        return whole

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


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
        async with _operators(bookies, uri) as operators:
            for name, operator in operators.items():
                reply = await operator.set_read_only(read_only=switch is Switch.ON)
                if as_json:
                    print_json({"bookie": name, **message_facts(reply)})
                    continue
                state = "read-only" if reply.read_only else "writable"
                reasons = f": {'; '.join(reply.reasons)}" if reply.reasons else ""
                write_text(f"bookie {name} is {state}{reasons}\n")

    run_at(uri, command())


@asynccontextmanager
async def _operators(
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
                found = [taking_orders(directory, name, security=security) for name in wanted]
            except NoOrders as error:
                raise failed(f"{error}{await near_bookies(store, named)}") from error
        finally:
            await directory.close()
    async with AsyncExitStack() as stack:
        yield {
            each.bookie: await stack.enter_async_context(
                operator_of(each, timeout_s=settings.timeout_s, security=security)
            )
            for each in found
        }


def _show_run(name: str, done: "pb.CollectorRun", *, as_json: bool) -> bool:
    """Return whether it came to its end."""
    if as_json:
        print_json({"bookie": name, **message_facts(done)})
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
