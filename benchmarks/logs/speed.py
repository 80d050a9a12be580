"""One writer and one reader of one log: rates against R/6 and aims, latencies in F; and how fast a
process is there."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import ledger
from benchmarks.figures import percentile
from benchmarks.logs.bench import COPIES, RECORD_BYTES, Bench

_RECORDS_PER_S_AIM: Final = 300_000
_SHARE_AIM: Final = 0.6
_LONE_AIM_F: Final = 6.0
_CATCH_UP_AIM: Final = 500_000
_START_AIM_S: Final = 0.25
_COMPLETION: Final = (
    "import os, sys; os.environ.update(_DLOG_COMPLETE='complete_bash', COMP_WORDS={!r}, "
    "COMP_CWORD='{}'); sys.argv = ['dlog']; from dlog.cli import main; main()"
)
_STARTS: Final = (
    ("import dlog", ("-c", "import dlog")),
    ("dlog --version", ("-m", "dlog.cli", "--version")),
    ("dlog --help", ("-m", "dlog.cli", "--help")),
    ("completion of 'dlog lo'", ("-c", _COMPLETION.format("dlog lo", 1))),
    ("completion of 'dlog log se'", ("-c", _COMPLETION.format("dlog log se", 2))),
)


async def latency(bench: Bench, on: ledger.Bench) -> None:
    """Append one record at a time, and see when another client's tail has it."""
    alone = await ledger.lone_appends(on)
    bench.latency("lone append of 100 B, aio", alone, aim_f=_LONE_AIM_F)
    seconds = bench.sizes.seconds
    times = await ledger.in_thread(ledger.lone_sync_appends, on.cluster.uri, seconds)
    bench.latency("lone synchronous append of 100 B", times, aim_f=_LONE_AIM_F)
    tailed = await ledger.tailed(on)
    bench.latency("append until tailed", tailed)
    aim = 2 * percentile(alone, 50) * 1e3
    bench.at_most(
        "append until tailed, twice a lone append", percentile(tailed, 50) * 1e3, "ms", aim
    )


async def appends(bench: Bench, on: ledger.Bench) -> None:
    """Append with `append_async` as fast as it goes, on an event loop and from a thread."""
    for size, label in ((RECORD_BYTES, "100 B"), (1000, "1 KB")):
        written, started = _written_bytes(on), time.perf_counter()
        rates = {
            "append_async, aio": await ledger.aio_appends(on, f"aio {size}", size),
            "append_async, threads": await ledger.in_thread(
                ledger.sync_appends, on.cluster.uri, f"sync {size}", size, bench.sizes.seconds
            ),
            "append_many_async, aio": await ledger.aio_appends_many(on, f"many {size}", size),
        }
        took = time.perf_counter() - started
        per_s = (_written_bytes(on) - written) / took
        bench.note(f"appends of {label}: written by the bookies meanwhile", per_s / 1e6, "MB/s")
        for kind, per_s in rates.items():
            name = f"appends of {label}, {kind}"
            if size == RECORD_BYTES:
                bench.at_least(f"{name}: records", per_s, "/s", _RECORDS_PER_S_AIM)
                bench.share(name, per_s * size, copies=COPIES)
            else:
                bench.note(f"{name}: records", per_s, "/s")
                bench.share(name, per_s * size, copies=COPIES, aim=_SHARE_AIM)


def _written_bytes(on: ledger.Bench) -> int:
    """Return how many bytes the bookies gave to files so far."""
    texts = [Path(f"/proc/{process.pid}/io").read_text() for process in on.cluster.processes]
    return sum(int(text.partition("\nwrite_bytes:")[2].split()[0]) for text in texts)


async def catch_up(bench: Bench, on: ledger.Bench) -> None:
    """Write a log, then read it from its start, with what the machine has in its caches."""
    for size, label in ((RECORD_BYTES, "100 B"), (1000, "1 KB")):
        await ledger.aio_appends_many(on, f"read {size}", size)
        kinds = {"chunks": ledger.chunks_read, "records": ledger.records_read}
        for kind, read in kinds.items():
            per_s = await read(on.client, f"read {size}")
            name = f"catch-up of {label}, as {kind}"
            if size == RECORD_BYTES:
                bench.at_least(f"{name}: records", per_s, "/s", _CATCH_UP_AIM)
            else:
                bench.note(f"{name}: records", per_s, "/s")
            bench.note(name, per_s * size / 1e6, "MB/s")


async def imports(bench: Bench, _: ledger.Bench) -> None:
    """Processor time of starts, without that of an interpreter that does nothing."""
    bare_s = await _processor_s(("-c", ""), bench.sizes.samples)
    for name, arguments in _STARTS:
        taken_s = await _processor_s(arguments, bench.sizes.samples)
        bench.at_most(f"{name}: processor", max(0.0, taken_s - bare_s), "s", _START_AIM_S)


async def _processor_s(arguments: Sequence[str], samples: int) -> float:
    """Return the median of what starts of an interpreter cost that are not the first."""
    await _started(arguments)
    return percentile([await _started(arguments) for _ in range(samples)], 50)


async def _started(arguments: Sequence[str]) -> float:
    before = os.times()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0, arguments
    after = os.times()
    return (
        after.children_user - before.children_user + after.children_system - before.children_system
    )
