"""``dlog bookie replace``: a new bookie takes over what one held whose disk or machine is gone."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bookie.autorecovery.options import MIB, RATE, Ledgers, Rate
from dlog.cli.bookie.decommission_command import shown_reports
from dlog.cli.bookie.recover_command import print_recovered, recovery_facts, shown_recovery
from dlog.cli.connections import connected
from dlog.cli.names import bookie_named, complete_bookie, near_bookies
from dlog.cli.options import Json, Uri, Yes, examples
from dlog.cli.output import print_json, shown_bar
from dlog.cli.runner import FAILED, failed, run_at
from ledger.ids import BookieId

if TYPE_CHECKING:
    from bookie.autorecovery.move_job import RecoveryResult
    from bookie.autorecovery.protocol.decommission import DecommissionEnd as Left
    from ledger.client import LedgerClient

_WHY: Final = "an operator replaced it by bookie {new}"


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie start --dir /data/new --id bookie-7",
            "dlog bookie replace bookie-3 bookie-7",
            "dlog bookie replace bookie-3 bookie-7 --yes --rate 100 --json",
        )
    )(replace)


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
    if not yes:
        question = f"Permanently give up the data of bookie {old}, and replace it by {new}?"
        typer.confirm(question, abort=True, err=True)

    async def command() -> bool:
        async with connected(uri) as client:
            gone = await bookie_named(client.store, old)
            taker = await bookie_named(client.store, new)
            await _retire(client, gone, taker)
            done = await _recover(client, gone, taker, rate, ledgers)
            whole = not done.finish.left and not done.finish.why
            left = await _leave(client, gone, rate, as_json=as_json) if whole else None
        _show(gone, done, left, as_json=as_json)
        return left is not None

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _retire(client: "LedgerClient", old: str, new: str) -> None:
    from bookie.tools.format import check_forgettable, retire

    if new not in client.bookies.writable():
        meant = await near_bookies(client.store, [new])
        raise failed(f"bookie {new} is not registered, or not writable; start it first{meant}")
    await check_forgettable(client.store, old, None)
    await retire(client.store, old, None, why=_WHY.format(new=new))


async def _recover(
    client: "LedgerClient", old: str, new: str, rate: float, ledgers: int
) -> "RecoveryResult":
    """Copy into *new* what can go there, and the rest anywhere."""
    from bookie.autorecovery.move_job import recover_bookies
    from bookie.autorecovery.protocol.move_job import NOBODY, RecoveryOutcome, RecoveryRequest

    async def into(targets: frozenset[BookieId]) -> "RecoveryResult":
        with shown_bar(f"replacing {old}") as advance:
            return await recover_bookies(
                client,
                RecoveryRequest(frozenset({BookieId(old)}), targets),
                bytes_per_s=rate * MIB,
                ledgers_max=ledgers,
                on_progress=shown_recovery(advance),
            )

    done = await into(frozenset({BookieId(new)}))
    if done.finish.outcome is RecoveryOutcome.INCOMPLETE:
        done = done.followed_by(await into(NOBODY))
    if done.finish.outcome in {
        RecoveryOutcome.UNKNOWN,
        RecoveryOutcome.SERVES,
        RecoveryOutcome.NO_TARGET,
    }:
        raise failed(done.finish.why)
    return done


async def _leave(client: "LedgerClient", old: str, rate: float, *, as_json: bool) -> "Left":
    """See that nothing names it any more. A worker runs beside it: marks may name the bookie, and
    no other process works on them."""
    from bookie.autorecovery.decommission import decommission
    from bookie.autorecovery.worker import Worker, WorkerConfig

    config = WorkerConfig(bytes_per_s=rate * MIB, look_s=1.0)
    with shown_bar(f"emptying {old}") as advance:
        async with Worker(client, config):
            return await decommission(
                client, BookieId(old), on_report=shown_reports(advance, as_json=as_json)
            )


def _show(old: str, done: "RecoveryResult", left: "Left | None", *, as_json: bool) -> None:
    if as_json:
        emptied = left is not None
        print_json({"bookie": old, **recovery_facts(done), "name": "retired", "emptied": emptied})
        return
    print_recovered(done)
    if left is None:
        sys.stdout.write(f"bookie {old} stays retired until all is copied: run this again\n")
    else:
        sys.stdout.write(f"bookie {old}: {left.outcome.value}\n")
