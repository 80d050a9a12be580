"""What very many small ledgers cost: memory, open files, disk, and the next start."""

import time
from collections.abc import Iterator
from typing import Final

from benchmarks.bookie.bench import Bench, OneBookie, one_bookie
from benchmarks.bookie.load import Pump
from benchmarks.runs import runs_of
from bookie.storage.config import StorageConfig
from ledger.requests import AddRun

_ENTRY_BYTES: Final = 100
_PASSES: Final = 2
_ALLOWED_BYTES: Final = 100_000_000
_STOP_TIMEOUT_S: Final = 600.0


async def many_ledgers(bench: Bench) -> None:
    """Add to each ledger in turn, all of them twice, so that each is come back to."""
    count, per_ledger = bench.sizes.ledgers, bench.sizes.entries_per_ledger
    name = f"{count:,} ledgers of {per_ledger} entries"
    config = StorageConfig()
    caches_bytes = config.index_cache_bytes + config.memtable_bytes_max + config.recent_bytes_max
    with bench.place() as place:
        async with one_bookie(place) as bookie:
            before = bookie.memory_bytes()
            pumped = await Pump(bookie.transport).all(
                _runs(count, per_ledger), payload_bytes=_ENTRY_BYTES
            )
            growth = bookie.memory_bytes() - before
            files = bookie.files_open()
            stopped = await _stopped(bookie)
            restarted = await _restarted(bookie)
            disk_bytes = bookie.disk_bytes()
            memory_after = bookie.memory_bytes()
    bench.note(f"{name}: adds", pumped.entries_per_s, "/s")
    aim = (caches_bytes + _ALLOWED_BYTES) / 1e6
    bench.at_most(f"{name}: memory growth", growth / 1e6, "MB", aim)
    bench.note(f"{name}: memory after a restart, grown by", (memory_after - before) / 1e6, "MB")
    bench.note(f"{name}: open files", files, "")
    bench.note(f"{name}: disk", disk_bytes / 1e6, "MB")
    bench.note(f"{name}: disk for each ledger", disk_bytes / count, "bytes")
    bench.at_most(f"{name}: stop", stopped, "s", 10)
    bench.at_most(f"{name}: start", restarted, "s", 10)


def _runs(ledgers: int, per_ledger: int) -> Iterator[AddRun]:
    step = per_ledger // _PASSES
    for first in range(0, per_ledger, step):
        for ledger_id in range(1, ledgers + 1):
            yield from runs_of(ledger_id, _ENTRY_BYTES, step, run_bytes=1 << 20, first=first)


async def _stopped(bookie: OneBookie) -> float:
    """Let it end with its last checkpoint, however long that takes."""
    started = time.perf_counter()
    process = bookie.cluster.processes[0]
    process.terminate()
    await process.wait(_STOP_TIMEOUT_S)
    return time.perf_counter() - started


async def _restarted(bookie: OneBookie) -> float:
    started = time.perf_counter()
    await bookie.cluster.restart_bookie(0)
    return time.perf_counter() - started
