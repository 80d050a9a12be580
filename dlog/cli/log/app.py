"""``dlog log``: logs as a whole, from their creation to their end. The rest is beside it.

Records go in and out in `records` and `tail_command`; `seek_command`, `trace_command` and
`record_text` look inside, `truncate_command` and `verify_command` look after logs.
"""

import sys
from typing import Annotated, Final

import typer

from dlog.cli.argument_values import parse_codec, parse_settings
from dlog.cli.log import (
    list_command,
    record_text,
    records,
    seek_command,
    tail_command,
    trace_command,
    truncate_command,
    verify_command,
)
from dlog.cli.log import settings as log_settings
from dlog.cli.names import complete_assignment, complete_codec
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.render.output import print_json, write_text
from dlog.cli.runner import FAILED, run_at
from dlog.settings import CODECS_ALLOWED, LogSettings
from dlog.settings import parse_settings as apply_settings
from ledger.option_parsers import duration, size
from ledger.quorum import Quorum

_DEFAULTS: Final = LogSettings()

app = typer.Typer()
app.command(epilog=records.APPEND_EPILOG)(records.append)
app.command(epilog=tail_command.EPILOG)(tail_command.tail)
list_command.add_to(app)
record_text.add_to(app)
seek_command.add_to(app)
trace_command.add_to(app)
truncate_command.add_to(app)
verify_command.add_to(app)
app.add_typer(log_settings.app, name="settings")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command(
    epilog=examples(
        "dlog log create flights",
        "dlog log create eu/orders --codec zstd:3 --retention-age-s 7d",
        "dlog log create scratch --ensemble 1 --write-quorum 1 --ack-quorum 1",
        "dlog log create events --set roll_records=100000 --set retention_age_s=7d",
    )
)
def create(
    log: LogName,
    *,
    ensemble: Annotated[int, typer.Option(help="Bookies over which a segment is spread.")] = 3,
    write_quorum: Annotated[int, typer.Option(help="Copies of each entry.")] = 3,
    ack_quorum: Annotated[
        int, typer.Option(help="Copies on disk before an append is acknowledged.")
    ] = 2,
    codec: Annotated[
        str,
        typer.Option(
            metavar="CODEC",
            help=f"Compression of records: {CODECS_ALLOWED}.",
            autocompletion=complete_codec,
        ),
    ] = "none",
    record_bytes_max: Annotated[
        int,
        typer.Option(help="Largest record.", parser=size(), metavar="SIZE", show_default="1M"),
    ] = _DEFAULTS.record_bytes_max,
    roll_bytes: Annotated[
        int,
        typer.Option(
            help="Start a new segment after this many bytes.",
            parser=size(),
            metavar="SIZE",
            show_default="1G",
        ),
    ] = _DEFAULTS.roll_bytes,
    roll_age_s: Annotated[
        float,
        typer.Option(
            help="Start a new segment when the last one is older.",
            parser=duration(),
            metavar="DURATION",
            show_default="2h",
        ),
    ] = _DEFAULTS.roll_age_s,
    retention_bytes: Annotated[
        int,
        typer.Option(
            help="Delete old segments beyond this total size.", parser=size(), metavar="SIZE"
        ),
    ] = _DEFAULTS.retention_bytes,
    retention_age_s: Annotated[
        float,
        typer.Option(help="Delete segments that are older.", parser=duration(), metavar="DURATION"),
    ] = _DEFAULTS.retention_age_s,
    more: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            autocompletion=complete_assignment,
            metavar="NAME=VALUE",
            help="Any other setting by its name; repeat it for several. See 'dlog log settings'.",
            show_default=False,
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Create an empty log with settings of its own.

    Not needed before the first append, which creates a log with the defaults. Sizes are bytes,
    or 512K, 10M, 2G; times are seconds, or 90s, 15m, 2h, 7d; 0 means no limit."""
    changes = parse_settings(more or [], "--set")
    compressed_by, codec_level = parse_codec(codec, "--codec")

    async def command() -> None:
        from dlog.aio.admin import create_log

        settings = LogSettings(
            quorum=Quorum(ensemble, write_quorum, ack_quorum),
            codec=compressed_by,
            codec_level=codec_level,
            record_bytes_max=record_bytes_max,
            roll_bytes=roll_bytes,
            roll_age_s=roll_age_s,
            retention_bytes=retention_bytes,
            retention_age_s=retention_age_s,
        )
        await create_log(log, settings=apply_settings(changes, settings), uri=uri)
        if as_json:
            print_json({"log": log, "created": True})
        else:
            typer.echo(f"log {log!r} was created", err=True)

    run_at(uri, command())


@app.command(epilog=examples("dlog log exists flights && echo yes"))
def exists(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Exit with 0 if the log exists, and with 1 if it does not."""

    async def command() -> bool:
        from dlog.aio.admin import log_exists

        found = await log_exists(log, uri=uri)
        if as_json:
            print_json({"log": log, "exists": found})
        return found

    if not run_at(uri, command()):
        raise typer.Exit(FAILED)


@app.command(epilog=examples("dlog log rename orders eu/orders"))
def rename(
    log: LogName,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Rename a log atomically; records, offsets, settings and consumers stay.

    Its writer and its readers continue. First stop the candidates of an election under the old
    name, or one of them creates a new log with that name."""

    async def command() -> None:
        from dlog.aio.admin import rename_log

        await rename_log(log, new_name, uri=uri)
        if as_json:
            print_json({"log": new_name, "renamed_from": log})
        else:
            typer.echo(f"log {log!r} is {new_name!r} now", err=True)

    run_at(uri, command())


@app.command(epilog=examples("dlog log seal orders-2025", "dlog log seal orders-2025 --yes"))
def seal(log: LogName, yes: Yes = False, uri: Uri = None, as_json: Json = False) -> None:
    """Seal a log: nobody can ever append to it again. Prints the offset after its end.

    All of it stays readable, and readers that follow it end. A writer that has it open loses
    it. There is no way back."""
    if not yes:
        typer.confirm(f"End log {log!r} for good?", abort=True, err=True)

    async def command() -> None:
        from dlog.aio.admin import seal_log

        end = await seal_log(log, uri=uri)
        if as_json:
            print_json({"log": log, "sealed": True, "next_offset": end})
        else:
            write_text(f"{end}\n")

    run_at(uri, command())


@app.command(epilog=examples("dlog log delete scratch", "dlog log delete scratch --yes"))
def delete(log: LogName, yes: Yes = False, uri: Uri = None, as_json: Json = False) -> None:
    """Delete a log and all of its records permanently."""
    if not yes:
        typer.confirm(f"Delete log {log!r} and all of its records?", abort=True, err=True)

    async def command() -> None:
        from dlog.aio.admin import delete_log

        await delete_log(log, uri=uri)
        if as_json:
            print_json({"log": log, "deleted": True})
        else:
            typer.echo(f"log {log!r} was deleted", err=True)

    run_at(uri, command())


@app.command(
    epilog=examples(
        "dlog log watch",
        "dlog log watch --prefix eu/ --no-existing --json",
        "dlog log watch --limit 1",
    )
)
def watch(
    prefix: Annotated[str, typer.Option(help="Only logs whose names start with this.")] = "",
    existing: Annotated[
        bool, typer.Option(help="Start with the existing logs, as added; or print only changes.")
    ] = True,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Stop after this many changes.", min=0)
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Print logs as they are created and deleted, until Ctrl-C.

    Each line is 'added' or 'removed', a tab, and a name."""

    async def command() -> None:
        from dlog.aio.admin import watch_logs

        left = limit
        async with watch_logs(prefix=prefix, existing=existing, uri=uri) as changes:
            while left is None or left > 0:
                change = await anext(changes)
                if as_json:
                    print_json({"kind": change.kind, "log": change.log})
                else:
                    write_text(f"{change.kind}\t{change.log}\n")
                    sys.stdout.flush()
                left = None if left is None else left - 1

    run_at(uri, command())
