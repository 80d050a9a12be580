"""``dlog log trace``: the way of one record, down to the files of its bookies."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.bookie.operating_shown import message_facts, shown_size
from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import (
    json_bytes,
    print_facts,
    print_json,
    print_table,
    shown_time,
    write_text,
)
from dlog.cli.runner import FAILED, run_at
from dlog.config import load

if TYPE_CHECKING:
    from dlog.health.record_trace import Replica, TracedRecord
    from dlog.position import DLSN
    from ledger.metadata import LedgerMetadata


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog log trace flights --offset 1000",
            "dlog log trace flights --dlsn 3:17:0",
            "dlog log trace flights --offset 1000 --json | jq '.replicas[].copies'",
        )
    )(trace)


def trace(
    log: LogName,
    *,
    offset: Annotated[
        int | None,
        typer.Option("--offset", help="The record's position.", min=0, show_default=False),
    ] = None,
    dlsn: Annotated[
        str | None,
        typer.Option(
            "--dlsn",
            metavar="SEGMENT:ENTRY:SLOT",
            help="The record's position.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show where one record is: segment, ledger, entry, and what each of its bookies has of it.

    Queries each bookie that should have the entry twice: for the entry, which is verified, and,
    over the operator port, for its location: in memory, in the journal, in an entry log. Also
    shows who wrote it and which consumers have passed it. An entry that no bookie can return is
    traced all the same. Exits with 1 if a bookie does not return it whole and right."""
    place = _place(offset, dlsn)

    async def command() -> "TracedRecord":
        from dlog.health.record_trace import trace_record
        from ledger.security.certificates import Security

        settings = load()
        security = await Security.settled(settings.secured)
        async with connected(uri) as client:
            return await trace_record(
                client, log, place, timeout_s=settings.timeout_s, security=security
            )

    found = run_at(uri, command())
    if as_json:
        print_json(_facts(found))
    else:
        _print(found)
    if not found.is_whole:
        raise typer.Exit(FAILED)


def _place(offset: int | None, dlsn: str | None) -> "int | DLSN":
    from dlog.position import DLSN

    if (offset is None) == (dlsn is None):
        raise typer.BadParameter("give one of --offset and --dlsn")
    if dlsn is None:
        assert offset is not None
        return offset
    try:
        return DLSN.parse(dlsn)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--dlsn") from error


def _facts(found: "TracedRecord") -> dict[str, object]:
    record, segment, metadata = found.record, found.segment, found.metadata
    quorum = metadata.quorum
    return {
        "log": found.log,
        "offset": found.offset,
        "dlsn": None if record is None else str(record.dlsn),
        "timestamp_ms": None if record is None else record.timestamp_ms,
        "txid": None if record is None else record.txid,
        "key": None if record is None else json_bytes(record.key),
        "encrypted_with": _encrypted_with(metadata),
        "unread": found.unread,
        "segment": segment.number,
        "sealed": segment.sealed is not None,
        "ledger": found.ledger_id,
        "ledger_state": metadata.state.name,
        "entry": found.entry_id,
        "last_entry": metadata.last_entry,
        "ensemble": list(metadata.fragment_of(found.entry_id).bookies),
        "write_set": [replica.bookie for replica in found.replicas],
        "ack_quorum": quorum.ack,
        "epoch": found.writer.epoch,
        "owner": found.writer.owner,
        "whole": found.is_whole,
        "replicas": [_replica_facts(replica) for replica in found.replicas],
        "consumers": [
            {"consumer": name, "position": state.position, "passed": found.has_passed(state)}
            for name, state in found.consumers
        ],
    }


def _encrypted_with(metadata: "LedgerMetadata") -> str:
    from dlog.encryption.ledgers import STAMP_KEY

    return metadata.custom.get(STAMP_KEY, b"").decode(errors="replace")


def _replica_facts(replica: "Replica") -> dict[str, object]:
    told = replica.told
    return {
        "bookie": replica.bookie,
        "fault": None if replica.fault is None else replica.fault.value,
        "crc32c": _checksum(replica),
        "silent": replica.silent,
        "ledger": None if told is None else told.ledger,
        "fenced": None if told is None else told.fenced,
        "doubts": "" if told is None else told.doubts,
        "copies": [] if told is None else [message_facts(copy) for copy in told.copies],
    }


def _print(found: "TracedRecord") -> None:
    record, segment, metadata = found.record, found.segment, found.metadata
    quorum = metadata.quorum
    last = "..." if metadata.last_entry is None else metadata.last_entry
    facts: dict[str, object] = {}
    if record is None:
        facts["record"] = f"cannot be read: {found.unread}"
    else:
        txid = "" if record.txid is None else f", txid {record.txid}"
        facts["record"] = (
            f"offset {record.offset}, DLSN {record.dlsn}, {shown_time(record.timestamp_ms)}{txid}"
        )
    state = "sealed" if segment.sealed is not None else "not sealed"
    facts["segment"] = f"{segment.number}, {state}, created {shown_time(segment.created_ms)}"
    facts["ledger"] = f"{found.ledger_id}, {metadata.state.name}"
    facts["entry"] = (
        f"{found.entry_id} of 0..{last}, on {quorum.write} of {quorum.ensemble} bookies, "
        f"acknowledged by {quorum.ack}"
    )
    if name := _encrypted_with(metadata):
        facts["encrypted with"] = f"the key {name}"
    epoch = "an unknown epoch" if found.writer.epoch is None else f"epoch {found.writer.epoch}"
    facts["written by"] = f"{found.writer.owner or 'an unknown writer'}, in {epoch}"
    for name, state_of in found.consumers:
        passed = found.has_passed(state_of)
        words = {True: "has passed it", False: "has not passed it", None: "?"}[passed]
        facts[f"consumer {name}"] = f"{words} (at {state_of.position})"
    print_facts(facts)
    write_text("\n")
    rows = [row for replica in found.replicas for row in _rows(replica)]
    print_table(("bookie", "copy", "CRC32C", "where", "file", "at", "bytes", "since"), rows)
    for replica in found.replicas:
        if replica.silent:
            write_text(f"bookie {replica.bookie} did not report where: {replica.silent}\n")
        elif replica.told is not None and replica.told.doubts:
            write_text(f"bookie {replica.bookie} is {replica.told.doubts}\n")
    sys.stdout.flush()


def _rows(replica: "Replica") -> list[tuple[object, ...]]:
    verdict = "whole" if replica.fault is None else replica.fault.value.upper()
    given = replica.bookie, verdict, _checksum(replica) or "-"
    if replica.told is None:
        return [(*given, "?", "", "", "", "")]
    if not replica.told.copies:
        return [(*given, f"ledger {replica.told.ledger}", "", "", "", "")]
    return [
        (
            *given,
            f"{copy.place}: DAMAGED: {copy.damage}" if copy.damage else copy.place,
            copy.path or "-",
            copy.offset if copy.path else "-",
            shown_size(copy.bytes),
            shown_time(copy.since_ms),
        )
        for copy in replica.told.copies
    ]


def _checksum(replica: "Replica") -> str | None:
    return None if replica.checksum is None else f"{replica.checksum:08x}"
