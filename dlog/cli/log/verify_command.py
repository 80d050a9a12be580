"""``dlog log verify`` and ``dlog log audit``: whether all is there that should be, and no more."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.connections import connected
from dlog.cli.names import complete_log
from dlog.cli.options import Json, Uri, examples
from dlog.cli.output import Advance, print_facts, print_json, print_table, shown_bar, write_text
from dlog.cli.runner import FAILED, run_at
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.aio.admin import AuditProgress, AuditReport, VerifyProgress, VerifyReport
    from dlog.aio.maintain.survey import Unlisted
    from ledger.client import LedgerClient

LogNames = Annotated[
    list[str],
    typer.Argument(metavar="LOG...", help="Names of logs.", autocompletion=complete_log),
]


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog log verify flights",
            "dlog log verify flights --repair",
            "dlog log verify flights orders --json | jq 'select(.healthy | not)'",
        )
    )(verify)
    app.command(
        epilog=examples(
            "dlog log audit",
            "dlog log audit --repair",
            "dlog log audit --json | jq .missing",
        )
    )(audit)


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
                    print_json(verify_facts(report))
                else:
                    _print_verified(report)
                healthy = healthy and report.healthy
        return healthy

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


def audit(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete ledgers that are provably of no use, and finish interrupted deletions.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Compare all logs with all ledgers: what is missing, leaked, or half deleted.

    Reads metadata only, and changes nothing without --repair. Exits with 1 if something is
    lost, leaked (and not repaired) or unreadable. Pending ledgers are no fault: a writer may be
    about to use them."""

    async def command() -> bool:
        from dlog.aio.admin import audit_namespace

        with shown_bar("auditing") as advance:

            def on_progress(progress: "AuditProgress") -> None:
                advance(progress.done, None, f"{progress.done:,} {progress.what}")

            report = await audit_namespace(repair=repair, on_progress=on_progress, uri=uri)
        if as_json:
            print_json(audit_facts(report))
        else:
            _print_audited(report)
        return report.healthy

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


async def _verify(client: "LedgerClient", log: str, *, repair: bool) -> "VerifyReport":
    from dlog.aio.admin import log_info, verify_log

    segments = (await log_info(log, client=client)).manifest.segments
    total = sum(segment.sealed.bytes for segment in segments if segment.sealed)
    with shown_bar(f"verifying {log}") as advance:
        return await verify_log(
            log, repair=repair, client=client, on_progress=_shown(advance, total)
        )


def _shown(advance: Advance, total: int) -> "Callable[[VerifyProgress], None]":
    def on_progress(progress: "VerifyProgress") -> None:
        words = f"{progress.segments_done} of {counted(progress.segments, 'segment')}"
        advance(progress.bytes, max(total, progress.bytes), words)

    return on_progress


def verify_facts(report: "VerifyReport") -> dict[str, object]:
    return {
        "log": report.log,
        "healthy": report.healthy,
        "incarnation": report.incarnation,
        "segments": report.segments,
        "entries": report.entries,
        "records": report.records,
        "replicas": report.replicas,
        "bytes": report.bytes,
        "faults": [
            {
                "segment": fault.segment,
                "ledger": fault.ledger_id,
                "fragment": fault.fragment,
                "bookie": fault.bookie,
                "fault": fault.fault.value,
                "first_entry": fault.first_entry,
                "last_entry": fault.last_entry,
                "entries": fault.entries,
            }
            for fault in report.faults
        ],
        "problems": [
            {"segment": problem.segment, "entry": problem.entry, "reason": problem.reason}
            for problem in report.problems
        ],
        "more": report.more,
        "trimmed_meanwhile": report.trimmed,
        "marked": report.marked,
    }


def audit_facts(report: "AuditReport") -> dict[str, object]:
    return {
        "healthy": report.healthy,
        "repaired": report.repaired,
        "logs": report.logs,
        "segments": report.segments,
        "ledgers": report.ledgers,
        "missing": [
            {
                "log": each.log,
                "segment": each.segment,
                "ledger": each.ledger_id,
                "records": each.records,
            }
            for each in report.missing
        ],
        "orphans": [unlisted_facts(each) for each in report.orphans],
        "waiting": [{"log": each.log, "ledgers": list(each.ledgers)} for each in report.waiting],
        "half_deleted": list(report.half_deleted),
        "pending": [unlisted_facts(each) for each in report.pending],
        "foreign": report.foreign,
        "undecided": report.undecided,
        "troubles": [{"what": each.what, "error": str(each.error)} for each in report.troubles],
        "more": report.more,
    }


def unlisted_facts(each: "Unlisted") -> dict[str, object]:
    stamp = each.stamp
    return {
        "ledger": each.ledger_id,
        "log": stamp.log if stamp else None,
        "purpose": stamp.purpose if stamp else None,
        "standing": each.standing.name.lower() if each.standing else None,
        "bytes": each.length,
    }


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
        print_table(
            ("segment", "ledger", "fragment", "bookie", "fault", "entries", "from", "to"),
            (
                (
                    fault.segment,
                    fault.ledger_id,
                    fault.fragment,
                    fault.bookie,
                    fault.fault.value,
                    fault.entries,
                    fault.first_entry,
                    fault.last_entry,
                )
                for fault in report.faults
            ),
        )
    for problem in report.problems:
        at = "" if problem.entry is None else f", entry {problem.entry}"
        write_text(f"segment {problem.segment}{at}: {problem.reason}\n")
    if report.more:
        write_text(f"and {counted(report.more, 'more problem')}\n")


def _print_audited(report: "AuditReport") -> None:
    done = " (deleted)" if report.repaired else ""
    print_facts(
        {
            "healthy": "yes" if report.healthy else "NO",
            "logs": report.logs,
            "segments": report.segments,
            "ledgers": report.ledgers,
            "missing ledgers": len(report.missing),
            f"orphans{done}": len(report.orphans),
            f"waiting for deletion{done}": sum(len(each.ledgers) for each in report.waiting),
            f"logs half deleted{done}": len(report.half_deleted),
            "pending": len(report.pending),
            "not of logs": report.foreign,
            "undecided": report.undecided,
            "troubles": len(report.troubles),
        }
    )
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
    for waiting in report.waiting:
        ledgers = ", ".join(map(str, waiting.ledgers))
        write_text(f"waiting: log {waiting.log!r}: ledgers {ledgers}\n")
    for name in report.half_deleted:
        write_text(f"half deleted: log {name!r}\n")
    for trouble in report.troubles:
        write_text(f"error: {trouble.what}: {trouble.error}\n")
    if report.more:
        write_text(f"and {report.more} more\n")
