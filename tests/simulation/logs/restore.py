"""A metadata store that is put back to an older moment, when all else is over.

At some moment of the run the store is copied, without nodes of sessions. At its end everything is
stopped, the copy is put in the store's place, an operator accepts that, bookies start again, and
the operator reconciles: production code throughout. Then what was ever acknowledged in a ledger
that the copy names must be in it and be read, whatever ensembles the copy has forgotten; and new
ledgers have ids of which no bookie has promised anything.

Not asked for: what was deleted since, and what was on disks that were lost as well.

Before that the copy is run elsewhere, beside the original, for as long as it takes to truncate and
to delete each of its logs; its ledgers are on bookies of its own. The original keeps every object.
"""

from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, Final, cast

from bookie.identity.restore import accept_restore
from dlog.aio.maintain.lifecycle import begin_drop, finish_drop
from dlog.aio.procedures import run_on_ledgers
from dlog.aio.store import ManifestNode, delete_listed, log_names
from dlog.errors import NoSuchLog, ObjectsOwnedElsewhere, ObjectStorageUnavailable
from dlog.manifest import Manifest
from dlog.protocol.archive import orphan_objects
from dlog.protocol.edits import trim
from dlog.protocol.object_owner import known_owners
from ledger.errors import NotEnoughBookies, RecoveryFailed
from ledger.ids import LedgerId
from ledger.manager.layout import LEDGERS
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.metastore.tree import Tree
from ledger.protocol.procedure import Steps
from ledger.quorum import holds
from ledger.reconciliation import Reconciled, reconcile
from tests.simulation.logs.objects import Key
from tests.simulation.oracle import LedgerHistory

if TYPE_CHECKING:
    from dlog.aio.port import Ledgers
    from tests.simulation.logs.process import Process
    from tests.simulation.logs.world import World

RESTORED: Final = 0.4
"""How probably that happens to a seed."""
WHY: Final = "back to the backup"


class _LedgersElsewhere:
    """The ledgers of a copy: what it does to them touches none of the original's."""

    def __init__(self, ledgers: "Ledgers") -> None:
        self.store = ledgers.store

    async def delete(self, ledger_id: LedgerId) -> None:
        """Delete it on bookies of the copy."""

    async def recover(self, ledger_id: LedgerId) -> None:
        """Recover it there."""


def orphans(node: ManifestNode, manifest: Manifest) -> Steps[list[str]]:
    return orphan_objects(node.steps, incarnation=manifest.incarnation, delete=True)


class StoreRestore:
    """Draws from a source of its own, so that a seed's run is the same with and without it."""

    def __init__(self, world: "World", until_s: float, *, archives: bool = False) -> None:
        """*archives*: logs move to object storage; then a copy always acts beside the original."""
        self._world = world
        self._backup: Tree | None = None
        self._below = 0
        self._before: dict[LedgerId, LedgerMetadata] = {}
        """What the store said of its ledgers at last."""
        self._found: list[tuple[int, bool]] = []
        self.results: list[Reconciled] = []
        random = Random(f"{world.scheduler.seed} restored")
        if random.random() < RESTORED or archives:
            least_s = until_s / 2 if archives else 0.0
            world.scheduler.after(random.uniform(least_s, until_s), self._back_up)

        self._needed: set[Key] = set()
        """Objects of the store that is about to be put back."""
        self._owners: dict[str, tuple[str, ...]] = {}
        """What its manifests say of the marks beside them."""

    @property
    def is_due(self) -> bool:
        return self._backup is not None

    def _back_up(self) -> None:
        self._backup = deepcopy(self._world.metadata.tree)

    def starting_before(self) -> list[str]:
        """Return the bookies that do not serve. One that was moved and has not started since would
        be refused: that it was stopped cleanly is believed of no store that was put back."""
        bookies = self._world.bookies.values()
        return [bookie.name for bookie in bookies if not bookie.gone and not bookie.serves]

    def stop_everything(self) -> None:
        """Stop all processes and bookies; let the store be what it was."""
        world, backup = self._world, self._backup
        assert backup is not None, "there is a backup"
        self._before = {
            ledger_id: history.recorded
            for ledger_id, history in world.oracle.ledgers.items()
            if history.is_there
        }
        self._needed = {
            (stored.storage, stored.name)
            for history in world.logs.current.values()
            for segment in history.manifest.segments
            if (stored := segment.location.object)
        }
        self._needed |= {
            (storage, name) for storage, names in world.objects.indexes.items() for name in names
        }
        self._needed &= world.objects.data.keys()
        self._owners = {
            history.manifest.storage: history.manifest.owners
            for history in world.logs.current.values()
        }
        for process in world.processes:
            process.crash()
        for bookie in world.bookies.values():
            if bookie.host.up:
                bookie.kill()
        for owner in list(backup._owned):
            backup.end_session(owner)
        backup.take_changed()
        tree = world.metadata.tree
        tree._nodes, tree._owned = deepcopy(backup)._nodes, {}
        tree.take_changed()
        world.metadata._lags_s = (0.0,)

    async def act_elsewhere(self, process: "Process") -> bool:
        """Let a copy of the store do all that deletes objects. One that is like the original in the
        marks of its owner, too, is at another place."""
        world = self._world
        ledgers = cast("Ledgers", _LedgersElsewhere(process.ledgers))
        for name in await log_names(process.ledgers.store):
            node = ManifestNode(process.ledgers.store, name)
            try:
                manifest, _ = await node.read()
            except NoSuchLog:
                continue
            since = self._owners.get(manifest.storage)
            if not manifest.storage or manifest.dropped or since is None:
                continue
            is_alike = not set(since).isdisjoint(known_owners(manifest))
            world.objects.place = "elsewhere" if is_alike else "here"
            world.scheduler.mark("copy_acted" if manifest.has_objects else "copy_without_objects")
            edit = trim(name, manifest.sealed_end, incarnation=manifest.incarnation)
            with suppress(ObjectsOwnedElsewhere, ObjectStorageUnavailable):
                await delete_listed(ledgers, node, await node.edit(edit))
            with suppress(ObjectsOwnedElsewhere, ObjectStorageUnavailable):
                await run_on_ledgers(orphans(node, manifest), ledgers)
            await begin_drop(node)
            with suppress(ObjectStorageUnavailable):
                await finish_drop(ledgers, node)
        return True

    def end_elsewhere(self) -> str | None:
        """Let the copy be what it was; return what it has deleted that is not its own."""
        lost = self._needed - self._world.objects.data.keys()
        tree = self._world.metadata.tree
        assert self._backup is not None
        tree._nodes, tree._owned = deepcopy(self._backup)._nodes, {}
        tree.take_changed()
        self._world.objects.place = "here"
        return f"a copy of the namespace deleted {sorted(lost)}" if lost else None

    async def accept(self, process: "Process") -> bool:
        random = self._world.scheduler.random
        restore = await accept_restore(process.ledgers.ledgers, WHY, entropy=random.randbytes)
        self._below = restore.below
        return True

    def start_bookies(self) -> None:
        for bookie in self._world.bookies.values():
            if not bookie.host.up:  # one that crashed before may have been about to start
                bookie.restart()

    def starting(self) -> list[str]:
        """Return the bookies that are not registered yet."""
        there = self._world.metadata.available()
        return [
            bookie.name
            for bookie in self._world.bookies.values()
            if not bookie.gone and bookie.name not in there
        ]

    async def open_too_early(self, process: "Process") -> bool:
        """Recover what is open by the ensembles that the store names, as whoever opens a log
        before the operator has reconciled: nothing may be decided that is not certain."""
        ledgers = process.ledgers
        for ledger_id in [each async for each in ledgers.list()]:
            try:
                await ledgers.recover_without_password(ledger_id)
            except RecoveryFailed:
                self._world.scheduler.mark("restored_ledger_not_recovered")
        return True

    async def reconcile(self, process: "Process") -> bool:
        self._found = self._states_of_bookies()
        gone = [bookie.name for bookie in self._world.bookies.values() if bookie.gone]
        self.results = [
            each async for each in reconcile(process.ledgers, self._below, without=gone)
        ]
        return True

    def was_disturbed(self) -> bool:
        """Return whether a bookie was down meanwhile: then the operator is told to try again."""
        return self._states_of_bookies() != self._found

    def _states_of_bookies(self) -> list[tuple[int, bool]]:
        bookies = self._world.bookies.values()
        return [(bookie.host.life, bookie.host.up and bookie.serves) for bookie in bookies]

    async def write(self, process: "Process") -> bool:
        """Make a ledger, as whoever opens a log next does."""
        writer = await process.ledgers.create(self._world.quorum)
        before = self._world.oracle.ledgers.get(writer.ledger_id)
        assert before is None or not (before.copies or before.fenced), "bookies know its id"
        try:
            await writer.add(b"after the restore")
            await writer.close()
        except NotEnoughBookies:  # one lost its power meanwhile
            return False
        return True

    def broken(self) -> str | None:
        """Return what is not as it must be, None if all is."""
        oracle, layout = self._world.oracle, self._world.choices.layout
        if oracle.lost_disks or any(bookie.gone for bookie in self._world.bookies.values()):
            return None  # more was lost than the store
        self._world.scheduler.mark("store_restored")
        for ledger_id, history in oracle.ledgers.items():
            path = layout.path(ledger_id)
            tree = self._world.metadata.tree
            if history.deleted or not path.startswith(LEDGERS) or tree.exists(path) is None:
                continue
            metadata = LedgerMetadata.decode(tree.get(path).value, path=path)
            story = self._story(ledger_id, history, metadata)
            if story is not None:
                return f"ledger {ledger_id}: {story}"
        return None

    def _story(
        self, ledger_id: LedgerId, history: LedgerHistory, metadata: LedgerMetadata
    ) -> str | None:
        if ledger_id >= self._below:
            return None  # made while the operator looked
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry is None:
            said = next((one.problem for one in self.results if one.ledger_id == ledger_id), "")
            return f"it is still open: {said}"
        if metadata.last_entry < history.acknowledged:
            return f"it ends at {metadata.last_entry}, and {history.acknowledged} was acknowledged"
        if len(self._before[ledger_id].fragments) > len(metadata.fragments):
            self._world.scheduler.mark("restored_ensemble_was_older")
        for entry_id in range(history.acknowledged + 1):
            bookies = metadata.fragment_of(entry_id).bookies
            if not any(
                holds(index, entry_id, metadata.quorum)
                and self._world.bookies[bookie].can_read(ledger_id, metadata.access_key, entry_id)
                for index, bookie in enumerate(bookies)
            ):
                return f"entry {entry_id} was acknowledged, and no bookie of it has it"
        return None
