"""``dlog ledger``: the ledgers that logs are made of. Reading never disturbs a writer."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup
from dlog.cli.connections import connected, opened_store
from dlog.cli.options import Json, LedgerNumber, Uri, Yes
from dlog.cli.output import (
    Column,
    View,
    answer,
    format_bytes,
    format_quorum,
    format_time,
    json_bytes,
    json_column,
    print_json,
    print_lines,
    print_table,
    text_column,
)
from dlog.cli.runner import run_at
from ledger.errors import LedgerClosed
from ledger.ids import LedgerId
from ledger.metadata import LedgerState
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.status import MarkedLedger
    from ledger.forced_close import BookieHolding, Evidence
    from ledger.mark import MissingReplica
    from ledger.metadata import Fragment, LedgerMetadata

app = CommandGroup("cli#ledgers-bookies-a-local-cluster")


def _format_missing(missing: "list[dict[str, object]]") -> str:
    return ", ".join(f"{replica['bookie']} ({replica['reason']})" for replica in missing)


def _next_repair(marked: "MarkedLedger") -> str:
    if marked.worker:
        return f"now, by {marked.worker}"
    return format_time(marked.mark.not_before_ms) if marked.mark.not_before_ms else "at once"


def _or_open(end: int | None) -> object:
    return "open" if end is None else end


_MISSING: "Final[View[MissingReplica]]" = View(
    Column("bookie", lambda replica: replica.bookie),
    Column("reason", lambda replica: replica.reason.name.lower()),
    Column("since_ms", lambda replica: replica.since_ms),
)
MARKED: "Final[View[MarkedLedger]]" = View(
    Column("ledger", lambda marked: marked.ledger_id),
    Column("lacks", lambda marked: _MISSING.rows(marked.mark.missing), None, _format_missing),
    text_column("since", lambda marked: format_time(min(k.since_ms for k in marked.mark.missing))),
    Column("attempts", lambda marked: marked.mark.attempts),
    json_column("not_before_ms", lambda marked: marked.mark.not_before_ms),
    json_column("waiting_for_bookies", lambda marked: marked.mark.wants_bookie),
    json_column("lost_entries", lambda marked: [list(span) for span in marked.mark.lost]),
    json_column("different_entries", lambda marked: [list(span) for span in marked.mark.differing]),
    json_column("urgent", lambda marked: marked.mark.urgent),
    text_column("next", _next_repair),
    Column("why", lambda marked: marked.mark.deferred_why),
    json_column("worker", lambda marked: marked.worker),
)
_FRAGMENT: "Final[View[Fragment]]" = View(
    json_column("first_entry", lambda fragment: fragment.first_entry),
    json_column("bookies", lambda fragment: list(fragment.bookies)),
)
_LEDGER: "Final[View[tuple[int, LedgerMetadata]]]" = View(
    Column("ledger", lambda ledger: ledger[0]),
    Column("state", lambda ledger: ledger[1].state.name),
    Column("last_entry", lambda ledger: ledger[1].last_entry, None, _or_open),
    Column("length", lambda ledger: ledger[1].length, "bytes", _or_open),
    text_column("quorum", lambda ledger: format_quorum(ledger[1].quorum)),
    json_column("ensemble", lambda ledger: ledger[1].quorum.ensemble),
    json_column("write_quorum", lambda ledger: ledger[1].quorum.write),
    json_column("ack_quorum", lambda ledger: ledger[1].quorum.ack),
    Column("digest", lambda ledger: ledger[1].digest.name),
    Column("created_ms", lambda ledger: ledger[1].created_ms, "created", format_time),
    json_column(
        "custom", lambda ledger: {n: json_bytes(v) for n, v in sorted(ledger[1].custom.items())}
    ),
    json_column("fragments", lambda ledger: _FRAGMENT.rows(ledger[1].fragments)),
)

Password = Annotated[
    str, typer.Option(envvar="LEDGER_PASSWORD", help="Password with which the ledger was created.")
]


@app.define(READS, "dlog ledger list", "dlog ledger list --json", name="list")
def list_ledgers(uri: Uri = None, as_json: Json = False) -> None:
    """List the ids of all ledgers of the namespace."""

    async def command() -> None:
        async with connected(uri) as client:
            ledger_ids = sorted([ledger_id async for ledger_id in client.list()])
        if as_json:
            print_json(ledger_ids)
        else:
            sys.stdout.writelines(f"{ledger_id}\n" for ledger_id in ledger_ids)

    run_at(uri, command())


@app.define(READS, "dlog ledger show 12", "dlog ledger show 12 --json")
def show(ledger: LedgerNumber, uri: Uri = None, as_json: Json = False) -> None:
    """Show a ledger's state, its end, and which bookies hold which entries."""

    async def command() -> None:
        async with connected(uri) as client:
            metadata, version = await client.ledgers.read(LedgerId(ledger))
        if as_json:
            print_json({**_LEDGER.json((ledger, metadata)), "version": version})
        else:
            _print_ledger(ledger, metadata)

    run_at(uri, command())


@app.define(
    READS, "dlog ledger read 12", "dlog ledger read 12 --first 100 --last 199 --json | jq .payload"
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


@app.define(CHANGES, "dlog ledger recover 12")
def recover(
    ledger: LedgerNumber, password: Password = "", uri: Uri = None, as_json: Json = False
) -> None:
    """Fence a ledger, which stops its writer if it has one, and close it where it ends.

    Everything that was acknowledged to the writer is kept. A closed ledger stays as it is."""

    async def command() -> None:
        async with connected(uri) as client:
            metadata = await client.recover(LedgerId(ledger), password=password.encode())
        answer(
            _LEDGER.json((ledger, metadata)),
            f"ledger {ledger} is {metadata.state.name}; its last entry is "
            f"{metadata.last_entry}, {counted(metadata.length or 0, 'byte')}\n",
            as_json=as_json,
        )

    run_at(uri, command())


@app.define(
    CHANGES,
    "dlog ledger close-at 12 199",
    "dlog ledger close-at 12 199 --yes --json",
    name="close-at",
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
                _print_evidence(evidence, entry)
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
                    **_LEDGER.json((ledger, closed.metadata)),
                    "cut": closed.cut,
                    "short_of_copies": closed.short,
                    "confirmed": closed.evidence.confirmed,
                    "bookies": _evidence_view(entry).rows(closed.evidence.holdings),
                }
            )
        else:
            _print_evidence(closed.evidence, entry)
            typer.echo(
                f"ledger {ledger} is CLOSED at {entry}; {counted(closed.cut, 'entry')} cut, "
                f"{closed.short} have fewer copies than they should: repair makes them",
                err=True,
            )

    run_at(uri, command())


@app.define(READS, "dlog ledger underreplicated", "dlog ledger underreplicated --json | jq .lacks")
def underreplicated(uri: Uri = None, as_json: Json = False) -> None:
    """List the ledgers that are marked as underreplicated, and the state of their repair.

    'dlog autorecovery status' counts them."""

    async def command() -> None:
        from bookie.autorecovery.status import underreplicated as marked_ledgers

        async with opened_store(uri) as store:
            ledgers = await marked_ledgers(store)
        if as_json:
            for marked in ledgers:
                print_json(MARKED.json(marked))
        elif ledgers:
            MARKED.table(ledgers)
        else:
            sys.stdout.write("no ledger is known to be underreplicated\n")

    run_at(uri, command())


def _claim(holding: "BookieHolding") -> str:
    if not holding.answers:
        return "does not answer"
    if holding.is_deleted:
        return "has deleted it"
    return "all that it ever had" if holding.is_complete else "may have had more"


def _evidence_view(end: int) -> "View[BookieHolding]":
    """Return how it is shown what a bookie holds from the last fragment on, and what closing at
    *end* cuts of it."""
    return View(
        Column("bookie", lambda holding: holding.bookie),
        Column(
            "member",
            lambda holding: holding.is_member,
            "in the ledger",
            lambda is_member: "member" if is_member else "-",
        ),
        json_column("answers", lambda holding: holding.answers),
        json_column("last_entry", lambda holding: holding.last_entry),
        text_column("highest entry", lambda h: h.last_entry if h.spans else "-"),
        Column("cut", lambda holding: holding.count_above(end)),
        Column(
            "proven_lac",
            lambda holding: holding.lac,
            "proven LAC",
            lambda lac: lac if lac >= 0 else "-",
        ),
        Column("fenced", lambda holding: holding.is_fenced),
        json_column("deleted", lambda holding: holding.is_deleted),
        json_column("complete", lambda holding: holding.is_complete),
        text_column("says", _claim),
    )


def _print_evidence(evidence: "Evidence", end: int) -> None:
    _evidence_view(end).table(evidence.holdings)
    sys.stdout.write(
        f"bookies hold all entries up to {evidence.end}; those up to {evidence.confirmed} are "
        "proven to be confirmed\n"
    )


def _print_ledger(ledger: int, metadata: "LedgerMetadata") -> None:
    lines = _LEDGER.lines((ledger, metadata))
    lines |= {name: format_bytes(metadata.custom[name]) for name in sorted(metadata.custom)}
    print_lines(lines)
    sys.stdout.write("\n")
    rows = []
    for fragment in metadata.fragments:
        end = metadata.fragment_end(fragment)
        rows.append(
            (fragment.first_entry, "..." if end is None else end, ", ".join(fragment.bookies))
        )
    print_table(("from entry", "to", "bookies"), rows)


def _print_entry(entry_id: int, payload: bytes, *, as_json: bool) -> None:
    answer(
        {"entry": entry_id, "length": len(payload), "payload": json_bytes(payload)},
        f"{entry_id}\t{len(payload)}\t{format_bytes(payload)}\n",
        as_json=as_json,
    )
