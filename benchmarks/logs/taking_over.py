"""Takeover of a log whose writer is gone, with a last segment that is in no cache.

Cold means: the bookies were ended and started again, so that none has an entry in memory, and
the kernel was advised that the pages of their files are not needed (`posix_fadvise` DONTNEED,
which it may do without root; clean pages that nobody maps are dropped). The new owner's client
is new too. The disk's own cache, if it has one, is not emptied.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Final

from benchmarks import ledger
from benchmarks.logs.bench import Bench
from benchmarks.loops import filled
from dlog.aio import Log
from dlog.aio.store import ManifestNode
from ledger import LedgerClient

_RECORD_BYTES: Final = 1000
_AIM_S: Final = 1.0
_STOP_S: Final = 120.0


async def takeover(bench: Bench, on: ledger.Bench) -> None:
    size = bench.sizes.takeover_bytes
    count = size // _RECORD_BYTES
    for what, cold in (("nothing in the last segment", False), ("cold last segment", True)):
        name = f"taken over, cold: {cold}"
        log = await Log.open(name, client=on.client)
        if cold:
            await filled(log, _RECORD_BYTES, count)
        await log.abandon()
        if cold:
            await _cool(on)
        took, last_offset = await _taken_over(on.cluster.uri, name)
        assert last_offset == (count - 1 if cold else -1)
        manifest, _ = await ManifestNode(on.client.store, name).read()
        segments = [segment.sealed.bytes for segment in manifest.segments if segment.sealed]
        assert not cold or segments[0] >= size, "it was rolled before it was taken over"
        if cold:
            bench.at_most(f"takeover, {what} of {size / 1e9:g} GB", took, "s", _AIM_S)
        else:
            bench.duration(f"takeover, {what}", took)


async def _cool(on: ledger.Bench) -> None:
    """Leave nothing of what was written in the memory of the bookies or of the kernel."""
    processes = on.cluster.processes
    for process in processes:
        process.terminate()
    for process in processes:
        await process.wait(_STOP_S)  # with the last checkpoint, however long that takes
    await asyncio.gather(*[on.cluster.restart_bookie(index) for index in range(len(processes))])
    for process in processes:
        for path in process.directory.rglob("*"):
            if path.is_file():
                _forget(path)


def _forget(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)  # dirty pages stay
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


async def _taken_over(uri: str, name: str) -> tuple[float, int]:
    """Open *name* for writing as a standby that is up does; return how long it took."""
    client = await LedgerClient.connect(uri, ledger.PATIENT)
    try:
        await client.bookies.wait_for(ledger.BOOKIES, 60)
        async with await Log.open("of the new owner", client=client) as other:
            await other.append(b"connected to each bookie")
        started = time.perf_counter()
        async with await Log.open(name, client=client) as log:
            took = time.perf_counter() - started
            return took, log.last_offset
    finally:
        await client.close()
