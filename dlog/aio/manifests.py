"""The manifest of one log in the metadata store: read, edit by compare-and-swap, watch."""

from contextlib import suppress
from typing import Final

from dlog.aio.port import Ledgers
from dlog.errors import LogExists, NoSuchLog
from dlog.manifest import Manifest
from dlog.names import path_of
from dlog.protocol.edits import Edit, forget_deleted
from ledger.errors import BadVersion, MetadataUnavailable, NodeExists, NoSuchLedger, NoSuchNode
from ledger.metastore.port import MetadataStore, Watch

CONFLICTS_MAX: Final = 32
LOST_REPLIES_MAX: Final = 3


class ManifestNode:
    """Raises `InvalidName` if there can be no log *log*."""

    def __init__(self, store: MetadataStore, log: str) -> None:
        self.log = log
        self.path = path_of(log)
        self._store = store

    async def read(self, *, fresh: bool = True) -> tuple[Manifest, int]:
        """Return manifest and version. Raises `NoSuchLog`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        if fresh:
            await self._store.sync(self.path)
        try:
            found = await self._store.get(self.path)
        except NoSuchNode:
            raise NoSuchLog(self.log) from None
        if not found.value:  # made as the parent of something else
            raise NoSuchLog(self.log)
        return Manifest.decode(found.value, path=self.path), found.version

    async def create(self, manifest: Manifest) -> None:
        """Create the log. Raises `LogExists`; a lost reply is recognised by the incarnation."""
        value = manifest.encode(self.log)
        for attempt in range(1, LOST_REPLIES_MAX + 1):
            try:
                await self._store.create(self.path, value)
                return
            except NodeExists:
                found, _ = await self.read()
                if found.incarnation == manifest.incarnation:
                    return
                raise LogExists(self.log) from None
            except MetadataUnavailable:
                if attempt == LOST_REPLIES_MAX:
                    raise

    async def write(self, manifest: Manifest, version: int) -> int:
        """Compare and swap; return the new version. Raises `BadVersion`, `NoSuchLog`."""
        try:
            return await self._store.set(self.path, manifest.encode(self.log), version)
        except NoSuchNode:
            raise NoSuchLog(self.log) from None

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

    async def delete(self, version: int) -> None:
        """Delete the node. Raises `BadVersion`."""
        try:
            await self._store.delete(self.path, version)
        except NoSuchNode:
            return

    def watch(self) -> Watch:
        return self._store.watch(self.path)


async def delete_listed(ledgers: Ledgers, node: ManifestNode, manifest: Manifest) -> Manifest:
    """Second step of a deletion: delete the ledgers in `deleting`, then clear the list.

    A crash between repeats the first, which is no error for a ledger that is gone."""
    doomed = manifest.deleting
    if not doomed:
        return manifest
    for ledger_id in doomed:
        with suppress(NoSuchLedger):
            await ledgers.delete(ledger_id)
    return await node.edit(forget_deleted(doomed))
