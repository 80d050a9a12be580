"""How long a bookie takes to serve again after a kill, with a long journal to replay.

What it is made of, in seconds, where R was 1.2 GB/s and 1.5 GB were replayed (November 2026):

    entries of                          64 KB   100 B
    Python starts                        0.48    0.47
    reads records, checks their sums     0.75    0.68
    puts them into memory                0.08    0.63
    writes entry logs and index          0.99    2.29    (of which the processor's 0.57 and 1.77)
    the rest, with syncs                 0.53    0.45
    together                             2.83    4.52    (0.44 and 0.27 R)

One does not wait for the other: it reads, then writes what it has read. To write on a thread of its
own beside would by these figures bring 64 KB to some 1.9 s, 0.66 R, and 100 B, where the
processor's time for each entry's place in the index counts, to 4. It would also do things to the
disk of a start in an order that no seed repeats, so it is not done. The floor is 1 R, to write what
was read.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.bookie.bench import LABELS, Bench, one_bookie
from benchmarks.bookie.load import RUN_BYTES, Pump
from benchmarks.runs import runs_of
from ledger.entry import HEADER_BYTES
from ledger.metastore import open_store
from ledger.registry import BookieDirectory
from ledger.transport.sockets import SocketTransport

_START_TIMEOUT_S: Final = 20.0
_ENTRY_BYTES: Final = (100, 64_000)
"""The smallest cost the most for each byte."""
_COLUMN_BYTES: Final = 12
"""Of each entry, in a record of the journal."""


async def restart(bench: Bench) -> None:
    """Fill a journal that nothing is checkpointed from, kill the bookie, start it again."""
    for size in _ENTRY_BYTES:
        with bench.place() as place:
            async with one_bookie(place) as bookie:
                await bookie.cluster.stop_bookie(0)
                with _filling(bookie.cluster.uri, bookie.directory):
                    await _fill(bench, bookie.cluster.uri, size)
                journal_bytes = _journal_bytes(bookie.directory)
                started = time.perf_counter()
                await bookie.cluster.restart_bookie(0)
                took = time.perf_counter() - started
        name = f"restart after kill, {journal_bytes / 1e9:.2f} GB of {LABELS[size]} in the journal"
        bench.at_most(name, took, "s", 10)
        bench.share(f"{name}, replayed", journal_bytes / took, copies=1, aim=0.7)


@contextmanager
def _filling(uri: str, directory: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.bookie.filling", uri, str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _fill(bench: Bench, uri: str, size: int) -> None:
    store = await open_store(uri)
    registry = BookieDirectory(store)
    try:
        await registry.start()
        async with asyncio.timeout(_START_TIMEOUT_S):
            await registry.wait_for(1, _START_TIMEOUT_S)
        transport = SocketTransport(
            registry.address, timeout_s=60.0, connect_timeout_s=60.0, meant=registry.identity
        )
        count = bench.sizes.journal_bytes // (HEADER_BYTES + size + _COLUMN_BYTES)
        runs = runs_of(1, size, count, run_bytes=RUN_BYTES)
        await Pump(transport).all(runs, payload_bytes=size)
        await transport.close()
    finally:
        await registry.close()
        await store.close()


def _journal_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("journal/*"))
