"""How logs begin and end.

A log is made once what an earlier one of its name left is gone. It is deleted so that a crash at
any point leaks nothing and resurrects nothing:

    1. the manifest is marked: nobody opens the log any more, its writer cannot add a segment,
       and all its ledgers are listed for deletion
    2. each ledger is fenced, so that a writer which still has it acknowledges no more, and
       then deleted
    3. its consumers are deleted, then the manifest

Whoever finds a marked manifest may go on with 2. Each step means the log that was asked for, by its
incarnation: another one may have been made under its name as soon as somebody did 3.
"""

import secrets
from contextlib import suppress

from dlog.aio.port import Ledgers
from dlog.aio.store.consumer_nodes import delete_consumers
from dlog.aio.store.manifests import ManifestNode, delete_listed
from dlog.aio.store.renames import forget_rename
from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.protocol.edits import drop_log
from dlog.recordbatch import check_codec
from dlog.settings import LogSettings
from ledger.errors import BadVersion, MetadataUnavailable, NoSuchLedger, RemoteError
from ledger.metastore.ops import CheckOp


async def ensure_log(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> None:
    """Create the log unless it exists."""
    try:
        manifest, _ = await node.read()
    except NoSuchLog:
        manifest = None
    if manifest is not None and not manifest.dropped:
        return
    with suppress(LogExists):  # another process was faster
        await create(ledgers, node, settings)


async def create(ledgers: Ledgers, node: ManifestNode, settings: LogSettings | None) -> Manifest:
    """Create the log; finish the deletion of an earlier one first. Raises `LogExists`."""
    check_codec((settings or LogSettings()).codec)
    await finish_drop(ledgers, node)
    manifest = Manifest(incarnation=secrets.token_hex(8), settings=settings or LogSettings())
    return await node.create(manifest)


async def drop(ledgers: Ledgers, node: ManifestNode) -> None:
    """Delete the log. Raises `NoSuchLog`, also if it is being deleted already and whoever began
    has finished by now or this did; `MetadataUnavailable` (then repeat it)."""
    before = await begin_drop(node)
    await finish_drop(ledgers, node)
    if before.dropped:
        raise NoSuchLog(node.log)


async def begin_drop(node: ManifestNode) -> Manifest:
    """Do the first step; return the manifest before it. Raises as `drop`."""
    manifest, _ = await node.read()
    await node.edit(drop_log(node.log, incarnation=manifest.incarnation))
    return manifest


async def finish_drop(ledgers: Ledgers, node: ManifestNode) -> None:
    """Finish a deletion that has begun, if one has."""
    try:
        manifest, _ = await node.read()
    except NoSuchLog:
        return
    if not manifest.dropped:
        return
    for ledger_id in manifest.deleting[-2:]:
        try:
            await ledgers.recover(ledger_id)
        except MetadataUnavailable:
            raise  # maybe no bookie was asked
        except (NoSuchLedger, RemoteError):
            continue  # its bookies may be gone, which must not keep anybody from deleting it
    try:
        await delete_listed(ledgers, node, manifest, fenced=True)
        found, version = await node.read()
        if found.incarnation == manifest.incarnation:
            await node.mark(found.life, version)
            own = CheckOp(node.mark_of(found.life))
            await delete_consumers(ledgers.store, node.log, own)
            await forget_rename(ledgers.store, found.incarnation)
            await node.delete(found.life, version)
    except (NoSuchLog, BadVersion):
        return  # somebody else finishes it too
