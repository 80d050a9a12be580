"""``dlog replica``: running replicas of state machines, and their snapshots."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from dlog.cli.commands import CHANGES, READS, CommandGroup
from dlog.cli.completion import complete_log
from dlog.cli.options import Json, LogName, Uri
from dlog.cli.output import (
    Advance,
    Column,
    View,
    answer,
    format_size,
    format_time,
    json_column,
    print_json,
    progress_bar,
    text_column,
    warn,
)
from dlog.cli.runner import failed, run_at, run_check
from ledger.options import duration
from ledger.values import DURATION_HELP

if TYPE_CHECKING:
    from dlog.aio.maintain.snapshot_check import SnapshotInfo, StoreReport
    from dlog.aio.replica_registry import RegisteredReplica
    from dlog.errors import SnapshotsUnusable
    from dlog.protocol.replica_record import ReplicaRecord
    from ledger.metastore.port import MetadataStore

app = CommandGroup("cli#replicas")

Snapshots = Annotated[
    list[str] | None,
    typer.Option(
        "--snapshots",
        metavar="URI",
        help="Store of snapshots, as file:///dir or s3://bucket/dir; repeat it for several. "
        "Default: those of the running replicas.",
        show_default=False,
    ),
]


def _state_of(record: "ReplicaRecord") -> str:
    """Return what people are told beside the role."""
    if record.error:
        return record.error
    if record.phase is None:
        return "-"
    done = format_size(record.done_bytes)
    of = f" of {format_size(record.total_bytes)}" if record.total_bytes else ""
    return f"{record.phase} a snapshot: {done}{of}"


_REPLICA: "Final[View[RegisteredReplica]]" = View(
    Column("log", lambda each: each.record.log),
    Column("replica", lambda each: each.record.candidate),
    Column("role", lambda each: each.record.role),
    Column(
        "address", lambda each: each.record.address, None, lambda address: address or "not reported"
    ),
    Column("process", lambda each: each.record.process),
    json_column("epoch", lambda each: each.record.epoch or None),
    Column("applied", lambda each: each.record.applied),
    Column("lag", lambda each: each.lag),
    Column("version", lambda each: each.record.version),
    Column("since_ms", lambda each: each.record.since_ms, "since", format_time),
    json_column("updated_ms", lambda each: each.record.updated_ms),
    json_column("snapshots", lambda each: each.record.snapshots or None),
    json_column("newest_snapshot", lambda each: each.record.newest_snapshot or None),
    json_column("phase", lambda each: each.record.phase),
    json_column("done_bytes", lambda each: each.record.done_bytes),
    json_column("total_bytes", lambda each: each.record.total_bytes),
    json_column("error", lambda each: each.record.error or None),
    text_column("state", lambda each: _state_of(each.record)),
)
_LISTED: Final = _REPLICA.only(
    "log", "replica", "role", "address", "applied", "lag", "version", "since", "state"
)
_SNAPSHOT: "Final[View[SnapshotInfo]]" = View(
    Column("offset", lambda each: each.offset),
    Column("state", lambda each: each.state),
    json_column("txid", lambda each: None if each.header is None else each.header.txid),
    Column("epoch", lambda each: None if each.header is None else each.header.epoch),
    Column("version", lambda each: None if each.header is None else each.header.version),
    Column("bytes", lambda each: each.size_bytes, "size", format_size),
    Column(
        "written_ms",
        lambda each: 0 if each.header is None else each.header.written_ms,
        "written",
        format_time,
    ),
    json_column("leader", lambda each: None if each.header is None else each.header.leader),
    json_column("path", lambda each: each.path),
    Column("reason", lambda each: each.reason),
)


@app.define(READS, "dlog replica list", "dlog replica list accounts --json", name="list")
def list_(
    log: Annotated[
        str | None,
        typer.Argument(
            metavar="[LOG]", help="Only the replicas of this log.", autocompletion=complete_log
        ),
    ] = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """List running replicas: role, address, applied offset, how far behind. With --json, one line.

    Replicas report the offset every 5 s. A replica that was killed is listed until its session of
    the metadata store has expired; one that stopped by an error is listed with it."""

    async def command() -> list["RegisteredReplica"]:
        from dlog.aio.replica_registry import list_replicas

        return await list_replicas(log, uri=uri)

    view = _REPLICA if as_json else _LISTED
    of = "" if log is None else f" of log {log!r}"
    view.print_all(run_at(uri, command()), f"no replica{of} is running", as_json=as_json)


@app.define(
    READS,
    "dlog replica show accounts",
    "dlog replica show accounts --snapshots file:///srv/snapshots",
    "dlog replica show accounts --json | jq '.stores[].snapshots[0].offset'",
)
def show(
    log: LogName,
    snapshots: Snapshots = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Show the replicas of a log, and the snapshots in their stores.

    Snapshots are read at their beginning and end only: 'dlog replica verify' reads all of them."""

    async def command() -> tuple[
        list["RegisteredReplica"], "list[StoreReport | SnapshotsUnusable]"
    ]:
        from dlog.aio.maintain.snapshot_check import check_store
        from dlog.aio.replica_registry import list_replicas
        from dlog.errors import SnapshotsUnusable

        replicas = await list_replicas(log, uri=uri)
        stores: list[StoreReport | SnapshotsUnusable] = []
        for store in snapshots or stores_of(replicas):
            try:
                stores.append(await check_store(log, store, read=False, uri=uri))
            except SnapshotsUnusable as error:
                stores.append(error)
        return replicas, stores

    replicas, stores = run_at(uri, command())
    if as_json:
        rows = [_store_json(store) for store in stores]
        print_json({"log": log, "replicas": _REPLICA.rows(replicas), "stores": rows})
        return
    _LISTED.print_all(replicas, f"no replica of log {log!r} is running", as_json=False)
    for store in stores:
        typer.echo()
        if isinstance(store, Exception):
            warn(str(store))
        else:
            _SNAPSHOT.table(store.snapshots, title=f"{len(store.snapshots)} in {store.uri}")


@app.define(
    CHANGES,
    "dlog replica snapshot accounts",
    "dlog replica snapshot accounts --replica app-2 --timeout 1h",
)
def snapshot(
    log: LogName,
    replica: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Replica that writes it. Default: a standby with a store of snapshots, else "
            "the leader.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help=f"Time limit: {DURATION_HELP}.",
            parser=duration(),
            show_default="10m",
        ),
    ] = 600.0,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Let a running replica write a snapshot now; print its offset.

    Prints the offset of the newest one if nothing was applied since. The replica then removes old
    snapshots, and truncates the log, if its policy says so. Exits with 1 if no replica can."""

    async def command() -> None:
        from dlog.aio.namespace_connection import connected
        from dlog.aio.replica_registry import list_replicas

        async with connected(uri, None) as ledgers:
            replicas = await list_replicas(log, client=ledgers)
            chosen = _writer_among(replicas, log, replica)
            offset = await _requested(chosen, ledgers.store, timeout_s)
        done = {"log": log, "replica": chosen.record.candidate, "offset": offset}
        answer(done, f"{offset}\n", as_json=as_json)

    run_at(uri, command())


@app.define(
    READS,
    "dlog replica verify accounts",
    "dlog replica verify accounts --snapshots file:///srv/snapshots --json",
)
def verify(
    log: LogName,
    snapshots: Snapshots = None,
    uri: Uri = None,
    as_json: Json = False,
) -> None:
    """Read the snapshots of a log as a whole, and compare them with the log.

    Checks checksums, that each is of this log, and that its offset and epoch are not ahead of the
    log. Exits with 1 if one is damaged, ahead, or of a newer version; if none can be restored
    and the log was truncated; or if there is no store to look at."""

    async def command() -> bool:
        from dlog.aio.maintain.snapshot_check import check_store
        from dlog.aio.replica_registry import list_replicas

        stores = snapshots or stores_of(await list_replicas(log, uri=uri))
        if not stores:
            raise failed(
                f"no running replica of log {log!r} has a store of snapshots; give it with "
                "--snapshots"
            )
        healthy = True
        for store in stores:
            with progress_bar("reading") as advance:

                def on_read(offset: int, done: int, total: int, advance: Advance = advance) -> None:
                    words = f"snapshot {offset}: {format_size(done)} of {format_size(total)}"
                    advance(done, total, words)

                report = await check_store(log, store, read=True, on_read=on_read, uri=uri)
            _print_verified(report, as_json=as_json)
            healthy = healthy and not report.problems
        return healthy

    run_check(uri, command())


def stores_of(replicas: "list[RegisteredReplica]") -> list[str]:
    """Return the URIs of the stores of *replicas*, each once."""
    return list(dict.fromkeys(each.record.snapshots for each in replicas if each.record.snapshots))


def _store_json(store: "StoreReport | SnapshotsUnusable") -> dict[str, object]:
    if isinstance(store, Exception):
        return {"uri": store.uri, "error": str(store), "snapshots": None}
    return {"uri": store.uri, "error": None, "snapshots": _SNAPSHOT.rows(store.snapshots)}


def _print_verified(report: "StoreReport", *, as_json: bool) -> None:
    if as_json:
        rows = _SNAPSHOT.rows(report.snapshots)
        result = {"log": report.log, "uri": report.uri, "snapshots": rows}
        print_json({**result, "problems": list(report.problems), "healthy": not report.problems})
        return
    _SNAPSHOT.table(report.snapshots, title=f"{len(report.snapshots)} in {report.uri}")
    for problem in report.problems:
        warn(problem)


def _writer_among(
    replicas: "list[RegisteredReplica]", log: str, name: str | None
) -> "RegisteredReplica":
    """Return the replica that is to write a snapshot."""
    if name is not None:
        named = [each for each in replicas if each.record.candidate == name]
        if not named:
            names = ", ".join(each.record.candidate for each in replicas) or "none"
            raise failed(f"no replica {name!r} of log {log!r} is running; running: {names}")
        return max(named, key=lambda each: each.record.updated_ms)
    running = [each for each in replicas if each.record.role != "stopped"]
    if not running:
        raise failed(f"no replica of log {log!r} is running; start one, which writes it")
    stored = [each for each in running if each.record.snapshots]
    if not stored:
        raise failed(
            f"no running replica of log {log!r} has a store of snapshots; open one with "
            "snapshots='file:///directory' or 's3://bucket/prefix'"
        )
    return min(stored, key=lambda each: each.record.role == "leader")


async def _requested(replica: "RegisteredReplica", store: "MetadataStore", timeout_s: float) -> int:
    from dlog.aio.replica_registry import request_snapshot

    with progress_bar(f"snapshot by {replica.record.candidate}") as advance:

        def on_progress(record: "ReplicaRecord") -> None:
            advance(record.done_bytes, record.total_bytes, _state_of(record))

        return await request_snapshot(replica, store, timeout_s=timeout_s, on_progress=on_progress)
