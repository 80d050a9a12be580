"""``dlog bookie recover|rebalance``: copies go to other bookies, by the command itself."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.autorecovery.options import MIB, RATE, Ledgers, Rate
from dlog.cli.commands import CommandGroup, changes_unless
from dlog.cli.completion import bookie_named, complete_bookie, near_bookies
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri
from dlog.cli.output import (
    Advance,
    Column,
    View,
    format_duration,
    format_size,
    print_json,
    progress_bar,
)
from dlog.cli.runner import FAILED, failed, run_at
from ledger.ids import BookieId
from ledger.options import mebibytes
from ledger.options import size as size_of
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.move_job import Progress, Rebalanced, RecoveryResult

app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


@app.define(
    changes_unless("dry_run"),
    "dlog bookie recover bookie-3 --dry-run",
    "dlog bookie recover bookie-3",
    "dlog bookie recover bookie-3 bookie-4 --into bookie-7 --into bookie-8 --rate 100",
)
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
        from bookie.autorecovery.protocol.move_job import MoveOutcome, MoveRequest

        async with connected(uri) as client:
            named = [
                [await bookie_named(client.store, b) for b in g] for g in (bookies, into or ())
            ]
            lost, targets = (frozenset(map(BookieId, names)) for names in named)
            begin = MoveRequest(lost, targets, survey_only=dry_run)
            with progress_bar(f"recovering {', '.join(sorted(bookies))}") as advance:
                done = await recover_bookies(
                    client,
                    begin,
                    bytes_per_s=rate * MIB,
                    ledgers_max=ledgers,
                    on_progress=shown_recovery(advance),
                )
            if done.finish.outcome in {MoveOutcome.UNKNOWN, MoveOutcome.NO_TARGET}:
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
        nonlocal estimate
        if progress.surveyed is None:  # also of the next part of a replacement
            estimate = Estimate()
            advance(0, None, progress.doing)
            return
        estimate.note(progress.bytes, clock())
        total = progress.surveyed.held.bytes
        left_s = estimate.left_s(total - progress.bytes)
        words = f"{format_size(progress.bytes)} of {format_size(total)}, {progress.doing}"
        if left_s:
            words += f", {format_size(estimate.per_s)}/s, {format_duration(left_s)} left"
        advance(min(progress.bytes, total), total, words)

    return show


def _show(done: "RecoveryResult", *, as_json: bool) -> bool:
    """Show how it ended; return whether it is as it was wanted."""
    from bookie.autorecovery.protocol.move_job import MoveOutcome

    finish = done.finish
    if finish.outcome is MoveOutcome.SERVES:
        raise failed(finish.why)
    if as_json:
        print_json(recovery_facts(done))
    else:
        print_recovered(done)
    return finish.outcome in {MoveOutcome.COMPLETE, MoveOutcome.SURVEYED}


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
    from bookie.autorecovery.protocol.move_job import MoveOutcome

    finish, held = done.finish, done.surveyed.held
    if finish.outcome is MoveOutcome.SURVEYED:
        sys.stdout.write(
            f"{counted(held.ledgers, 'ledger')} to repair: {counted(held.fragments, 'fragment')}, "
            f"{counted(held.entries, 'entry')}, {format_size(held.bytes)}\n"
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
        f"{counted(done.entries, 'entry')} copied, {format_size(done.bytes)}\n"
    )
    if finish.outcome is not MoveOutcome.COMPLETE:
        sys.stdout.write(f"{counted(finish.left, 'ledger')} left; {finish.why}\n")
    if finish.lost:
        names = ", ".join(map(str, finish.lost))
        sys.stdout.write(f"no bookie has some entries of ledgers {names}\n")


@app.define(
    changes_unless("dry_run"),
    "dlog bookie rebalance --dry-run",
    "dlog bookie rebalance --rate 8 --bytes 100G",
)
def rebalance(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Move nothing; report what would be moved.")
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Move at most this many bytes, as 100G.",
            parser=size_of(),
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        int,
        typer.Option(
            help="Tolerated deviation from the mean, in per cent.",
            min=0,
            max=100,
        ),
    ] = 10,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            help="MiB (or 100M, 1G) copied a second; 0: no limit.",
            parser=mebibytes,
            metavar="SIZE",
        ),
    ] = RATE,
    ledgers: Ledgers = 4,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Move closed ledgers from full bookies to emptier ones, such as new ones.

    A new bookie gets its share of new ledgers at once; this gives it its share of old ones. All
    copies of a ledger serve meanwhile, and it keeps the number of its racks. Sizes are
    estimates from the metadata. The old bookie's garbage collection later removes what was
    moved.

    May be interrupted at any moment, and repeated: one run moves each ledger at most once, so a
    second one may find more to do. Exits with 1 if a ledger could not be moved."""

    async def command() -> "Rebalanced":
        from bookie.autorecovery.move_job import rebalance as move

        async with connected(uri) as client:
            with progress_bar("rebalancing") as advance:
                return await move(
                    client,
                    bytes_per_s=rate * MIB,
                    tolerance=tolerance / 100,
                    bytes_max=size,
                    ledgers_max=ledgers,
                    dry_run=dry_run,
                    on_progress=_shown(advance),
                )

    done = run_at(uri, command())
    if as_json:
        print_json(_facts(done, dry_run=dry_run))
    else:
        _print(done, dry_run=dry_run)
    if done.failed:
        raise typer.Exit(FAILED)


def _shown(advance: Advance) -> "Callable[[Rebalanced], None]":
    """Show what was moved of what was chosen so far: what there is to move is found on the way."""
    from bookie.autorecovery.worker import Estimate

    clock = asyncio.get_running_loop().time
    estimate = Estimate()

    def show(done: "Rebalanced") -> None:
        estimate.note(done.moved_bytes, clock())
        words = f"{counted(done.ledgers_read, 'ledger')} read"
        total = 0
        if done.before:
            mean = sum(done.before.values()) / len(done.before)
            total = round(sum(max(0.0, load - mean) for load in done.before.values()))
            words = f"{counted(done.moved, 'ledger')}, {format_size(done.moved_bytes)} moved"
            left_s = estimate.left_s(total - done.moved_bytes)
            if left_s:
                words += (
                    f", {format_size(estimate.per_s)}/s, at most {format_duration(left_s)} left"
                )
        advance(min(done.moved_bytes, total), total, words)

    return show


def _load_view(done: "Rebalanced", *, dry_run: bool) -> View[BookieId]:
    after = "would hold" if dry_run else "holds then"
    return View(
        Column("bookie", lambda bookie: bookie),
        Column("bytes_before", lambda bookie: done.before[bookie], "holds", format_size),
        Column("bytes_after", lambda bookie: done.after[bookie], after, format_size),
    )


def _facts(done: "Rebalanced", *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "chosen_ledgers": done.chosen,
        "chosen_bytes": done.chosen_bytes,
        "moved_ledgers": done.moved,
        "moved_bytes": done.moved_bytes,
        "failed_ledgers": done.failed,
        "why": done.why,
        "even": done.is_even,
        "bookies": _load_view(done, dry_run=dry_run).rows(sorted(done.before)),
    }


def _print(done: "Rebalanced", *, dry_run: bool) -> None:
    _load_view(done, dry_run=dry_run).table(sorted(done.before))
    if dry_run:
        sys.stdout.write(
            f"{counted(done.chosen, 'ledger')} would move, {format_size(done.chosen_bytes)}\n"
        )
    else:
        sys.stdout.write(
            f"{counted(done.moved, 'ledger')} moved, {format_size(done.moved_bytes)}\n"
        )
    if done.failed:
        sys.stdout.write(f"{counted(done.failed, 'ledger')} could not be moved; {done.why}\n")
    if not done.is_even:
        sys.stdout.write("some bookies are still far from the mean\n")
