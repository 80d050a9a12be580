"""The manifest of one log in the metadata store: carries out `protocol.manifest_steps`; watches."""

import secrets

from dlog.aio.port import Ledgers
from dlog.aio.procedures import run_on_ledgers, run_on_store
from dlog.manifest import Manifest
from dlog.protocol import manifest_steps
from dlog.protocol.edits import Edit
from dlog.protocol.manifest_steps import ManifestSteps
from ledger.metastore.port import MetadataStore, Watch


def new_incarnation() -> str:
    return secrets.token_hex(8)


class ManifestNode:
    """Raises `InvalidName` if there can be no log *log*. See `ManifestSteps` for all of it."""

    def __init__(self, store: MetadataStore, log: str) -> None:
        self.steps = ManifestSteps(log)
        self.store = store

    @property
    def log(self) -> str:
        """The log's name, where it was found last."""
        return self.steps.log

    @property
    def path(self) -> str:
        return self.steps.path

    def follow(self, incarnation: str) -> None:
        """Mean the log with *incarnation* from now on, whatever name it is given."""
        self.steps.followed = incarnation

    @property
    def followed(self) -> str | None:
        """The incarnation that is meant; None: whatever has the name."""
        return self.steps.followed

    async def read(self, *, fresh: bool = True) -> tuple[Manifest, int]:
        """Return manifest and version. Raises `NoSuchLog`, `DamagedMetadata`.

        *fresh*: see all writes that were finished before the call, for one more round trip."""
        return await run_on_store(self.steps.read(fresh=fresh), self.store)

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the log; return what is stored. Raises `LogExists`."""
        steps = self.steps.create(manifest, incarnations=new_incarnation)
        return await run_on_store(steps, self.store)

    async def write(self, manifest: Manifest, version: int) -> int:
        """Compare and swap; return the new version.

        Raises `BadVersion`, and `NoSuchLog` also if another log has the name by now."""
        return await run_on_store(self.steps.write(manifest, version), self.store)

    async def edit(self, edit: Edit) -> Manifest:
        """Apply *edit* until it is in the manifest; return that.

        Raises what *edit* raises, `NoSuchLog`, `MetadataUnavailable` (outcome unknown),
        `BadVersion` if others were faster very many times."""
        return await run_on_store(self.steps.edit(edit), self.store)

    async def delete(self, life: str, version: int) -> None:
        """Delete the log with this `Manifest.life`. No error if it is gone already.

        Raises `BadVersion`."""
        await run_on_store(self.steps.delete(life, version), self.store)

    def watch(self) -> Watch:
        """Watch the manifest, where it is and where it goes."""
        return _ManifestWatch(self, self.store)


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
        # It moved, as the last change showed: what happened there since was not seen.
        self._watch.close()
        self._path = self._node.path
        self._watch = self._store.watch(self._path)

    def close(self) -> None:
        self._watch.close()


async def delete_listed(
    ledgers: Ledgers, node: ManifestNode, manifest: Manifest, *, fenced: bool = False
) -> Manifest:
    """Second step of a deletion: delete the ledgers in `deleting`, then clear the list.

    Of a log that is being deleted itself only who has *fenced* the last ones deletes any."""
    steps = manifest_steps.delete_listed(node.steps, manifest, fenced=fenced)
    return await run_on_ledgers(steps, ledgers)
