"""``dlog log count|seek|dump|trace``: how many records, where they are, and what carries them."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.bookie.control import message_json
from dlog.cli.commands import READS, CommandGroup
from dlog.cli.completion import complete_position
from dlog.cli.connections import connected
from dlog.cli.log.tail import offset_of, record_json
from dlog.cli.options import Json, LogName, Uri, parse_start
from dlog.cli.output import (
    Column,
    View,
    format_bytes,
    format_size,
    format_time,
    json_bytes,
    json_column,
    print_json,
    print_lines,
    print_table,
    progress_bar,
    write_text,
)
from dlog.cli.runner import FAILED, failed, run_at
from dlog.config import load
from dlog.starts import START_HELP
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.chunk import Chunk
    from dlog.health.record_trace import TracedRecord, TracedReplica
    from dlog.position import DLSN, Record

_DUMP_COLUMNS: Final = (
    "dlsn",
    "offset",
    "records",
    "time",
    "txids",
    "codec",
    "stored",
    "values",
)

Start = Annotated[
    str,
    typer.Option(
        metavar="POSITION", help=f"Where to begin: {START_HELP}.", autocompletion=complete_position
    ),
]
Stop = Annotated[
    str,
    typer.Option(
        metavar="POSITION", help="End position (exclusive).", autocompletion=complete_position
    ),
]


app = CommandGroup("cli#logs")
_PLACE: "Final[View[tuple[str, int, Record | None]]]" = View(
    json_column("log", lambda place: place[0]),
    Column("offset", lambda place: place[1]),
    Column(
        "dlsn",
        lambda place: str(place[2].dlsn) if place[2] else None,
        form=lambda dlsn: dlsn or "- (the end: there is no record yet)",
    ),
    Column(
        "timestamp_ms",
        lambda place: place[2].timestamp_ms if place[2] else None,
        "time",
        lambda ms: "-" if ms is None else f"{format_time(ms)} ({ms} ms)",
    ),
    Column("txid", lambda place: place[2].txid if place[2] else None),
    json_column("key", lambda place: json_bytes(place[2].key) if place[2] else None),
)


@app.define(
    READS,
    "dlog log count flights",
    "dlog log count flights --start time:24h",
    "dlog log count flights --start 3:0:0 --stop 4:0:0 --json",
)
def count(
    log: LogName,
    *,
    start: Start = "start",
    stop: Stop = "end",
    read: Annotated[
        bool, typer.Option("--read", help="Read all records, and count their bytes, too.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Count the records of a log, or those between two positions.

    Offsets have no gaps, so nothing is read unless --read is given."""
    begin, end = parse_start(start), parse_start(stop, "--stop")

    async def command() -> dict[str, object]:
        from dlog.aio import Log

        async with connected(uri) as client:
            # The end is the smaller of the two: a position may name what is not there yet.
            last = await offset_of(client, log, "end")
            first = await offset_of(client, log, begin)
            until = min(last, await offset_of(client, log, end))
            facts: dict[str, object] = {
                "log": log,
                "first_offset": min(first, until),
                "next_offset": until,
                "records": max(0, until - first),
            }
            if not read:
                return facts
            records = key_bytes = value_bytes = 0
            reader = await Log.tail(
                log, start=min(first, until), stop=until, follow=False, client=client
            )
            try:
                with progress_bar(f"reading {log}") as advance:
                    async for chunk in reader.read_batches():
                        whole = chunk.take == chunk.batch.count
                        records += chunk.take
                        if whole:
                            value_bytes += chunk.batch.header.value_bytes
                            key_bytes += chunk.batch.header.key_bytes
                        else:
                            for record in chunk:
                                value_bytes += len(record.value)
                                key_bytes += len(record.key or b"")
                        advance(records, until - first, counted(records, "record"))
            finally:
                await reader.close()
            if records != facts["records"]:
                raise failed(
                    f"log {log!r}: read {counted(records, 'record')}, not {facts['records']}"
                )
            return {**facts, "value_bytes": value_bytes, "key_bytes": key_bytes}

    facts = run_at(uri, command())
    if as_json:
        print_json(facts)
    elif read:
        print_lines({name: facts[name] for name in ("records", "value_bytes", "key_bytes")})
    else:
        write_text(f"{facts['records']}\n")


@app.define(
    READS,
    "dlog log seek flights 1000",
    "dlog log seek flights 3:17:0 --json | jq .offset",
    "dlog log seek flights txid:5000",
    "dlog log seek flights time:2026-11-21T12:00:00",
)
def seek(
    log: LogName,
    position: Annotated[
        str,
        typer.Argument(metavar="POSITION", help=f"{START_HELP}.", autocompletion=complete_position),
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Convert a position: show offset, DLSN, timestamp and txid of the record there.

    A txid or time means the first record that reaches it. If there is no record yet, the offset
    is the end of the log, and the rest is unknown."""
    wanted = parse_start(position, "POSITION")

    async def command() -> None:
        from dlog.aio import Log
        from dlog.errors import InvalidPosition

        async with connected(uri) as client:
            offset = await offset_of(client, log, wanted)
            end = await offset_of(client, log, "end")
            if offset > end:
                raise InvalidPosition(log, offset, f"the log ends at offset {end}")
            record: Record | None = None
            if offset < end:
                reader = await Log.tail(
                    log, start=offset, stop=offset + 1, follow=False, client=client
                )
                try:
                    record = await anext(reader)
                finally:
                    await reader.close()
        _PLACE.print((log, offset, record), as_json=as_json)

    run_at(uri, command())


@app.define(
    READS,
    "dlog log dump flights",
    "dlog log dump flights --start 1000 --stop 2000 --records",
    "dlog log dump flights --json | jq 'select(.records > 1000)'",
)
def dump(
    log: LogName,
    *,
    start: Start = "start",
    stop: Stop = "end",
    records: Annotated[
        bool, typer.Option("--records", help="Print the records of each entry below it.")
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Print the entries of a log, one per line, with position, times and codec.

    The bytes are those of its values, and those of its body as it is stored. With --json, one
    line for each entry, and with --records also its records."""
    begin, end = parse_start(start), parse_start(stop, "--stop")

    async def command() -> None:
        from dlog.aio import Log

        async with connected(uri) as client:
            until = await offset_of(client, log, end)
            reader = await Log.tail(log, start=begin, stop=until, follow=False, client=client)
            if not as_json:
                write_text("\t".join(_DUMP_COLUMNS) + "\n")
            try:
                async for chunk in reader.read_batches():
                    if as_json:
                        print_json(chunk_json(chunk, records=records))
                    else:
                        _show_chunk(chunk, records=records)
            finally:
                await reader.close()

    run_at(uri, command())


def chunk_json(chunk: "Chunk", *, records: bool) -> dict[str, object]:
    from dlog.position import NO_TXID

    header = chunk.batch.header
    times = chunk.batch.timestamps_ms()[chunk.skip : chunk.skip + chunk.take]
    facts: dict[str, object] = {
        "segment": chunk.place.segment,
        "entry": chunk.place.entry,
        "first_offset": chunk.begin,
        "next_offset": chunk.end,
        "records": chunk.take,
        "first_slot": chunk.skip,
        "first_timestamp_ms": times[0],
        "last_timestamp_ms": times[-1],
        "first_txid": None if header.first_txid == NO_TXID else header.first_txid,
        "last_txid": None if header.last_txid == NO_TXID else header.last_txid,
        "codec": header.codec.name.lower(),
        "stored_bytes": header.stored_bytes,
        "value_bytes": header.value_bytes,
        "key_bytes": header.key_bytes,
        "headers_bytes": header.headers_bytes,
    }
    if records:
        facts["record_list"] = [record_json(record) for record in chunk]
    return facts


def _show_chunk(chunk: "Chunk", *, records: bool) -> None:
    facts = chunk_json(chunk, records=False)
    header = chunk.batch.header
    txids = "-" if facts["first_txid"] is None else f"{header.first_txid}..{header.last_txid}"
    cells = (
        f"{chunk.place.segment}:{chunk.place.entry}:{chunk.skip}",
        chunk.begin,
        chunk.take,
        format_time(chunk.batch.timestamps_ms()[chunk.skip]),
        txids,
        facts["codec"],
        header.stored_bytes,
        header.value_bytes,
    )
    write_text("\t".join(map(str, cells)) + "\n")
    if records:
        for record in chunk:
            key = "-" if record.key is None else format_bytes(record.key)
            txid = "-" if record.txid is None else record.txid
            write_text(f"  {record.offset}\t{txid}\t{key}\t{format_bytes(record.value)}\n")


@app.define(
    READS,
    "dlog log trace flights --offset 1000",
    "dlog log trace flights --dlsn 3:17:0",
    "dlog log trace flights --offset 1000 --json | jq '.replicas[].copies'",
)
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

    traced = run_at(uri, command())
    if as_json:
        print_json(_trace_json(traced))
    else:
        _print_trace(traced)
    if not traced.is_whole:
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


def _trace_json(traced: "TracedRecord") -> dict[str, object]:
    record, segment, metadata = traced.record, traced.segment, traced.metadata
    ensemble = () if metadata is None else metadata.fragment_of(traced.entry_id).bookies
    return {
        "log": traced.log,
        "offset": traced.offset,
        "dlsn": None if record is None else str(record.dlsn),
        "timestamp_ms": None if record is None else record.timestamp_ms,
        "txid": None if record is None else record.txid,
        "key": None if record is None else json_bytes(record.key),
        "encrypted_with": _encrypted_with(traced),
        "unread": traced.unread,
        "segment": segment.number,
        "sealed": segment.sealed is not None,
        "ledger": traced.ledger_id,
        "ledger_state": None if metadata is None else metadata.state.name,
        "object": segment.location.object and segment.location.object.name,
        "entry": traced.entry_id,
        "last_entry": _last_entry(traced),
        "ensemble": list(ensemble),
        "write_set": [replica.bookie for replica in traced.replicas],
        "ack_quorum": None if metadata is None else metadata.quorum.ack,
        "epoch": traced.writer.epoch,
        "owner": traced.writer.owner,
        "whole": traced.is_whole,
        "replicas": [_replica_json(replica) for replica in traced.replicas],
        "consumers": [
            {"consumer": name, "position": state.position, "passed": traced.has_passed(state)}
            for name, state in traced.consumers
        ],
    }


def _last_entry(traced: "TracedRecord") -> int | None:
    if traced.metadata is not None:
        return traced.metadata.last_entry
    sealed = traced.segment.sealed
    return None if sealed is None else sealed.last_entry


def _encrypted_with(traced: "TracedRecord") -> str:
    from dlog.encryption.ledgers import STAMP_KEY

    return traced.custom.get(STAMP_KEY, b"").decode(errors="replace")


def _replica_json(replica: "TracedReplica") -> dict[str, object]:
    answer = replica.told
    return {
        "bookie": replica.bookie,
        "fault": None if replica.fault is None else replica.fault.value,
        "crc32c": _checksum(replica),
        "silent": replica.silent,
        "ledger": None if answer is None else answer.ledger,
        "fenced": None if answer is None else answer.fenced,
        "doubts": "" if answer is None else answer.doubts,
        "copies": [] if answer is None else [message_json(copy) for copy in answer.copies],
    }


def _print_trace(traced: "TracedRecord") -> None:
    record, segment, metadata = traced.record, traced.segment, traced.metadata
    last = "..." if _last_entry(traced) is None else _last_entry(traced)
    facts: dict[str, object] = {}
    if record is None:
        facts["record"] = f"cannot be read: {traced.unread}"
    else:
        txid = "" if record.txid is None else f", txid {record.txid}"
        facts["record"] = (
            f"offset {record.offset}, DLSN {record.dlsn}, {format_time(record.timestamp_ms)}{txid}"
        )
    state = "sealed" if segment.sealed is not None else "not sealed"
    facts["segment"] = f"{segment.number}, {state}, created {format_time(segment.created_ms)}"
    if segment.location.object is not None:
        stored = segment.location.object
        facts["object"] = f"{stored.storage}/{stored.name}"
    if metadata is None:
        copy = segment.location.copy
        facts["ledger"] = f"{traced.ledger_id}, left the bookies"
        place = "the object" if copy is None else f"ledger {copy}, its local copy, or the object"
        facts["entry"] = f"{traced.entry_id} of 0..{last}, read from {place}"
    else:
        quorum = metadata.quorum
        facts["ledger"] = f"{traced.ledger_id}, {metadata.state.name}"
        facts["entry"] = (
            f"{traced.entry_id} of 0..{last}, on {quorum.write} of {quorum.ensemble} bookies, "
            f"acknowledged by {quorum.ack}"
        )
    if name := _encrypted_with(traced):
        facts["encrypted with"] = f"the key {name}"
    epoch = "an unknown epoch" if traced.writer.epoch is None else f"epoch {traced.writer.epoch}"
    facts["written by"] = f"{traced.writer.owner or 'an unknown writer'}, in {epoch}"
    for name, state_of in traced.consumers:
        passed = traced.has_passed(state_of)
        words = {True: "has passed it", False: "has not passed it", None: "?"}[passed]
        facts[f"consumer {name}"] = f"{words} (at {state_of.position})"
    print_lines(facts)
    if traced.replicas:
        write_text("\n")
        rows = [row for replica in traced.replicas for row in _rows(replica)]
        print_table(("bookie", "copy", "CRC32C", "where", "file", "at", "bytes", "since"), rows)
    for replica in traced.replicas:
        if replica.silent:
            write_text(f"bookie {replica.bookie} did not report where: {replica.silent}\n")
        elif replica.told is not None and replica.told.doubts:
            write_text(f"bookie {replica.bookie} is {replica.told.doubts}\n")
    sys.stdout.flush()


def _rows(replica: "TracedReplica") -> list[tuple[object, ...]]:
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
            format_size(copy.bytes),
            format_time(copy.since_ms),
        )
        for copy in replica.told.copies
    ]


def _checksum(replica: "TracedReplica") -> str | None:
    return None if replica.checksum is None else f"{replica.checksum:08x}"
