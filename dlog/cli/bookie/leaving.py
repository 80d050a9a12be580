"""``dlog bookie decommission``: a bookie leaves the cluster; what it holds is copied first."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.connections import connected
from dlog.cli.options import Json, Uri, examples
from dlog.cli.render.output import print_json
from dlog.cli.runner import FAILED, run_at
from ledger.ids import BookieId

if TYPE_CHECKING:
    from bookie.autorecovery.protocol.decommissioning import Report


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie decommission bookie-0",
            "dlog bookie decommission bookie-0 --cancel",
        )
    )(decommission)


def decommission(
    bookie: Annotated[
        str, typer.Argument(metavar="BOOKIE", help="Name, as 'dlog bookie list' shows it.")
    ],
    *,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Keep the bookie: take back what was announced.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Empty a bookie for good, whether it runs or is gone: all it holds is copied to others.

    It is made read-only first and serves reads meanwhile. The copies are made by the processes of
    'dlog autorecovery', which have to run. Once nothing names it any more, stop it, and run the
    command again: then its name is forgotten. May be interrupted, and repeated, at any moment.

    Prints what is left, with --json a line each time. Exits with 1 if it cannot be done: the
    bookie is not known, or there are too few others."""

    async def command() -> bool:
        from bookie.autorecovery.decommissioning import decommission as empty
        from bookie.autorecovery.decommissioning import keep
        from bookie.autorecovery.protocol.decommissioning import Outcome

        async with connected(uri) as client:
            if cancel:
                await keep(client, BookieId(bookie))
                _say(f"bookie {bookie} stays; 'dlog bookie readonly off' lets entries in again")
                return True
            done = await empty(
                client, BookieId(bookie), on_report=lambda report: _show(report, as_json=as_json)
            )
        if as_json:
            print_json({"bookie": bookie, "outcome": done.outcome.name.lower(), "why": done.why})
        else:
            why = f": {done.why}" if done.why else ""
            _say(f"bookie {bookie}: {done.outcome.value}{why}")
        return done.outcome in {Outcome.EMPTY, Outcome.FORGOTTEN}

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


def _show(report: "Report", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "ledgers_left": report.ledgers_left,
                "bytes_left": report.bytes_left,
                "unreadable": report.unreadable,
                "marked": report.marked,
                "with_lost_entries": list(report.hopeless),
                "trouble": report.trouble,
            }
        )
        return
    hopeless = ", ".join(map(str, report.hopeless))
    _say(
        f"{report.ledgers_left} ledgers left, {report.bytes_left} bytes"
        + (f"; nobody has some entries of ledgers {hopeless}" if hopeless else "")
        + (f"; {report.unreadable} ledgers cannot be read" if report.unreadable else "")
        + (f"; {report.trouble}" if report.trouble else "")
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
