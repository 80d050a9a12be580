"""``dlog log archive``: sealed segments move to object storage."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, CommandGroup
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import (
    Column,
    View,
    format_size,
    json_column,
    print_json,
    print_lines,
    progress_bar,
    warn,
)
from dlog.cli.runner import run_check
from ledger.values import counted

if TYPE_CHECKING:
    from dlog.aio.admin import ArchiveProgress, ArchiveReport

app = CommandGroup("cli#logs")
REPORT: "Final[View[ArchiveReport]]" = View(
    Column("log", lambda report: report.log),
    Column("archived", lambda report: [o.name for o in report.archived], "segments archived", len),
    Column("bytes", lambda report: report.bytes, "bytes written", format_size),
    Column("released", lambda report: list(report.released), "ledgers deleted", len),
    Column("orphans", lambda report: report.orphans, "orphan objects deleted"),
    json_column(
        "failures",
        lambda report: [
            {"segment": failure.segment, "error": str(failure.error)} for failure in report.failures
        ],
    ),
    json_column("waiting", lambda report: report.waiting),
    Column("table_rows", lambda report: report.table.rows, "table rows added"),
    json_column(
        "table_error", lambda report: str(report.table_error) if report.table_error else None
    ),
)


@app.define(
    CHANGES,
    "dlog log settings set orders archive=s3://bucket/logs local_keep_s=7d",
    "dlog log archive orders",
    "dlog log archive orders --now --json | jq .failures",
)
def archive(
    log: LogName,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Archive all sealed segments, and add them to the table, however young or few.",
        ),
    ] = False,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim",
            help="Take the log's objects from another copy of this namespace: stop that one first.",
        ),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Copy sealed segments of a log to its object storage, and delete ledgers that may go.

    The settings of the log say where to (archive), from which age on (archive_after_s), and for how
    long bookies keep their copies (local_keep_s). Each object is read back before the log refers to
    it, and once more before the ledger is deleted. A log with a table (archive_table) has its rows
    added then. May be interrupted and repeated. Exits with 1 if a segment could not be archived: it
    stays where it is; or if the table could not be extended."""

    async def command() -> bool:
        from dlog.aio.admin import archive_log

        with progress_bar(f"archiving {log}") as advance:

            def on_progress(progress: "ArchiveProgress") -> None:
                done = f"{progress.segments_done} of {counted(progress.segments, 'segment')}"
                advance(
                    progress.segments_done,
                    progress.segments,
                    f"{done}, {format_size(progress.bytes)}",
                )

            report = await archive_log(
                log, at_once=now, claim=claim, on_progress=on_progress, uri=uri
            )
        if as_json:
            print_json(REPORT.json(report))
        else:
            print_lines(REPORT.lines(report))
        for failure in report.failures:
            warn(f"segment {failure.segment}: {failure.error}")
        if report.waiting:
            warn(f"{counted(report.waiting, 'more segment')} not tried after these failures")
        if report.table_error is not None:
            warn(f"its table: {report.table_error}")
        return not report.failed

    run_check(uri, command())
