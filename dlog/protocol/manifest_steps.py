"""Reading and changing the manifest of one log, as steps; and the names that logs had before.

    /logs/<log>                      the manifest
    /logs/<log>/incarnation-<life>   empty; there as long as the log is and has this name
    /renamed                         its version counts the renames of the namespace
    /renamed/<incarnation>           the newest name of the log that was made with it; goes with it

A node that is deleted and re-created begins at version 0 again, so versions alone do not
distinguish two logs of one name: a writer that slept would overwrite the new log's manifest.
Each write therefore checks, in one transaction, that its own incarnation is still there. A log
that is renamed, and perhaps given back its old name, keeps its incarnation and begins a new life.

A rename is one transaction, so at any time a log has exactly one name. But a reader of one name
after the other may miss a log that moves from a name not read yet to one read already: a log
counts as gone only if the count was the same before and after all these reads.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dlog.errors import LogExists, NoSuchLog, ObjectsOwnedElsewhere
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, path_of
from dlog.protocol.actions import (
    Create,
    Delete,
    DeleteLedger,
    DeleteObject,
    Exists,
    Get,
    Sync,
    Transact,
)
from dlog.protocol.edits import Edit, forget_deleted
from dlog.protocol.object_owner import hold_objects
from dlog.protocol.segment_index import sweep_runs
from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    MetadataDenied,
    MetadataUnavailable,
    NodeExists,
    NoSuchLedger,
    NoSuchNode,
)
from ledger.ledger_owner import RENAMED_PATH as RENAMED_PATH  # noqa: PLC0414 - bookies look there too
from ledger.ledger_owner import name_in, renamed_path, renamed_value
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp, Op, SetOp
from ledger.protocol.procedure import Steps

CONFLICTS_MAX: Final = 32
LOST_REPLIES_MAX: Final = 3
MOVES_MAX: Final = 16
"""How often a log may be renamed while it is looked for."""


def newest_name(incarnation: str) -> Steps[str | None]:
    """Return the name of a log that was renamed; None if it never was, or is deleted."""
    path = renamed_path(incarnation)
    yield from Sync(path)
    try:
        return name_in((yield from Get(path)).value, path)
    except NoSuchNode:
        return None


def remembering(incarnation: str, name: str, *, now_ms: int) -> Steps[tuple[Op, ...]]:
    """Return what else a rename's transaction does: count it, remember the new name.

    Of two at once the second fails with `NodeExists` or `BadVersion`."""
    if (yield from Exists(RENAMED_PATH)) is None:
        with suppress(NodeExists):
            yield from Create(RENAMED_PATH)
    value = renamed_value(name, now_ms=now_ms)
    path = renamed_path(incarnation)
    version = yield from Exists(path)
    newest: Op = CreateOp(path, value) if version is None else SetOp(path, value, version)
    return SetOp(RENAMED_PATH, b""), newest


def forget_rename(incarnation: str) -> Steps[None]:
    """Forget the names of a log that is deleted. Where operators alone rename, the node of a log
    that somebody else deletes stays: no other log has its incarnation."""
    with suppress(NoSuchNode, MetadataDenied):
        yield from Delete(renamed_path(incarnation))


class ManifestSteps:
    """The log of one name; or one log, wherever it is. Raises `InvalidName` if there can be none.

    Knows where its log was last and nothing else."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.path = path_of(log)
        self.followed: str | None = None
        """The incarnation that is meant; None: whatever has the name."""

    def read(self, *, fresh: bool = True) -> Steps[tuple[Manifest, int]]:
        """Return manifest and version. Raises `NoSuchLog`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        for _ in range(MOVES_MAX):
            try:
                found = yield from self._read(fresh=fresh)
            except NoSuchLog:
                found = None
            if found is not None and self.followed in {None, found[0].incarnation}:
                return found
            if not (yield from self._go_after()):
                if found is None:
                    raise NoSuchLog(self.log)
                return found
            fresh = True
        raise NoSuchLog(self.log, "it is renamed all the time")

    def _go_after(self) -> Steps[bool]:
        """Go where the log that is followed is now; return False if it was never renamed."""
        name = None
        if self.followed is not None:
            name = yield from newest_name(self.followed)
        if name is not None and name != self.log:
            self.log, self.path = name, path_of(name)
        return name is not None

    def _read(self, *, fresh: bool) -> Steps[tuple[Manifest, int]]:
        path = self.path
        if fresh:
            yield from Sync(path)
        try:
            found = yield from Get(path)
        except NoSuchNode:
            raise NoSuchLog(self.log) from None
        if not found.value:  # created as the parent of something else
            raise NoSuchLog(self.log)
        return Manifest.decode(found.value, path=path), found.version

    def create(self, manifest: Manifest, *, incarnations: Callable[[], str]) -> Steps[Manifest]:
        """Create the log; return what is stored. Raises `LogExists`.

        After a lost reply it is tried again as another one of *incarnations*, for the first one
        may have been created, used and deleted meanwhile; whichever of them is found is our own."""
        tried: list[str] = []
        while True:
            tried.append(manifest.incarnation)
            made = CreateOp(self.path, manifest.encode(self.log))
            try:
                yield from self._make_parent()
                yield from Transact((made, CreateOp(self.mark_of(manifest.life))))
            except NodeExists:
                found, _ = yield from self.read()
                if found.incarnation in tried:
                    return found
                raise LogExists(self.log) from None
            except MetadataUnavailable:
                if len(tried) == LOST_REPLIES_MAX:
                    raise
                manifest = replace(manifest, incarnation=incarnations())
            else:
                return manifest

    def _make_parent(self) -> Steps[None]:
        if (yield from Exists(LOGS_PATH)) is None:
            with suppress(NodeExists):
                yield from Create(LOGS_PATH)

    def write(self, manifest: Manifest, version: int) -> Steps[int]:
        """Compare and swap; return the new version.

        Raises `BadVersion`, and `NoSuchLog` also if another log has the name by now."""
        mark = CheckOp(self.mark_of(manifest.life))
        swap = SetOp(self.path, manifest.encode(self.log), version)
        try:
            yield from Transact((mark, swap))
        except NoSuchNode:
            yield from self.check_mark(manifest.life, version)
            try:
                yield from Transact((mark, swap))
            except NoSuchNode:
                raise NoSuchLog(self.log) from None
        return version + 1

    def edit(self, edit: Edit) -> Steps[Manifest]:
        """Apply *edit* until it is in the manifest; return that.

        Raises what *edit* raises, `NoSuchLog`, `MetadataUnavailable` (outcome unknown),
        `BadVersion` if others were faster very many times."""
        return (yield from self._edit(edit, writes_same=False))

    def touch(self) -> Steps[Manifest]:
        """Write the manifest as it is: nothing is written any more by a `write` that was decided
        before. Raises as `edit`."""
        return (yield from self._edit(lambda manifest: manifest, writes_same=True))

    def _edit(self, edit: Edit, *, writes_same: bool) -> Steps[Manifest]:
        conflicts = lost = 0
        while True:
            manifest, version = yield from self.read()
            wanted = edit(manifest)
            if wanted == manifest and not writes_same:
                return manifest
            try:
                yield from self.write(wanted, version)
                return wanted
            except BadVersion:
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise
            except MetadataUnavailable:
                lost += 1
                if lost == LOST_REPLIES_MAX:
                    raise

    def delete(self, life: str, version: int) -> Steps[None]:
        """Delete the log with this `Manifest.life`. No error if it is gone already.

        Raises `BadVersion`."""
        mark = DeleteOp(self.mark_of(life))
        node = DeleteOp(self.path, version)
        with suppress(NoSuchNode):
            yield from Transact((mark, node))
            return
        with suppress(NoSuchLog, NoSuchNode):
            yield from self.check_mark(life, version)
            yield from Transact((mark, node))

    def guard(self, life: str, version: int) -> Steps[tuple[CheckOp, CheckOp]]:
        """Return what makes a transaction fail unless the log is this one, at this version.

        Raises `BadVersion`, `NoSuchLog`."""
        yield from self.check_mark(life, version)
        return CheckOp(self.mark_of(life)), CheckOp(self.path, version)

    def mark_of(self, life: str) -> str:
        """Return the path of the mark of a log's `Manifest.life`."""
        return f"{self.path}/incarnation-{life}"

    def check_mark(self, life: str, version: int) -> Steps[None]:
        """Raise `NoSuchLog` or `BadVersion` if the log of this life is gone, or has another one;
        `DamagedMetadata` if it is there and its mark is not."""
        if (yield from Exists(self.mark_of(life))) is not None:
            return
        found, at = yield from self.read()
        if not life.startswith(found.incarnation):
            raise NoSuchLog(self.log, "it was deleted, and another one has its name")
        if found.life != life or at != version:  # it was renamed, or somebody wrote
            raise BadVersion(self.path, version)
        raise DamagedMetadata(self.path, f"the mark of its life {life} is missing")


def delete_listed(
    node: ManifestSteps, manifest: Manifest, *, fenced: bool = False
) -> Steps[Manifest]:
    """Second step of a deletion: delete what is listed for it, ledgers first, then clear the lists.

    A crash between repeats the first, which is no error for what is gone. Of a log that is being
    deleted itself only who has *fenced* the last ledgers deletes any: a writer may have them.
    Objects that another namespace owns (`dlog.protocol.object_owner`) are forgotten and stay."""
    if manifest.dropped and not fenced:
        return manifest
    with suppress(ObjectsOwnedElsewhere):
        manifest = yield from sweep_runs(node, manifest)
    doomed, objects = manifest.deleting, manifest.deleting_objects
    if doomed:
        for ledger_id in doomed:
            with suppress(NoSuchLedger):
                yield from DeleteLedger(ledger_id)
        manifest = yield from node.edit(forget_deleted(doomed))
    if objects:
        with suppress(ObjectsOwnedElsewhere):  # they stay, and none of them is listed any more
            yield from hold_objects(node, manifest.incarnation)
            for stored in objects:
                yield from DeleteObject(stored.storage, stored.name)
        manifest = yield from node.edit(forget_deleted((), objects))
    return manifest
