"""``dlog log``: logs as a whole, from their creation to their end, and their settings.

The rest is beside it: `append` and `tail` bring records in and out, `overview` and `contents` look
inside, `maintenance` and `archive` look after logs.
"""

import sys
from typing import Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup, include
from dlog.cli.completion import complete_assignment, complete_codec, complete_setting, did_you_mean
from dlog.cli.log import append, archive, contents, maintenance, overview, schema, tail
from dlog.cli.options import Json, LogName, Uri, parse_codec, parse_settings
from dlog.cli.output import answer, print_json, print_lines, report, write_text
from dlog.cli.runner import confirm, failed, run_at, run_check
from dlog.settings import CODECS_ALLOWED, LogSettings
from dlog.settings import parse_settings as apply_settings
from ledger.options import duration, size
from ledger.quorum import Quorum

settings_app = CommandGroup("cli#logs", "Show and change the settings of a log.")
_DEFAULTS: Final = LogSettings()
app = CommandGroup("cli#logs")
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@settings_app.define(
    READS,
    "dlog log settings get flights",
    "dlog log settings get flights retention_age_s",
    "dlog log settings get flights --json | jq .codec",
)
def get(
    log: LogName,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            autocompletion=complete_setting,
            help="Print only the value of this one.",
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show the settings of a log. Sizes are in bytes, times in seconds; 0 means no limit."""

    async def command() -> None:
        from dlog.aio.admin import log_settings
        from dlog.settings import settings_facts

        settings = settings_facts(await log_settings(log, uri=uri))
        if name is None:
            _print_settings(settings, as_json=as_json)
            return
        if name not in settings:
            there = f"there are {', '.join(settings)}"
            raise failed(f"there is no setting {name!r}; {there}{did_you_mean(name, settings)}")
        value = settings[name]
        answer({name: value}, f"{_format_setting(value)}\n", as_json=as_json)

    run_at(uri, command())


@settings_app.define(
    CHANGES,
    "dlog log settings set flights retention_age_s=7d roll_bytes=256M",
    "dlog log settings set flights codec=zstd:3",
    "dlog log settings set flights retention_waits_for_consumers=true",
    "dlog log settings set flights degraded_writes=false",
    "dlog log settings set flights encrypt_with=flights-2026",
    name="set",
)
def set_(
    log: LogName,
    pairs: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            autocompletion=complete_assignment,
            help="Settings as 'get' shows them.",
        ),
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Change settings of a log; print all of them.

    Sizes may be written as 512K, 10M or 2G, times as 90s, 15m, 2h or 7d. Retention and degraded
    writes count at once, a codec and a key from the next segment on that the writer begins,
    everything else from the next time on that the log is opened for writing."""
    changes = parse_settings(pairs, "NAME=VALUE")

    async def command() -> None:
        from dlog.aio.admin import update_settings
        from dlog.settings import settings_facts

        _print_settings(
            settings_facts(await update_settings(log, changes, uri=uri)), as_json=as_json
        )

    run_at(uri, command())


def _print_settings(settings: dict[str, int | float | str], *, as_json: bool) -> None:
    if as_json:
        print_json(settings)
    else:
        print_lines({name: _format_setting(value) for name, value in settings.items()})


def _format_setting(value: float | str) -> str:
    """Return *value* as 'set' takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


include(app, append.app, tail.app, overview.app, contents.app, maintenance.app, archive.app)
app.add_typer(settings_app, name="settings")
app.add_typer(schema.app, name="schema")


@app.define(
    CHANGES,
    "dlog log create flights",
    "dlog log create eu/orders --codec zstd:3 --retention-age-s 7d",
    "dlog log create scratch --ensemble 1 --write-quorum 1 --ack-quorum 1",
    "dlog log create events --set roll_records=100000 --set retention_age_s=7d",
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
        report({"log": log, "created": True}, f"log {log!r} was created", as_json=as_json)

    run_at(uri, command())


@app.define(READS, "dlog log exists flights && echo yes")
def exists(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Exit with 0 if the log exists, and with 1 if it does not."""

    async def command() -> bool:
        from dlog.aio.admin import log_exists

        found = await log_exists(log, uri=uri)
        if as_json:
            print_json({"log": log, "exists": found})
        return found

    run_check(uri, command())


@app.define(CHANGES, "dlog log rename orders eu/orders")
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
        report(
            {"log": new_name, "renamed_from": log},
            f"log {log!r} is {new_name!r} now",
            as_json=as_json,
        )

    run_at(uri, command())


@app.define(CHANGES, "dlog log seal orders-2025", "dlog log seal orders-2025 --yes")
def seal(log: LogName, yes: Yes = False, uri: Uri = None, as_json: Json = False) -> None:
    """Seal a log: nobody can ever append to it again. Prints the offset after its end.

    All of it stays readable, and readers that follow it end. A writer that has it open loses
    it. There is no way back."""
    confirm(f"Seal log {log!r} permanently?", yes=yes)

    async def command() -> None:
        from dlog.aio.admin import seal_log

        end = await seal_log(log, uri=uri)
        answer({"log": log, "sealed": True, "next_offset": end}, f"{end}\n", as_json=as_json)

    run_at(uri, command())


@app.define(CHANGES, "dlog log delete scratch", "dlog log delete scratch --yes")
def delete(log: LogName, yes: Yes = False, uri: Uri = None, as_json: Json = False) -> None:
    """Delete a log and all of its records permanently."""
    confirm(f"Delete log {log!r} and all of its records?", yes=yes)

    async def command() -> None:
        from dlog.aio.admin import delete_log

        await delete_log(log, uri=uri)
        report({"log": log, "deleted": True}, f"log {log!r} was deleted", as_json=as_json)

    run_at(uri, command())


@app.define(
    READS,
    "dlog log watch",
    "dlog log watch --prefix eu/ --no-existing --json",
    "dlog log watch --limit 1",
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
