"""``dlog log list|show``: names of logs, what can be said of each at a look, and what one holds."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from dlog.cli.commands import READS, CommandGroup
from dlog.cli.connections import connected
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import (
    Column,
    View,
    answer,
    format_quorum,
    format_time,
    json_column,
    print_json,
    print_lines,
    print_table,
    text_column,
    warn,
)
from dlog.cli.runner import run_at
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.aio.admin import CompressionSample, LogInfo, LogTail
    from dlog.aio.port import Ledgers
    from dlog.manifest import Manifest, Segment, SegmentRun
    from leader import LeaderInfo
    from ledger.client import LedgerClient

TAILS_MAX: Final = 1000
"""Logs of one list that are read; what is left out is said."""
AT_ONCE_MAX: Final = 16
RATE_S: Final = 1.0
"""Between the two looks of which the rate is the difference."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One log; None: it is not known, as the log or a bookie did not answer."""

    log: str
    first_offset: int | None = None
    next_offset: int | None = None
    bytes: int | None = None
    records_per_s: float | None = None
    leader: str | None = None
    error: str = ""


app = CommandGroup("cli#logs")


def _format_estimate(size: int | None) -> str:
    """Return *size* in two or three digits: an estimate needs no more."""
    if size is None:
        return "-"
    for unit, bytes_ in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if size >= bytes_:
            return f"{size / bytes_:.3g}{unit}"
    return str(size)


_LINE: Final = View[LogLine](
    Column("log", lambda line: line.log),
    Column("first_offset", lambda line: line.first_offset, "first"),
    Column("next_offset", lambda line: line.next_offset, "end"),
    Column("bytes", lambda line: line.bytes, None, _format_estimate),
    json_column("records_per_s", lambda line: line.records_per_s and round(line.records_per_s, 1)),
    text_column(
        "records/s",
        lambda line: None if line.records_per_s is None else f"{line.records_per_s:,.0f}",
    ),
    Column("leader", lambda line: line.leader),
    json_column("trouble", lambda line: line.error or None),
)


@app.define(
    READS,
    "dlog log list",
    "dlog log list -l",
    "dlog log list --prefix eu/ --json",
    "dlog log list --no-recursive",
    "dlog log list --all",
    name="list",
)
def list_(
    prefix: Annotated[str, typer.Option(help="Only logs whose names start with this.")] = "",
    recursive: Annotated[
        bool,
        typer.Option(help="Print whole names; or only up to the next slash, as directories."),
    ] = True,
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            "-l",
            help="First offset, end, size, records appended a second, and leader of each: takes a "
            f"second or two, for {TAILS_MAX} logs at most.",
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Include dlog's own logs: their names start with '_'."),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the names of the logs. dlog's own logs are left out, and counted on stderr."""
    if long and not recursive:
        raise typer.BadParameter("names up to a slash are not logs", param_hint="--long")

    async def command() -> None:
        from dlog.aio.store import log_names
        from dlog.names import first_level, is_own

        async with connected(uri) as client:
            names = await log_names(client.store, prefix)
            listed = [name for name in names if everything or is_own(prefix) or not is_own(name)]
            if hidden := len(names) - len(listed):
                warn(f"{counted(hidden, 'log')} of dlog's own not listed; --all lists all")
            if not recursive:
                listed = first_level(listed, prefix)
            if not long:
                answer(listed, "".join(f"{name}\n" for name in listed), as_json=as_json)
                return
            lines = await tails_of(client, listed[:TAILS_MAX])
        if as_json:
            print_json(_LINE.rows(lines))
        else:
            _LINE.table(lines)
        for line in lines:
            if line.error:
                warn(f"{line.log}: {line.error}")
        if len(listed) > TAILS_MAX:
            warn(f"{counted(len(listed) - TAILS_MAX, 'more log')} left out; name a --prefix")

    run_at(uri, command())


async def tails_of(client: "LedgerClient", logs: list[str]) -> list[LogLine]:
    """Look at each twice, some at a time."""
    import asyncio

    turns = asyncio.Semaphore(AT_ONCE_MAX)

    async def look(log: str) -> LogLine:
        async with turns:
            return await _look(client, log)

    return list(await asyncio.gather(*map(look, logs)))


async def _look(client: "LedgerClient", log: str) -> LogLine:
    import asyncio

    from dlog.aio.read.tails import TailTracker
    from leader import current_leader
    from ledger.errors import LogError

    try:
        tracker = TailTracker(client, log)
        try:
            first = await tracker.poll()
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(RATE_S)
            tail = await tracker.poll()
            took_s = asyncio.get_running_loop().time() - began
        finally:
            await tracker.close()
        leader = await current_leader(client.store, log)
    except (LogError, TimeoutError) as error:
        return LogLine(log, error=str(error) or "no answer in time")
    sealed = [segment.sealed for segment in tail.segments if segment.sealed is not None]
    open_records = tail.next_offset - max(
        (segment.end_offset or 0 for segment in tail.segments if segment.sealed is not None),
        default=tail.first_offset,
    )
    return LogLine(
        log,
        tail.first_offset,
        tail.next_offset,
        sum(each.bytes for each in sealed)
        + sum(run.bytes for run in tail.runs)
        + round(max(0, open_records) * tail.record_bytes),
        max(0, tail.next_offset - first.next_offset) / took_s,
        leader.candidate if leader else None,
    )


@app.define(READS, "dlog log show flights", "dlog log show flights --json | jq .records")
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
        described = _Description(info, leader, sample)
        if as_json:
            print_json(_LOG.json(described))
        else:
            _print_log(described)

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


@dataclass(frozen=True, slots=True)
class _Description:
    info: "LogInfo"
    leader: "LeaderInfo | None"
    sample: "CompressionSample | None"

    @property
    def manifest(self) -> "Manifest":
        return self.info.manifest

    @property
    def tail(self) -> "LogTail":
        return self.info.tail

    def settings(self) -> "dict[str, int | float | str]":
        from dlog.settings import settings_facts

        return settings_facts(self.manifest.settings)

    def codec(self) -> str:
        from dlog.settings import codec_name

        return codec_name(self.manifest.settings)

    def offsets(self) -> str:
        tail = self.tail
        return f"{tail.first_offset} to {tail.next_offset - 1}" if self.info.records else "none"

    def stored_bytes(self) -> int:
        return self.manifest.sealed_bytes


_LOG: "Final[View[_Description]]" = View(
    Column("log", lambda log: log.info.name),
    json_column("incarnation", lambda log: log.manifest.incarnation),
    json_column("first_offset", lambda log: log.tail.first_offset),
    json_column("next_offset", lambda log: log.tail.next_offset),
    Column("records", lambda log: log.info.records),
    text_column("offsets", lambda log: log.offsets()),
    text_column("trimmed before", lambda log: log.manifest.trim_offset or None),
    json_column("bytes", lambda log: log.stored_bytes()),
    Column("last_txid", lambda log: log.tail.last_txid),
    Column("epoch", lambda log: log.manifest.epoch, form=lambda epoch: epoch or "-"),
    Column("owner", lambda log: log.manifest.owner),
    text_column(
        "leader",
        lambda log: f"{log.leader.candidate} (term {log.leader.epoch})" if log.leader else "none",
    ),
    Column("sealed", lambda log: log.manifest.sealed),
    text_column("quorum", lambda log: format_quorum(log.manifest.settings.quorum)),
    text_column("codec", lambda log: log.codec()),
    text_column("objects in", lambda log: log.manifest.storage or None, is_optional=True),
    text_column("ratio", lambda log: log.sample and _format_sample(log.sample)),
    json_column("units", lambda log: {r.origin.hex(): r.number for r in log.manifest.receipts}),
    json_column(
        "leader",
        lambda log: log.leader and {"candidate": log.leader.candidate, "epoch": log.leader.epoch},
    ),
    json_column("segments", lambda log: [segment_json(each) for each in log.manifest.segments]),
    json_column("runs", lambda log: [_run_json(each) for each in log.manifest.living_runs]),
    text_column(
        "segments before those below",
        lambda log: sum(run.segments for run in log.manifest.living_runs) or None,
        is_optional=True,
    ),
    json_column("deleting", lambda log: list(log.manifest.deleting)),
    json_column("deleting_objects", lambda log: [o.name for o in log.manifest.deleting_objects]),
    json_column("settings", lambda log: log.settings()),
    json_column("compression", lambda log: log.sample and _sample_json(log.sample)),
)


def _run_json(run: "SegmentRun") -> dict[str, object]:
    return {
        "first_segment": run.first_number,
        "last_segment": run.last_number,
        "segments": run.segments,
        "first_offset": run.first_offset,
        "records": run.records,
        "bytes": run.bytes,
        "index": run.index.name,
    }


def _sample_json(sample: "CompressionSample") -> dict[str, object]:
    return {
        "ratio": round(sample.ratio, 4),
        "stored_bytes": sample.stored_bytes,
        "uncompressed_bytes": sample.uncompressed_bytes,
        "codecs": [codec.name.lower() for codec in sample.codecs],
        "sample_entries": sample.entries,
        "sample_records": sample.records,
    }


def segment_json(segment: "Segment") -> dict[str, object]:
    sealed = segment.sealed
    return {
        "segment": segment.number,
        "ledger": segment.ledger_id,
        "on_bookies": segment.location.on_bookies,
        "object": segment.location.object and segment.location.object.name,
        "local_copy": segment.location.copy,
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
    is_elsewhere = any(segment.location.object for segment in segments)
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
                format_time(segment.created_ms),
                format_time(sealed.last_timestamp_ms) if sealed and records else "-",
                *([segment.location] if is_elsewhere else []),
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
        *(["stored on"] if is_elsewhere else []),
    )
    print_table(columns, rows)


def _print_log(described: _Description) -> None:
    lines, manifest = _LOG.lines(described), described.manifest
    for receipt in manifest.receipts:
        lines[f"last unit of {UUID(bytes=receipt.origin)}"] = receipt.number
    if manifest.deleting:
        lines["ledgers to go"] = ", ".join(map(str, manifest.deleting))
    if manifest.deleting_objects:
        lines["objects to go"] = ", ".join(each.name for each in manifest.deleting_objects)
    print_lines(lines)
    if manifest.segments:
        sys.stdout.write("\n")
        print_segments(manifest.segments, next_offset=described.tail.next_offset)


def _format_sample(sample: "CompressionSample") -> str:
    codecs = " and ".join(codec.name.lower() for codec in sample.codecs)
    return (
        f"{sample.ratio:.2f} ({codecs}: {counted(sample.stored_bytes, 'byte')} stored of "
        f"{sample.uncompressed_bytes:,}; sample: newest {counted(sample.records, 'record')}, "
        f"entries: {sample.entries:,})"
    )
