"""``dlog bookie decommission|replace``: a bookie leaves the cluster.

Its data are copied first; or a new one gets them, from the other copies.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bookie.autorecovery.options import MIB, RATE, Ledgers, Rate
from dlog.cli.bookie.moves import print_recovered, recovery_facts, shown_recovery
from dlog.cli.commands import CHANGES, CommandGroup
from dlog.cli.completion import bookie_named, complete_bookie, near_bookies
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, Yes
from dlog.cli.output import (
    Advance,
    format_duration,
    format_size,
    print_json,
    progress_bar,
    write_text,
)
from dlog.cli.runner import confirm, failed, run_at, run_check
from ledger.ids import BookieId
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.move_job import Replacement
    from bookie.autorecovery.protocol.move_job import Report
    from ledger.client import LedgerClient

_FORCED: Final = "an operator gave up its data"
_WINDOW_S: Final = 600.0
"""Reports come when all ledgers were read: a rate is taken over several of them."""


app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


@app.define(
    CHANGES,
    "dlog bookie decommission bookie-0",
    "dlog bookie decommission bookie-0 --cancel",
    "dlog bookie decommission bookie-0 --force",
)
def decommission(
    bookie: Annotated[
        str,
        typer.Argument(
            metavar="BOOKIE",
            autocompletion=complete_bookie,
            help="Name, as 'dlog bookie list' shows it.",
        ),
    ],
    *,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Keep the bookie: cancel the decommission.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Do not wait: permanently give up the data of a bookie that is gone."
        ),
    ] = False,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Decommission a bookie, whether it runs or is gone: all its data are copied to others
    first.

    It is made read-only first and serves reads meanwhile. The processes of 'dlog autorecovery'
    make the copies, and must be running. Once nothing names the bookie any more, stop it, and
    run the command again: its name is then retired, and no bookie can ever use it again. The
    command may be interrupted and repeated at any moment.

    Prints what is left whenever that changes, the rate and the remaining time, and the ids of
    ledgers with entries that no bookie holds: those keep it from finishing, and an operator
    must decide about them. --force retires the name of a bookie that is gone, at once, and
    reports what it held; asks, unless --yes. With --json, one line for each report.

    Exits with 1 if it cannot be done: the bookie is not known, or there are too few others."""
    if force and cancel:
        raise typer.BadParameter("--force cannot be combined with --cancel")
    if force:
        confirm(f"Permanently give up the data of bookie {bookie}?", yes=yes)
        run_at(uri, _give_up(bookie, uri, as_json=as_json))
        return

    async def command() -> bool:
        from bookie.autorecovery.move_job import decommission as empty
        from bookie.autorecovery.move_job import keep
        from bookie.autorecovery.protocol.move_job import MoveOutcome

        async with connected(uri) as client:
            name = await bookie_named(client.store, bookie)
            if cancel:
                await keep(client, BookieId(name))
                _say(
                    f"bookie {name} stays; 'dlog bookie readonly off' lets it accept entries again"
                )
                return True
            with progress_bar(f"emptying {name}") as advance:
                done = await empty(
                    client, BookieId(name), on_report=shown_reports(advance, as_json=as_json)
                )
            ended = done.outcome in {MoveOutcome.EMPTY, MoveOutcome.RETIRED}
            meant = "" if ended else await near_bookies(client.store, [name])
        if as_json:
            print_json({"bookie": name, "outcome": done.outcome.name.lower(), "why": done.why})
        else:
            why = f": {done.why}" if done.why else ""
            _say(f"bookie {name}: {done.outcome.value}{why}{meant}")
        return ended

    run_check(uri, command())


async def _give_up(bookie: str, uri: str | None, *, as_json: bool) -> None:
    """Retire the name, and say which ledgers name it still."""
    from bookie.autorecovery.move_job import keep, recover_bookies
    from bookie.autorecovery.protocol.move_job import MoveRequest
    from bookie.tools.format import check_forgettable, retire

    async with connected(uri) as client:
        bookie = await bookie_named(client.store, bookie)
        await check_forgettable(client.store, bookie, None)
        if not await retire(client.store, bookie, None, why=_FORCED):
            meant = await near_bookies(client.store, [bookie])
            raise failed(f"no bookie {bookie!r} is known; see 'dlog bookie list'{meant}")
        await keep(client, BookieId(bookie))  # there is nothing to be emptied any more
        begin = MoveRequest(frozenset({BookieId(bookie)}), survey_only=True)
        survey = (await recover_bookies(client, begin, bytes_per_s=0)).surveyed
    if as_json:
        print_json(
            {
                "bookie": bookie,
                "outcome": "retired",
                "ledgers_left": survey.held.ledgers,
                "bytes_left": survey.held.bytes,
                "without_source": list(survey.without_source),
            }
        )
        return
    _say(f"the name {bookie} is retired: no bookie can use it again")
    if survey.held.ledgers:
        size = format_size(survey.held.bytes)
        named = counted(survey.held.ledgers, "ledger")
        _say(f"it is named by {named} still, {size}: repair copies what others have")
    if survey.without_source:
        names = ", ".join(map(str, survey.without_source))
        _say(f"no available bookie has some entries of ledgers {names}")


def shown_reports(advance: Advance, *, as_json: bool) -> "Callable[[Report], None]":
    """Return what shows each report: a bar, and a line on stdout if something has changed."""
    from bookie.autorecovery.worker import Estimate

    clock = asyncio.get_running_loop().time
    estimate = Estimate(_WINDOW_S)
    most = 0
    shown = ""

    def show(report: "Report") -> None:
        nonlocal most, shown
        estimate.note(report.bytes_left, clock())
        most = max(most, report.bytes_left)
        left_s = estimate.left_s(report.bytes_left)
        words = f"{counted(report.ledgers_left, 'ledger')} left, {format_size(report.bytes_left)}"
        rate = (
            f", {format_size(estimate.per_s)}/s, {format_duration(left_s)} left" if left_s else ""
        )
        advance(most - report.bytes_left, most, words + rate)
        if as_json:
            print_json(_facts(report, estimate.per_s, left_s))
            return
        hopeless = ", ".join(map(str, report.hopeless))
        words += f"; no bookie has some entries of ledgers {hopeless}" if hopeless else ""
        words += (
            f"; {counted(report.unreadable, 'ledger')} cannot be read" if report.unreadable else ""
        )
        if report.marked and not report.ledgers_left:
            words += f"; {counted(report.marked, 'ledger')} marked for it still"
        words += f"; {report.trouble}" if report.trouble else ""
        if words != shown:
            _say(words + rate)
            shown = words

    return show


def _facts(report: "Report", per_s: float, left_s: float | None) -> dict[str, object]:
    return {
        "ledgers_left": report.ledgers_left,
        "bytes_left": report.bytes_left,
        "bytes_per_s": round(per_s),
        "left_s": left_s,
        "unreadable": report.unreadable,
        "marked": report.marked,
        "with_lost_entries": list(report.hopeless),
        "trouble": report.trouble,
    }


def _say(line: str) -> None:
    write_text(line + "\n")
    sys.stdout.flush()


_WHY: Final = "an operator replaced it by bookie {new}"


@app.define(
    CHANGES,
    "dlog bookie start --dir /data/new --id bookie-7",
    "dlog bookie replace bookie-3 bookie-7",
    "dlog bookie replace bookie-3 bookie-7 --yes --rate 100 --json",
)
def replace(
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD", autocompletion=complete_bookie, help="Name of the lost bookie."
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW",
            autocompletion=complete_bookie,
            help="Name of the bookie that replaces it.",
        ),
    ],
    *,
    rate: Rate = RATE,
    ledgers: Ledgers = 4,
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Replace a bookie whose disk or machine is permanently gone by a new one.

    First retires the name of the old one, so that it never serves again; then copies its data
    to the new one, from the other copies; finally checks that no ledger names it any more.
    Entries of which the new one already has a copy go to others. May be interrupted at any
    moment, and repeated. No process of 'dlog autorecovery' is needed; those that run help, and
    choose bookies themselves.

    Asks, unless --yes: if the disk of the old one is whole, move its directories to the new
    machine instead, and use 'dlog bookie decommission' for one that still runs. Exits with 1 if
    it is refused, or if not all could be copied; the name then stays retired, and the command
    can be run again."""
    if old == new:
        raise typer.BadParameter("a new bookie gets another name: start it with another --id")
    confirm(f"Permanently give up the data of bookie {old}, and replace it by {new}?", yes=yes)

    async def command() -> bool:
        from bookie.autorecovery.move_job import replace_bookie
        from bookie.autorecovery.protocol.move_job import MoveOutcome

        async with connected(uri) as client:
            gone = await bookie_named(client.store, old)
            taker = await bookie_named(client.store, new)
            await _retire(client, gone, taker)
            with progress_bar(f"replacing {gone}") as advance:
                done = await replace_bookie(
                    client,
                    BookieId(gone),
                    BookieId(taker),
                    bytes_per_s=rate * MIB,
                    ledgers_max=ledgers,
                    on_progress=shown_recovery(advance),
                    on_report=shown_reports(advance, as_json=as_json),
                )
        finish = done.recovery.finish
        if finish.outcome in {MoveOutcome.UNKNOWN, MoveOutcome.SERVES, MoveOutcome.NO_TARGET}:
            raise failed(finish.why)
        _show(gone, done, as_json=as_json)
        return done.departure is not None

    run_check(uri, command())


async def _retire(client: "LedgerClient", old: str, new: str) -> None:
    from bookie.tools.format import check_forgettable, retire

    if new not in client.bookies.writable():
        meant = await near_bookies(client.store, [new])
        raise failed(f"bookie {new} is not registered, or not writable; start it first{meant}")
    await check_forgettable(client.store, old, None)
    await retire(client.store, old, None, why=_WHY.format(new=new))


def _show(old: str, done: "Replacement", *, as_json: bool) -> None:
    if as_json:
        emptied, facts = done.departure is not None, recovery_facts(done.recovery)
        print_json({"bookie": old, **facts, "name": "retired", "emptied": emptied})
        return
    print_recovered(done.recovery)
    if done.departure is None:
        sys.stdout.write(f"bookie {old} stays retired until all is copied: run this again\n")
    else:
        sys.stdout.write(f"bookie {old}: {done.departure.outcome.value}\n")
