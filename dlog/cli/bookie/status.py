"""``dlog bookie status``: the state of bookies that run."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from dlog.cli.bookie.control import NAMES_HELP, connected_operators, message_json
from dlog.cli.commands import READS, CommandGroup
from dlog.cli.completion import complete_bookie
from dlog.cli.connections import opened_store
from dlog.cli.options import Json, Uri
from dlog.cli.output import (
    View,
    format_duration,
    format_rate,
    format_size,
    print_json,
    print_lines,
    text_column,
    write_text,
)
from dlog.cli.runner import run_check
from ledger.errors import LogError
from ledger.ids import BookieId
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.status import BookieWork, OpenWork
    from dlog.health.findings import Finding
    from ledger.wire import bookie_pb2 as pb


T = TypeVar("T")

app = CommandGroup("operations#operating-running-bookies")
SomeNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[BOOKIE]...",
        autocompletion=complete_bookie,
        help=f"{NAMES_HELP} Default: all registered bookies.",
    ),
]


@app.define(
    READS,
    "dlog bookie status",
    "dlog bookie status 10.0.0.7:3181",
    "dlog bookie status --json | jq 'select(.read_only) | .reasons'",
)
def status(bookies: SomeNames = None, uri: Uri = None, as_json: Json = False) -> None:
    """Show the state of bookies: in detail for those that are named, else an overview.

    For a named bookie, also shows what is left to repair of the entries it should hold:
    ledgers, rate, remaining time. With --json, one line for each. Exits with 1 if a bookie does
    not answer, and, unless some are named, if a known one is not registered: 'dlog status' has
    details."""

    async def command() -> bool:
        missed = [] if bookies else await _missed(uri)
        for finding in missed:
            typer.echo(f"dlog: {finding.what}. {finding.action}", err=True)
        async with connected_operators(bookies or (), uri) as operators:
            replies = await asyncio.gather(
                *(operator.status() for operator in operators.values()), return_exceptions=True
            )
        answered: dict[str, pb.StatusReply] = {}
        for name, reply in zip(operators, replies, strict=True):
            if isinstance(reply, LogError):
                typer.echo(f"dlog: {reply}", err=True)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answered[name] = reply
        if answered and (as_json or bookies):
            work = await _open_work_of(answered, uri)
            for name, reply in answered.items():
                if as_json:
                    print_json({**message_json(reply), "repair": _work_json(work[name])})
                else:
                    print_status(reply, work[name])
        elif answered:
            _OVERVIEW.table(answered.values())
            await _print_open_work(uri)
        elif not operators:
            typer.echo("no bookie is registered", err=True)
        return len(answered) == len(operators) and not any(finding.is_wrong for finding in missed)

    run_check(uri, command())


async def _missed(uri: str | None) -> "list[Finding]":
    """Return the findings of bookies that are known and not there."""
    from dlog.health.bookies import away_finding
    from ledger.membership import attendance

    async with opened_store(uri) as store:
        known = (await attendance(store)).bookies
    return [
        away_finding([(each.bookie, each.address)], leaving=each.leaving)
        for each in known
        if each.is_missed
    ]


async def _open_work_of(bookies: Iterable[str], uri: str | None) -> "dict[str, BookieWork]":
    from bookie.autorecovery.status import open_work_of

    names = [BookieId(bookie) for bookie in bookies]
    async with opened_store(uri) as store:
        return dict(zip(names, await open_work_of(store, names), strict=True))


async def _print_open_work(uri: str | None) -> None:
    """Say what is left to repair, if anything is."""
    from bookie.autorecovery.status import open_work

    async with opened_store(uri) as store:
        work = await open_work(store)
    if work.ledgers:
        lack = "lacks" if work.ledgers == 1 else "lack"
        write_text(
            f"\n{counted(work.ledgers, 'ledger')} {lack} copies: {_pace(work)}; "
            "see 'dlog autorecovery status'\n"
        )


def _pace(work: "OpenWork") -> str:
    left = f", {format_duration(work.left_s)} left" if work.left_s else ""
    return f"{format_rate(work.bytes_per_s)} are copied{left}"


def _alarms(collector: "pb.CollectorStatus") -> list[str]:
    waiting = f" ({counted(collector.waiting, 'ledger')} waiting)" if collector.waiting else ""
    return [f"ALARM: {alarm.kind}{waiting}" for alarm in collector.alarms]


def _work_json(of: "BookieWork") -> dict[str, object]:
    """Return what is left to repair of what one bookie should hold."""
    return {
        "ledgers": of.lacking,
        "urgent": of.urgent,
        "deferred": of.deferred,
        "all_looked_at": of.all_looked_at,
        "underreplicated": of.work.ledgers,
        "bytes_per_s": round(of.work.bytes_per_s),
        "left_s": of.work.left_s,
    }


def _print_work(of: "BookieWork") -> None:
    if of.lacking:
        least = "" if of.all_looked_at else "at least "
        write_text(
            f"repair: {least}{counted(of.lacking, 'ledger')} without what this bookie should hold, "
            f"{of.urgent} "
            f"of them urgent, {of.deferred} deferred\n"
        )
    if of.work.ledgers:
        write_text(
            f"repair of the cluster: {counted(of.work.ledgers, 'ledger')}, {_pace(of.work)}\n"
        )


def print_status(reply: "pb.StatusReply", work: "BookieWork") -> None:
    facts: dict[str, object] = {
        "bookie": reply.bookie,
        "address": reply.address,
        "version": reply.version,
        "up for": format_duration(reply.uptime_s),
        "state": "read-only" if reply.read_only else "writable",
        "ledgers": reply.ledgers,
    }
    memtable = reply.memtable
    if memtable.bytes_max:
        facts["not in entry logs"] = (
            f"{format_size(memtable.active_bytes + memtable.flushing_bytes)} of at most "
            f"{format_size(memtable.bytes_max)}"
        )
        facts["kept for tailers"] = format_size(memtable.recent_bytes)
    print_lines(facts)
    for alarm in reply.collector.alarms:
        write_text(f"ALARM: {alarm.kind}: {alarm.reason}\n")
    for reason in reply.reasons:
        write_text(f"read-only: {reason}\n")
    for warning in reply.warnings:
        write_text(f"warning: {warning}\n")
    _print_work(work)
    _print_tables(reply)
    _print_collector(reply.collector)
    write_text("\n")


def _print_tables(reply: "pb.StatusReply") -> None:
    _table(_DIRECTORY, reply.directories)
    _table(_JOURNAL, reply.journals)
    _table(_CACHE, reply.caches)
    for directory in reply.ledger_directories:
        if directory.failure:
            write_text(f"FAILED: {directory.path}: {directory.failure}\n")
        _table(_LOG, directory.logs, f"entry logs of {directory.path}")


def _print_collector(collector: "pb.CollectorStatus") -> None:
    if collector.running:
        write_text(f"running now: {collector.running}\n")
    if collector.suspended:
        write_text(f"compaction waits: {collector.suspended}\n")
    if collector.surplus or collector.evicted:
        write_text(
            f"copies that no ledger references: {collector.surplus} seen and still here, "
            f"{collector.evicted} evicted since the start\n"
        )
    _table(_DUE, collector.due)
    _table(_LAST, collector.last)


def _amount(number: int, unit: str) -> str:
    return format_size(number) if unit == "bytes" else f"{number} {unit}"


def _free(directory: "pb.DirectoryUsage") -> float:
    return directory.free_bytes / directory.total_bytes if directory.total_bytes else 1.0


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"


def _table(view: View[T], items: Sequence[T], title: str = "") -> None:
    if items:
        write_text("\n")
        view.table(items, title)


_OVERVIEW: "Final[View[pb.StatusReply]]" = View(
    text_column("bookie", lambda reply: reply.bookie),
    text_column("address", lambda reply: reply.address),
    text_column("state", lambda reply: "read-only" if reply.read_only else "writable"),
    text_column(
        "fullest disk", lambda reply: _share(1 - min(map(_free, reply.directories), default=1))
    ),
    text_column("up for", lambda reply: format_duration(reply.uptime_s)),
    text_column(
        "why, warnings",
        lambda reply: "; ".join([*_alarms(reply.collector), *reply.reasons, *reply.warnings]),
    ),
)
_DIRECTORY: "Final[View[pb.DirectoryUsage]]" = View(
    text_column("directory", lambda directory: directory.path),
    text_column("is", lambda directory: directory.place),
    text_column("free", lambda directory: format_size(directory.free_bytes)),
    text_column("of", lambda directory: format_size(directory.total_bytes)),
)
_JOURNAL: "Final[View[pb.JournalStatus]]" = View(
    text_column("journal", lambda journal: journal.path),
    text_column("mark", lambda journal: f"{journal.mark_file:x}:{journal.mark_offset}"),
    text_column("end", lambda journal: f"{journal.end_file:x}:{journal.end_offset}"),
    text_column("files", lambda journal: journal.files),
    text_column("bytes", lambda journal: format_size(journal.bytes)),
    text_column("disk full", lambda journal: journal.full),
)
_CACHE: "Final[View[pb.CacheStatus]]" = View(
    text_column("cache", lambda cache: cache.name),
    text_column("used", lambda cache: _amount(cache.used, cache.unit)),
    text_column("of", lambda cache: _amount(cache.max, cache.unit)),
    text_column("hits", lambda cache: cache.hits),
    text_column("misses", lambda cache: cache.misses),
)
_LOG: "Final[View[pb.EntryLogStatus]]" = View(
    text_column("entry log", lambda log: f"{log.log:08x}"),
    text_column("bytes", lambda log: format_size(log.bytes)),
    text_column("live", lambda log: _share(log.live_bytes / log.bytes) if log.bytes else None),
    text_column("state", lambda log: log.state),
)
_DUE: "Final[View[pb.CollectorDue]]" = View(
    text_column("due", lambda run: run.kind),
    text_column("in", lambda run: format_duration(run.in_s)),
    text_column("below live share", lambda run: _share(run.threshold) if run.threshold else None),
)
_LAST: "Final[View[pb.CollectorRun]]" = View(
    text_column("last run", lambda run: run.kind),
    text_column("ago", lambda run: format_duration(run.ended_ago_s)),
    text_column("took", lambda run: format_duration(run.took_s)),
    text_column("ledgers", lambda run: run.ledgers + run.evicted),
    text_column("logs", lambda run: run.logs),
    text_column("freed", lambda run: format_size(run.bytes_freed)),
    text_column("moved", lambda run: format_size(run.bytes_moved)),
    text_column("failure", lambda run: run.failure),
)
