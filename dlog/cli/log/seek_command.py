"""``dlog log count|seek|dump``: how many records, where they are, and what carries them."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.argument_values import parse_start
from dlog.cli.connections import connected
from dlog.cli.log.tail_command import offset_of, record_facts
from dlog.cli.names import complete_position
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import (
    json_bytes,
    print_facts,
    print_json,
    shown_bar,
    shown_bytes,
    shown_time,
    write_text,
)
from dlog.cli.runner import failed, run_at
from dlog.starts import START_HELP
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.chunk import Chunk
    from dlog.position import Record

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


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog log count flights",
            "dlog log count flights --start time:24h",
            "dlog log count flights --start 3:0:0 --stop 4:0:0 --json",
        )
    )(count)
    app.command(
        epilog=examples(
            "dlog log seek flights 1000",
            "dlog log seek flights 3:17:0 --json | jq .offset",
            "dlog log seek flights txid:5000",
            "dlog log seek flights time:2026-11-21T12:00:00",
        )
    )(seek)
    app.command(
        epilog=examples(
            "dlog log dump flights",
            "dlog log dump flights --start 1000 --stop 2000 --records",
            "dlog log dump flights --json | jq 'select(.records > 1000)'",
        )
    )(dump)


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
                with shown_bar(f"reading {log}") as advance:
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
        print_facts({name: facts[name] for name in ("records", "value_bytes", "key_bytes")})
    else:
        write_text(f"{facts['records']}\n")


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
        _show_place(log, offset, record, as_json=as_json)

    run_at(uri, command())


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
                        print_json(chunk_facts(chunk, records=records))
                    else:
                        _show_chunk(chunk, records=records)
            finally:
                await reader.close()

    run_at(uri, command())


def chunk_facts(chunk: "Chunk", *, records: bool) -> dict[str, object]:
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
        facts["record_list"] = [record_facts(record) for record in chunk]
    return facts


def _show_chunk(chunk: "Chunk", *, records: bool) -> None:
    facts = chunk_facts(chunk, records=False)
    header = chunk.batch.header
    txids = "-" if facts["first_txid"] is None else f"{header.first_txid}..{header.last_txid}"
    cells = (
        f"{chunk.place.segment}:{chunk.place.entry}:{chunk.skip}",
        chunk.begin,
        chunk.take,
        shown_time(chunk.batch.timestamps_ms()[chunk.skip]),
        txids,
        facts["codec"],
        header.stored_bytes,
        header.value_bytes,
    )
    write_text("\t".join(map(str, cells)) + "\n")
    if records:
        for record in chunk:
            key = "-" if record.key is None else shown_bytes(record.key)
            txid = "-" if record.txid is None else record.txid
            write_text(f"  {record.offset}\t{txid}\t{key}\t{shown_bytes(record.value)}\n")


def _show_place(log: str, offset: int, record: "Record | None", *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "log": log,
                "offset": offset,
                "dlsn": str(record.dlsn) if record else None,
                "timestamp_ms": record.timestamp_ms if record else None,
                "txid": record.txid if record else None,
                "key": json_bytes(record.key) if record else None,
            }
        )
        return
    facts: dict[str, object] = {"offset": offset, "dlsn": "-", "time": "-", "txid": "-"}
    if record is not None:
        facts["dlsn"] = record.dlsn
        facts["time"] = f"{shown_time(record.timestamp_ms)} ({record.timestamp_ms} ms)"
        facts["txid"] = "-" if record.txid is None else record.txid
    else:
        facts["dlsn"] = "- (the end: there is no record yet)"
    print_facts(facts)
