"""Renaming a log, in one transaction: manifest, consumers and the note that it moved.

So there is no half renamed log: before the transaction it has the old name, after it the new
one, with the same incarnation, segments, offsets and consumers. Ledgers are not touched;
their stamps keep the name they were created under, and the incarnation says whose they are.

Who has the log open goes on under the new name: a writer and the readers look it up by the
incarnation (`ManifestSteps.followed`), without losing or repeating a record. Open consumers get
`NoSuchConsumer` at their next commit and are opened again under the new name.
"""

from collections.abc import Callable
from dataclasses import replace

from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.names import node_of
from dlog.protocol.actions import Children, Exists, Get, Transact
from dlog.protocol.consumer_steps import consumer_names, consumers_path
from dlog.protocol.edits import check_living
from dlog.protocol.lifecycle import finish_drop
from dlog.protocol.manifest_steps import CONFLICTS_MAX, LOST_REPLIES_MAX, ManifestSteps
from dlog.protocol.renames import newest_name, remembering
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NodeNotEmpty, NoSuchNode
from ledger.metastore.ops import CreateOp, DeleteOp, Op
from ledger.protocol.procedure import Steps


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
            yield from node.mark(manifest.life, version)
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
