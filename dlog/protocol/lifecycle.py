"""How logs begin and end.

A log is created once what an earlier one of its name left is gone. It is deleted so that a crash at
any point leaks nothing and resurrects nothing:

    1. the manifest is marked: nobody opens the log any more, its writer cannot add a segment,
       and all its ledgers are listed for deletion
    2. each ledger is fenced, so that a writer which still has it acknowledges no more, and
       then deleted
    3. its consumers are deleted, then the manifest

Any process that finds a marked manifest may continue with 2. Each step names the log by its
incarnation: as soon as somebody has done 3, another one may be created under its name.
"""

from collections.abc import Callable
from contextlib import suppress

from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.names import check_new_name
from dlog.protocol.actions import Fence
from dlog.protocol.consumer_steps import delete_consumers
from dlog.protocol.edits import check_incarnation, drop_log
from dlog.protocol.manifest_steps import ManifestSteps, delete_listed
from dlog.protocol.renames import forget_rename
from dlog.recordbatch import check_codec
from dlog.settings import LogSettings
from ledger.errors import BadVersion, MetadataUnavailable, NoSuchLedger, RemoteError
from ledger.metastore.ops import CheckOp
from ledger.protocol.procedure import Steps

Incarnations = Callable[[], str]
"""Draws a random one at each call."""


def ensure(
    node: ManifestSteps,
    settings: LogSettings | None,
    *,
    incarnations: Incarnations,
    own: bool = False,
) -> Steps[None]:
    """Create the log unless it exists; *own*: dlog itself does. Raises `InvalidName`."""
    try:
        manifest, _ = yield from node.read()
    except NoSuchLog:
        manifest = None
    if manifest is not None and not manifest.dropped:
        return
    with suppress(LogExists):  # another process was faster
        yield from create(node, settings, incarnations=incarnations, own=own)


def create(
    node: ManifestSteps,
    settings: LogSettings | None,
    *,
    incarnations: Incarnations,
    own: bool = False,
) -> Steps[Manifest]:
    """Create the log; finish the deletion of an earlier one first.

    Raises `LogExists`, and `InvalidName` for a name of dlog's *own* logs."""
    if not own:
        check_new_name(node.log)
    check_codec((settings or LogSettings()).codec)
    yield from finish_drop(node)
    manifest = Manifest(incarnation=incarnations(), settings=settings or LogSettings())
    return (yield from node.create(manifest, incarnations=incarnations))


def drop(node: ManifestSteps, *, incarnation: str | None = None) -> Steps[None]:
    """Delete the log; with *incarnation*, only that one. Raises `NoSuchLog`, also if another
    process had begun to delete it, and that one or this one has finished by now;
    `MetadataUnavailable` (then repeat it)."""
    before = yield from begin_drop(node, incarnation=incarnation)
    yield from finish_drop(node)
    if before.dropped:
        raise NoSuchLog(node.log)


def begin_drop(node: ManifestSteps, *, incarnation: str | None = None) -> Steps[Manifest]:
    """Do the first step; return the manifest before it. Raises as `drop`."""
    manifest, _ = yield from node.read()
    meant = manifest.incarnation if incarnation is None else incarnation
    check_incarnation(manifest, node.log, meant)
    yield from node.edit(drop_log(node.log, incarnation=meant))
    return manifest


def finish_drop(node: ManifestSteps) -> Steps[None]:
    """Finish a deletion that has begun, if one has."""
    try:
        manifest, _ = yield from node.read()
    except NoSuchLog:
        return
    if not manifest.dropped:
        return
    yield from _fence_last(manifest)
    try:
        yield from delete_listed(node, manifest, fenced=True)
        found, version = yield from node.read()
        if found.incarnation == manifest.incarnation:
            yield from node.mark(found.life, version)
            own = CheckOp(node.mark_of(found.life))
            yield from delete_consumers(node.log, own)
            yield from forget_rename(found.incarnation)
            yield from node.delete(found.life, version)
    except (NoSuchLog, BadVersion):
        return  # somebody else finishes it too


def _fence_last(manifest: Manifest) -> Steps[None]:
    """Let nobody add to the ledgers that a writer may still have: the last two at most."""
    for ledger_id in manifest.deleting[-2:]:
        try:
            yield from Fence(ledger_id)
        except MetadataUnavailable:
            raise  # maybe no bookie was asked
        except (NoSuchLedger, RemoteError):
            continue  # its bookies may be gone, which must not keep anybody from deleting it
