"""What it takes to make the copies of a lost bookie again: metadata calls, time, and patience of
those who append meanwhile."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import combinations, cycle, islice
from pathlib import Path
from subprocess import Popen
from typing import Final

from benchmarks.figures import percentile
from benchmarks.repair.bench import (
    Bench,
    Running,
    gone,
    repairing,
    running,
)
from benchmarks.repair.counting import CountingStore
from benchmarks.repair.making import make_ledgers
from bookie.autorecovery.checks import parts_of
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair import RepairOutcome
from bookie.autorecovery.worker import Worker, WorkerConfig
from dlog.aio import Log
from ledger import LedgerClient
from ledger.ids import BookieId, EntryId
from ledger.log_events import now_ms
from ledger.mark import MissingReplica, Reason
from ledger.quorum import Quorum
from ledger.writer import LedgerWriter

_AIM_CALLS: Final = 7.0
_LISTING: Final = ("children", "sync")
"""Calls of a look at all marks, as many for a few marks as for many."""
_AIM_MB_PER_S: Final = 50.0
_AIM_P99: Final = 2.0
_ENTRY_BYTES: Final = 64_000
_WINDOW: Final = 64
"""Adds in flight while ledgers are filled."""
_WRITERS: Final = 4
_APPEND_BYTES: Final = 100
_WITHOUT: Final = 5
"""About as many appends without repair as beside it, or the 99th percentile says little."""
_POLL_S: Final = 0.05
_MARKED_S_MAX: Final = 120.0


async def calls(bench: Bench, directory: Path) -> None:
    """Move small ledgers of one fragment off a lost bookie, with one worker, and count."""
    count = bench.sizes.moved
    async with running(bench, directory) as on:
        bookies = [BookieId(process.bookie) for process in on.cluster.processes]
        lost, *others = bookies
        ensembles = [(lost, *pair) for pair in combinations(others, 2)]
        ledgers = await make_ledgers(on, list(islice(cycle(ensembles), count)), absent=frozenset())
        on.cluster.kill_bookie(0)
        await gone(on, lost)
        marking, working = CountingStore(on.client.store), CountingStore(on.client.store)
        for ledger_id in ledgers:
            await Marks(marking).add(ledger_id, [MissingReplica(lost, Reason.LOST, now_ms())])
        client = await LedgerClient.connect(working)
        await client.bookies.wait_for(len(others), 60)
        worker = Worker(client, WorkerConfig(bytes_per_s=0))
        working.calls.clear()
        started = time.perf_counter()
        scan = await worker.run_once()
        took = time.perf_counter() - started
        await client.close()
        assert scan.outcomes == {RepairOutcome.DONE: count}, scan
    listing = Counter({kind: working.calls.pop(kind, 0) for kind in _LISTING})
    made = (marking.calls + working.calls).total()
    bench.at_most("metadata calls of a moved ledger", round(made / count, 2), "", _AIM_CALLS)
    bench.note("the same, to mark it", marking.calls.total() / count, "")
    for kind, number in sorted(working.calls.items()):
        bench.note(f"the same, to move it: {kind}", number / count, "")
    bench.note("metadata calls of a look at all marks", listing.total(), "")
    bench.note("small ledgers moved by one worker", count / took, "/s")
    bench.note("the same: 100,000 of them", 100_000 / (count / took), "s")


async def speed(bench: Bench, directory: Path) -> None:
    """Lose a bookie, and let one process repair as fast as it can."""
    async with running(bench, directory) as on:
        lost_bytes = await _lose(bench, on)
        log_path = directory / "autorecovery.log"
        with repairing(on.cluster.uri, log_path, "--rate", "0") as process:
            await _marked(on)
            took, cpu = await _repaired(on, process)
    name = "repair of a lost bookie, no throttle"
    bench.at_least(name, lost_bytes / took / 1e6, "MB/s", _AIM_MB_PER_S)
    bench.share(f"{name}, as a share", lost_bytes / took, copies=2)
    bench.note(f"{name}: copied", lost_bytes / 1e6, "MB")
    bench.note(f"{name}: CPU of its process", cpu / (lost_bytes / 1e9), "s/GB")


async def beside(bench: Bench, directory: Path) -> None:
    """Lose a bookie, and append one record at a time: first without repair, then beside it."""
    async with running(bench, directory) as on:
        lost_bytes = await _lose(bench, on)
        async with await Log.open("beside", client=on.client) as log:
            without: list[float] = []
            async with _appending(log, without):
                await asyncio.sleep(_WITHOUT * bench.sizes.seconds)
            meanwhile: list[float] = []
            with repairing(on.cluster.uri, directory / "autorecovery.log") as process:
                await _marked(on)
                async with _appending(log, meanwhile):
                    took, _ = await _repaired(on, process)
    bench.note("repair at the default throttle", lost_bytes / took / 1e6, "MB/s")
    bench.latency("lone append of 100 B without repair", without)
    bench.latency("lone append of 100 B beside repair", meanwhile)
    for percent in (50, 99):
        ratio = percentile(meanwhile, percent) / percentile(without, percent)
        name = f"append beside repair against without, p{percent}"
        if percent == 99:
            bench.at_most(name, ratio, "times", _AIM_P99)
        else:
            bench.note(name, ratio, "times")
    bench.note("longest append without repair", max(without) * 1e3, "ms")
    bench.note("longest append beside repair", max(meanwhile) * 1e3, "ms")


async def _lose(bench: Bench, on: Running) -> int:
    """Fill ledgers, kill a bookie; return how many bytes of them it held."""
    waiting = iter(range(max(1, bench.sizes.repair_bytes // bench.sizes.ledger_bytes)))

    async def work() -> None:
        for _ in waiting:
            await _fill(await on.client.create(Quorum(3, 3, 2)), bench.sizes.ledger_bytes)

    await asyncio.gather(*(work() for _ in range(_WRITERS)))
    lost = on.cluster.processes[0].bookie
    on.cluster.kill_bookie(0)
    held = 0
    async for part in parts_of(on.client.ledgers):
        for _, metadata in part:
            assert metadata is not None
            if any(lost in fragment.bookies for fragment in metadata.fragments):
                held += metadata.length or 0
    await gone(on, lost)
    return held


async def _fill(writer: LedgerWriter, size: int) -> None:
    adds: list[asyncio.Future[EntryId]] = []
    for _ in range(max(1, size // _ENTRY_BYTES)):
        adds.append(writer.add(bytes(_ENTRY_BYTES)))
        if len(adds) >= _WINDOW:
            await adds.pop(0)
    await asyncio.gather(*adds)
    await writer.close()


async def _marked(on: Running) -> None:
    """Return once something is marked."""
    async with asyncio.timeout(_MARKED_S_MAX):
        while await _is_whole(on):  # noqa: ASYNC110 - marks are no event here
            await asyncio.sleep(_POLL_S)


async def _repaired(on: Running, process: "Popen[bytes]") -> tuple[float, float]:
    """Return how long it takes from now, when something is marked, to the last mark, and the CPU
    of *process*."""
    started, cpu = time.perf_counter(), _cpu_s(process.pid)
    while not await _is_whole(on):
        assert process.poll() is None, "the process of repair has ended"
        await asyncio.sleep(_POLL_S)
    return time.perf_counter() - started, _cpu_s(process.pid) - cpu


async def _is_whole(on: Running) -> bool:
    async for _ in Marks(on.client.store).list():
        return False
    return True


@asynccontextmanager
async def _appending(log: Log, times: list[float]) -> AsyncIterator[None]:
    """Append one record after the other, and put into *times* how long each took."""

    async def append() -> None:
        while True:
            began = time.perf_counter()
            await log.append(bytes(_APPEND_BYTES))
            times.append(time.perf_counter() - began)

    appending = asyncio.create_task(append())
    try:
        yield
    finally:
        appending.cancel()
        await asyncio.wait({appending})


def _cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
