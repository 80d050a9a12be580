"""What the disk gives: the two figures that all others are compared with.

R  bytes a second that one process writes in sequence and makes durable
F  how long it takes to make 4 KiB durable
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import percentile

_WRITE_BYTES: Final = 1024 * 1024
_FILE_BYTES: Final = 64 * 1024 * 1024
_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class DiskFigures:
    bytes_per_s: float
    """R"""
    sync_s: float
    """F, the median"""
    sync_s_p99: float


def measure_disk(directory: Path, seconds: float) -> DiskFigures:
    """Measure in *directory*, which must be on the disk of the bookies."""
    path = directory / "disk.measured"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        rate = _sequential(file, seconds)
        times = _syncs(file, seconds)
    finally:
        os.close(file)
        path.unlink()
    return DiskFigures(rate, percentile(times, 50), percentile(times, 99))


def _sequential(file: int, seconds: float) -> float:
    blocks = [os.urandom(_PAGE_BYTES)] * (_WRITE_BYTES // _PAGE_BYTES)
    os.posix_fallocate(file, 0, _FILE_BYTES)
    os.fdatasync(file)
    written = 0
    started = now = time.perf_counter()
    while now < started + seconds:
        written += os.pwritev(file, blocks, written % _FILE_BYTES)
        os.fdatasync(file)
        now = time.perf_counter()
    return written / (now - started)


def _syncs(file: int, seconds: float) -> list[float]:
    page = os.urandom(_PAGE_BYTES)
    times: list[float] = []
    began = time.perf_counter()
    while (started := time.perf_counter()) < began + seconds:
        os.pwrite(file, page, len(times) * _PAGE_BYTES % _FILE_BYTES)
        os.fdatasync(file)
        times.append(time.perf_counter() - started)
    return times
