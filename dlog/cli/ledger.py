"""``dlog ledger``: the ledgers that logs are made of. Reading never disturbs a writer."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, LedgerNumber, Uri, Yes, examples
from dlog.cli.output import (
    json_bytes,
    print_facts,
    print_json,
    print_table,
    shown_bytes,
    shown_time,
)
from dlog.cli.runner import run_at
from ledger.errors import LedgerClosed
from ledger.ids import LedgerId
from ledger.metadata import LedgerState
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.status import MarkedLedger
    from ledger.forced_close import BookieHolding, Evidence
    from ledger.metadata import LedgerMetadata

app = typer.Typer()

Password = Annotated[
    str, typer.Option(envvar="LEDGER_PASSWORD", help="Password with which the ledger was created.")
]


@app.command("list", epilog=examples("dlog ledger list", "dlog ledger list --json"))
def list_ledgers(uri: Uri = None, as_json: Json = False) -> None:
    """List the ids of all ledgers of the namespace."""

    async def command() -> None:
        async with connected(uri) as client:
            found = sorted([ledger_id async for ledger_id in client.list()])
        if as_json:
            print_json(found)
        else:
            sys.stdout.writelines(f"{ledger_id}\n" for ledger_id in found)

    run_at(uri, command())


@app.command(epilog=examples("dlog ledger show 12", "dlog ledger show 12 --json"))
def show(ledger: LedgerNumber, uri: Uri = None, as_json: Json = False) -> None:
    """Show a ledger's state, its end, and which bookies hold which entries."""

    async def command() -> None:
        async with connected(uri) as client:
            metadata, version = await client.ledgers.read(LedgerId(ledger))
        if as_json:
            print_json({**ledger_facts(ledger, metadata), "version": version})
        else:
            _print_ledger(ledger, metadata)

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog ledger read 12", "dlog ledger read 12 --first 100 --last 199 --json | jq .payload"
    )
)
def read(
    ledger: LedgerNumber,
    first: Annotated[int, typer.Option(help="First entry to read.", min=0)] = 0,
    last: Annotated[
        int | None, typer.Option(help="Last entry to read. Default: the last confirmed one.")
    ] = None,
    password: Password = "",
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Read the confirmed entries of a ledger, while its writer continues if it has one.

    With --json, a payload that is not UTF-8 text is {"base64": ...}."""

    async def command() -> None:
        async with connected(uri) as client:
            reader = await client.open_no_recovery(LedgerId(ledger), password=password.encode())
            try:
                position = first
                while last is None or position <= last:
                    entries = await reader.read_some(position)
                    for entry in entries:
                        if last is None or entry.entry_id <= last:
                            _print_entry(entry.entry_id, bytes(entry.payload), as_json=as_json)
                    if not entries:
                        break
                    position = entries[-1].entry_id + 1
            finally:
                await reader.close()

    run_at(uri, command())


@app.command(epilog=examples("dlog ledger recover 12"))
def recover(
    ledger: LedgerNumber, password: Password = "", uri: Uri = None, as_json: Json = False
) -> None:
    """Fence a ledger, which stops its writer if it has one, and close it where it ends.

    Everything that was acknowledged to the writer is kept. A closed ledger stays as it is."""

    async def command() -> None:
        async with connected(uri) as client:
            metadata = await client.recover(LedgerId(ledger), password=password.encode())
        if as_json:
            print_json(ledger_facts(ledger, metadata))
        else:
            sys.stdout.write(
                f"ledger {ledger} is {metadata.state.name}; its last entry is "
                f"{metadata.last_entry}, {counted(metadata.length or 0, 'byte')}\n"
            )

    run_at(uri, command())


@app.command(
    "close-at",
    epilog=examples("dlog ledger close-at 12 199", "dlog ledger close-at 12 199 --yes --json"),
)
def close_at(
    ledger: LedgerNumber,
    entry: Annotated[int, typer.Argument(help="The last entry to keep; -1: none.", min=-1)],
    *,
    below_confirmed: Annotated[
        bool,
        typer.Option(
            "--below-confirmed",
            help="Close it even if entries are cut that are proven to be confirmed: they are lost.",
        ),
    ] = False,
    password: Password = "",
    yes: Yes = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Close a ledger at an entry of your choice: the last resort when no recovery succeeds.

    First shows what each bookie holds, and what would be cut, and asks, unless --yes. Bookies
    that are gone do not block it; entries that only they hold are lost. Entries up to ENTRY are
    copied to the bookies of the ledger that lack them. Try 'dlog ledger recover' first, and
    bring back the bookies that it names."""

    async def command() -> None:
        from ledger.forced_close import force_close, gather_evidence

        async with connected(uri) as client:
            ledger_id = LedgerId(ledger)
            metadata = await client.describe(ledger_id)
            keys = client.credentials(ledger_id, metadata, password.encode())
            if metadata.state is LedgerState.CLOSED:
                assert metadata.last_entry is not None, "it is CLOSED"
                raise LedgerClosed(ledger_id, metadata.last_entry)
            if not yes:
                evidence = await gather_evidence(client.environment, keys, metadata)
                shown_evidence(evidence, entry)
                typer.confirm(f"Close ledger {ledger} at {entry}?", abort=True, err=True)
            closed = await force_close(
                client.environment,
                ledger_id,
                entry,
                credentials=keys,
                below_confirmed=below_confirmed,
            )
        if as_json:
            print_json(
                {
                    **ledger_facts(ledger, closed.metadata),
                    "cut": closed.cut,
                    "short_of_copies": closed.short,
                    "confirmed": closed.evidence.confirmed,
                    "bookies": evidence_facts(closed.evidence, entry),
                }
            )
        else:
            shown_evidence(closed.evidence, entry)
            typer.echo(
                f"ledger {ledger} is CLOSED at {entry}; {counted(closed.cut, 'entry')} cut, "
                f"{closed.short} have fewer copies than they should: repair makes them",
                err=True,
            )

    run_at(uri, command())


@app.command(
    epilog=examples("dlog ledger underreplicated", "dlog ledger underreplicated --json | jq .lacks")
)
def underreplicated(uri: Uri = None, as_json: Json = False) -> None:
    """List the ledgers that are marked as underreplicated, and the state of their repair.

    'dlog autorecovery status' counts them."""

    async def command() -> None:
        from bookie.autorecovery.status import underreplicated as marked_ledgers

        async with opened_store(uri) as store:
            found = await marked_ledgers(store)
        if as_json:
            for each in found:
                print_json(mark_facts(each))
        elif found:
            print_table(
                ("ledger", "lacks", "since", "attempts", "next", "why"),
                (
                    (
                        each.ledger_id,
                        ", ".join(f"{k.bookie} ({k.reason.name.lower()})" for k in each.mark.lacks),
                        shown_time(min(lack.since_ms for lack in each.mark.lacks)),
                        each.mark.attempts,
                        f"now, by {each.worker}" if each.worker else _shown_next(each),
                        each.mark.deferred_why or "-",
                    )
                    for each in found
                ),
            )
        else:
            sys.stdout.write("no ledger is known to be underreplicated\n")

    run_at(uri, command())


def _shown_next(marked: "MarkedLedger") -> str:
    return shown_time(marked.mark.not_before_ms) if marked.mark.not_before_ms else "at once"


def evidence_facts(evidence: "Evidence", end: int) -> list[dict[str, object]]:
    return [
        {
            "bookie": holding.bookie,
            "member": holding.is_member,
            "answers": holding.answers,
            "last_entry": holding.last_entry,
            "cut": holding.count_above(end),
            "proven_lac": holding.lac,
            "fenced": holding.is_fenced,
            "deleted": holding.is_deleted,
            "complete": holding.is_complete,
        }
        for holding in evidence.holdings
    ]


def shown_evidence(evidence: "Evidence", end: int) -> None:
    """Print what each bookie holds from the last fragment on, and what closing at *end* cuts."""

    def said(holding: "BookieHolding") -> str:
        if not holding.answers:
            return "does not answer"
        if holding.is_deleted:
            return "has deleted it"
        return "all that it ever had" if holding.is_complete else "may have had more"

    print_table(
        ("bookie", "in the ledger", "highest entry", "cut", "proven LAC", "fenced", "says"),
        (
            (
                holding.bookie,
                "member" if holding.is_member else "-",
                holding.last_entry if holding.spans else "-",
                holding.count_above(end),
                holding.lac if holding.lac >= 0 else "-",
                "yes" if holding.is_fenced else "no",
                said(holding),
            )
            for holding in evidence.holdings
        ),
    )
    sys.stdout.write(
        f"all up to {evidence.end} is held by somebody; up to {evidence.confirmed} it is proven to "
        "be confirmed\n"
    )


def mark_facts(marked: "MarkedLedger") -> dict[str, object]:
    mark = marked.mark
    return {
        "ledger": marked.ledger_id,
        "lacks": [
            {
                "bookie": lack.bookie,
                "reason": lack.reason.name.lower(),
                "since_ms": lack.since_ms,
            }
            for lack in mark.lacks
        ],
        "attempts": mark.attempts,
        "not_before_ms": mark.not_before_ms,
        "waiting_for_bookies": mark.wants_bookie,
        "lost_entries": [list(span) for span in mark.lost],
        "different_entries": [list(span) for span in mark.differing],
        "urgent": mark.urgent,
        "why": mark.deferred_why,
        "worker": marked.worker,
    }


def ledger_facts(ledger: int, metadata: "LedgerMetadata") -> dict[str, object]:
    return {
        "ledger": ledger,
        "state": metadata.state.name,
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "ensemble": metadata.quorum.ensemble,
        "write_quorum": metadata.quorum.write,
        "ack_quorum": metadata.quorum.ack,
        "digest": metadata.digest.name,
        "created_ms": metadata.created_ms,
        "custom": {name: json_bytes(metadata.custom[name]) for name in sorted(metadata.custom)},
        "fragments": [
            {"first_entry": fragment.first_entry, "bookies": list(fragment.bookies)}
            for fragment in metadata.fragments
        ],
    }


def _print_ledger(ledger: int, metadata: "LedgerMetadata") -> None:
    quorum = metadata.quorum
    facts: dict[str, object] = {
        "ledger": ledger,
        "state": metadata.state.name,
        "last entry": "open" if metadata.last_entry is None else metadata.last_entry,
        "bytes": "open" if metadata.length is None else metadata.length,
        "quorum": f"E={quorum.ensemble} Qw={quorum.write} Qa={quorum.ack}",
        "digest": metadata.digest.name,
        "created": shown_time(metadata.created_ms),
    }
    for name in sorted(metadata.custom):
        facts[name] = shown_bytes(metadata.custom[name])
    print_facts(facts)
    sys.stdout.write("\n")
    rows = []
    for fragment in metadata.fragments:
        end = metadata.fragment_end(fragment)
        rows.append(
            (fragment.first_entry, "..." if end is None else end, ", ".join(fragment.bookies))
        )
    print_table(("from entry", "to", "bookies"), rows)


def _print_entry(entry_id: int, payload: bytes, *, as_json: bool) -> None:
    if as_json:
        print_json({"entry": entry_id, "length": len(payload), "payload": json_bytes(payload)})
    else:
        sys.stdout.write(f"{entry_id}\t{len(payload)}\t{shown_bytes(payload)}\n")
