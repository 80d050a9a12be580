"""Logs and their consumers as a whole: list, watch, describe, change and delete them.

All of it beside a living writer, if there is one. `dlog.admin` has the same for threads.

Each function connects for itself, to *uri* or to the configured namespace, unless it is given
a *client* to use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dlog.aio.handle import opening
from dlog.aio.maintain import table as tables
from dlog.aio.maintain.archive import RESTORED_KEEP_S, ArchiveProgress, ArchiveReport, RestoreReport
from dlog.aio.maintain.archive import archive_log as archive
from dlog.aio.maintain.archive import restore_segments as restore
from dlog.aio.maintain.audit import AuditProgress, AuditReport, audit
from dlog.aio.maintain.lifecycle import check_level, create, drop, rename, seal
from dlog.aio.maintain.table import TableCheck, TableReport
from dlog.aio.maintain.trim import Before, Keep, plan, truncate
from dlog.aio.maintain.verify import VerifyProgress, VerifyReport, mark_faults, verify
from dlog.aio.namespace_connection import connect, connected
from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_store
from dlog.aio.read.places import start_offset
from dlog.aio.read.segments import CompressionSample, sample_compression
from dlog.aio.read.tails import LogTail, TailTracker, tail_of
from dlog.aio.store import (
    ConsumerNode,
    LogChange,
    LogWatch,
    ManifestNode,
    listed_names,
    read_consumers,
)
from dlog.errors import InvalidPosition, NoSuchLog
from dlog.log_schema import LogSchema, LogSchemas
from dlog.manifest import Manifest
from dlog.names import check_name, check_new_name, first_level
from dlog.position import Start
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.edits import change_settings, check_living
from dlog.protocol.retention import TrimPlan
from dlog.protocol.schema_steps import edit_schemas, read_schemas
from dlog.protocol.table import Table, archived_end, table_storage
from dlog.settings import LogSettings, parse_settings
from ledger.errors import MetadataDenied
from ledger.ledger_owner import RENAMED_PATH
from ledger.log_events import now_ms
from ledger.values import Duration, Size, count_of, duration_s

__all__ = [
    "ArchiveProgress",
    "ArchiveReport",
    "AuditProgress",
    "AuditReport",
    "CompressionSample",
    "ConsumerInfo",
    "LogChange",
    "LogInfo",
    "LogTail",
    "LogWatch",
    "RestoreReport",
    "TableCheck",
    "TableInfo",
    "TableReport",
    "TailTracker",
    "TrimPlan",
    "VerifyProgress",
    "VerifyReport",
    "archive_log",
    "audit_namespace",
    "clear_log_schema",
    "consumer_info",
    "create_log",
    "delete_consumer",
    "delete_log",
    "list_consumers",
    "list_logs",
    "log_compression",
    "log_exists",
    "log_info",
    "log_schemas",
    "log_settings",
    "log_tail",
    "plan_truncation",
    "rebuild_table",
    "rename_log",
    "reset_consumer",
    "restore_segments",
    "seal_log",
    "set_log_schema",
    "slowest_consumer",
    "table_info",
    "truncate_log",
    "update_settings",
    "verify_log",
    "verify_table",
    "watch_logs",
]


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log's manifest and where it ends now."""

    name: str
    manifest: Manifest
    tail: LogTail

    @property
    def records(self) -> int:
        """How many records can be read."""
        return self.tail.next_offset - self.tail.first_offset


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A log's table, and how far it is behind what is archived."""

    log: str
    storage: str
    """URI of the folder with its files."""
    table: Table
    log_first: int
    """The first offset that the log still has."""
    waiting: int
    """How many archived records are not in it yet."""


async def create_log(
    name: str,
    *,
    settings: LogSettings | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> None:
    """Create an empty log. Raises `InvalidName`, `LogExists`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        await create(ledgers, ManifestNode(ledgers.store, name), settings)


async def list_logs(
    *,
    prefix: str = "",
    recursive: bool = True,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> list[str]:
    """Return the names of all logs that begin with *prefix*, sorted.

    With *recursive* False, names that have a slash after the prefix are cut behind the first
    one, and returned once: of ``eu/a``, ``eu/west/b`` and ``eu/west/c`` with the prefix ``eu/``
    remain ``eu/a`` and ``eu/west/``. Logs of dlog's own, as `_audit`, are listed only if *prefix*
    begins with an underscore. One read of the metadata store, however many there are."""
    async with connected(uri, client) as ledgers:
        names = await listed_names(ledgers.store, prefix)
    return names if recursive else first_level(names, prefix)


async def log_exists(name: str, *, uri: str | None = None, client: Ledgers | None = None) -> bool:
    """Return True iff there is such a log and it is not being deleted. Raises `InvalidName`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        try:
            manifest, _ = await ManifestNode(ledgers.store, name).read()
        except NoSuchLog:
            return False
    return not manifest.dropped


@opening
async def watch_logs(
    *,
    prefix: str = "",
    existing: bool = True,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> LogWatch:
    """Return an async iterator of logs that are added and removed; close it.

        async with watch_logs(prefix="eu/") as watch:
            async for change in watch:
                ...  # change.kind is "added" or "removed", change.log the name

    It begins with what there is, as added, unless *existing* is False. `LogWatch` says what
    it promises. Raises what connecting raises, and without *existing* `MetadataUnavailable`."""
    ledgers = client if client is not None else await connect(uri)
    try:
        known = [] if existing else await listed_names(ledgers.store, prefix)
        return LogWatch(ledgers, prefix=prefix, known=known, owns_ledgers=client is None)
    except BaseException:
        if client is None:
            await ledgers.close()
        raise


async def log_settings(
    name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> LogSettings:
    """Return the settings of a log. Raises `InvalidName`, `NoSuchLog`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        manifest, _ = await ManifestNode(ledgers.store, name).read()
    check_living(manifest, name)
    return manifest.settings


async def update_settings(
    name: str,
    changes: Mapping[str, object] | Callable[[LogSettings], LogSettings],
    *,
    incarnation: str | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> LogSettings:
    """Change settings of a log by compare-and-swap; return all of them.

    *changes* are values by name, as `dlog.settings.parse_settings` takes them, or a function of
    the present settings, which may be called several times. What is not changed stays, also
    if others change it at the same time. Retention applies from the next time that it is
    looked at, a codec from the next segment on that the writer begins; everything else from the
    next takeover on, as a writer keeps what it opened with. With *incarnation*, only those of
    the log with this `Manifest.incarnation`, and not of one that was made anew under its name.
    Raises `InvalidName`, `InvalidSettings`, `InvalidQuorum`, `NoSuchLog`, and
    `LevelTooLow` if older programs of the cluster could not read what is then written."""
    check_name(name)
    change = changes if callable(changes) else (lambda settings: parse_settings(changes, settings))
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest, _ = await node.read()
        if not (manifest.settings.encrypt_with and manifest.settings.archive):
            await check_level(ledgers.store, change(manifest.settings))
        incarnation = manifest.incarnation if incarnation is None else incarnation
        edit = change_settings(name, incarnation=incarnation, change=change)
        return (await node.edit(edit)).settings


async def rename_log(
    name: str, new_name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> None:
    """Give a log another name, in one step: its records, offsets, settings and consumers stay.

    A crash leaves it with the old name or with the new one. Its writer and its readers go on
    and need not know; a consumer that is open gets `NoSuchConsumer` when it commits, and is
    opened again under the new name. Elections go by name: let the candidates of the old one
    stop first, or one of them makes a new log with that name when it is elected.

    Raises `InvalidName`, `NoSuchLog`, `LogExists`, `ValueTooLarge` if manifest and consumers
    do not fit into one transaction, `MetadataDenied` where roles leave that to operators, and
    `MetadataUnavailable`: then look which name it has."""
    check_name(name)
    check_new_name(new_name)
    async with connected(uri, client) as ledgers:
        store = ledgers.store
        old, new = ManifestNode(store, name), ManifestNode(store, new_name)
        try:
            await rename(ledgers, old, new, now_ms=now_ms)
        except MetadataDenied as error:
            if RENAMED_PATH not in error.operation:
                raise
            raise MetadataDenied(
                error.uri,
                error.operation,
                error.reason,
                "grants go by names of logs, so only an operator of this namespace renames them: "
                "do it with an operator's certificate",
            ) from error


async def log_info(name: str, *, uri: str | None = None, client: Ledgers | None = None) -> LogInfo:
    """Return what is known of a log. Raises `InvalidName`, `NoSuchLog`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        tail = await tail_of(ledgers, name)
        manifest, _ = await ManifestNode(ledgers.store, name).read()
    return LogInfo(name, manifest, tail)


async def log_compression(
    name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> CompressionSample | None:
    """Return how well the newest entries of a log are compressed; None if it has none.

    A sample: it reads some entries, 4 MiB or a little more, however large the log is. Raises
    `InvalidName`, `NoSuchLog`, what bookies raise, and `TimeoutError` if they take seconds."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        manifest, _ = await ManifestNode(ledgers.store, name).read()
        return await sample_compression(ledgers, name, manifest)


async def log_tail(client: Ledgers, name: str) -> LogTail:
    """Return where the log begins and ends now; `TailTracker` is cheaper for many polls."""
    return await tail_of(client, name)


async def truncate_log(
    name: str,
    *,
    before: Before | None = None,
    keep_bytes: Size | None = None,
    keep_age_s: Duration | None = None,
    incarnation: str | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> int:
    """Remove the oldest records; return the first offset there is now.

    Say what stays by one of three: *before* is the first record to keep (offset, `DLSN`,
    `Timestamp` or `Txid`); *keep_bytes* keeps at least so many payload bytes, in whole
    segments; *keep_age_s* keeps everything from the first record on that is not older. A
    living writer is not disturbed; readers below get `Trimmed`. Asking for less than was
    removed before is no error. *incarnation* as of `update_settings`. Raises `InvalidName`,
    `NoSuchLog`, `InvalidPosition` (beyond the end), ValueError (not one of the three), and what
    bookies raise."""
    check_name(name)
    keep = Keep.of(name, before, keep_bytes, keep_age_s)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest = await truncate(ledgers, node, keep, now_ms=now_ms, incarnation=incarnation)
    return manifest.trim_offset


async def plan_truncation(
    name: str,
    *,
    before: Before | None = None,
    keep_bytes: Size | None = None,
    keep_age_s: Duration | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> TrimPlan:
    """Return what `truncate_log` would remove now, and change nothing.

    To do just that, truncate before the plan's *trim_offset*. Raises as `truncate_log`."""
    check_name(name)
    keep = Keep.of(name, before, keep_bytes, keep_age_s)
    async with connected(uri, client) as ledgers:
        return await plan(ledgers, ManifestNode(ledgers.store, name), keep, now_ms=now_ms)


async def seal_log(
    name: str,
    *,
    incarnation: str | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> int:
    """End a log for good; return the offset after its last record.

    Everything in it stays readable, and retention and truncation go on. Readers that follow
    end there; nobody can open it to append (`LogSealed`). A living writer loses it as to a
    takeover: appends in flight end with `AppendOutcomeUnknown`, and what was acknowledged is
    kept. Sealing it again changes nothing. There is no way back. *incarnation* as of
    `update_settings`. Raises `InvalidName`,
    `NoSuchLog`, `TakeoverFailed` if others open it all the time, and what recovery raises."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest = await seal(ledgers, node, now_ms=now_ms, incarnation=incarnation)
    return manifest.sealed_end


async def delete_log(
    name: str,
    *,
    incarnation: str | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> None:
    """Delete a log and its ledgers; its writer and readers fail. *incarnation* as of
    `update_settings`. Raises `NoSuchLog`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        await drop(ledgers, ManifestNode(ledgers.store, name), incarnation=incarnation)


async def archive_log(
    name: str,
    *,
    at_once: bool = False,
    claim: bool = False,
    on_progress: Callable[[ArchiveProgress], None] = lambda _: None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> ArchiveReport:
    """Copy sealed segments of a log to its object storage, as its settings `archive_after_s` and
    `local_keep_s` say; return what was done.

    Each object is read back before the log refers to it, and again before the segment's ledger is
    deleted. *at_once*: all that is sealed is copied, however young; ledgers go as the settings say.
    May run beside everything else, several times at once: one of them archives a segment. A segment
    that fails is in the report, with the reason, and stays where it is. *claim*: the log's objects
    belong to this namespace from now on, if it was copied and another copy has them.
    *on_progress* is called from this task after each part of an object. Raises `InvalidName`,
    `NoSuchLog`, `InvalidSettings` if the log has no `archive`, `ArchiveMissing`,
    `ObjectsOwnedElsewhere`, `ObjectStorageRefused` if its storage cannot be opened,
    `ObjectStorageUnavailable`, and `MetadataUnavailable`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        return await archive(
            ledgers, node, now_ms=now_ms, at_once=at_once, claim=claim, on_progress=on_progress
        )


async def table_info(
    name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> TableInfo:
    """Return what the manifest of a log's table says, and what is archived behind it.

    Raises `InvalidName`, `NoSuchLog`, `NoSuchTable`, `TableDiverged`, `ArchiveMissing`,
    `ObjectStorageUnavailable`, `ObjectStorageRefused`, `MalformedObject`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        manifest, table = await tables.read_table(ledgers, ManifestNode(ledgers.store, name))
    waiting = max(0, archived_end(manifest) - table.end)
    return TableInfo(name, table_storage(manifest), table, manifest.first_offset, waiting)


async def verify_table(
    name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> TableCheck:
    """Read all files of a log's table, and check that each offset is in them once: 16 bytes of
    memory for each. What is wrong is in the result. Raises as `table_info`, and `TableMissing`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        return await tables.verify_table(ledgers, ManifestNode(ledgers.store, name))


async def rebuild_table(
    name: str, *, later: bool = False, uri: str | None = None, client: Ledgers | None = None
) -> TableReport:
    """Write the table of a log again, from its first record on: one that was truncated leaves the
    table. *later*: the archiver writes it. Until it is written, readers find the rest in the log;
    those that are at work find the old files for a day.

    Raises as `table_info`, `InvalidSettings` if the log has no `archive_table`, `TableMissing`, and
    `ObjectsOwnedElsewhere`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest, _ = await node.read()
        incarnation = manifest.incarnation
        node.follow(incarnation)
        await tables.reset_table(ledgers, node, incarnation=incarnation, now_ms=now_ms)
        if later:
            return TableReport()
        return await tables.extend_table(
            ledgers, node, incarnation=incarnation, now_ms=now_ms, at_once=True
        )


async def log_schemas(
    name: str, *, uri: str | None = None, client: Ledgers | None = None
) -> LogSchemas:
    """Return all versions of the log's schema; none: it has none.

    Raises `InvalidName`, `NoSuchLog`, `MetadataUnavailable`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        return await run_on_store(read_schemas(node.steps), ledgers.store)


async def set_log_schema(
    name: str,
    schema: LogSchema,
    *,
    dry_run: bool = False,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> LogSchema:
    """Make *schema* the newest version of the log's schema; return it with its number.

    The same one again changes nothing, so a call whose outcome is unknown may be repeated. It has
    to be able to follow each version that is kept, as records of all of them may be in the log:
    added fields are optional, required ones stay, a type stays or is widened. *dry_run*: only check
    that it could be. Raises `InvalidName`, `NoSuchLog`, `InvalidLogSchema`, `IncompatibleSchema`,
    `TooManySchemas`, `SchemaLibraryMissing`, `MetadataUnavailable`."""
    check_name(name)
    now = now_ms()

    def added(schemas: LogSchemas) -> LogSchemas:
        return schemas.with_next(name, schema, now_ms=now)

    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        if dry_run:
            schemas = added(await run_on_store(read_schemas(node.steps), ledgers.store))
        else:
            schemas = await run_on_store(edit_schemas(node.steps, added), ledgers.store)
    return schemas.find(name)


async def clear_log_schema(
    name: str,
    *,
    before: int | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> LogSchemas:
    """Forget the versions of the log's schema below *before*, or all; return those that stay.

    Records that name a version which is gone cannot be read as columns any more; numbers are not
    given again. Raises `InvalidName`, `NoSuchLog`, `MetadataUnavailable`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        steps = edit_schemas(node.steps, lambda schemas: schemas.cleared(before))
        return await run_on_store(steps, ledgers.store)


async def restore_segments(
    name: str,
    *,
    first: int = 0,
    end: int | None = None,
    keep_s: Duration = RESTORED_KEEP_S,
    on_progress: Callable[[ArchiveProgress], None] = lambda _: None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> RestoreReport:
    """Bring archived segments back to bookies as local copies, those with offsets from *first* on,
    before *end* (None: the end); return what was done.

    The objects stay, and so do offsets, encryption and checksums of records; no key is needed. A
    copy is read back before the log refers to it, and goes after *keep_s*, by the archiver, or with
    its segment. *keep_s* counts for copies that are there, too; 0 lets them go. May be interrupted
    and repeated, and run beside everything else; of two at once the first stops. A segment that
    fails is in the report, with the reason. *on_progress* is called from this task after each part
    of a segment. Raises `InvalidName`, `InvalidPosition` if *end* is not above *first*,
    `NoSuchLog`, `TooManyCopies`, `CopiesSuperseded`, `ObjectLost` and `DamagedObject` of an index,
    `ArchiveMissing`, `ObjectStorageRefused`, `ObjectStorageUnavailable`, and
    `MetadataUnavailable`."""
    check_name(name)
    keep_s = duration_s(keep_s, "keep_s", least=0.0)
    count_of(first, "first")
    if end is not None and end <= first:
        raise InvalidPosition(name, end, f"it is not above {first}, where the offsets begin")
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        return await restore(
            ledgers,
            node,
            first=first,
            end=end,
            keep_s=keep_s,
            now_ms=now_ms,
            on_progress=on_progress,
        )


async def audit_namespace(
    *,
    repair: bool = False,
    on_progress: Callable[[AuditProgress], None] = lambda _: None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> AuditReport:
    """Compare all logs with all ledgers: what is missing, leaked, or left half done.

    Changes nothing unless *repair*: then what is provably leaked is deleted, as the janitor
    does it, and deletions that have begun are finished. Lost records cannot be repaired. May
    run beside everything else. Raises what listing logs and ledgers raises."""
    async with connected(uri, client) as ledgers:
        return await audit(ledgers, repair=repair, on_progress=on_progress)


async def verify_log(
    name: str,
    *,
    repair: bool = False,
    on_progress: Callable[[VerifyProgress], None] = lambda _: None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> VerifyReport:
    """Read every entry of a log from every replica; return what is damaged, short or wrong.

    Checks digests, that replicas are the same, that entries, offsets and txids join, and
    that segments hold what the manifest says. Disturbs no writer; reads as many bytes as the
    log has, times its write quorum. With *repair*, ledgers with replicas that are missing or
    damaged are marked, so that a process of repair makes them good (`dlog autorecovery`).
    *on_progress* is called after each few MiB, from this task. Raises `InvalidName`, `NoSuchLog`,
    `MetadataUnavailable`; bookies that do not answer are faults in the report."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        report = await verify(ledgers, ManifestNode(ledgers.store, name), on_progress=on_progress)
        if not repair:
            return report
        return replace(report, marked=await mark_faults(ledgers.store, report.faults))


# Named consumers.


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    log: str
    name: str
    position: int
    """Every record below this offset was processed."""
    epoch: int
    exclusive: bool
    """Opened last by one process for itself alone."""
    owner: str
    """Who opened or reset it last, as host:pid."""
    in_use_by: str | None
    """Who has it open exclusively now; None if nobody, or if it is shared."""
    updated_ms: int
    """When it changed last, by the clock of who changed it."""
    lag: int
    """Readable records that were not committed yet."""
    trimmed: int
    """Records that were not committed and cannot be read any more."""


async def list_consumers(
    log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> list[ConsumerInfo]:
    """Return the consumers of *log*, by name. Raises `InvalidName`, `NoSuchLog`."""
    check_name(log)
    async with connected(uri, client) as ledgers:
        manifest = await _manifest(ledgers, log)
        tail = await tail_of(ledgers, log)
        found = await read_consumers(ledgers.store, log, manifest)
        return [
            _info(log, name, state, await ConsumerNode(ledgers.store, log, name).owner(), tail)
            for name, state in found
        ]


async def consumer_info(
    name: str, log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> ConsumerInfo:
    """Return what is known of a consumer. Raises `InvalidName`, `NoSuchLog`, `NoSuchConsumer`."""
    async with connected(uri, client) as ledgers:
        node = ConsumerNode(ledgers.store, log, name)
        tail = await tail_of(ledgers, log)
        state, _ = await node.read()
        return _info(log, name, state, await node.owner(), tail)


async def reset_consumer(
    name: str,
    log: str,
    to: Start,
    *,
    owner: str = "",
    uri: str | None = None,
    client: Ledgers | None = None,
) -> int:
    """Let a consumer begin again at *to*; return that offset.

    Processes that have it open cannot commit any more (`ConsumerFenced`) and open it again.
    Raises `InvalidName`, `NoSuchLog`, `NoSuchConsumer`, `Trimmed`,
    `OffsetOutOfRange`, `LogRecreated`, `InvalidPosition`."""
    async with connected(uri, client) as ledgers:
        node = ConsumerNode(ledgers.store, log, name)
        known = await node.read_to_edit()  # first: the offset is one of the log that it is of
        offset = await start_offset(
            ledgers, ManifestNode(ledgers.store, log), to, beyond_end="raise"
        )
        now = now_ms()
        state, _ = await node.edit(
            lambda state: state.was_reset(offset, owner=owner or state.owner, now_ms=now), known
        )
        return state.position


async def delete_consumer(
    name: str, log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> None:
    """Forget a consumer. Who has it open shared learns it at the next commit.

    Raises `InvalidName`, `NoSuchConsumer`, `ConsumerBusy` while it is used exclusively."""
    async with connected(uri, client) as ledgers:
        await ConsumerNode(ledgers.store, log, name).delete()


async def slowest_consumer(
    log: str, *, uri: str | None = None, client: Ledgers | None = None
) -> tuple[str, int] | None:
    """Return name and position of the consumer that is furthest behind; None without any.

    What lies below that position was processed by every consumer there is: a retention
    that must not outrun them trims no further. Costs a read of the metadata store for
    each consumer. Raises `InvalidName`, `NoSuchLog`."""
    check_name(log)
    async with connected(uri, client) as ledgers:
        manifest = await _manifest(ledgers, log)
        found = await read_consumers(ledgers.store, log, manifest)
    positions = [(state.position, name) for name, state in found]
    if not positions:
        return None
    position, name = min(positions)
    return name, position


async def _manifest(ledgers: Ledgers, log: str) -> Manifest:
    manifest, _ = await ManifestNode(ledgers.store, log).read()
    check_living(manifest, log)
    return manifest


def _info(
    log: str, name: str, state: ConsumerState, in_use_by: str | None, tail: LogTail
) -> ConsumerInfo:
    return ConsumerInfo(
        log=log,
        name=name,
        position=state.position,
        epoch=state.epoch,
        exclusive=state.exclusive,
        owner=state.owner,
        in_use_by=in_use_by,
        updated_ms=state.updated_ms,
        lag=max(0, tail.next_offset - max(state.position, tail.first_offset)),
        trimmed=max(0, tail.first_offset - state.position),
    )
