"""How long a start takes that finds very many closed ledgers, and how much memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.bookie.bench import Bench
from benchmarks.runs import KEY
from bookie.disk.port import RealDisk
from bookie.index.format import (
    SLOT,
    SLOTS_AT,
    LedgerHeader,
    directory_of,
    encode_header,
    new_page,
    path_of,
    seal_page,
)
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage

_ENTRIES: Final = 10
_FRAME_BYTES: Final = 148
_START: Final = """
import resource, sys, time
from bookie.disk.port import RealDisk
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
began = time.perf_counter()
storage = BookieStorage.open(RealDisk(sys.argv[1]), StorageConfig())
took = time.perf_counter() - began
kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(storage.ledger_ids()), took, kib * 1024)
storage.close()
"""
"""In a process of its own, whose memory is nobody else's."""


async def closed_ledgers(bench: Bench) -> None:
    """Write index files as checkpoints have left them, and start a storage on them."""
    count = bench.sizes.closed_ledgers
    with bench.place() as place:
        BookieStorage.open(RealDisk(place), StorageConfig()).close()
        _write_index_files(place, count)
        found, took, size_bytes = _started(place)
    assert found == count, f"{found} of {count} ledgers were found"
    name = f"start of a storage with {count:,} closed ledgers"
    bench.at_most(name, took, "s", 10)
    bench.at_most(f"{name}, memory of its process", size_bytes / 1e6, "MB", 1000)


def _started(place: Path) -> tuple[float, float, float]:
    """Return how many ledgers a start finds, how long it takes, and how much memory."""
    done = subprocess.run(
        [sys.executable, "-c", _START, str(place)], capture_output=True, text=True, check=True
    )
    found, took, size_bytes = map(float, done.stdout.split())
    return found, took, size_bytes


def _write_index_files(root: Path, count: int) -> None:
    page = new_page()
    for slot in range(_ENTRIES):
        SLOT.pack_into(page, SLOTS_AT + slot * SLOT.size, 1, _FRAME_BYTES, slot * _FRAME_BYTES)
    for ledger_id in range(1, count + 1):
        if ledger_id <= 256:
            (root / directory_of(ledger_id)).mkdir(exist_ok=True)
        header = LedgerHeader(ledger_id, KEY, fenced=True, last_entry=9, extents=((0, 0),))
        data = encode_header(header) + seal_page(page, ledger_id, 0)
        file = os.open(root / path_of(ledger_id), os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, data)
        os.close(file)
    os.sync()
