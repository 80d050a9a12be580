"""How logs begin and end, are sealed and get another name.

A log is created once what an earlier one of its name left is gone. It is deleted so that a crash at
any point leaks nothing and resurrects nothing:

    1. the manifest is marked: nobody opens the log any more, its writer cannot add a segment,
       and all its ledgers are listed for deletion
    2. each ledger is fenced, so that a writer which still has it acknowledges no more, and
       then deleted
    3. its consumers and schemas are deleted, then the manifest

Any process that finds a marked manifest may continue with 2, and one that can delete objects with
3 if segments were in object storage. Each step names the log by its
incarnation: as soon as somebody has done 3, another one may be created under its name.

A log is sealed so that everything in it stays readable, and nobody can append any more:

    1. read the manifest
    2. recover (fence and close) the ledgers of its open segments: who writes the log loses it
    3. compare-and-swap the manifest: their ends, and the mark that the log is sealed

If another writer took the log over between 1 and 3, the swap finds an open segment that was
not recovered, and all begins again. A crash before 3 leaves the log as a failed takeover
does: its writer has lost it, and the next one opens it.

A log is renamed in one transaction: manifest, consumers and the note that it moved. So there is no
half renamed log: before the transaction it has the old name, after it the new one, with the same
incarnation, segments, offsets and consumers. Ledgers are not touched; their stamps keep the name
they were created under, and the incarnation says whose they are. Who has the log open goes on under
the new name: a writer and the readers look it up by the incarnation (`ManifestSteps.followed`),
without losing or repeating a record. Open consumers get `NoSuchConsumer` at their next commit and
are opened again under the new name.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dlog.errors import (
    LogExists,
    LostOwnership,
    NoSuchLog,
    ObjectsOwnedElsewhere,
    TakeoverFailed,
)
from dlog.manifest import Manifest, Sealed
from dlog.names import check_new_name, node_of
from dlog.protocol.actions import Children, Exists, Fence, Get, RecoverSegment, Transact
from dlog.protocol.archive import delete_all_objects
from dlog.protocol.consumer_steps import consumer_names, consumers_path, delete_consumers
from dlog.protocol.edits import check_incarnation, check_living, drop_log, end_log
from dlog.protocol.manifest_steps import (
    CONFLICTS_MAX,
    LOST_REPLIES_MAX,
    ManifestSteps,
    delete_listed,
    forget_rename,
    newest_name,
    remembering,
)
from dlog.protocol.schema_steps import forget_schemas
from dlog.recordbatch import check_codec
from dlog.settings import LogSettings
from ledger.delays import Backoff
from ledger.errors import (
    BadVersion,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchLedger,
    NoSuchNode,
    RemoteError,
)
from ledger.ids import LedgerId
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp, Op
from ledger.protocol.procedure import Steps, Wait

Incarnations = Callable[[], str]
"""Draws a random one at each call."""
ATTEMPTS_MAX: Final = 8
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 1.0


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
    `MetadataUnavailable` (then repeat it), and what object storage raises: then the log is marked,
    its ledgers are gone, and the janitor deletes its objects and its manifest."""
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
            assert not found.deleting_objects, "the manifest alone knows their names"
            with suppress(ObjectsOwnedElsewhere):  # they stay, and the log goes
                yield from delete_all_objects(node, found)
            found, version = yield from node.read()
            check_incarnation(found, node.log, manifest.incarnation)
            yield from node.check_mark(found.life, version)
            own = CheckOp(node.mark_of(found.life))
            yield from delete_consumers(node.log, own)
            yield from forget_schemas(found.incarnation)
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


def seal(
    node: ManifestSteps,
    *,
    incarnation: str | None = None,
    own: Collection[LedgerId] | None = None,
) -> Steps[Manifest]:
    """Seal the log; return its manifest. Sealing one that is sealed changes nothing.

    With *incarnation*, only that log; with *own*, only if its last ledger is one of these.
    Raises `NoSuchLog`, `LostOwnership`, `TakeoverFailed` if others took it over each time,
    and what recovery raises (then try again)."""
    backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            yield from Wait(backoff.next())
        manifest, _ = yield from node.read()
        incarnation = manifest.incarnation if incarnation is None else incarnation
        check_incarnation(manifest, node.log, incarnation)
        check_living(manifest, node.log)
        if manifest.sealed:
            return manifest
        if own is not None and (manifest.last is None or manifest.last.ledger_id not in own):
            raise LostOwnership(node.log)
        try:
            ends = yield from _ends(manifest)
        except NoSuchLedger:  # deleted or trimmed after the manifest was read
            continue
        manifest = yield from node.edit(end_log(node.log, incarnation=incarnation, ends=ends))
        if manifest.sealed:
            return manifest
    raise TakeoverFailed(node.log, ATTEMPTS_MAX)


def _ends(manifest: Manifest) -> Steps[dict[int, Sealed]]:
    """Return what the open segments hold, by number, for ever."""
    ends: dict[int, Sealed] = {}
    last_txid = manifest.sealed_last_txid
    for segment in manifest.segments:
        if segment.sealed is None:
            sealed = yield from RecoverSegment(segment.ledger_id, last_txid=last_txid)
            ends[segment.number] = sealed
            last_txid = sealed.last_txid
    return ends


def rename(node: ManifestSteps, new: ManifestSteps, *, now_ms: Callable[[], int]) -> Steps[None]:
    """Give the log of *node* the name of *new*.

    Raises `NoSuchLog`, `LogExists`, `ValueTooLarge` if the transaction would be (manifest and
    consumers together), `MetadataUnavailable` (outcome unknown), and `BadVersion` if the
    log or its consumers change all the time."""
    if node.path == new.path:
        raise LogExists(new.log)
    yield from finish_drop(new)
    incarnation: str | None = None
    trouble: MetadataUnavailable | None = None
    conflicts = lost = 0
    while True:
        found = yield from _found(node, incarnation)
        if found is None:
            name = None if incarnation is None else (yield from newest_name(incarnation))
            if name == new.log:
                return  # by an attempt whose reply was lost
            if name is not None and trouble is not None:
                raise trouble  # nobody knows whether it had the new name for a while
            raise NoSuchLog(node.log)
        manifest, version = found
        check_living(manifest, node.log)
        incarnation = manifest.incarnation
        try:
            yield from node.check_mark(manifest.life, version)
            yield from Transact(tuple((yield from _ops(node, new, found, now_ms()))))
            return
        except (BadVersion, NoSuchNode, NodeNotEmpty, NodeExists) as error:
            if isinstance(error, NodeExists) and (yield from _is_taken(new, incarnation)):
                raise LogExists(new.log) from None
            conflicts += 1
            if conflicts == CONFLICTS_MAX:
                raise
        except MetadataUnavailable as error:
            trouble = error
            lost += 1
            if lost == LOST_REPLIES_MAX:
                raise


def _found(node: ManifestSteps, incarnation: str | None) -> Steps[tuple[Manifest, int] | None]:
    """Return the log that has the old name, unless it is not *incarnation* any more."""
    try:
        manifest, version = yield from node.read()
    except NoSuchLog:
        return None
    return (manifest, version) if incarnation in {None, manifest.incarnation} else None


def _is_taken(new: ManifestSteps, incarnation: str) -> Steps[bool]:
    try:
        manifest, _ = yield from new.read()
    except NoSuchLog:
        return False
    return manifest.incarnation != incarnation


def _ops(
    node: ManifestSteps, new: ManifestSteps, found: tuple[Manifest, int], now_ms: int
) -> Steps[list[Op]]:
    """Return the whole transaction; parents first, and deleted after what they hold."""
    manifest, version = found
    renamed = replace(manifest, renames=manifest.renames + 1)
    made: list[Op] = [
        CreateOp(new.path, renamed.encode(new.log)),
        CreateOp(new.mark_of(renamed.life)),
    ]
    gone: list[Op] = []
    old_parent, new_parent = consumers_path(node.log), consumers_path(new.log)
    deletions = yield from Exists(old_parent)
    if deletions is not None:
        made.append(CreateOp(new_parent))
        for name in (yield from consumer_names(node.log)):
            old = f"{old_parent}/{node_of(name)}"
            consumer = yield from Get(old)
            made.append(CreateOp(f"{new_parent}/{node_of(name)}", consumer.value))
            gone += [DeleteOp(f"{old}/{child}") for child in (yield from Children(old))]
            gone.append(DeleteOp(old, consumer.version))
        gone.append(DeleteOp(old_parent, deletions))  # else a state may be of a deleted consumer
    gone += [DeleteOp(node.mark_of(manifest.life)), DeleteOp(node.path, version)]
    remembered = yield from remembering(manifest.incarnation, new.log, now_ms=now_ms)
    return [*made, *gone, *remembered]
