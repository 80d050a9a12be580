"""``dlog log truncate``: removes old records, or says which would go."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dlog.cli.argument_values import parse_start, parse_time
from dlog.cli.log.show_command import print_segments, segment_facts
from dlog.cli.names import complete_position
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_facts, print_json
from dlog.cli.runner import run_at
from dlog.starts import TIME_HELP
from ledger.options import duration, size
from ledger.values import DURATION_HELP, SIZE_HELP

if TYPE_CHECKING:
    from dlog.aio.admin import TrimPlan
    from dlog.aio.maintain.trim import Before


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "dlog log truncate flights --before 100000",
            "dlog log truncate flights --keep-age 7d --dry-run",
            "dlog log truncate flights --keep-bytes 10G --json",
            "dlog log truncate flights --before-time 2026-11-01T00:00:00",
        )
    )(truncate)


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
                print_json(plan_facts(plan))
            else:
                _print_plan(plan)
            return
        offset = await truncate_log(
            log, before=first, keep_bytes=keep_bytes, keep_age_s=keep_age, uri=uri
        )
        if as_json:
            print_json({"log": log, "first_offset": offset})
        else:
            sys.stdout.write(f"{offset}\n")

    run_at(uri, command())


def plan_facts(plan: "TrimPlan") -> dict[str, object]:
    return {
        "log": plan.log,
        "dry_run": True,
        "first_offset": plan.trim_offset,
        "first_offset_now": plan.first_offset,
        "records": plan.records,
        "bytes": plan.bytes,
        "ledgers": list(plan.ledgers),
        "segments": [segment_facts(segment) for segment in plan.segments],
        "inside": plan.inside and plan.inside.number,
    }


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
    inside = plan.inside
    facts: dict[str, object] = {
        "log": plan.log,
        "records that go": plan.records,
        "first offset": f"{plan.trim_offset} (now {plan.first_offset})",
        "bytes freed": plan.bytes,
        "ledgers that go": ", ".join(map(str, plan.ledgers)) or "none",
    }
    if inside is not None:
        facts["cut inside"] = (
            f"segment {inside.number}: its ledger {inside.ledger_id} stays until all of it can go"
        )
    print_facts(facts)
    if plan.segments:
        sys.stdout.write("\n")
        print_segments(plan.segments)
    typer.echo("nothing was changed", err=True)
