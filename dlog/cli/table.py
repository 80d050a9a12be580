"""``dlog table``: the table of a log, which has its archived records as Parquet files."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import (
    Column,
    View,
    format_size,
    format_time,
    json_column,
    print_json,
    print_lines,
    warn,
    write_text,
)
from dlog.cli.runner import run_at, run_check

if TYPE_CHECKING:
    from dlog.aio.admin import TableCheck, TableInfo, TableReport
    from dlog.protocol.table import TableFile

app = CommandGroup("cli#tables")
_INFO: "Final[View[TableInfo]]" = View(
    Column("log", lambda info: info.log),
    Column("storage", lambda info: info.storage),
    Column("first", lambda info: info.table.first, "first offset"),
    Column("end", lambda info: info.table.end, "end offset"),
    Column("log_first", lambda info: info.log_first, "log begins at"),
    Column("waiting", lambda info: info.waiting, "archived behind it"),
    Column("files", lambda info: len(info.table.files)),
    Column("bytes", lambda info: info.table.bytes, form=format_size),
    Column("commits", lambda info: info.table.number),
    Column("committed_ms", lambda info: info.table.committed_ms, "committed", format_time),
)
_FILE: "Final[View[tuple[str, TableFile]]]" = View(
    Column("uri", lambda each: f"{each[0]}/{each[1].path}"),
    Column("rows", lambda each: each[1].rows),
    Column("bytes", lambda each: each[1].bytes),
    Column("first", lambda each: each[1].first),
    Column("last", lambda each: each[1].last),
    Column("first_us", lambda each: each[1].first_us),
    Column("last_us", lambda each: each[1].last_us),
)
_CHECK: "Final[View[TableCheck]]" = View(
    Column("log", lambda check: check.log),
    json_column("healthy", lambda check: check.healthy),
    Column("first", lambda check: check.first, "first offset"),
    Column("end", lambda check: check.end, "end offset"),
    Column("files", lambda check: check.files),
    Column("rows", lambda check: check.rows),
    json_column("problems", lambda check: check.problems),
)
_REBUILT: "Final[View[TableReport]]" = View(
    Column("rows", lambda report: report.rows),
    Column("files", lambda report: report.files),
    Column("bytes", lambda report: report.bytes, form=format_size),
    Column("end", lambda report: report.end, "end offset"),
)


@app.define(READS, "dlog table show orders", "dlog table show orders --json | jq .end")
def show(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Show which records the table of a log has, and how many archived ones it lacks."""

    async def command() -> None:
        from dlog.aio.admin import table_info

        _INFO.print(await table_info(log, uri=uri), as_json=as_json)

    run_at(uri, command())


@app.define(READS, "dlog table files orders", "dlog table files orders --json | jq .[0].first")
def files(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """List the files of a table, one URI on a line: what another program is to read.

    The folder itself may have files that are of no table any more, or not yet."""

    async def command() -> None:
        from dlog.aio.admin import table_info

        info = await table_info(log, uri=uri)
        each = [(info.storage, file) for file in info.table.files]
        if as_json:
            print_json(_FILE.rows(each))
        else:
            write_text("".join(f"{storage}/{file.path}\n" for storage, file in each))

    run_at(uri, command())


@app.define(READS, "dlog table verify orders", "dlog table verify orders --json | jq .problems")
def verify(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Read all files of a table, and check that each offset is in them once.

    Exits with 1 if a file is lost or damaged, or an offset is missing or there twice."""

    async def command() -> bool:
        from dlog.aio.admin import verify_table

        check = await verify_table(log, uri=uri)
        _CHECK.print(check, as_json=as_json)
        for problem in check.problems:
            warn(problem)
        return check.healthy

    run_check(uri, command())


@app.define(CHANGES, "dlog table rebuild orders", "dlog table rebuild orders --later")
def rebuild(
    log: LogName,
    later: Annotated[
        bool,
        typer.Option("--later", help="Leave the writing to the archiver, and return at once."),
    ] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Write the table of a log again, from the first record that the log has.

    Rows of records that were truncated since leave the table. May be interrupted: what is missing
    is read from the log, and the archiver continues. The old files stay for a day, for readers."""

    async def command() -> None:
        from dlog.aio.admin import rebuild_table

        report = await rebuild_table(log, later=later, uri=uri)
        if as_json:
            print_json(_REBUILT.json(report))
        else:
            print_lines(_REBUILT.lines(report))

    run_at(uri, command())
