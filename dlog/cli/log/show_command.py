"""``dlog log show``: what a log holds, segment by segment."""

import sys
from typing import TYPE_CHECKING
from uuid import UUID

import typer

from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_time
from dlog.cli.runner import run_at
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.aio.admin import CompressionSample, LogInfo
    from dlog.aio.port import Ledgers
    from dlog.manifest import Segment
    from leader import LeaderInfo


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples("dlog log show flights", "dlog log show flights --json | jq .records")
    )(show)


def show(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Show a log: offsets, segments and their ledgers, settings, its writer.

    The epoch and the owner are those of the last writer that took it over; the leader is the
    winner of the election, if there is one. Bytes are payload, stored as often as the write
    quorum says. The ratio is that of stored bytes to bytes before compression, in the newest
    entries: a sample, for which at most a few megabytes are read."""

    async def command() -> None:
        from dlog.aio.admin import log_info
        from leader import current_leader

        async with connected(uri) as client:
            info = await log_info(log, client=client)
            leader = await current_leader(client.store, log)
            sample = await _sample(client, log)
        if as_json:
            print_json(log_facts(info, leader, sample))
        else:
            _print_log(info, leader, sample)

    run_at(uri, command())


async def _sample(client: "Ledgers", log: str) -> "CompressionSample | None":
    """Return how well the log is compressed; None also if bookies do not say: the rest is known."""
    from dlog.aio.admin import log_compression
    from ledger.errors import LogError

    try:
        return await log_compression(log, client=client)
    except (LogError, TimeoutError) as error:
        typer.echo(f"ratio unknown: {str(error) or 'bookies take too long'}", err=True)
        return None


def log_facts(
    info: "LogInfo", leader: "LeaderInfo | None", sample: "CompressionSample | None"
) -> dict[str, object]:
    from dlog.settings import settings_facts

    manifest, tail = info.manifest, info.tail
    return {
        "log": info.name,
        "incarnation": manifest.incarnation,
        "first_offset": tail.first_offset,
        "next_offset": tail.next_offset,
        "records": info.records,
        "bytes": sum(segment.sealed.bytes for segment in manifest.segments if segment.sealed),
        "last_txid": tail.last_txid,
        "epoch": manifest.epoch,
        "owner": manifest.owner,
        "sealed": manifest.sealed,
        "units": {receipt.origin.hex(): receipt.number for receipt in manifest.receipts},
        "leader": leader and {"candidate": leader.candidate, "epoch": leader.epoch},
        "segments": [segment_facts(segment) for segment in manifest.segments],
        "deleting": list(manifest.deleting),
        "settings": settings_facts(manifest.settings),
        "compression": sample and _sample_facts(sample),
    }


def _sample_facts(sample: "CompressionSample") -> dict[str, object]:
    return {
        "ratio": round(sample.ratio, 4),
        "stored_bytes": sample.stored_bytes,
        "uncompressed_bytes": sample.uncompressed_bytes,
        "codecs": [codec.name.lower() for codec in sample.codecs],
        "sample_entries": sample.entries,
        "sample_records": sample.records,
    }


def segment_facts(segment: "Segment") -> dict[str, object]:
    sealed = segment.sealed
    return {
        "segment": segment.number,
        "ledger": segment.ledger_id,
        "state": "sealed" if sealed else "open",
        "first_offset": segment.first_offset,
        "next_offset": segment.end_offset,
        "records": sealed.records if sealed else None,
        "bytes": sealed.bytes if sealed else None,
        "created_ms": segment.created_ms,
        "first_timestamp_ms": sealed.first_timestamp_ms if sealed else None,
        "last_timestamp_ms": sealed.last_timestamp_ms if sealed else None,
    }


def print_segments(segments: "tuple[Segment, ...]", *, next_offset: int | None = None) -> None:
    """Print a line for each; *next_offset* is the log's, up to which the last one may go."""
    rows = []
    for segment in segments:
        sealed, first, end = segment.sealed, segment.first_offset, segment.end_offset
        if sealed is None and segment is segments[-1]:
            end = next_offset
        # The end is as of a moment before: the last segment may be newer.
        records = None if first is None or end is None else max(0, end - first)
        rows.append(
            (
                segment.number,
                segment.ledger_id,
                "sealed" if sealed else "open",
                "?" if first is None else first,
                "?" if records is None else end - 1 if records and end is not None else "-",
                "?" if records is None else records,
                sealed.bytes if sealed else "?",
                shown_time(segment.created_ms),
                shown_time(sealed.last_timestamp_ms) if sealed and records else "-",
            )
        )
    columns = (
        "segment",
        "ledger",
        "state",
        "from",
        "to",
        "records",
        "bytes",
        "created",
        "last record",
    )
    print_table(columns, rows)


def _print_log(
    info: "LogInfo", leader: "LeaderInfo | None", sample: "CompressionSample | None"
) -> None:
    from dlog.settings import codec_name

    manifest, tail, settings = info.manifest, info.tail, info.manifest.settings
    quorum = settings.quorum
    facts: dict[str, object] = {
        "log": info.name,
        "records": info.records,
        "offsets": f"{tail.first_offset} to {tail.next_offset - 1}" if info.records else "none",
        "trimmed before": manifest.trim_offset or "-",
        "last txid": "-" if tail.last_txid is None else tail.last_txid,
        "epoch": manifest.epoch or "-",
        "owner": manifest.owner or "-",
        "leader": f"{leader.candidate} (term {leader.epoch})" if leader else "none",
        "sealed": "yes" if manifest.sealed else "no",
        "quorum": f"E={quorum.ensemble} Qw={quorum.write} Qa={quorum.ack}",
        "codec": codec_name(settings),
        "ratio": "-" if sample is None else _shown_sample(sample),
    }
    for receipt in manifest.receipts:
        facts[f"last unit of {UUID(bytes=receipt.origin)}"] = receipt.number
    if manifest.deleting:
        facts["ledgers to go"] = ", ".join(map(str, manifest.deleting))
    print_facts(facts)
    if manifest.segments:
        sys.stdout.write("\n")
        print_segments(manifest.segments, next_offset=tail.next_offset)


def _shown_sample(sample: "CompressionSample") -> str:
    codecs = " and ".join(codec.name.lower() for codec in sample.codecs)
    return (
        f"{sample.ratio:.2f} ({codecs}: {counted(sample.stored_bytes, 'byte')} stored of "
        f"{sample.uncompressed_bytes:,}; sample: newest {counted(sample.records, 'record')}, "
        f"entries: {sample.entries:,})"
    )
