"""``dlog bookie recover``: what lost bookies held is copied to others, by the command itself."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.autorecovery.options import MIB, RATE, Ledgers, Rate
from dlog.cli.bookie.operating_shown import shown_duration, shown_size
from dlog.cli.connections import connected
from dlog.cli.names import bookie_named, complete_bookie, near_bookies
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import Advance, print_json, shown_bar
from dlog.cli.runner import FAILED, failed, run_at
from ledger.ids import BookieId
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.move_job import Progress, RecoveryResult


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie recover bookie-3 --dry-run",
            "dlog bookie recover bookie-3",
            "dlog bookie recover bookie-3 bookie-4 --into bookie-7 --into bookie-8 --rate 100",
        )
    )(recover)


def recover(
    bookies: Annotated[
        list[str],
        typer.Argument(
            metavar="BOOKIE...",
            autocompletion=complete_bookie,
            help="Names of lost bookies, all at once.",
        ),
    ],
    *,
    into: Annotated[
        list[str] | None,
        typer.Option(
            "--into",
            metavar="BOOKIE",
            autocompletion=complete_bookie,
            help="Copy to this bookie; repeat it for several. Default: all writable bookies.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; report what would be copied.")
    ] = False,
    rate: Rate = RATE,
    ledgers: Ledgers = 4,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Copy all data of lost bookies to others, now, and wait until it is done.

    The processes of 'dlog autorecovery' do the same automatically once a bookie is lost; this
    needs none of them, waits for no delay, and copies where you say. It runs even while 'dlog
    autorecovery disable' pauses them. May be interrupted at any moment, and repeated: what was
    copied stays. Name bookies that are lost at the same time together, so that none is used as
    a source. The writer of an open log has 30 s to drop them itself, as with autorecovery.

    Nothing is changed for an available bookie: 'dlog bookie decommission' empties one that
    runs. The names stay known; 'dlog bookie decommission' retires them. Exits with 1 if it is
    refused, or if not all could be copied: then it reports what is left, and why."""

    async def command() -> "RecoveryResult":
        from bookie.autorecovery.move_job import recover_bookies
        from bookie.autorecovery.protocol.move_job import RecoveryOutcome, RecoveryRequest

        async with connected(uri) as client:
            named = [
                [await bookie_named(client.store, b) for b in g] for g in (bookies, into or ())
            ]
            lost, targets = (frozenset(map(BookieId, names)) for names in named)
            begin = RecoveryRequest(lost, targets, survey_only=dry_run)
            with shown_bar(f"recovering {', '.join(sorted(bookies))}") as advance:
                done = await recover_bookies(
                    client,
                    begin,
                    bytes_per_s=rate * MIB,
                    ledgers_max=ledgers,
                    on_progress=shown_recovery(advance),
                )
            if done.finish.outcome in {RecoveryOutcome.UNKNOWN, RecoveryOutcome.NO_TARGET}:
                raise failed(f"{done.finish.why}{await near_bookies(client.store, lost | targets)}")
            return done

    if not _show(run_at(uri, command()), as_json=as_json):
        raise typer.Exit(FAILED)


def shown_recovery(advance: Advance) -> "Callable[[Progress], None]":
    """Show a recovery's progress as a bar, with its rate and when it will be done."""
    from bookie.autorecovery.worker import Estimate

    clock = asyncio.get_running_loop().time
    estimate = Estimate()

    def show(progress: "Progress") -> None:
        if progress.surveyed is None:
            advance(0, None, progress.doing)
            return
        estimate.note(progress.bytes, clock())
        total = progress.surveyed.held.bytes
        left_s = estimate.left_s(total - progress.bytes)
        words = f"{shown_size(progress.bytes)} of {shown_size(total)}, {progress.doing}"
        if left_s:
            words += f", {shown_size(estimate.per_s)}/s, {shown_duration(left_s)} left"
        advance(min(progress.bytes, total), total, words)

    return show


def _show(done: "RecoveryResult", *, as_json: bool) -> bool:
    """Show how it ended; return whether it is as it was wanted."""
    from bookie.autorecovery.protocol.move_job import RecoveryOutcome

    finish = done.finish
    if finish.outcome is RecoveryOutcome.SERVES:
        raise failed(finish.why)
    if as_json:
        print_json(recovery_facts(done))
    else:
        print_recovered(done)
    return finish.outcome in {RecoveryOutcome.COMPLETE, RecoveryOutcome.SURVEYED}


def recovery_facts(done: "RecoveryResult") -> dict[str, object]:
    finish, held = done.finish, done.surveyed.held
    return {
        "outcome": finish.outcome.name.lower(),
        "why": finish.why,
        "ledgers": held.ledgers,
        "fragments": held.fragments,
        "open_fragments": held.open,
        "entries": held.entries,
        "bytes": held.bytes,
        "without_source": list(done.surveyed.without_source),
        "unreadable": done.surveyed.unreadable,
        "repaired_ledgers": done.repaired,
        "copied_entries": done.entries,
        "copied_bytes": done.bytes,
        "left_ledgers": finish.left,
        "with_lost_entries": list(finish.lost),
    }


def print_recovered(done: "RecoveryResult") -> None:
    from bookie.autorecovery.protocol.move_job import RecoveryOutcome

    finish, held = done.finish, done.surveyed.held
    if finish.outcome is RecoveryOutcome.SURVEYED:
        sys.stdout.write(
            f"{counted(held.ledgers, 'ledger')} to repair: {counted(held.fragments, 'fragment')}, "
            f"{counted(held.entries, 'entry')}, {shown_size(held.bytes)}\n"
        )
        if held.open:
            sys.stdout.write(
                f"of them {counted(held.open, 'fragment')} at the end of a ledger that is still "
                "open: how many entries it holds is known once the ledger is closed\n"
            )
        if done.surveyed.without_source:
            names = ", ".join(map(str, done.surveyed.without_source))
            sys.stdout.write(f"no available bookie has some entries of ledgers {names}\n")
        return
    sys.stdout.write(
        f"{finish.outcome.value}: {counted(done.repaired, 'ledger')} repaired, "
        f"{counted(done.entries, 'entry')} copied, {shown_size(done.bytes)}\n"
    )
    if finish.outcome is not RecoveryOutcome.COMPLETE:
        sys.stdout.write(f"{counted(finish.left, 'ledger')} left; {finish.why}\n")
    if finish.lost:
        names = ", ".join(map(str, finish.lost))
        sys.stdout.write(f"no bookie has some entries of ledgers {names}\n")
