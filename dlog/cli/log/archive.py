"""``dlog log archive`` and ``restore-local``: sealed segments move to object storage, and back."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, CommandGroup
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import (
    Column,
    View,
    format_size,
    format_time,
    json_column,
    print_json,
    print_lines,
    progress_bar,
    warn,
)
from dlog.cli.runner import run_check
from ledger.options import duration
from ledger.values import DURATION_HELP, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dlog.aio.admin import ArchiveProgress, ArchiveReport, RestoreReport
    from dlog.aio.maintain.archive import ArchiveFailure

app = CommandGroup("cli#logs")


def _failures(report: "ArchiveReport | RestoreReport") -> list[dict[str, object]]:
    return [{"segment": each.segment, "error": str(each.error)} for each in report.failures]


REPORT: "Final[View[ArchiveReport]]" = View(
    Column("log", lambda report: report.log),
    Column("archived", lambda report: [o.name for o in report.archived], "segments archived", len),
    Column("bytes", lambda report: report.bytes, "bytes written", format_size),
    Column("released", lambda report: list(report.released), "ledgers deleted", len),
    Column("orphans", lambda report: report.orphans, "orphan objects deleted"),
    Column("copies_dropped", lambda report: report.copies_dropped, "local copies let go"),
    json_column("failures", _failures),
    json_column("waiting", lambda report: report.waiting),
    Column("table_rows", lambda report: report.table.rows, "table rows added"),
    json_column(
        "table_error", lambda report: str(report.table_error) if report.table_error else None
    ),
)
RESTORED: "Final[View[RestoreReport]]" = View(
    Column("log", lambda report: report.log),
    Column(
        "restored",
        lambda report: [{"segment": c.number, "ledger": c.ledger_id} for c in report.restored],
        "segments restored",
        len,
    ),
    Column("bytes", lambda report: report.bytes, "bytes restored", format_size),
    Column("kept", lambda report: report.kept, "local copies that were there"),
    Column("on_bookies", lambda report: report.on_bookies, "segments still on bookies"),
    Column("until_ms", lambda report: report.until_ms, "copies stay until", format_time),
    json_column("failures", _failures),
    json_column("waiting", lambda report: report.waiting),
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
            report = await archive_log(
                log, at_once=now, claim=claim, on_progress=_progress(advance), uri=uri
            )
        if as_json:
            print_json(REPORT.json(report))
        else:
            print_lines(REPORT.lines(report))
        done = _warned(report.failures, report.waiting)
        if report.table_error is not None:
            warn(f"its table: {report.table_error}")
        return done and report.table_error is None

    run_check(uri, command())


@app.define(
    CHANGES,
    "dlog log restore-local orders --from 1000000 --to 2000000",
    "dlog log restore-local orders --keep 2d --json | jq .failures",
    "dlog log restore-local orders --keep 0",
    name="restore-local",
)
def restore_local(
    log: LogName,
    first: Annotated[
        int, typer.Option("--from", help="First offset.", min=0, metavar="OFFSET")
    ] = 0,
    end: Annotated[
        int | None,
        typer.Option("--to", help="End offset (exclusive).", min=1, metavar="OFFSET"),
    ] = None,
    keep_s: Annotated[
        float,
        typer.Option(
            "--keep",
            help=f"Keep the copies for so long: {DURATION_HELP}. 0: let those go that are there.",
            parser=duration(),
            metavar="DURATION",
            show_default="7d",
        ),
    ] = 604_800.0,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Bring archived segments of a log back to bookies, for reading that is to be fast.

    Copies whole segments, and all that have an offset in the range. The objects stay what they are;
    a copy is read back before it is used, and goes after --keep, with the next pass of the
    archiver. No encryption key is needed. May be interrupted and repeated. Exits with 1 if a
    segment could not be restored: it is read from its object."""

    async def command() -> bool:
        from dlog.aio.admin import restore_segments

        with progress_bar(f"restoring {log}") as advance:
            report = await restore_segments(
                log,
                first=first,
                end=end,
                keep_s=keep_s,
                on_progress=_progress(advance),
                uri=uri,
            )
        if as_json:
            print_json(RESTORED.json(report))
        else:
            print_lines(RESTORED.lines(report))
        return _warned(report.failures, report.waiting)

    run_check(uri, command())


def _progress(advance: "Callable[[int, int, str], None]") -> "Callable[[ArchiveProgress], None]":
    def on_progress(progress: "ArchiveProgress") -> None:
        done = f"{progress.segments_done} of {counted(progress.segments, 'segment')}"
        advance(progress.segments_done, progress.segments, f"{done}, {format_size(progress.bytes)}")

    return on_progress


def _warned(failures: "Sequence[ArchiveFailure]", waiting: int) -> bool:
    """Say what failed; return whether nothing did."""
    for failure in failures:
        warn(f"segment {failure.segment}: {failure.error}")
    if waiting:
        warn(f"{counted(waiting, 'more segment')} not tried after these failures")
    return not failures
