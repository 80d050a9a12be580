"""One simulated world of logs: bookies, metadata store and network, and processes on them."""

from dataclasses import dataclass
from typing import Final

from bookie.storage.config import StorageConfig
from leader.record import CandidateRecord
from ledger.ids import BookieId
from ledger.quorum import Quorum
from ledger.requests import AddRun
from tests.simulation.bookie import SimBookie
from tests.simulation.cluster import CALM_CHECKPOINT_S, Choices, Cluster
from tests.simulation.kernel.ambient import wall_clock_ms
from tests.simulation.kernel.host import Host
from tests.simulation.kernel.scheduler import Scheduler
from tests.simulation.kernel.sockets import LOOPBACK, Machine
from tests.simulation.logs.metadata import LogMetadata
from tests.simulation.logs.objects import SimObjects
from tests.simulation.logs.oracle import LogOracle
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import MANY_MACHINES, NO_LIFELINES, ONE_MACHINE, STRANGERS
from tests.simulation.logs.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookies:
    """How many there are and how they work; see `tests.simulation.profile`."""

    count: int
    storage: StorageConfig
    fsync_s: tuple[float, float]
    checkpoint_s: tuple[float, float]


COLLECT_S: Final = 0.3, 4.0
LOSES_POWER: Final = 0.3
"""How probably the machine of a process goes down when it crashes."""


class World(Cluster):
    metadata: LogMetadata

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        bookies: Bookies,
        quorum: Quorum,
        choices: Choices,
        lags_s: tuple[float, ...],
        lifelines: str,
        late_replies: float,
        lies: float,
        skew_s: float,
        collects: bool,
        storage_faults: float = 0.0,
    ) -> None:
        """*lags_s*, *lies*: see `LogMetadata`; the others: see `LogProfile`."""
        super().__init__(
            scheduler,
            bookies=bookies.count,
            quorum=quorum,
            storage=bookies.storage,
            fsync_s=bookies.fsync_s,
            checkpoint_s=bookies.checkpoint_s,
            choices=choices,
        )
        # Before the first step: nothing has looked at those of the ledger scenario yet.
        self.logs = LogOracle(
            self.oracle,
            lambda: self.scheduler.steps,
            lambda: wall_clock_ms(self.scheduler) + round(skew_s * 1000),
        )
        self.objects = self.logs.objects = SimObjects(self, storage_faults)
        self.metadata = LogMetadata(
            scheduler,
            self.network,
            self.oracle,
            choices.layout,
            self.logs,
            lags_s,
            late_replies,
            lies,
        )
        self.processes: list[Process] = []
        self.machines: dict[str, Machine] = {}
        """By address."""
        self._lifelines, self._skew_s, self._collects = lifelines, skew_s, collects
        self.metadata.on_candidate_gone = self._candidate_gone

    @property
    def hosts(self) -> list[Host]:
        return [*super().hosts, *(process.host for process in self.processes if process.host.up)]

    def process(self, name: str) -> Process:
        """Return a new process, of a name that no process had before."""
        number = len(self.processes) + 1
        own = f"10.0.{number // 256}.{number % 256}"
        at = LOOPBACK if self._lifelines == ONE_MACHINE else own
        machine = self.machines.setdefault(at, Machine(f"stack {at}"))
        address = own if self._lifelines == MANY_MACHINES else LOOPBACK
        made = self._make_process(f"{name}.{number}", machine, address)
        if self._skew_s:
            made.loop.skew_s = self.scheduler.random.uniform(-self._skew_s, self._skew_s)
        self.processes.append(made)
        self.loops.append(made.loop)
        return made

    def _make_process(self, name: str, machine: Machine, address: str) -> Process:
        return Process(self, name, machine, address)

    @property
    def collects(self) -> bool:
        return self._collects

    @property
    def collect_s(self) -> tuple[float, float]:
        """How long a bookie waits between two looks for what is deleted."""
        return COLLECT_S if self.checkpoint_s != CALM_CHECKPOINT_S else CALM_CHECKPOINT_S

    def serve(self, bookie: SimBookie) -> None:
        self.loops.append(Serving(self, bookie).loop)

    @property
    def lifelines(self) -> bool:
        """Whether candidates listen for those behind them."""
        return self._lifelines != NO_LIFELINES

    def loses_power(self, process: Process) -> bool:
        """Draw whether the machine of *process*, which crashes, goes down as well."""
        own = self._lifelines in {MANY_MACHINES, STRANGERS}
        return own and process.sockets.is_open and self.scheduler.chance(LOSES_POWER)

    def _candidate_gone(self, by: str, session: str, node: bytes) -> None:
        """Another process took a candidate's node away: that one must be dead, or have said so."""
        name = session.rpartition("/")[0]
        process = next(each for each in self.processes if each.name == name)
        lifeline = CandidateRecord.decode(node, path=name).lifeline
        if not process.host.up:
            self.scheduler.mark("death_noticed")
        elif lifeline is None or process.sockets.listens(lifeline.port):
            self.logs.deposed.append(f"{by} took the node of {name} away, which lives")

    def copied(self, by: Process, bookie: BookieId, run: AddRun) -> None:
        """Take note of what is sent to *bookie* by who recovers or repairs."""
