"""How what a running bookie says looks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from dlog.cli.output import print_facts, print_table, write_text
from ledger.values import counted

if TYPE_CHECKING:
    from bookie.autorecovery.status import BookieWork
    from ledger.wire import bookie_pb2 as pb

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def message_facts(message: Message) -> dict[str, object]:
    """Return all fields of *message*, also those that have their default."""
    return {field.name: _value(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _value(value: object) -> object:
    if isinstance(value, Message):
        return message_facts(value)
    if isinstance(value, str | int | float | bool):
        return value
    assert isinstance(value, Sequence)
    return [_value(each) for each in value]


def shown_size(size_bytes: float) -> str:
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError("the last unit takes all")


def shown_duration(duration_s: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if duration_s >= 2 * length_s:
            return f"{duration_s / length_s:.0f} {unit}"
    return f"{duration_s:.1f} s"


def print_overview(replies: "Sequence[pb.StatusReply]") -> None:
    rows = []
    for reply in replies:
        fullest = max((1 - _free(each) for each in reply.directories), default=0)
        rows.append(
            (
                reply.bookie,
                reply.address,
                "read-only" if reply.read_only else "writable",
                f"{100 * fullest:.0f} %",
                shown_duration(reply.uptime_s),
                "; ".join([*_alarms(reply.collector), *reply.reasons, *reply.warnings]) or "-",
            )
        )
    print_table(("bookie", "address", "state", "fullest disk", "up for", "why, warnings"), rows)


def _alarms(collector: "pb.CollectorStatus") -> list[str]:
    waiting = f" ({counted(collector.waiting, 'ledger')} waiting)" if collector.waiting else ""
    return [f"ALARM: {alarm.kind}{waiting}" for alarm in collector.alarms]


def work_facts(of: "BookieWork") -> dict[str, object]:
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
        left = f", {shown_duration(of.work.left_s)} left" if of.work.left_s else ""
        write_text(
            f"repair of the cluster: {counted(of.work.ledgers, 'ledger')}, "
            f"{shown_size(of.work.bytes_per_s)}/s are copied{left}\n"
        )


def print_status(reply: "pb.StatusReply", work: "BookieWork") -> None:
    facts: dict[str, object] = {
        "bookie": reply.bookie,
        "address": reply.address,
        "version": reply.version,
        "up for": shown_duration(reply.uptime_s),
        "state": "read-only" if reply.read_only else "writable",
        "ledgers": reply.ledgers,
    }
    memtable = reply.memtable
    if memtable.bytes_max:
        facts["not in entry logs"] = (
            f"{shown_size(memtable.active_bytes + memtable.flushing_bytes)} of at most "
            f"{shown_size(memtable.bytes_max)}"
        )
        facts["kept for tailers"] = shown_size(memtable.recent_bytes)
    print_facts(facts)
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
    _table(
        ("directory", "is", "free", "of"),
        [
            (each.path, each.place, shown_size(each.free_bytes), shown_size(each.total_bytes))
            for each in reply.directories
        ],
    )
    _table(
        ("journal", "mark", "end", "files", "bytes", ""),
        [
            (
                each.path,
                f"{each.mark_file:x}:{each.mark_offset}",
                f"{each.end_file:x}:{each.end_offset}",
                each.files,
                shown_size(each.bytes),
                "disk full" if each.full else "",
            )
            for each in reply.journals
        ],
    )
    _table(
        ("cache", "used", "of", "hits", "misses"),
        [
            (
                each.name,
                _amount(each.used, each.unit),
                _amount(each.max, each.unit),
                each.hits,
                each.misses,
            )
            for each in reply.caches
        ],
    )
    for directory in reply.ledger_directories:
        if directory.failure:
            write_text(f"FAILED: {directory.path}: {directory.failure}\n")
        _table(
            (f"entry logs of {directory.path}", "bytes", "live", "state"),
            [
                (
                    f"{each.log:08x}",
                    shown_size(each.bytes),
                    f"{100 * each.live_bytes / each.bytes:.0f} %" if each.bytes else "-",
                    each.state,
                )
                for each in directory.logs
            ],
        )


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
    _table(
        ("due", "in", "below live share"),
        [
            (
                each.kind,
                shown_duration(each.in_s),
                f"{100 * each.threshold:.0f} %" if each.threshold else "-",
            )
            for each in collector.due
        ],
    )
    _table(
        ("last run", "ago", "took", "ledgers", "logs", "freed", "moved", ""),
        [
            (
                each.kind,
                shown_duration(each.ended_ago_s),
                shown_duration(each.took_s),
                each.ledgers + each.evicted,
                each.logs,
                shown_size(each.bytes_freed),
                shown_size(each.bytes_moved),
                each.failure,
            )
            for each in collector.last
        ],
    )


def print_run(bookie: str, done: "pb.CollectorRun") -> None:
    write_text(
        f"bookie {bookie}: {done.kind} took {shown_duration(done.took_s)}, removed "
        f"{counted(done.ledgers, 'ledger')}, evicted {done.evicted}, removed "
        f"{counted(done.logs, 'entry log')}, freed "
        f"{shown_size(done.bytes_freed)}, moved {shown_size(done.bytes_moved)}\n"
    )
    for alarm in done.alarms:
        write_text(f"bookie {bookie}: ALARM: {alarm.kind}: {alarm.reason}\n")
    if done.failure:
        write_text(f"bookie {bookie}: FAILED: {done.failure}\n")
    if done.suspended:
        write_text(f"bookie {bookie}: logs were left as they are: {done.suspended}\n")
    for damage in done.damages:
        write_text(f"bookie {bookie}: DAMAGED: {damage}\n")


def _amount(number: int, unit: str) -> str:
    return shown_size(number) if unit == "bytes" else f"{number} {unit}"


def _free(directory: "pb.DirectoryUsage") -> float:
    return directory.free_bytes / directory.total_bytes if directory.total_bytes else 1.0


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        write_text("\n")
        print_table(columns, rows)
