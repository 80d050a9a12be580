"""The manifest of one log in the metadata store: read, edit by compare-and-swap, watch.

    /logs/<log>                            the manifest
    /logs/<log>/incarnation-<life>   empty; there as long as the log is and has this name

A node that is deleted and made again begins anew at version 0, so versions alone do not tell
two logs of one name apart: a writer that slept meanwhile would overwrite the new log's manifest.
Each write therefore checks, in one transaction, that its own incarnation is still there. A log
that is renamed, and perhaps given back its old name, keeps its incarnation and begins a new life.
"""

import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.store.renames import newest_name
from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, path_of
from dlog.protocol.edits import Edit, forget_deleted
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoSuchLedger, NoSuchNode
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp, SetOp
from ledger.metastore.port import MetadataStore, Watch

CONFLICTS_MAX: Final = 32
LOST_REPLIES_MAX: Final = 3
MOVES_MAX: Final = 16
"""How often a log may be renamed while it is looked for."""


class ManifestNode:
    """Raises `InvalidName` if there can be no log *log*."""

    def __init__(self, store: MetadataStore, log: str) -> None:
        self.log = log
        self.path = path_of(log)
        self._store = store
        self._followed: str | None = None

    def follow(self, incarnation: str) -> None:
        """Mean the log with *incarnation* from now on, whatever name it is given."""
        self._followed = incarnation

    @property
    def followed(self) -> str | None:
        """The incarnation that is meant; None: whatever has the name."""
        return self._followed

    async def read(self, *, fresh: bool = True) -> tuple[Manifest, int]:
        """Return manifest and version. Raises `NoSuchLog`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        for _ in range(MOVES_MAX):
            try:
                found = await self._read(self.path, fresh=fresh)
            except NoSuchLog:
                found = None
            if found is not None and self._followed in {None, found[0].incarnation}:
                return found
            if not await self._go_after():
                if found is None:
                    raise NoSuchLog(self.log)
                return found
            fresh = True
        raise NoSuchLog(self.log, "it is renamed all the time")

    async def _go_after(self) -> bool:
        """Go where the log that is followed is now; return False if it was never renamed."""
        name = None
        if self._followed is not None:
            name = await newest_name(self._store, self._followed)
        if name is not None and name != self.log:
            self.log, self.path = name, path_of(name)
        return name is not None

    async def _read(self, path: str, *, fresh: bool) -> tuple[Manifest, int]:
        if fresh:
            await self._store.sync(path)
        try:
            found = await self._store.get(path)
        except NoSuchNode:
            raise NoSuchLog(self.log) from None
        if not found.value:  # made as the parent of something else
            raise NoSuchLog(self.log)
        return Manifest.decode(found.value, path=path), found.version

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the log; return what is stored. Raises `LogExists`.

        After a lost reply it is tried again as another incarnation, for the first one may have
        been made, used and deleted meanwhile; whichever of them is found there is our own."""
        tried: list[str] = []
        while True:
            tried.append(manifest.incarnation)
            made = CreateOp(self.path, manifest.encode(self.log))
            try:
                await self._make_parent()
                await self._store.multi([made, CreateOp(self.mark_of(manifest.life))])
            except NodeExists:
                found, _ = await self.read()
                if found.incarnation in tried:
                    return found
                raise LogExists(self.log) from None
            except MetadataUnavailable:
                if len(tried) == LOST_REPLIES_MAX:
                    raise
                manifest = replace(manifest, incarnation=secrets.token_hex(8))
            else:
                return manifest

    async def write(self, manifest: Manifest, version: int) -> int:
        """Compare and swap; return the new version.

        Raises `BadVersion`, and `NoSuchLog` also if another log has the name by now."""
        mark = CheckOp(self.mark_of(manifest.life))
        swap = SetOp(self.path, manifest.encode(self.log), version)
        try:
            await self._store.multi([mark, swap])
        except NoSuchNode:
            await self.mark(manifest.life, version)
            try:
                await self._store.multi([mark, swap])
            except NoSuchNode:
                raise NoSuchLog(self.log) from None
        return version + 1

    async def edit(self, edit: Edit) -> Manifest:
        """Apply *edit* until it is in the manifest; return that.

        Raises what *edit* raises, `NoSuchLog`, `MetadataUnavailable` (outcome unknown),
        `BadVersion` if others were faster very many times."""
        conflicts = lost = 0
        while True:
            manifest, version = await self.read()
            wanted = edit(manifest)
            if wanted == manifest:
                return manifest
            try:
                await self.write(wanted, version)
                return wanted
            except BadVersion:
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise
            except MetadataUnavailable:
                lost += 1
                if lost == LOST_REPLIES_MAX:
                    raise

    async def delete(self, life: str, version: int) -> None:
        """Delete the log with this `Manifest.life`. No error if it is gone already.

        Raises `BadVersion`."""
        mark = DeleteOp(self.mark_of(life))
        node = DeleteOp(self.path, version)
        with suppress(NoSuchNode):
            await self._store.multi([mark, node])
            return
        with suppress(NoSuchLog, NoSuchNode):
            await self.mark(life, version)
            await self._store.multi([mark, node])

    async def guard(self, life: str, version: int) -> tuple[CheckOp, CheckOp]:
        """Return what makes a transaction fail unless the log is this one, at this version.

        Raises `BadVersion`, `NoSuchLog`."""
        await self.mark(life, version)
        return CheckOp(self.mark_of(life)), CheckOp(self.path, version)

    def watch(self) -> Watch:
        """Watch the manifest, where it is and where it goes."""
        return _ManifestWatch(self, self._store)

    async def _make_parent(self) -> None:
        if await self._store.exists(LOGS_PATH) is None:
            with suppress(NodeExists):
                await self._store.create(LOGS_PATH)

    def mark_of(self, life: str) -> str:
        """Return the path of the mark of a log's `Manifest.life`."""
        return f"{self.path}/incarnation-{life}"

    async def mark(self, life: str, version: int) -> None:
        """Mark a log that a program made which did not mark them; nothing if it is marked.

        Raises `NoSuchLog` if it is not this incarnation that has no mark, `BadVersion`."""
        if await self._store.exists(self.mark_of(life)) is not None:
            return
        found, at = await self.read()
        if not life.startswith(found.incarnation):
            raise NoSuchLog(self.log, "it was deleted, and another one has its name")
        if found.life != life or at != version:  # it was renamed, or somebody wrote
            raise BadVersion(self.path, version)
        try:
            with suppress(NodeExists):
                made = CreateOp(self.mark_of(life))
                await self._store.multi([CheckOp(self.path, version), made])
        except NoSuchNode:
            raise NoSuchLog(self.log) from None


class _ManifestWatch:
    """A watch of the node that its `ManifestNode` stands for at the time."""

    def __init__(self, node: ManifestNode, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._path = node.path
        self._watch = store.watch(node.path)

    async def changed(self) -> None:
        if self._path == self._node.path:
            await self._watch.changed()
            return
        # It moved, which the last change made known: what happened there since is not told.
        self._watch.close()
        self._path = self._node.path
        self._watch = self._store.watch(self._path)

    def close(self) -> None:
        self._watch.close()


async def delete_listed(
    ledgers: Ledgers, node: ManifestNode, manifest: Manifest, *, fenced: bool = False
) -> Manifest:
    """Second step of a deletion: delete the ledgers in `deleting`, then clear the list.

    A crash between repeats the first, which is no error for a ledger that is gone. Of a log that is
    being deleted itself only who has *fenced* the last ones deletes any: a writer may have them."""
    doomed = manifest.deleting
    if not doomed or (manifest.dropped and not fenced):
        return manifest
    for ledger_id in doomed:
        with suppress(NoSuchLedger):
            await ledgers.delete(ledger_id)
    return await node.edit(forget_deleted(doomed))
