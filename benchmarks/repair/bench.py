"""What the measurements of repair share: sizes, results, a cluster on the store that was chosen."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from benchmarks.figures import Figure
from benchmarks.results import Results
from bookie.autorecovery.checks import CheckRecord, PlacementRecord, ReplicasRecord
from dlog.local.cluster import LocalCluster
from dlog.local.zookeeper import ManagedZooKeeper
from ledger import ClientConfig, LedgerClient
from ledger.log_events import now_ms

BOOKIES: Final = 4
"""Three for each ledger, and one to copy to."""
ENDED_S: Final = 10.0
_HEAP: Final = "-Xmx1g"
"""100,000 ledgers and their marks are too much for the heap of a ZooKeeper of demos."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    seconds: float = 4.0
    """For latencies, and for the disk."""
    ledgers: tuple[int, ...] = (10_000, 100_000)
    """There when audits and checks are measured."""
    marked_of: int = 10
    """Each of so many ledgers is marked by the second audit."""
    moved: int = 2000
    """Small ledgers that are moved, to count what that costs in the metadata store."""
    repair_bytes: int = 1_000_000_000
    """Payload of the ledgers of which one bookie is lost."""
    ledger_bytes: int = 16_000_000
    """Payload of each."""


SIZES: Final = {"zookeeper": Sizes(), "file": Sizes(ledgers=(1_000, 10_000))}
"""By metadata store: the embedded one is for one machine, and syncs each creation by itself."""
QUICK: Final = Sizes(
    seconds=0.1, ledgers=(20, 60), moved=10, repair_bytes=3_000_000, ledger_bytes=500_000
)


@dataclass(slots=True)
class Bench(Results):
    sizes: Sizes
    store: str
    """One of `SIZES`."""

    def none(self, name: str, count: int) -> None:
        """Report what must not have happened at all."""
        self.figures.append(Figure(name, count, "", aim="0", met=count == 0))


@dataclass(slots=True)
class Running:
    cluster: LocalCluster
    client: LedgerClient


class LargeZooKeeper(ManagedZooKeeper):
    def _spawn(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return super()._spawn([_HEAP if each.startswith("-Xmx") else each for each in command], log)


@asynccontextmanager
async def running(bench: Bench, directory: Path) -> AsyncIterator[Running]:
    """A new cluster in *directory*, and a client that is patient."""
    async with AsyncExitStack() as stack:
        uri = None
        if bench.store == "zookeeper":
            server = await stack.enter_async_context(LargeZooKeeper(directory / "zookeeper"))
            uri = server.uri("/dlog")
        cluster = LocalCluster(directory / "cluster", bookies=BOOKIES, zookeeper=uri)
        await stack.enter_async_context(cluster)
        patient = ClientConfig(metadata_timeout_s=60.0, bookie_timeout_s=60.0)
        client = await LedgerClient.connect(cluster.uri, patient)
        stack.push_async_callback(client.close)
        await client.bookies.wait_for(BOOKIES, 60)
        await _all_is_checked(client)
        yield Running(cluster, client)


async def _all_is_checked(client: LedgerClient) -> None:
    """Write down that no check of all ledgers is due, or auditors would begin with those."""
    at_ms = now_ms()
    ledgers = CheckRecord(at_ms=at_ms, ledgers=0, lacking=0, unsure=0, unreadable=0)
    await ledgers.write(client.store)
    await PlacementRecord(at_ms=at_ms, ledgers=0, misplaced=0).write(client.store)
    await ReplicasRecord(at_ms=at_ms, ledgers=0, away=0, urgent=0).write(client.store)


@contextmanager
def repairing(uri: str, log_path: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of repair that waits for nobody."""
    command = [sys.executable, "-m", "bookie.autorecovery", "--uri", uri]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*command, "--delay-s", "0", "--grace-s", "0", *options], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def gone(running: Running, bookie: str) -> None:
    """Return once nobody sees *bookie* any more."""
    bookies = running.client.bookies
    while True:
        revision = bookies.revision
        if bookie not in {found.bookie for found in bookies.available()}:
            return
        await bookies.after(revision)
