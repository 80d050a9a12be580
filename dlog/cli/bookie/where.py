"""``dlog bookie where``: which bookies hold a ledger or a log, and what is lacking."""

from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.connections import connected
from dlog.cli.names import complete_log
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import print_json, print_table, shown_bar, write_text
from dlog.cli.runner import FAILED, run_at
from ledger.ids import LedgerId

if TYPE_CHECKING:
    from bookie.autorecovery.replica_scan import Holder, Located
    from ledger.client import LedgerClient


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog bookie where 12",
            "dlog bookie where flights",
            "dlog bookie where flights --json | jq 'select(.whole | not)'",
        )
    )(where)


def where(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="LEDGER|LOG",
            help="Id of a ledger, or name of a log; a number is an id.",
            autocompletion=complete_log,
        ),
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show which bookies hold which entries, whether they are available, and what they lack.

    Queries the available ones for what they hold; no entry is read ('dlog log verify' does
    that). With --json, one line for each ledger. Exits with 1 if a copy is missing: a bookie is
    unavailable, or reports that it lacks entries it should have."""

    async def command() -> bool:
        from bookie.autorecovery.replica_scan import locate, states_of

        is_whole = True
        async with connected(uri) as client:
            ledgers = await _ledgers(client, thing)
            states = await states_of(client)
            with shown_bar(f"asking the bookies of {thing}") as advance:
                for number, ledger_id in enumerate(ledgers):
                    advance(number, len(ledgers), f"ledger {ledger_id}")
                    located = await locate(client, ledger_id, states)
                    is_whole &= located.is_whole
                    if as_json:
                        print_json(_facts(located))
                    else:
                        _print(located)
        return is_whole

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _ledgers(client: "LedgerClient", thing: str) -> list[LedgerId]:
    if thing.isascii() and thing.isdigit():
        return [LedgerId(int(thing))]
    from dlog.aio.admin import log_info

    manifest = (await log_info(thing, client=client)).manifest
    return [segment.ledger_id for segment in manifest.segments]


def _facts(located: "Located") -> dict[str, object]:
    mark = located.mark
    return {
        "ledger": located.ledger_id,
        "state": located.metadata.state.name,
        "whole": located.is_whole,
        "marked": mark is not None,
        "why": "" if mark is None else mark.deferred_why,
        "fragments": [
            {
                "first_entry": place.first,
                "last_entry": place.last,
                "bookies": [
                    {
                        "bookie": holder.bookie,
                        "state": holder.state.value,
                        "missing": [list(span) for span in holder.missing],
                        "unsure": [list(span) for span in holder.unsure],
                    }
                    for holder in place.holders
                ],
            }
            for place in located.places
        ],
    }


def _print(located: "Located") -> None:
    mark = "" if located.mark is None else ", marked to be repaired"
    title = f"ledger {located.ledger_id}: {located.metadata.state.name}{mark}"
    rows = [
        (
            place.first,
            "..." if place.last is None else place.last,
            holder.bookie,
            holder.state.value,
            _lacks(holder),
        )
        for place in located.places
        for holder in place.holders
    ]
    print_table(("from entry", "to", "bookie", "state", "lacks"), rows, title)
    if located.mark is not None and located.mark.deferred_why:
        write_text(f"not repaired yet: {located.mark.deferred_why}\n")
    write_text("\n")


def _lacks(holder: "Holder") -> str:
    words = [f"{first}..{last}" for first, last in holder.missing]
    if holder.unsure:
        spans = ", ".join(f"{first}..{last}" for first, last in holder.unsure)
        words.append(f"{'did not say of' if holder.state.serves else 'cannot give'} {spans}")
    return ", ".join(words) or "-"
