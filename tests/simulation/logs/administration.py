"""Processes that look after logs beside their writers: truncate, delete, sweep up."""

from dlog.aio.dropping import finish_drop
from dlog.aio.manifests import ManifestNode, delete_listed
from dlog.errors import InvalidPosition, LostOwnership, NoSuchLog
from dlog.manifest import Manifest
from dlog.namespace import delete_log, seal_log, truncate_log
from dlog.protocol.orphans import STAMP_INCARNATION, STAMP_LOG, STAMP_SEGMENT
from ledger.errors import LogError, NoSuchLedger
from ledger.ids import LedgerId
from tests.simulation.logs.process import Process


async def truncate(process: Process, name: str) -> None:
    """Truncate the log somewhere up to its end, beside whoever writes it."""
    logs = process.world.logs
    history = logs.current.get(name)
    if history is None:
        return
    before = process.world.scheduler.random.randrange(history.end + 1)
    process.note(f"truncates {name} before {before}")
    try:
        with logs.truncating(name, before):
            await truncate_log(name, before=before, client=process.ledgers)
        process.mark("truncated_by_admin")
    except (NoSuchLog, InvalidPosition) as error:
        process.note(f"could not truncate {name}: {error}")
    except LogError as error:
        _passing(process, error)


async def delete(process: Process, name: str) -> bool:
    """Delete the log; return whether nobody needs to try again."""
    history = process.world.logs.current.get(name)
    process.note(f"deletes {name}")
    try:
        await delete_log(name, client=process.ledgers)
    except NoSuchLog:
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


async def sweep(process: Process) -> bool:
    """Delete what can never become part of a log again; return whether all was looked at."""
    try:
        found = [ledger_id async for ledger_id in process.ledgers.list()]
        for ledger_id in found:
            await sweep_ledger(process, ledger_id)
    except LogError as error:
        _passing(process, error)
        return False
    return True


async def sweep_ledger(process: Process, ledger_id: LedgerId) -> None:
    try:
        metadata, _ = await process.ledgers.ledgers.read(ledger_id)
    except NoSuchLedger:
        return
    node = ManifestNode(process.store, metadata.custom[STAMP_LOG].decode())
    incarnation = metadata.custom[STAMP_INCARNATION].decode()
    number = int(metadata.custom[STAMP_SEGMENT])
    try:
        manifest: Manifest | None = (await node.read())[0]
    except NoSuchLog:
        manifest = None
    if manifest is not None and manifest.incarnation == incarnation:
        if manifest.dropped:
            await finish_drop(process.ledgers, node)
            return
        if ledger_id in manifest.deleting:
            await delete_listed(process.ledgers, node, manifest)
            return
        segment = manifest.find(number)
        listed = segment is not None and segment.ledger_id == ledger_id
        if listed or (number >= manifest.next_segment and not manifest.sealed):
            return
    process.note(f"sweeps ledger {ledger_id}, once meant as segment {number}")
    process.mark("orphan_swept")
    await process.ledgers.delete(ledger_id)


def _passing(process: Process, error: LogError) -> None:
    """Take note of an error that may pass; any other one breaks the simulation."""
    if not error.retryable:
        raise error
    process.note(str(error))
    process.mark(f"admin_{type(error).__name__}")
