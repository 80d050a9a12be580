"""Processes that look after logs beside their writers: truncate, seal, delete, sweep up."""

from typing import TYPE_CHECKING, Final

from dlog.aio.admin import (
    ArchiveReport,
    archive_log,
    delete_log,
    rebuild_table,
    rename_log,
    restore_segments,
    seal_log,
    truncate_log,
)
from dlog.aio.maintain.janitor import Janitor, JanitorConfig
from dlog.aio.maintain.table import extend_table
from dlog.aio.maintain.trim import Keep
from dlog.aio.store import ManifestNode
from dlog.errors import (
    DamagedObject,
    DamagedTable,
    InvalidPosition,
    InvalidSettings,
    LogExists,
    LostOwnership,
    NoSuchLog,
    ObjectLost,
    ObjectsOwnedElsewhere,
    TableBehind,
    TableDiverged,
    Trimmed,
)
from ledger.errors import DamagedMetadata, LogError, NoSuchLedger
from ledger.log_events import now_ms
from tests.simulation.logs.process import Process
from tests.simulation.logs.tables import is_behind, tables_at_the_end

if TYPE_CHECKING:
    from tests.simulation.logs.world import World

KEPT_BYTES_MAX: Final = 4000
KEPT_S_MAX: Final = 5.0
TABLE_REFUSALS: Final = (DamagedObject, DamagedTable, ObjectLost, TableBehind, Trimmed)
"""What an extension of a table raises as objects rot, uploads are torn, or logs are truncated."""
KEPT_COPIES_S: Final = 1e6


async def truncate(process: Process, name: str) -> None:
    """Truncate the log beside whoever writes it: somewhere up to its end, or by what is kept."""
    logs = process.world.logs
    history = logs.current.get(name)
    if history is None:
        return
    random = process.world.scheduler.random
    keep = random.choice(
        (
            Keep(before=random.randrange(history.end + 1)),
            Keep(before=random.randrange(history.end + 1)),
            Keep(bytes=random.randrange(KEPT_BYTES_MAX)),
            Keep(age_s=random.uniform(0.0, KEPT_S_MAX)),
        )
    )
    process.note(f"truncates {name} to {keep}")
    try:
        with logs.truncating(name, keep):
            await truncate_log(
                name,
                before=keep.before,
                keep_bytes=keep.bytes,
                keep_age_s=keep.age_s,
                client=process.ledgers,
            )
        process.mark("truncated_by_admin" if keep.before is not None else "truncated_by_keeping")
    except (NoSuchLog, InvalidPosition) as error:
        process.note(f"could not truncate {name}: {error}")
    except LogError as error:
        _passing(process, error)


async def delete(process: Process, name: str) -> bool:
    """Delete the log; return whether nobody needs to try again."""
    history = process.world.logs.current.get(name)
    process.note(f"deletes {name}")
    process.world.logs.deletes(process.name, process.request(name))
    unanswered = process.store.unanswered
    try:
        await delete_log(name, client=process.ledgers)
    except NoSuchLog:
        if process.store.unanswered == unanswered:
            process.world.logs.deleted_none(process.name)
        return True
    except LogError as error:
        _passing(process, error)
        return False
    process.mark("log_deleted")
    process.note(f"has deleted {name}")
    if history is not None and history.gone and history.was_fenced:
        process.world.logs.dropped(history.incarnation)
    return True


async def seal(process: Process, name: str) -> bool:
    """Seal the log for good; return whether nobody needs to try again."""
    logs = process.world.logs
    before = logs.current.get(name)
    process.note(f"seals {name}")
    try:
        end = await seal_log(name, client=process.ledgers)
    except (NoSuchLog, LostOwnership):
        return True
    except LogError as error:
        _passing(process, error)
        return False
    process.mark("log_sealed")
    process.note(f"has sealed {name} at {end}")
    history = logs.current.get(name)
    if history is not None and history is before and history.manifest.sealed:
        logs.sealed(history.incarnation)
    return True


async def rename(process: Process, name: str, new: str) -> None:
    """Give the log another name, beside whoever writes and reads it."""
    process.note(f"renames {name} to {new}")
    try:
        await rename_log(name, new, client=process.ledgers)
    except (NoSuchLog, LogExists) as error:
        process.note(f"could not rename {name}: {error}")
        process.mark(f"rename_{type(error).__name__}")
    except LogError as error:
        _passing(process, error)
    else:
        process.mark("log_renamed")
        process.note(f"has renamed {name} to {new}")


async def archive(process: Process, name: str, *, at_once: bool = False) -> bool:
    """Archive the log, all that is sealed or what is due; return whether nothing is left to do.

    Objects that rotted keep their segments on bookies."""
    random = process.world.scheduler.random
    process.note(f"archives {name}")
    try:
        report = await archive_log(
            name, at_once=at_once or random.random() < 0.5, client=process.ledgers
        )
    except NoSuchLog:
        return True
    except ObjectsOwnedElsewhere as error:
        lives = any(
            error.storage.endswith(history.incarnation) and not history.manifest.dropped
            for history in process.world.logs.current.values()
        )
        if lives:
            raise
        return True  # it was deleted meanwhile
    except LogError as error:
        _passing(process, error)
        return False
    for _ in report.archived:
        process.mark("segment_archived")
    for _ in report.released:
        process.mark("segment_left_the_bookies")
    for _ in range(report.copies_dropped):
        process.mark("local_copy_let_go")
    if report.indexed:
        process.mark("segments_went_to_an_index")
    for _ in range(report.orphans):
        process.mark("orphan_object_deleted")
    for failure in report.failures:
        process.note(f"segment {failure.segment}: {failure.error}")
        damaged = isinstance(failure.error, DamagedObject | ObjectLost)
        if not (damaged or isinstance(failure.error, NoSuchLedger)):
            _passing(process, failure.error)
    rotten = process.world.objects.rotten
    return (not report.failures or bool(rotten)) and await _table_is_whole(process, name, report)


async def extend(process: Process, name: str) -> None:
    """Extend the table of the log and nothing else, beside those that archive."""
    process.note(f"extends the table of {name}")
    node = ManifestNode(process.ledgers.store, name)
    try:
        manifest, _ = await node.read()
        node.follow(manifest.incarnation)
        if process.world.scheduler.chance(0.3):
            await rebuild_table(name, later=True, client=process.ledgers)
            process.mark("table_begun_again")
        await extend_table(
            process.ledgers,
            node,
            incarnation=manifest.incarnation,
            now_ms=now_ms,
            at_once=True,
        )
    except (*TABLE_REFUSALS, NoSuchLog, InvalidSettings, ObjectsOwnedElsewhere) as error:
        process.note(f"could not extend the table of {name}: {error}")
    except LogError as error:
        _passing(process, error)


async def _table_is_whole(process: Process, name: str, report: ArchiveReport) -> bool:
    """Return whether the table, if there is one, has all; begin it again now and then."""
    for _ in range(report.table.orphans):
        process.mark("orphan_file_deleted")
    error = report.table_error
    if error is not None:
        process.note(f"table of {name}: {error}")
        process.mark(f"table_{type(error).__name__}")
    # An older state that was put back archives other objects: an operator begins the table again.
    behind = isinstance(error, TableBehind) or (
        isinstance(error, TableDiverged)
        and process.world.scheduler.trace.marks["store_restored"] > 0
    )
    if behind or (report.table.rows and process.world.scheduler.chance(0.1)):
        try:
            await rebuild_table(name, later=True, client=process.ledgers)
        except (NoSuchLog, InvalidSettings, ObjectsOwnedElsewhere) as failure:
            process.note(f"could not rebuild the table of {name}: {failure}")
        except LogError as failure:
            _passing(process, failure)
        return False
    if isinstance(error, DamagedObject | ObjectLost | ObjectsOwnedElsewhere):
        return True
    if error is not None and not isinstance(error, TABLE_REFUSALS):
        _passing(process, error)
    history = process.world.logs.current.get(name)
    return error is None and (history is None or not is_behind(process.world, history))


def wrong_table(world: "World") -> str | None:
    """Return what is wrong with a table, or was."""
    return world.objects.wrong_table or tables_at_the_end(world)


async def restore(process: Process, name: str, *, share: float | None = None) -> bool:
    """Bring archived segments back to bookies for some time, or the last *share* of them for long;
    return whether nothing is left to do."""
    history = process.world.logs.current.get(name)
    if history is None:
        return True
    random = process.world.scheduler.random
    if share is None:
        first, keep_s = random.randrange(history.end + 1), random.choice((0.0, 0.5, 3.0))
    else:
        first, keep_s = round(history.end * (1 - share)), KEPT_COPIES_S
    process.note(f"restores {name} from {first} on for {keep_s} s")
    try:
        report = await restore_segments(name, first=first, keep_s=keep_s, client=process.ledgers)
    except NoSuchLog:
        return True
    except LogError as error:
        _passing(process, error)
        return False
    for _ in report.restored:
        process.mark("segment_restored")
    for failure in report.failures:
        process.note(f"segment {failure.segment}: {failure.error}")
        _passing(process, failure.error)
    return not report.failures


async def let_copies_go(process: Process, name: str) -> bool:
    """Let all local copies go, and whoever makes some stop."""
    try:
        await restore_segments(name, keep_s=0, client=process.ledgers)
    except NoSuchLog:
        return True
    except LogError as error:
        _passing(process, error)
        return False
    return True


def orphan_object(world: "World") -> str | None:
    """Return an object that no log lists, though it is in the folder of one that lives."""
    listed = {
        (stored.storage, stored.name)
        for history in world.logs.current.values()
        for segment in history.manifest.segments
        if (stored := segment.location.object)
    }
    folders = {history.manifest.storage for history in world.logs.current.values()}
    listed |= {
        (storage, name) for storage, names in world.objects.indexes.items() for name in names
    }
    left = sorted(key for key in world.objects.data if key[0] in folders and key not in listed)
    return f"objects {left} are of no segment" if left else None


async def sweep(process: Process) -> bool:
    """Let the janitor make one pass; return whether it could do all of it."""
    janitor = Janitor(process.ledgers, JanitorConfig(elect=False))
    try:
        done = await janitor.run_once()
    except LogError as error:
        _passing(process, error)
        return False
    for orphan in done.orphans:
        process.note(f"swept ledger {orphan.ledger_id} of {orphan.stamp}")
        process.mark("orphan_swept")
    for trouble in done.troubles:
        if isinstance(trouble.error, DamagedMetadata):
            process.note(str(trouble.error))
            process.mark("janitor_was_lied_to")
        else:
            _passing(process, trouble.error)
    return not done.troubles


def _passing(process: Process, error: LogError) -> None:
    """Take note of an error that may pass; any other one breaks the simulation."""
    if not error.retryable:
        raise error
    process.note(str(error))
    process.mark(f"admin_{type(error).__name__}")
