"""A process of repair: an auditor, a worker or one that empties a bookie, by production drivers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ledger.errors import BookieUnavailable, MetadataUnavailable
from ledger.ids import BookieId, LedgerId
from ledger.manager.layout import LEDGERS
from ledger.mark import UnderreplicatedLedger
from ledger.metastore.port import Op, Versioned
from ledger.metastore.tree import Tree
from ledger.registry import BookieDirectory
from ledger.repair_marks import MARKS
from tests.simulation.kernel.sockets import Machine
from tests.simulation.logs.process import Process
from tests.simulation.loop_store import LoopStore
from tests.simulation.transport import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tests.simulation.repair.world import RepairWorld

REPAIR: Final = "repair"
"""A port of its own: calls of both kinds within a repair, or while something is marked."""
START_AGAIN_S: Final = 0.5


class WatchedDirectory(BookieDirectory):
    """As in production; only racks are known to everybody."""

    def __init__(self, process: "RepairProcess") -> None:
        super().__init__(process.store)
        self._world = process.world

    def racks(self) -> Mapping[str, str]:
        return {str(name): rack for name, rack in self._world.racks.items()}


class SeeingStore(LoopStore):
    """Remembers what was read of marks last."""

    def __init__(self, process: "RepairProcess") -> None:
        super().__init__(process)
        self.seen: dict[str, UnderreplicatedLedger] = {}
        self.ledgers_read_s: float | None = None
        """When the metadata of a ledger were read last."""
        self.seen_at: dict[str, int] = {}
        """The moment (`Repairs.moment`) when a mark was read last."""

    async def multi(self, ops: Sequence[Op]) -> None:
        """In the session in which it was called, as a connection is of one session."""
        owner = self.session.session_id if self._beating else None

        def do(tree: Tree) -> None:
            tree.multi(ops, owner=owner or "")

        await self._call("multi", self._owned(owner, do))

    async def get(self, path: str) -> Versioned:
        if path.startswith(f"{LEDGERS}/"):
            self.ledgers_read_s = self._process.world.scheduler.now
        found = await super().get(path)
        if path.startswith(f"{MARKS}/"):
            self.seen[path] = UnderreplicatedLedger.decode(found.value, path=path)
            assert isinstance(self._process, RepairProcess)
            self.seen_at[path] = self._process.world.repairs.moment()
        return found


class RepairProcess(Process):
    world: "RepairWorld"

    def __init__(self, world: "RepairWorld", name: str, machine: Machine, address: str) -> None:
        super().__init__(world, name, machine, address)
        self.calls[REPAIR] = 0
        self.identity = f"uri:dlog:bookie:{name}"
        """Repair has the role of a bookie, and nothing more."""
        self.ledgers.own_identities = (self.identity,)
        self.recovering: dict[LedgerId, None] = {}
        """What it recovers just now."""
        self.targets: dict[LedgerId, dict[BookieId, None]] = {}
        """Who got copies of what it repairs just now."""
        self.asks_of: LedgerId | None = None
        """The ledger of which it asks what was acknowledged, just now."""
        self.had: dict[tuple[LedgerId, BookieId], frozenset[int]] = {}
        """What a bookie had promised when it was looked at."""

    def _make_store(self) -> SeeingStore:
        return SeeingStore(self)

    def _directory(self) -> BookieDirectory:
        return WatchedDirectory(self)

    @property
    def saw(self) -> SeeingStore:
        """Return what it has read."""
        assert isinstance(self.store, SeeingStore)
        return self.store

    def before_call(self, port: str, what: str) -> None:
        super().before_call(port, what)
        at_work = bool(
            self.loop.step if self.name.startswith("worker") else self.world.repairs.marks
        )
        if at_work and self.host.up and not self.host.paused:
            super().before_call(REPAIR, what)

    async def begin(self) -> None:
        """Find out who is there, as `LedgerClient.connect` does."""
        while True:
            try:
                await self.ledgers.bookies.start()
            except MetadataUnavailable:
                await asyncio.sleep(START_AGAIN_S)
            else:
                return

    async def ask_read_only(self, _address: str, bookie: BookieId) -> None:
        """Ask a bookie to be read-only from now on. Raises `BookieUnavailable`."""
        target = self.world.bookies[bookie]
        obeyed = await self.transport.ask(target.host, target.turn_read_only, READ_TIMEOUT_S)
        if obeyed is None:
            raise BookieUnavailable(bookie, "no answer")
