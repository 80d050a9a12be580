"""One simulated world: bookies, metadata store, network and clients on one scheduler."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bookie.storage.config import StorageConfig
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, BookieIdentity, LedgerId
from ledger.manager import LAYOUTS, Layout, LedgerStore
from ledger.protocol.placement import (
    PlacementPolicy,
    QuarantineConfig,
    RackAwarePlacement,
    RandomPlacement,
)
from ledger.protocol.writer import WriterConfig
from ledger.quorum import Quorum
from ledger.requests import AddRun
from tests.simulation.addresses import ForeignBookie, Listener
from tests.simulation.bookie import SimBookie
from tests.simulation.evicting import Evicting
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.network import Network
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.metadata import SimMetadata
from tests.simulation.oracle import Oracle
from tests.simulation.process import SimProcess
from tests.simulation.recovering import RecoveringClient
from tests.simulation.store import SimStore, drive
from tests.simulation.tailing import TailingClient
from tests.simulation.transport import Adding
from tests.simulation.writing import WritingClient

DELETE_RETRY_S: Final = 0.5
CALM_CHECKPOINT_S: Final = 600.0, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a client of production is configured with, and the namespace it finds."""

    rack_aware: bool = True
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    writer_config: WriterConfig = field(default_factory=WriterConfig)
    layout: Layout = LAYOUTS["longhierarchical"]
    racks: int = 1
    """Bookies are in so many racks, in turn."""
    unconfirmed: float = 0.0
    """Share of a reader's reads that are unconfirmed ones."""

    @property
    def placement(self) -> PlacementPolicy:
        return RackAwarePlacement() if self.rack_aware else RandomPlacement()


class Cluster:
    def __init__(
        self,
        scheduler: Scheduler,
        *,
        bookies: int,
        quorum: Quorum,
        storage: StorageConfig,
        fsync_s: tuple[float, float],
        checkpoint_s: tuple[float, float],
        choices: Choices,
    ) -> None:
        self.scheduler = scheduler
        self.quorum = quorum
        self.fsync_s, self.checkpoint_s = fsync_s, checkpoint_s
        self._checkpoint_s = checkpoint_s
        self.choices = choices
        self.network = Network(scheduler)
        self.oracle = Oracle()
        self.metadata = SimMetadata(scheduler, self.network, self.oracle, choices.layout)
        self.racks: dict[BookieId, str] = {}
        self.operator = Host(scheduler, "operator")
        self.ledgers = LedgerStore(SimStore(self.metadata, self.operator), choices.layout.name)
        """The operator's way to the ledgers: deletes and lists them."""
        names = [BookieId(f"b{number}") for number in range(1, bookies + 1)]
        for number, name in enumerate(names):
            self.racks[name] = f"r{number % choices.racks}"
        self.bookies = {name: SimBookie(self, name, storage) for name in names}
        self.foreign: dict[BookieId, ForeignBookie] = {}
        """Bookies that listen where one of ours was last, by its name."""
        self.on_new_bookie: Callable[[SimBookie], None] | None = None
        self.on_change: Callable[[LedgerId], None] | None = None
        """Called when a client begins to change a ledger's ensemble."""
        self._storage = storage
        self.loops: list[SimLoop] = []
        """Also of the dead: what they had under way is not swept up in the middle."""
        self.evicts = False
        """Whether bookies evict what no fragment names any more."""
        self.writers: list[WritingClient] = []
        self.recoverers: list[RecoveringClient] = []
        self.readers: list[TailingClient] = []

    @property
    def collects(self) -> bool:
        """Whether bookies delete what is deleted."""
        return False

    def serve(self, bookie: SimBookie) -> None:
        """Begin what goes on beside a bookie's storage as long as it is up."""
        self.metadata.register(bookie.host)
        if self.evicts:
            Evicting(self, bookie)

    def announce_read_only(self, bookie: SimBookie) -> None:
        """Announce that it takes no entries any more."""

    @property
    def hosts(self) -> list[Host]:
        """Return every machine of this world."""
        return [
            self.metadata.host,
            self.operator,
            *(bookie.host for bookie in self.bookies.values()),
            *(writer.host for writer in self.writers),
            *(recoverer.host for recoverer in self.recoverers),
            *(reader.host for reader in self.readers),
        ]

    def new_incarnation(self, old: SimBookie) -> None:
        """Let a bookie without data take the place of *old*, under a name of its own."""
        stem, _, number = old.name.partition(".")
        name = BookieId(f"{stem}.{int(number or 1) + 1}")
        self.racks[name] = self.racks[old.name]
        bookie = self.bookies[name] = SimBookie(self, name, self._storage)
        self.scheduler.mark("new_incarnation")
        if self.on_new_bookie is not None:
            self.on_new_bookie(bookie)

    def listen(self, name: BookieId, identity: BookieIdentity) -> None:
        """Let a foreign bookie of that *name* and *identity* take the address of ours."""
        self.foreign[name] = ForeignBookie(self, name, identity, self._storage)
        self.scheduler.note(f"foreign {name}", f"listens: {identity}")
        self.scheduler.mark("stranger_listened")

    def at_address(self, bookie: BookieId, client: str) -> Listener:
        """Return what answers where *client* looks for *bookie*."""
        foreign = self.foreign.get(bookie)
        if foreign is not None and foreign.is_reached(client):
            return foreign
        return self.bookies[bookie]

    def writer(self) -> WritingClient:
        """Return a writer that has no ledger yet."""
        client = WritingClient(self, f"writer{len(self.writers) + 1}")
        self.writers.append(client)
        return client

    def recoverer(self, ledger_id: LedgerId) -> RecoveringClient:
        """Return a recoverer of the ledger that has begun."""
        client = RecoveringClient(self, f"recoverer{len(self.recoverers) + 1}", ledger_id)
        self.recoverers.append(client)
        self.scheduler.mark("recovery_begun")
        client.begin()
        return client

    def reader(self, ledger_id: LedgerId) -> TailingClient:
        """Return a tailing reader of the ledger that has begun."""
        client = TailingClient(self, f"reader{len(self.readers) + 1}", ledger_id)
        self.readers.append(client)
        client.begin()
        return client

    def adding(self, _by: SimProcess, target: Listener, run: AddRun) -> Adding:
        """Return what *target* does with *run* of a process when it arrives."""
        return partial(target.add, run)

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete the ledger, whoever uses it and however often that takes."""

        async def delete() -> bool:
            try:
                await self.ledgers.delete(ledger_id)
            except MetadataUnavailable:
                return False
            return True

        def done(deleted: bool) -> None:
            if deleted:
                self.scheduler.mark("ledger_deleted")
            else:
                self.operator.after(DELETE_RETRY_S, partial(self.delete, ledger_id))

        drive(delete(), done)

    def list_ledgers(self, on_done: Callable[[list[LedgerId]], object]) -> None:
        """Give *on_done* what the operator sees of all ledgers."""

        async def listed() -> list[LedgerId]:
            while True:
                try:
                    return [ledger_id async for ledger_id in self.ledgers.list()]
                except MetadataUnavailable:
                    continue  # a connection from before everything healed

        drive(listed(), on_done)

    def calm(self) -> None:
        """Let what happens again and again happen seldom, so that hours pass in few steps."""
        self.metadata.calm()
        self._set_checkpoints(CALM_CHECKPOINT_S)

    def hurry(self) -> None:
        """Let bookies work as before; sessions stay long."""
        self._set_checkpoints(self._checkpoint_s)

    def _set_checkpoints(self, range_s: tuple[float, float]) -> None:
        self.checkpoint_s = range_s
        for bookie in self.bookies.values():
            bookie.plan_checkpoint()
