"""What the measurements of one run share: the disk's figures, the sizes, the results."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.disk import DiskFigures
from benchmarks.figures import Figure, percentile
from dlog.local.cluster import LocalCluster
from ledger.ids import BookieId
from ledger.transport.grpc import GrpcTransport

BOOKIE: Final = BookieId("bookie-0")
_START_TIMEOUT_S: Final = 600.0
LABELS: Final = {100: "100 B", 1000: "1 KB", 64_000: "64 KB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    seconds: float = 4.0
    """For each latency."""
    entries: dict[int, int] = field(
        default_factory=lambda: {100: 2_000_000, 1000: 400_000, 64_000: 32_000}
    )
    """How many entries of each size are added where throughput is measured."""
    catch_up_bytes: int = 512_000_000
    journal_bytes: int = 1_000_000_000
    ledgers: int = 100_000
    entries_per_ledger: int = 10
    rounds: int = 3
    """Of measurements without and with something else going on, in turn."""


QUICK: Final = Sizes(
    seconds=0.1,
    entries={100: 5000, 1000: 2000, 64_000: 50},
    catch_up_bytes=3_000_000,
    journal_bytes=3_000_000,
    ledgers=200,
    rounds=1,
)


@dataclass(slots=True)
class Bench:
    directory: Path
    disk: DiskFigures
    sizes: Sizes
    figures: list[Figure]

    def rate(self, name: str, bytes_per_s: float, *, aim_r: float | None = None) -> None:
        """Tell MB/s as a share of R/2: what is added is written to journal and entry log."""
        share = bytes_per_s / (self.disk.bytes_per_s / 2)
        aim = "" if aim_r is None else f">= {aim_r:g} R/2"
        met = None if aim_r is None else share >= aim_r
        self.figures.append(Figure(name, bytes_per_s / 1e6, "MB/s", share, "R/2", aim, met))

    def latency(self, name: str, times: Sequence[float], *, aim_f: float | None = None) -> None:
        for percent in (50, 99):
            value = percentile(times, percent)
            ratio = value / self.disk.sync_s
            judged = aim_f is not None and percent == 50
            aim = f"<= {aim_f:g} F" if judged else ""
            met = ratio <= aim_f if aim_f is not None and judged else None
            figure = Figure(f"{name} p{percent}", value * 1e3, "ms", ratio, "F", aim, met)
            self.figures.append(figure)

    def at_least(self, name: str, value: float, unit: str, aim: float) -> None:
        met = value >= aim
        self.figures.append(Figure(name, value, unit, value / aim, "aims", f">= {aim:,g}", met))

    def at_most(self, name: str, value: float, unit: str, aim: float) -> None:
        met = value <= aim
        self.figures.append(Figure(name, value, unit, value / aim, "aims", f"<= {aim:,g}", met))

    def note(self, name: str, value: float, unit: str) -> None:
        self.figures.append(Figure(name, value, unit))

    @contextmanager
    def place(self) -> Iterator[Path]:
        """Yield a new directory on the disk that is measured; it is removed in the end."""
        path = Path(tempfile.mkdtemp(prefix="bench-bookie-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path)


class OneBookie:
    """A bookie process on *directory*, and a transport to it. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory, bookies=1, start_timeout_s=_START_TIMEOUT_S)
        self.transport = GrpcTransport(lambda _: self.address, timeout_s=60.0)

    @property
    def address(self) -> str:
        return self.cluster.bookies()[0].address

    @property
    def pid(self) -> int:
        return self.cluster.processes[0].pid

    @property
    def directory(self) -> Path:
        return self.cluster.processes[0].directory

    def memory_bytes(self) -> int:
        """Return how much memory it has resident now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files_open(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def disk_bytes(self) -> int:
        """Return how much of the disk its files take."""
        return sum(path.lstat().st_blocks * 512 for path in self.directory.rglob("*"))


@asynccontextmanager
async def one_bookie(directory: Path) -> AsyncIterator[OneBookie]:
    bookie = OneBookie(directory)
    async with bookie.cluster:
        try:
            yield bookie
        finally:
            await bookie.transport.close()
