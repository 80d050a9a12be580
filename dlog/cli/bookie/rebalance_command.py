"""``dlog bookie rebalance``: closed ledgers go from full bookies to empty ones."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.autorecovery.options import MIB, RATE, Ledgers
from dlog.cli.bookie.operating_shown import shown_duration, shown_size
from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import Advance, print_json, print_table, shown_bar
from dlog.cli.runner import FAILED, run_at
from ledger.options import mebibytes
from ledger.options import size as size_of
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.move_job import Rebalanced


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie rebalance --dry-run",
            "dlog bookie rebalance --rate 8 --bytes 100G",
        )
    )(rebalance)


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
            with shown_bar("rebalancing") as advance:
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
            words = f"{counted(done.moved, 'ledger')}, {shown_size(done.moved_bytes)} moved"
            left_s = estimate.left_s(total - done.moved_bytes)
            if left_s:
                words += f", {shown_size(estimate.per_s)}/s, at most {shown_duration(left_s)} left"
        advance(min(done.moved_bytes, total), total, words)

    return show


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
        "bookies": [
            {
                "bookie": bookie,
                "bytes_before": done.before[bookie],
                "bytes_after": done.after[bookie],
            }
            for bookie in sorted(done.before)
        ],
    }


def _print(done: "Rebalanced", *, dry_run: bool) -> None:
    print_table(
        ("bookie", "holds", "would hold" if dry_run else "holds then"),
        (
            (bookie, shown_size(done.before[bookie]), shown_size(done.after[bookie]))
            for bookie in sorted(done.before)
        ),
    )
    if dry_run:
        sys.stdout.write(
            f"{counted(done.chosen, 'ledger')} would move, {shown_size(done.chosen_bytes)}\n"
        )
    else:
        sys.stdout.write(f"{counted(done.moved, 'ledger')} moved, {shown_size(done.moved_bytes)}\n")
    if done.failed:
        sys.stdout.write(f"{counted(done.failed, 'ledger')} could not be moved; {done.why}\n")
    if not done.is_even:
        sys.stdout.write("some bookies are still far from the mean\n")
