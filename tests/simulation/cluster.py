"""One simulated world: bookies, metadata store, network and clients on one scheduler."""

from collections.abc import Callable

from bookie.storage_config import StorageConfig
from ledger.entry import access_key
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import Quorum
from tests.simulation.bookie import SimBookie
from tests.simulation.host import Host
from tests.simulation.metadata import SimMetadata
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.recovering import RecoveringClient
from tests.simulation.scheduler import Scheduler
from tests.simulation.tailing import TailingClient
from tests.simulation.writing import PASSWORD, WritingClient


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
    ) -> None:
        self.scheduler = scheduler
        self.quorum = quorum
        self.fsync_s, self.checkpoint_s = fsync_s, checkpoint_s
        self.network = Network(scheduler)
        self.oracle = Oracle()
        self.metadata = SimMetadata(scheduler, self.network, self.oracle)
        names = [BookieId(f"b{number}") for number in range(1, bookies + 1)]
        self.bookies = {name: SimBookie(self, name, storage) for name in names}
        self.on_new_bookie: Callable[[SimBookie], None] | None = None
        self._storage = storage
        self.writers: list[WritingClient] = []
        self.recoverers: list[RecoveringClient] = []
        self.readers: list[TailingClient] = []

    @property
    def hosts(self) -> list[Host]:
        """Return every machine of this world."""
        return [
            self.metadata.host,
            *(bookie.host for bookie in self.bookies.values()),
            *(writer.host for writer in self.writers),
            *(recoverer.host for recoverer in self.recoverers),
            *(reader.host for reader in self.readers),
        ]

    def new_incarnation(self, old: SimBookie) -> None:
        """Let a bookie without data take the place of *old*, under a name of its own."""
        stem, _, number = old.name.partition(".")
        name = BookieId(f"{stem}.{int(number or 1) + 1}")
        bookie = self.bookies[name] = SimBookie(self, name, self._storage)
        self.scheduler.mark("new_incarnation")
        if self.on_new_bookie is not None:
            self.on_new_bookie(bookie)

    def writer(self) -> WritingClient:
        """Return the writer of a new ledger on bookies chosen at random."""
        ledger_id = LedgerId(len(self.writers) + 1)
        ensemble = self.scheduler.random.sample(tuple(self.bookies), self.quorum.ensemble)
        metadata = LedgerMetadata(
            quorum=self.quorum,
            fragments=(Fragment(EntryId(0), tuple(ensemble)),),
            access_key=access_key(PASSWORD),
        )
        self.metadata.create_ledger(ledger_id, metadata)
        client = WritingClient(self, f"writer{ledger_id}", ledger_id, metadata)
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
