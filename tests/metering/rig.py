"""Whole bookies in the test's process, all metrics that it has, and which of them have moved."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dlog.metrics
from bookie.autorecovery.metrics import Repairing
from bookie.collector.plan import CollectorConfig
from bookie.config import BookieConfig
from bookie.metrics import Running
from bookie.process import run_bookie
from bookie.server.limits import ServiceConfig
from bookie.storage.config import StorageConfig
from ledger.client import LedgerClient
from ledger.metastore.memory import MemoryHub
from ledger.metering.declaration import Buckets, Exposed, Metric, Value
from tests.namespaces import made
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, until

KIB = 1024
LOOK_S = 0.01
SMALL = StorageConfig(
    journal_preallocate_bytes=64 * KIB,
    journal_file_bytes_max=256 * KIB,
    entry_log_bytes_max=64 * KIB,
    recent_bytes_max=0,
    index_cache_bytes=1,
    read_ahead_bytes=16 * KIB,
)
"""What is done from time to time is done soon, and what was written is read from disk."""
QUIET = CollectorConfig(
    gc_interval_s=0.0,
    minor_interval_s=0.0,
    major_interval_s=0.0,
    eviction_interval_s=0.0,
    eviction_pause_s=0.0,
    evicted_share=1.0,
    bytes_per_s=0,
)
"""It collects when it is asked to."""


class Seen:
    """What each metric has been, ever."""

    def __init__(self) -> None:
        self.values: dict[str, set[object]] = {}
        self._exposed: list[Exposed] = []

    def watch(self, exposed: Exposed) -> None:
        self._exposed.append(exposed)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Watch what is watched within for no longer, after a last look: what a cluster leaves does
        not move any more, and each look would cost more than the one before."""
        before = self._exposed[:]
        try:
            yield
        finally:
            self.look()
            self._exposed = before

    def look(self) -> None:
        for exposed in self._exposed:
            for metric, value in exposed.read():
                self.values.setdefault(metric.name, set()).add(plain(value))

    def moved(self, metric: Metric[Any]) -> bool:
        return len(self.values.get(metric.name, ())) > 1

    async def until(self, name: str, label: str, value: float) -> None:
        """Wait until metric *name* has been *value* for *label*. Other labels may be what other
        tests in this process left behind."""
        await until(
            lambda: any((label, value) in labelled(seen) for seen in self.values.get(name, ())),
            f"{name} was {value} for {label}",
        )


def plain(value: Value) -> object:
    """Return *value* as it is now, to be compared."""
    if isinstance(value, Buckets):
        return tuple(value.counts)
    if value is None or isinstance(value, int | float):
        return value
    return frozenset(value.items())


def labelled(seen: object) -> frozenset[object]:
    return seen if isinstance(seen, frozenset) else frozenset()


@dataclass(slots=True)
class WholeBookie:
    """One that can be stopped and started again on its directory."""

    config: BookieConfig
    exposed: Exposed = field(default_factory=Exposed)
    task: asyncio.Task[None] | None = None

    @property
    def running(self) -> Running:
        (_, source), *_ = self.exposed._sources
        assert isinstance(source, Running)
        return source

    async def start(self) -> None:
        ready = asyncio.Event()
        self.exposed._sources = ()
        self.task = asyncio.create_task(
            run_bookie(self.config, on_ready=lambda *_: ready.set(), exposed=self.exposed)
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({self.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def checkpoint(self) -> None:
        """Move what is in memory to the disk; requires that there is something."""
        done = sum(self.running.storage.keeper.seconds.counts)
        self.running.service.checkpoint_soon()
        await until(lambda: sum(self.running.storage.keeper.seconds.counts) > done, "a checkpoint")


@dataclass(slots=True)
class WholeCluster:
    hub: MemoryHub
    uri: str
    bookies: list[WholeBookie]
    seen: Seen

    @asynccontextmanager
    async def client(self, count: int | None = None) -> AsyncIterator[LedgerClient]:
        """Yield a client that sees *count* bookies, by default all."""
        client = await LedgerClient.connect(self.uri, PATIENT)
        try:
            await client.bookies.wait_for(len(self.bookies) if count is None else count, PATIENCE_S)
            yield client
        finally:
            await client.close()

    def of(self, name: str) -> WholeBookie:
        return next(each for each in self.bookies if each.config.bookie == name)


@asynccontextmanager
async def whole_cluster(directory: Path, count: int, seen: Seen) -> AsyncIterator[WholeCluster]:
    """Yield a cluster of *count* bookies whose metrics, and those of this process, are *seen*."""
    hub, name = MemoryHub(), f"metrics-{uuid.uuid4().hex}"
    own = Exposed()
    dlog.metrics.expose(own)
    with hub.shared(name), seen.forgetting():
        seen.watch(own)
        uri = await made(f"memory://{name}")
        bookies = [
            WholeBookie(
                BookieConfig(
                    uri=uri,
                    directory=directory / f"bookie-{at}",
                    bookie=f"bookie-{at}",
                    disk_interval_s=0.01,
                    collector=QUIET,
                    storage=SMALL,
                    service=ServiceConfig(checkpoint_interval_s=3600.0),
                )
            )
            for at in range(count)
        ]
        for each in bookies:
            seen.watch(each.exposed)
        looking = asyncio.create_task(keep_looking(seen))
        try:
            await asyncio.gather(*(each.start() for each in bookies))
            yield WholeCluster(hub, uri, bookies, seen)
        finally:
            await asyncio.gather(*(each.stop() for each in bookies))
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def keep_looking(seen: Seen) -> None:
    while True:
        seen.look()
        await asyncio.sleep(LOOK_S)


def repair_of(exposed: Exposed) -> Repairing:
    """Return the process of repair that *exposed* shows."""
    return next(source for _, source in exposed._sources if isinstance(source, Repairing))
