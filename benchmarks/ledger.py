"""How fast ledgers and logs are on three bookie processes of this machine.

    python -m benchmarks.ledger [--seconds 2] [--directory DIR] [--json]

First the disk is measured: R is what one process writes in sequence and makes durable, F is
how long making 4 KiB durable takes. Rates are reported as a share of R, counting payload
bytes once (they are written six times here: three copies, journal and entry log), and
latencies as multiples of F. All in one run: the disk of another moment is another disk.
"""

import argparse
import asyncio
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import loops
from benchmarks.disk import DiskFigures, measure_disk
from benchmarks.figures import Figure, percentile, print_json, print_table
from benchmarks.loops import BURST_MAX, LONE_MAX, burst_of, window_of
from dlog import Log
from dlog.aio import Log as AioLog
from dlog.local.cluster import LocalCluster
from ledger import ClientConfig, EntryId, LedgerClient, Quorum

BOOKIES: Final = 3
PATIENT: Final = ClientConfig(
    session_timeout_s=60.0, metadata_timeout_s=60.0, bookie_timeout_s=60.0
)
"""A machine that stands still spoils a figure, not the run."""
LONE_BYTES: Final = 100
TAKEOVER_RECORD_BYTES: Final = 1000

T = TypeVar("T")


@dataclass(slots=True)
class Bench:
    cluster: LocalCluster
    client: LedgerClient
    disk: DiskFigures
    seconds: float
    figures: list[Figure]

    def rate(self, name: str, per_s: float, unit: str, size: int = 0, aim: str = "") -> None:
        share = per_s * size / self.disk.bytes_per_s if size else None
        self._add(Figure(name, per_s, unit, share, "R" if size else "", aim))

    def latency(self, name: str, times: list[float], aim: str = "") -> None:
        for percent, shown in ((50, aim), (99, "")):
            value = percentile(times, percent)
            ratio = value / self.disk.sync_s
            self._add(Figure(f"{name} p{percent}", value * 1e3, "ms", ratio, "F", shown))

    def duration(self, name: str, seconds: float, aim: str = "") -> None:
        self._add(Figure(name, seconds * 1e3, "ms", seconds / self.disk.sync_s, "F", aim))

    def _add(self, figure: Figure) -> None:
        self.figures.append(figure)


async def main(directory: Path, seconds: float) -> list[Figure]:
    disk = measure_disk(directory, seconds)
    figures = disk.table()
    with tempfile.TemporaryDirectory(dir=directory) as place:
        async with running(Path(place)) as (cluster, client):
            bench = Bench(cluster, client, disk, seconds, figures)
            for size, label in ((100, "100 B"), (1000, "1 KB"), (64_000, "64 KB")):
                per_s = await adds(bench.client, size, seconds)
                bench.rate(f"ledger adds of {label}", per_s, "/s", size)
            bench.latency("lone add of 100 B", await lone_adds(bench))
            aims = {100: "aim 300,000 /s", 1000: "aim 0.10 R"}
            for size, label in ((100, "100 B"), (1000, "1 KB")):
                name, aim = f"log appends of {label}", aims[size]
                per_s = await aio_appends(bench, f"aio {size}", size)
                bench.rate(f"{name}, aio", per_s, "/s", size, aim)
                per_s = await aio_appends_many(bench, f"many {size}", size)
                bench.rate(f"{name}, aio, many at once", per_s, "/s", size, aim)
                per_s = await in_thread(sync_appends, cluster.uri, f"sync {size}", size, seconds)
                bench.rate(f"{name}, threads", per_s, "/s", size, aim)
            bench.latency("lone append, aio", await lone_appends(bench), "aim 6 F")
            times = await in_thread(lone_sync_appends, cluster.uri, seconds)
            bench.latency("lone append, threads", times, "aim 6 F")
            bench.latency("append until tailed", await tailed(bench), "aim 2x lone append")
            await catch_up(bench, "aio 100")
            await takeover(bench)
    return figures


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[LocalCluster, LedgerClient]]:
    place = ("127.0.0.1", 0)
    async with LocalCluster(directory, bookies=BOOKIES, metrics=place) as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        try:
            await client.bookies.wait_for(BOOKIES, 60)
            yield cluster, client
        finally:
            await client.close()


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Run what blocks beside this loop, which has nothing to do meanwhile."""
    return await asyncio.to_thread(function, *arguments)


async def adds(
    client: LedgerClient, size: int, seconds: float, quorum: Quorum | None = None
) -> float:
    """Return entries a second that one writer of a ledger gets acknowledged."""
    writer = await client.create(quorum or Quorum())
    payload, burst = bytes(size), burst_of(size)
    pending: deque[asyncio.Future[EntryId]] = deque()
    count, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        for _ in range(burst - 1):
            writer.add(payload)
        pending.append(writer.add(payload))
        count += burst
        await (pending.popleft() if len(pending) >= window_of(size) else asyncio.sleep(0))
    await pending.pop()
    per_s = count / (time.perf_counter() - started)
    await writer.close()
    return per_s


async def lone_adds(bench: Bench) -> list[float]:
    writer = await bench.client.create()
    times: list[float] = []
    end = time.perf_counter() + bench.seconds
    while (began := time.perf_counter()) < end and len(times) < LONE_MAX:
        await writer.add(bytes(LONE_BYTES))
        times.append(time.perf_counter() - began)
    await writer.close()
    return times


async def aio_appends(bench: Bench, name: str, size: int) -> float:
    """Return records a second."""
    async with await AioLog.open(name, client=bench.client) as log:
        return loops.per_s(await loops.appended(log, size, bench.seconds))


async def aio_appends_many(bench: Bench, name: str, size: int) -> float:
    async with await AioLog.open(name, client=bench.client) as log:
        return loops.per_s(await loops.appended_many(log, size, bench.seconds))


def sync_appends(uri: str, name: str, size: int, seconds: float) -> float:
    with Log.open(name, uri=uri) as log:
        return loops.per_s(loops.appended_blocking(log, size, seconds))


async def lone_appends(bench: Bench) -> list[float]:
    async with await AioLog.open("lone", client=bench.client) as log:
        return await loops.lone_times(log, LONE_BYTES, bench.seconds)


def lone_sync_appends(uri: str, seconds: float) -> list[float]:
    with Log.open("lone in a thread", uri=uri) as log:
        return loops.lone_times_blocking(log, LONE_BYTES, seconds)


async def tailed(bench: Bench) -> list[float]:
    """Return how long after the call of `append` another client's tail had each record."""
    times: list[float] = []
    async with (
        await AioLog.open("tailed", client=bench.client) as log,
        await AioLog.tail("tailed", uri=bench.cluster.uri) as reader,
    ):
        end = time.perf_counter() + bench.seconds
        while (began := time.perf_counter()) < end and len(times) < LONE_MAX:
            appending = asyncio.ensure_future(log.append(bytes(LONE_BYTES)))
            await anext(reader)
            times.append(time.perf_counter() - began)
            await appending
    return times


async def catch_up(bench: Bench, name: str) -> None:
    """Read a log of 100 B records from its start: as chunks, and record by record."""
    per_s = await chunks_read(bench.client, name)
    bench.rate("catch-up of 100 B, as chunks", per_s, "/s", 100, "aim 500,000 /s")
    per_s = await records_read(bench.client, name)
    bench.rate("catch-up of 100 B, as records", per_s, "/s", 100)


async def chunks_read(client: LedgerClient, name: str) -> float:
    """Return records a second that a reader from the start gets as chunks."""
    async with await AioLog.tail(name, client=client, follow=False) as reader:
        return loops.per_s(await loops.chunks_read(reader))


async def records_read(client: LedgerClient, name: str) -> float:
    """As `chunks_read`, with an object for each record."""
    async with await AioLog.tail(name, client=client, follow=False) as reader:
        return loops.per_s(await loops.records_read(reader))


async def takeover(bench: Bench) -> None:
    """Open a log whose writer crashed, with what it appended in *seconds* as its tail."""
    log = await AioLog.open("taken over", client=bench.client)
    payload, end = bytes(TAKEOVER_RECORD_BYTES), time.perf_counter() + bench.seconds
    count = 0
    while time.perf_counter() < end:
        for _ in range(BURST_MAX):
            log.append_async(payload)
        count += BURST_MAX
        await log.flush()
    await log.abandon()
    started = time.perf_counter()
    log = await AioLog.open("taken over", client=bench.client)
    took = time.perf_counter() - started
    assert log.last_offset == count - 1
    await log.close()
    size = count * TAKEOVER_RECORD_BYTES / 1e6
    bench.duration(f"takeover of {size:.0f} MB", took, "aim 1000 ms for 1 GB")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement")
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="on the disk to be measured"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run() -> None:
    options = arguments()
    figures = asyncio.run(main(options.directory, options.seconds))
    (print_json if options.json else print_table)(figures)


if __name__ == "__main__":
    run()
