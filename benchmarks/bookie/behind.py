"""Catch-up reads, and what they do to adds."""

import asyncio
import sys
from statistics import median
from typing import Final

from benchmarks.bookie.bench import Bench, OneBookie, one_bookie
from benchmarks.bookie.load import RUN_BYTES, Pump, add_times
from benchmarks.figures import percentile
from benchmarks.runs import runs_of

_ENTRY_BYTES: Final = 64_000
_READ_LEDGER: Final = 1
_ADDED_LEDGER: Final = 100
_ADD_BYTES: Final = 1000
_ADDS_IN_FLIGHT: Final = 16
ADD_NAME: Final = f"add of 1 KB, {_ADDS_IN_FLIGHT} in flight"


async def catch_up(bench: Bench) -> None:
    """Read what is on disk and in the page cache, without adds and beside adds."""
    with bench.place() as place:
        async with one_bookie(place) as bookie:
            last = await _write(bench, bookie)
            alone = await _read(bench, bookie, last)
            bench.at_least("catch-up at 64 KB, no adds", alone / 1e6, "MB/s", 300)
            rates, without, beside = [], [], []
            for turn in range(bench.sizes.rounds):
                without.append(await p99_of_adds(bench, bookie, _ADDED_LEDGER + 2 * turn))
                reading = asyncio.ensure_future(_read(bench, bookie, last))
                beside.append(await p99_of_adds(bench, bookie, _ADDED_LEDGER + 2 * turn + 1))
                rates.append(await reading)
            bench.note("catch-up at 64 KB beside adds", median(rates) / 1e6, "MB/s")
    aim = 2 * median(without)
    bench.note(f"{ADD_NAME}, without catch-up p99", median(without) * 1e3, "ms")
    bench.at_most(f"{ADD_NAME}, beside catch-up p99", median(beside) * 1e3, "ms", aim * 1e3)


async def p99_of_adds(bench: Bench, bookie: OneBookie, ledger_id: int) -> float:
    """Return the p99 of adds that other processes may disturb."""
    seconds = bench.sizes.seconds
    times = await add_times(bookie.transport, ledger_id, _ADD_BYTES, _ADDS_IN_FLIGHT, seconds)
    return percentile(times, 99)


async def _write(bench: Bench, bookie: OneBookie) -> int:
    """Write the ledger to be read and let it go to disk; return its last entry."""
    count = bench.sizes.catch_up_bytes // _ENTRY_BYTES
    runs = runs_of(_READ_LEDGER, _ENTRY_BYTES, count, run_bytes=RUN_BYTES)
    await Pump(bookie.transport).all(runs, payload_bytes=_ENTRY_BYTES)
    await bookie.cluster.restart_bookie(0)  # ends with a checkpoint; the page cache stays
    return count - 1


async def _read(bench: Bench, bookie: OneBookie, last: int) -> float:
    """Read in another process for as long as adds are measured; return bytes a second."""
    numbers = (_READ_LEDGER, last, _ENTRY_BYTES, bench.sizes.seconds)
    meant = bookie.cluster.bookies()[0].meant
    assert meant is not None, "a new cluster says who it is"
    command = [sys.executable, "-m", "benchmarks.bookie.reading", bookie.address]
    command += [meant.instance, meant.identity]
    process = await asyncio.create_subprocess_exec(
        *command, *map(str, numbers), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, f"the reader ended with {process.returncode}"
    return float(output)
