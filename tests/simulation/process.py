"""One simulated process: a host, an event loop, and the production client of ledgers."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from ledger.client import LedgerClient
from ledger.environment import Environment
from ledger.feature_level import LEVEL_MAX
from ledger.ids import BookieId
from ledger.manager import LedgerStore
from ledger.protocol.placement import Quarantine
from ledger.quorum import Quorum
from ledger.registry import AVAILABLE, BookieDirectory, BookieRegistration
from ledger.repair_marks import RepairHints
from ledger.requests import AddRun
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.loop import SimLoop
from tests.simulation.kernel.network import Stream
from tests.simulation.loop_store import LoopStore
from tests.simulation.oracle import DegradedChoice
from tests.simulation.transport import SimTransport

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PENDING_BYTES_MAX = 1 << 20
STORE, BOOKIES = PORTS = "store", "bookies"
"""Where a process may be stopped: at its calls to the metadata store or to bookies."""


class SimDirectory(BookieDirectory):
    """What a fresh watch reports of the registered bookies."""

    def __init__(self, process: "SimProcess", store: LoopStore) -> None:
        super().__init__(store)
        self._process, self._world = process, process.world

    @property
    def level(self) -> int:
        return LEVEL_MAX

    def available(self) -> tuple[BookieRegistration, ...]:
        return tuple(
            BookieRegistration(name, f"{name}:3181", self._life_of(name), self._world.racks[name])
            for name in self._world.metadata.available()
        )

    def on_change(self, call: Callable[[], None]) -> Callable[[], None]:
        process, metadata = self._process, self._world.metadata

        def changed() -> None:
            process.loop.call_soon(call)

        metadata.watch(process.host, AVAILABLE, changed)
        return partial(metadata.unwatch, process.host, AVAILABLE, changed)

    def _life_of(self, name: BookieId) -> str:
        return str(self._world.bookies[name].host.life)

    def racks(self) -> Mapping[str, str]:
        return {str(name): rack for name, rack in self._world.racks.items()}


class SimEnvironment(Environment):
    """Shows what is chosen of bookies that are away."""

    def __init__(self, process: "SimProcess", **parts: Any) -> None:
        super().__init__(**parts)
        self._process = process

    def degraded_ensemble(self, quorum: Quorum) -> tuple[BookieId, ...] | None:
        pool = self._pool()
        ensemble = super().degraded_ensemble(quorum)
        if ensemble is not None:
            self._process.mark("degraded_ensemble")
            self._process.chose_degraded(
                DegradedChoice(
                    who=self._process.name,
                    quorum=quorum,
                    ensemble=ensemble,
                    available=pool.available,
                    known=pool.away,
                )
            )
        return ensemble


class SimClient(LedgerClient):
    own_identities: tuple[str, ...] = ()
    """Of the certificate that it would have."""

    @property
    def identities(self) -> tuple[str, ...]:
        return self.own_identities


class SimProcess:
    world: "Cluster"

    def __init__(self, world: "Cluster", name: str) -> None:
        self.world = world
        self.name = name
        self.host = Host(world.scheduler, name)
        self.loop = SimLoop(self.host)  # type: ignore[abstract]
        self.store = self._make_store()
        self.transport = self._make_transport()
        self.calls = dict.fromkeys(PORTS, 0)
        """Calls at each port so far."""
        self.on_call: Callable[[str, str], None] | None = None
        """Called before each of them; may let the process crash or sleep just there."""
        choices = world.choices
        environment = self._make_environment(
            uri=self.store.uri,
            ledgers=self._make_ledgers(),
            bookies=self._directory(),
            transport=self.transport,
            random=Random(world.scheduler.random.getrandbits(32)),
            pending_bytes_max=PENDING_BYTES_MAX,
            writing=choices.writer_config,
            placement=choices.placement,
            quarantine=Quarantine(choices.quarantine),
        )
        suspicions = RepairHints(self.store)
        environment.suspect, environment.doubt = suspicions.heard, suspicions.doubted
        self.ledgers = SimClient(self.store, environment, suspicions.close)
        self._running = 0

    def _make_environment(self, **parts: Any) -> SimEnvironment:
        return SimEnvironment(self, **parts)

    def _make_store(self) -> LoopStore:
        return LoopStore(self)

    def _make_ledgers(self) -> LedgerStore:
        return LedgerStore(self.store, self.world.choices.layout.name)

    def _make_transport(self) -> SimTransport:
        return SimTransport(self)

    def _directory(self) -> BookieDirectory:
        """Return what it knows of who is registered."""
        return SimDirectory(self, self.store)

    @property
    def busy(self) -> bool:
        """Whether something that was begun here goes on, or would if the host ran."""
        return self.host.up and self._running > 0

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin *work*; what it raises breaks the simulation."""
        self._running += 1
        self.loop.call_soon(self._begin, work)

    def note(self, what: str) -> None:
        self.world.scheduler.note(self.name, what)

    def mark(self, thing: str) -> None:
        self.world.scheduler.mark(thing)

    def before_call(self, port: str, what: str) -> None:
        self.calls[port] += 1
        if self.on_call is not None:
            self.on_call(port, what)

    def chose_degraded(self, choice: DegradedChoice) -> None:
        """Take note of an ensemble that names bookies which are away."""

    def sends(self, bookie: BookieId, run: AddRun) -> None:
        """Take note of what is sent to *bookie*."""
        if not run.recovery and not run.explicit_lac:
            self.world.oracle.sent(run)

    def busy_streams(self) -> list[Stream[Any]]:
        """Return the connections on which something waits for an answer."""
        if not self.host.up:
            return []
        streams: list[Stream[Any]] = list(self.transport.busy_streams())
        store = self.world.metadata.stream_of(self.host)
        return [*streams, store] if store is not None and store.is_busy else streams

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.create_task(work).add_done_callback(self._done)

    def _done(self, task: Any) -> None:
        self._running -= 1
        if not task.cancelled():
            task.result()
