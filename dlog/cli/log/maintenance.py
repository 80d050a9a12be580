"""``dlog log truncate|verify|audit``: old records go, the rest is checked."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CommandGroup, changes_if, changes_unless
from dlog.cli.completion import complete_log, complete_position
from dlog.cli.connections import connected
from dlog.cli.log.overview import print_segments, segment_json
from dlog.cli.options import Json, LogName, Uri, parse_start, parse_time
from dlog.cli.output import (
    Advance,
    Column,
    View,
    answer,
    json_column,
    print_json,
    print_lines,
    progress_bar,
    text_column,
    write_text,
)
from dlog.cli.runner import run_at, run_check
from dlog.starts import TIME_HELP
from ledger.options import duration, size
from ledger.values import DURATION_HELP, SIZE_HELP, counted

if TYPE_CHECKING:
    from dlog.aio.admin import AuditProgress, AuditReport, TrimPlan, VerifyProgress, VerifyReport
    from dlog.aio.maintain.audit import (
        MissingLedger,
        MissingObject,
        OrphanObject,
        WaitingLedgers,
    )
    from dlog.aio.maintain.survey import Trouble, Unlisted
    from dlog.aio.maintain.trim import Before
    from dlog.manifest import Segment
    from dlog.protocol.verification import FragmentFault
    from ledger.client import LedgerClient

app = CommandGroup("cli#logs")


def _format_cut(segment: "Segment") -> str:
    location, ledger = segment.location, f"ledger {segment.ledger_id}"
    what = ledger if location.on_bookies else f"object {location}"
    return f"segment {segment.number}: its {what} stays until all of it can go"


_PLAN: "Final[View[TrimPlan]]" = View(
    Column("log", lambda plan: plan.log),
    json_column("dry_run", lambda _: True),
    json_column("first_offset", lambda plan: plan.trim_offset),
    json_column("first_offset_now", lambda plan: plan.first_offset),
    Column("records", lambda plan: plan.records, "records that go"),
    text_column("first offset", lambda plan: f"{plan.trim_offset} (now {plan.first_offset})"),
    Column("bytes", lambda plan: plan.bytes, "bytes freed"),
    Column(
        "ledgers",
        lambda plan: list(plan.ledgers),
        "ledgers that go",
        lambda ledgers: ", ".join(map(str, ledgers)) or "none",
    ),
    Column(
        "objects",
        lambda plan: [stored.name for stored in plan.objects],
        "objects that go",
        lambda objects: ", ".join(objects) or "none",
    ),
    json_column("segments", lambda plan: [segment_json(segment) for segment in plan.segments]),
    json_column("inside", lambda plan: plan.inside and plan.inside.number),
    text_column(
        "cut inside", lambda plan: plan.inside and _format_cut(plan.inside), is_optional=True
    ),
)
_FAULT: "Final[View[FragmentFault]]" = View(
    Column("segment", lambda fault: fault.segment),
    Column("ledger", lambda fault: fault.ledger_id),
    Column("fragment", lambda fault: fault.fragment),
    Column("bookie", lambda fault: fault.bookie),
    Column("fault", lambda fault: fault.fault.value),
    Column("first_entry", lambda fault: fault.first_entry, "from"),
    Column("last_entry", lambda fault: fault.last_entry, "to"),
    Column("entries", lambda fault: fault.entries),
)
_MISSING: "Final[View[MissingLedger]]" = View(
    json_column("log", lambda missing: missing.log),
    json_column("segment", lambda missing: missing.segment),
    json_column("ledger", lambda missing: missing.ledger_id),
    json_column("records", lambda missing: missing.records),
)
_MISSING_OBJECT: "Final[View[MissingObject]]" = View(
    json_column("log", lambda missing: missing.log),
    json_column("segment", lambda missing: missing.segment),
    json_column("object", lambda missing: missing.object),
    json_column("records", lambda missing: missing.records),
    json_column("reason", lambda missing: missing.reason),
)
_ORPHAN_OBJECT: "Final[View[OrphanObject]]" = View(
    json_column("log", lambda orphan: orphan.log),
    json_column("object", lambda orphan: orphan.object),
)
_WAITING: "Final[View[WaitingLedgers]]" = View(
    json_column("log", lambda waiting: waiting.log),
    json_column("ledgers", lambda waiting: list(waiting.ledgers)),
    json_column("objects", lambda waiting: list(waiting.objects)),
)
ERROR: "Final[View[Trouble]]" = View(
    json_column("what", lambda error: error.what),
    json_column("error", lambda error: str(error.error)),
)
UNLISTED: "Final[View[Unlisted]]" = View(
    json_column("ledger", lambda unlisted: unlisted.ledger_id),
    json_column("log", lambda unlisted: unlisted.stamp.log if unlisted.stamp else None),
    json_column("purpose", lambda unlisted: unlisted.stamp.purpose if unlisted.stamp else None),
    json_column(
        "standing", lambda unlisted: unlisted.standing.name.lower() if unlisted.standing else None
    ),
    json_column("bytes", lambda unlisted: unlisted.length),
)


@app.define(
    changes_unless("dry_run"),
    "dlog log truncate flights --before 100000",
    "dlog log truncate flights --keep-age 7d --dry-run",
    "dlog log truncate flights --keep-bytes 10G --json",
    "dlog log truncate flights --before-time 2026-11-01T00:00:00",
)
def truncate(
    log: LogName,
    *,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION",
            autocompletion=complete_position,
            help="First record to keep: an offset, a DLSN as 3:17:0, or txid:NUMBER.",
            show_default=False,
        ),
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"Keep from the first record of this time on: {TIME_HELP}.",
            show_default=False,
        ),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            help=f"Keep at least this many bytes, in whole segments: {SIZE_HELP}.",
            parser=size(),
            show_default=False,
        ),
    ] = None,
    keep_age: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            help=f"Keep from the first record on that is not older: {DURATION_HELP}.",
            parser=duration(),
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Report which records and ledgers would be removed; change nothing."
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Remove the oldest records of a log, while its writer continues if it has one.

    Name what stays with one of --before, --before-time, --keep-bytes and --keep-age. Prints the
    new first offset. Space is freed by whole segments."""
    if sum(each is not None for each in (before, before_time, keep_bytes, keep_age)) != 1:
        raise typer.BadParameter(
            "name what to keep with one of --before, --before-time, --keep-bytes and --keep-age"
        )
    first = _first_kept(before, before_time)

    async def command() -> None:
        from dlog.aio.admin import plan_truncation, truncate_log

        if dry_run:
            plan = await plan_truncation(
                log, before=first, keep_bytes=keep_bytes, keep_age_s=keep_age, uri=uri
            )
            if as_json:
                print_json(_PLAN.json(plan))
            else:
                _print_plan(plan)
            return
        offset = await truncate_log(
            log, before=first, keep_bytes=keep_bytes, keep_age_s=keep_age, uri=uri
        )
        answer({"log": log, "first_offset": offset}, f"{offset}\n", as_json=as_json)

    run_at(uri, command())


def _first_kept(before: str | None, before_time: str | None) -> "Before | None":
    from dlog.position import Timestamp

    if before_time is not None:
        return Timestamp(parse_time(before_time, "--before-time"))
    if before is None:
        return None
    found = parse_start(before, "--before")
    if isinstance(found, str):
        raise typer.BadParameter(
            f"{before!r} is not a record; use an offset, a DLSN, or txid:NUMBER",
            param_hint="--before",
        )
    return found


def _print_plan(plan: "TrimPlan") -> None:
    print_lines(_PLAN.lines(plan))
    if plan.segments:
        sys.stdout.write("\n")
        print_segments(plan.segments)
    typer.echo("nothing was changed", err=True)


LogNames = Annotated[
    list[str],
    typer.Argument(metavar="LOG...", help="Names of logs.", autocompletion=complete_log),
]


@app.define(
    changes_if("repair"),
    "dlog log verify flights",
    "dlog log verify flights --repair",
    "dlog log verify flights orders --json | jq 'select(.healthy | not)'",
)
def verify(
    logs: LogNames,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Mark missing and damaged replicas for autorecovery.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Read every entry of logs from every replica; report what is damaged, short or wrong.

    Checks digests, that replicas are the same, and that entries, offsets and txids join.
    Interferes with no writer; reads everything that is stored. With --repair, 'dlog
    autorecovery' restores what is missing or damaged, as 'dlog ledger underreplicated' shows;
    copies that differ although each is whole are left for you to decide. With --json, one line
    for each log. Exits with 1 if anything is wrong with any of them."""

    async def command() -> bool:
        healthy = True
        async with connected(uri) as client:
            for log in logs:
                report = await _verify(client, log, repair=repair)
                if as_json:
                    print_json(_verified_json(report))
                else:
                    _print_verified(report)
                healthy = healthy and report.healthy
        return healthy

    run_check(uri, command())


@app.define(
    changes_if("repair"),
    "dlog log audit",
    "dlog log audit --repair",
    "dlog log audit --json | jq .missing",
)
def audit(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete ledgers and objects that are provably of no use, and finish interrupted "
            "deletions.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Compare all logs with all ledgers and objects: what is missing, leaked, or half deleted.

    Reads metadata only (of objects, names and sizes), and changes nothing without --repair. Exits
    with 1 if something is lost, leaked (and not repaired) or unreadable. Pending ledgers are no
    fault: a writer may be about to use them."""

    async def command() -> bool:
        from dlog.aio.admin import audit_namespace

        with progress_bar("auditing") as advance:

            def on_progress(progress: "AuditProgress") -> None:
                advance(progress.done, None, f"{progress.done:,} {progress.what}")

            report = await audit_namespace(repair=repair, on_progress=on_progress, uri=uri)
        if as_json:
            print_json(_audit_view(report).json(report))
        else:
            _print_audited(report)
        return report.healthy

    run_check(uri, command())


async def _verify(client: "LedgerClient", log: str, *, repair: bool) -> "VerifyReport":
    from dlog.aio.admin import log_info, verify_log

    total = (await log_info(log, client=client)).manifest.sealed_bytes
    with progress_bar(f"verifying {log}") as advance:
        return await verify_log(
            log, repair=repair, client=client, on_progress=_shown(advance, total)
        )


def _shown(advance: Advance, total: int) -> "Callable[[VerifyProgress], None]":
    def on_progress(progress: "VerifyProgress") -> None:
        words = f"{progress.segments_done} of {counted(progress.segments, 'segment')}"
        advance(progress.bytes, max(total, progress.bytes), words)

    return on_progress


def _verified_json(report: "VerifyReport") -> dict[str, object]:
    return {
        "log": report.log,
        "healthy": report.healthy,
        "incarnation": report.incarnation,
        "segments": report.segments,
        "entries": report.entries,
        "records": report.records,
        "replicas": report.replicas,
        "bytes": report.bytes,
        "faults": _FAULT.rows(report.faults),
        "problems": [
            {"segment": problem.segment, "entry": problem.entry, "reason": problem.reason}
            for problem in report.problems
        ],
        "more": report.more,
        "trimmed_meanwhile": report.trimmed,
        "marked": report.marked,
    }


def _audit_view(report: "AuditReport") -> "View[AuditReport]":
    done = " (deleted)" if report.repaired else ""
    return View(
        Column("healthy", lambda audit: audit.healthy, form=lambda yes: "yes" if yes else "NO"),
        json_column("repaired", lambda audit: audit.repaired),
        Column("logs", lambda audit: audit.logs),
        Column("segments", lambda audit: audit.segments),
        Column("ledgers", lambda audit: audit.ledgers),
        Column("missing", lambda audit: _MISSING.rows(audit.missing), "missing ledgers", len),
        Column(
            "missing_objects",
            lambda audit: _MISSING_OBJECT.rows(audit.missing_objects),
            "missing objects",
            len,
        ),
        Column("orphans", lambda audit: UNLISTED.rows(audit.orphans), f"orphans{done}", len),
        Column(
            "orphan_objects",
            lambda audit: _ORPHAN_OBJECT.rows(audit.orphan_objects),
            f"orphan objects{done}",
            len,
        ),
        json_column("waiting", lambda audit: _WAITING.rows(audit.waiting)),
        text_column(
            f"waiting for deletion{done}",
            lambda audit: sum(len(w.ledgers) + len(w.objects) for w in audit.waiting),
        ),
        Column(
            "half_deleted",
            lambda audit: list(audit.half_deleted),
            f"logs half deleted{done}",
            len,
        ),
        Column("pending", lambda audit: UNLISTED.rows(audit.pending), None, len),
        Column("foreign", lambda audit: audit.foreign, "not of logs"),
        Column("undecided", lambda audit: audit.undecided),
        Column("troubles", lambda audit: ERROR.rows(audit.troubles), None, len),
        json_column("more", lambda audit: audit.more),
    )


def _print_verified(report: "VerifyReport") -> None:
    verdict = "healthy" if report.healthy else "NOT healthy"
    write_text(
        f"log {report.log!r} is {verdict}: {counted(report.segments, 'segment')}, "
        f"{counted(report.entries, 'entry')}, "
        f"{counted(report.records, 'record')}, {counted(report.bytes, 'byte')}, "
        f"{counted(report.replicas, 'good replica')}\n"
    )
    if report.trimmed:
        write_text(f"{counted(report.trimmed, 'segment')} trimmed meanwhile\n")
    if report.marked:
        write_text(f"{counted(report.marked, 'ledger')} marked for repair\n")
    if report.faults:
        write_text("\n")
        columns = ("segment", "ledger", "fragment", "bookie", "fault", "entries", "from", "to")
        _FAULT.only(*columns).table(report.faults)
    for problem in report.problems:
        at = "" if problem.entry is None else f", entry {problem.entry}"
        write_text(f"segment {problem.segment}{at}: {problem.reason}\n")
    if report.more:
        write_text(f"and {counted(report.more, 'more problem')}\n")


def _print_audited(report: "AuditReport") -> None:
    print_lines(_audit_view(report).lines(report))
    for lost in report.missing:
        held = (
            "an unknown number of records"
            if lost.records is None
            else counted(lost.records, "record")
        )
        write_text(
            f"log {lost.log!r}: ledger {lost.ledger_id} of segment {lost.segment} does not exist; "
            f"{held} lost\n"
        )
    for what, found in (("orphan", report.orphans), ("pending", report.pending)):
        for each in found:
            whose = f"log {each.stamp.log!r}, {each.stamp.purpose}" if each.stamp else "?"
            why = each.standing.value if each.standing else "not known"
            write_text(f"{what}: ledger {each.ledger_id} ({whose}): {why}\n")
    for gone in report.missing_objects:
        write_text(
            f"log {gone.log!r}: object {gone.object} of segment {gone.segment} {gone.reason}; "
            f"{counted(gone.records, 'record')} lost unless its ledger is there\n"
        )
    for orphan in report.orphan_objects:
        write_text(f"orphan: object {orphan.object} (log {orphan.log!r})\n")
    for waiting in report.waiting:
        names = ", ".join([*map(str, waiting.ledgers), *waiting.objects])
        write_text(f"waiting: log {waiting.log!r}: {names}\n")
    for name in report.half_deleted:
        write_text(f"half deleted: log {name!r}\n")
    for trouble in report.troubles:
        write_text(f"error: {trouble.what}: {trouble.error}\n")
    if report.more:
        write_text(f"and {report.more} more\n")
