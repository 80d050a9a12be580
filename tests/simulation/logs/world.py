"""One simulated world of logs: bookies, metadata store and network, and processes on them."""

from dataclasses import dataclass

from bookie.storage_config import StorageConfig
from ledger.quorum import Quorum
from ledger.requests import AddRun
from tests.simulation.cluster import Choices, Cluster
from tests.simulation.host import Host
from tests.simulation.logs.ambient import wall_clock_ms
from tests.simulation.logs.metadata import LogMetadata
from tests.simulation.logs.oracle import LogOracle
from tests.simulation.logs.process import Process
from tests.simulation.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookies:
    """How many there are and how they work; see `tests.simulation.profile`."""

    count: int
    storage: StorageConfig
    fsync_s: tuple[float, float]
    checkpoint_s: tuple[float, float]


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
    ) -> None:
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
            self.oracle, lambda: self.scheduler.steps, lambda: wall_clock_ms(self.scheduler)
        )
        self.metadata = LogMetadata(
            scheduler, self.network, self.oracle, choices.layout, self.logs, lags_s
        )
        self.processes: list[Process] = []

    @property
    def hosts(self) -> list[Host]:
        return [*super().hosts, *(process.host for process in self.processes if process.host.up)]

    def process(self, name: str) -> Process:
        """Return a new process, of a name that no process had before."""
        made = Process(self, f"{name}.{len(self.processes) + 1}")
        self.processes.append(made)
        return made

    def sent(self, run: AddRun) -> None:
        """Take note of the frames that a ledger's writer sends, the first time."""
        frames = self.oracle.ledger(run.ledger_id).sent
        start = 0
        for entry, length in zip(run.entries, run.lengths, strict=True):
            while len(frames) <= entry:
                frames.append(b"")
            if not frames[entry]:
                frames[entry] = bytes(run.frames[start : start + length])
            start += length
