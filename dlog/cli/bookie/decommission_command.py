"""``dlog bookie decommission``: a bookie leaves the cluster; what it holds is copied first."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.bookie.operating_shown import shown_duration, shown_size
from dlog.cli.connections import connected
from dlog.cli.names import bookie_named, complete_bookie, near_bookies
from dlog.cli.options import Json, Uri, Yes, examples
from dlog.cli.output import Advance, print_json, shown_bar, write_text
from dlog.cli.runner import FAILED, failed, run_at
from ledger.ids import BookieId
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.protocol.decommission import Report

_FORCED: Final = "an operator gave up its data"
_WINDOW_S: Final = 600.0
"""Reports come when all ledgers were read: a rate is taken over several of them."""


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie decommission bookie-0",
            "dlog bookie decommission bookie-0 --cancel",
            "dlog bookie decommission bookie-0 --force",
        )
    )(decommission)


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
        if not yes:
            question = f"Permanently give up the data of bookie {bookie}?"
            typer.confirm(question, abort=True, err=True)
        run_at(uri, _give_up(bookie, uri, as_json=as_json))
        return

    async def command() -> bool:
        from bookie.autorecovery.decommission import decommission as empty
        from bookie.autorecovery.decommission import keep
        from bookie.autorecovery.protocol.decommission import DecommissionOutcome

        async with connected(uri) as client:
            name = await bookie_named(client.store, bookie)
            if cancel:
                await keep(client, BookieId(name))
                _say(
                    f"bookie {name} stays; 'dlog bookie readonly off' lets it accept entries again"
                )
                return True
            with shown_bar(f"emptying {name}") as advance:
                done = await empty(
                    client, BookieId(name), on_report=shown_reports(advance, as_json=as_json)
                )
            ended = done.outcome in {DecommissionOutcome.EMPTY, DecommissionOutcome.RETIRED}
            meant = "" if ended else await near_bookies(client.store, [name])
        if as_json:
            print_json({"bookie": name, "outcome": done.outcome.name.lower(), "why": done.why})
        else:
            why = f": {done.why}" if done.why else ""
            _say(f"bookie {name}: {done.outcome.value}{why}{meant}")
        return ended

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _give_up(bookie: str, uri: str | None, *, as_json: bool) -> None:
    """Retire the name, and say which ledgers name it still."""
    from bookie.autorecovery.decommission import keep
    from bookie.autorecovery.move_job import recover_bookies
    from bookie.autorecovery.protocol.move_job import RecoveryRequest
    from bookie.tools.format import check_forgettable, retire

    async with connected(uri) as client:
        bookie = await bookie_named(client.store, bookie)
        await check_forgettable(client.store, bookie, None)
        if not await retire(client.store, bookie, None, why=_FORCED):
            meant = await near_bookies(client.store, [bookie])
            raise failed(f"no bookie {bookie!r} is known; see 'dlog bookie list'{meant}")
        await keep(client, BookieId(bookie))  # there is nothing to be emptied any more
        begin = RecoveryRequest(frozenset({BookieId(bookie)}), survey_only=True)
        found = (await recover_bookies(client, begin, bytes_per_s=0)).surveyed
    if as_json:
        print_json(
            {
                "bookie": bookie,
                "outcome": "retired",
                "ledgers_left": found.held.ledgers,
                "bytes_left": found.held.bytes,
                "without_source": list(found.without_source),
            }
        )
        return
    _say(f"the name {bookie} is retired: no bookie can use it again")
    if found.held.ledgers:
        size = shown_size(found.held.bytes)
        named = counted(found.held.ledgers, "ledger")
        _say(f"it is named by {named} still, {size}: repair copies what others have")
    if found.without_source:
        names = ", ".join(map(str, found.without_source))
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
        words = f"{counted(report.ledgers_left, 'ledger')} left, {shown_size(report.bytes_left)}"
        rate = f", {shown_size(estimate.per_s)}/s, {shown_duration(left_s)} left" if left_s else ""
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
