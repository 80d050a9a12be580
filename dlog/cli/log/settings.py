"""``dlog log settings``: what a log was given at its creation, and changes of it."""

from typing import Annotated

import typer

from dlog.cli.argument_values import parse_settings
from dlog.cli.names import complete_assignment, complete_setting, did_you_mean
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.render.output import print_facts, print_json, write_text
from dlog.cli.runner import failed, run_at

app = typer.Typer(no_args_is_help=True, help="Show and change the settings of a log.")


@app.command(
    epilog=examples(
        "dlog log settings get flights",
        "dlog log settings get flights retention_age_s",
        "dlog log settings get flights --json | jq .codec",
    )
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

        facts = settings_facts(await log_settings(log, uri=uri))
        if name is None:
            _show(facts, as_json=as_json)
        elif name not in facts:
            there = f"there are {', '.join(facts)}"
            raise failed(f"there is no setting {name!r}; {there}{did_you_mean(name, facts)}")
        elif as_json:
            print_json({name: facts[name]})
        else:
            write_text(f"{_shown(facts[name])}\n")

    run_at(uri, command())


@app.command(
    "set",
    epilog=examples(
        "dlog log settings set flights retention_age_s=7d roll_bytes=256M",
        "dlog log settings set flights codec=zstd:3",
        "dlog log settings set flights retention_waits_for_consumers=true",
        "dlog log settings set flights degraded_writes=false",
        "dlog log settings set flights encrypt_with=flights-2026",
    ),
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

        _show(settings_facts(await update_settings(log, changes, uri=uri)), as_json=as_json)

    run_at(uri, command())


def _show(facts: dict[str, int | float | str], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_facts({name: _shown(value) for name, value in facts.items()})


def _shown(value: float | str) -> str:
    """Return *value* as 'set' takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
