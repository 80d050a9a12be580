"""What the measurements of one run share: the disk's figures, the sizes, the results."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.results import Results
from dlog.local.cluster import LocalCluster
from ledger.ids import BookieId
from ledger.transport.sockets import SocketTransport

BOOKIE: Final = BookieId("bookie-0")
UNMADE_LEDGERS: Final = 1_000_000
"""The load adds to ledgers that are in no metadata store."""
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
    closed_ledgers: int = 1_000_000
    rounds: int = 3
    """Of measurements without and with something else going on, in turn."""


QUICK: Final = Sizes(
    seconds=0.1,
    entries={100: 5000, 1000: 2000, 64_000: 50},
    catch_up_bytes=3_000_000,
    journal_bytes=3_000_000,
    ledgers=200,
    closed_ledgers=300,
    rounds=1,
)


@dataclass(slots=True)
class Bench(Results):
    sizes: Sizes

    def rate(self, name: str, bytes_per_s: float, *, aim_r: float | None = None) -> None:
        """Report MB/s as a share of R/2: what is added is written to journal and entry log."""
        self.share(name, bytes_per_s, copies=2, aim=aim_r)


class BenchCluster(LocalCluster):
    def _new_bookie(self, name: str) -> str:
        return name  # processes apart know it beforehand


class OneBookie:
    """A bookie process on *directory*, and a transport to it. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.cluster = BenchCluster(
            directory,
            bookies=1,
            start_timeout_s=_START_TIMEOUT_S,
            bookie_options=("--unmade-ledgers", str(UNMADE_LEDGERS)),
        )
        self.transport = SocketTransport(
            lambda _: self.address,
            timeout_s=60.0,
            connect_timeout_s=60.0,
            meant=lambda _: self.cluster.bookies()[0].meant,
        )

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
