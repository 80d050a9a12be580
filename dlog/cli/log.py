"""``dlog log``: logs as a whole. Records go in and out in `dlog.cli.records`."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli import records
from dlog.cli.options import Json, LogName, Uri, examples
from dlog.cli.output import print_facts, print_json, print_table, shown_time
from dlog.cli.running import run
from dlog.cli.stores import connected
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from ledger.quorum import Quorum

if TYPE_CHECKING:
    from dlog.manifest import Segment
    from dlog.namespace import LogInfo
    from leader import LeaderInfo

_DEFAULTS: Final = LogSettings()

app = typer.Typer(no_args_is_help=True, help="Create, read, write, inspect and delete logs.")
app.command(epilog=records.APPEND_EPILOG)(records.append)
app.command(epilog=records.TAIL_EPILOG)(records.tail)


class CodecName(StrEnum):
    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"


@app.command(
    epilog=examples(
        "dlog log create flights",
        "dlog log create eu/orders --codec zstd --retention-age-s 604800",
        "dlog log create scratch --ensemble 1 --write-quorum 1 --ack-quorum 1",
    )
)
def create(
    log: LogName,
    *,
    ensemble: Annotated[int, typer.Option(help="Bookies that a segment is spread over.")] = 3,
    write_quorum: Annotated[int, typer.Option(help="Copies of each entry.")] = 3,
    ack_quorum: Annotated[int, typer.Option(help="Copies on disk before an append is done.")] = 2,
    codec: Annotated[CodecName, typer.Option(help="Compression of records.")] = CodecName.NONE,
    record_bytes_max: Annotated[
        int, typer.Option(help="Largest record.")
    ] = _DEFAULTS.record_bytes_max,
    roll_bytes: Annotated[
        int, typer.Option(help="Begin a new segment after so many bytes.")
    ] = _DEFAULTS.roll_bytes,
    roll_age_s: Annotated[
        float, typer.Option(help="Begin a new segment when the last one is older.")
    ] = _DEFAULTS.roll_age_s,
    retention_bytes: Annotated[
        int, typer.Option(help="Drop old segments beyond this size.")
    ] = _DEFAULTS.retention_bytes,
    retention_age_s: Annotated[
        float, typer.Option(help="Drop segments that are older.")
    ] = _DEFAULTS.retention_age_s,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Create an empty log with settings of its own.

    Not needed before the first append, which creates a log with the defaults. Sizes are in
    bytes, times in seconds; 0 means no limit."""

    async def command() -> None:
        from dlog.namespace import create_log

        settings = LogSettings(
            quorum=Quorum(ensemble, write_quorum, ack_quorum),
            codec=Codec[codec.name],
            record_bytes_max=record_bytes_max,
            roll_bytes=roll_bytes,
            roll_age_s=roll_age_s,
            retention_bytes=retention_bytes,
            retention_age_s=retention_age_s,
        )
        await create_log(log, settings=settings, uri=uri)
        if as_json:
            print_json({"log": log, "created": True})
        else:
            typer.echo(f"log {log!r} was created", err=True)

    run(command())


@app.command("list", epilog=examples("dlog log list", "dlog log list --prefix eu/ --json"))
def list_(
    prefix: Annotated[str, typer.Option(help="Only logs whose names begin so.")] = "",
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List the names of the logs."""

    async def command() -> None:
        from dlog.namespace import list_logs

        found = await list_logs(prefix=prefix, uri=uri)
        if as_json:
            print_json(found)
        else:
            sys.stdout.writelines(f"{name}\n" for name in found)

    run(command())


@app.command(epilog=examples("dlog log show flights", "dlog log show flights --json | jq .records"))
def show(log: LogName, uri: Uri = None, as_json: Json = False) -> None:
    """Show what a log holds: offsets, segments and their ledgers, settings, who leads it."""

    async def command() -> None:
        from dlog.namespace import log_info
        from leader import current_leader

        async with connected(uri) as client:
            info = await log_info(log, client=client)
            leader = await current_leader(client.store, log)
        if as_json:
            print_json(log_facts(info, leader))
        else:
            _print_log(info, leader)

    run(command())


@app.command(
    epilog=examples(
        "dlog log truncate flights --before 100000",
        "dlog log truncate flights --before 100000 --json",
    )
)
def truncate(
    log: LogName,
    before: Annotated[
        int, typer.Option(help="Offset of the first record to keep.", metavar="OFFSET", min=0)
    ],
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Remove the records below an offset, beside a writer if there is one.

    Prints the first offset there is now. Space is freed by whole segments."""

    async def command() -> None:
        from dlog.namespace import truncate_log

        first = await truncate_log(log, before=before, uri=uri)
        if as_json:
            print_json({"log": log, "first_offset": first})
        else:
            sys.stdout.write(f"{first}\n")

    run(command())


@app.command(epilog=examples("dlog log delete scratch", "dlog log delete scratch --yes"))
def delete(
    log: LogName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Delete a log and all of its records, for good."""
    if not yes:
        typer.confirm(f"Delete log {log!r} and all of its records?", abort=True, err=True)

    async def command() -> None:
        from dlog.namespace import delete_log

        await delete_log(log, uri=uri)
        if as_json:
            print_json({"log": log, "deleted": True})
        else:
            typer.echo(f"log {log!r} was deleted", err=True)

    run(command())


def log_facts(info: "LogInfo", leader: "LeaderInfo | None") -> dict[str, object]:
    manifest, tail, settings = info.manifest, info.tail, info.manifest.settings
    return {
        "log": info.name,
        "incarnation": manifest.incarnation,
        "first_offset": tail.first_offset,
        "next_offset": tail.next_offset,
        "records": info.records,
        "last_txid": tail.last_txid,
        "epoch": manifest.epoch,
        "owner": manifest.owner,
        "sealed": manifest.sealed,
        "leader": leader and {"candidate": leader.candidate, "epoch": leader.epoch},
        "segments": [_segment_facts(segment) for segment in manifest.segments],
        "deleting": list(manifest.deleting),
        "settings": {
            "ensemble": settings.quorum.ensemble,
            "write_quorum": settings.quorum.write,
            "ack_quorum": settings.quorum.ack,
            "digest": settings.digest.name,
            "codec": settings.codec.name.lower(),
            "record_bytes_max": settings.record_bytes_max,
            "roll_bytes": settings.roll_bytes,
            "roll_age_s": settings.roll_age_s,
            "roll_records": settings.roll_records,
            "retention_bytes": settings.retention_bytes,
            "retention_age_s": settings.retention_age_s,
        },
    }


def _segment_facts(segment: "Segment") -> dict[str, object]:
    sealed = segment.sealed
    return {
        "segment": segment.number,
        "ledger": segment.ledger_id,
        "state": "sealed" if sealed else "open",
        "first_offset": segment.first_offset,
        "records": sealed.records if sealed else None,
        "bytes": sealed.bytes if sealed else None,
        "created_ms": segment.created_ms,
        "last_timestamp_ms": sealed.last_timestamp_ms if sealed else None,
    }


def _print_log(info: "LogInfo", leader: "LeaderInfo | None") -> None:
    manifest, tail, settings = info.manifest, info.tail, info.manifest.settings
    quorum = settings.quorum
    print_facts(
        {
            "log": info.name,
            "records": info.records,
            "offsets": f"{tail.first_offset} to {tail.next_offset - 1}" if info.records else "none",
            "last txid": "-" if tail.last_txid is None else tail.last_txid,
            "epoch": manifest.epoch or "-",
            "owner": manifest.owner or "-",
            "leader": f"{leader.candidate} (epoch {leader.epoch})" if leader else "none",
            "sealed": "yes" if manifest.sealed else "no",
            "quorum": f"E={quorum.ensemble} Qw={quorum.write} Qa={quorum.ack}",
            "codec": settings.codec.name.lower(),
        }
    )
    rows = []
    for segment in manifest.segments:
        sealed = segment.sealed
        rows.append(
            (
                segment.number,
                segment.ledger_id,
                "?" if segment.first_offset is None else segment.first_offset,
                sealed.records if sealed else "open",
                sealed.bytes if sealed else "open",
                shown_time(segment.created_ms),
            )
        )
    if rows:
        sys.stdout.write("\n")
        print_table(("segment", "ledger", "from offset", "records", "bytes", "created"), rows)
