"""What the disk gives: the figures that all others are compared with.

R  bytes a second that one process writes in sequence and makes durable, a megabyte at a time
F  how long it takes to make 4 KiB durable

Each is measured twice. *Growing*: into space that was only reserved (fallocate), as a file
grows that is written once; the file system then has to note durably that the space is in use.
*Overwriting*: where everything was written and synced before, so that only data is written.
R is that of growing, for journals and entry logs grow; F is that of overwriting, the least
that anybody could wait for.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, percentile

_WRITE_BYTES: Final = 1024 * 1024
_FILE_BYTES: Final = 128 * 1024 * 1024
_RESERVED_BYTES: Final = 16 * 1024 * 1024
_PAGE: Final = os.urandom(4096)
_BLOCKS: Final = [_PAGE] * (_WRITE_BYTES // len(_PAGE))


@dataclass(frozen=True, slots=True)
class DiskFigures:
    bytes_per_s: float
    """R"""
    bytes_per_s_overwriting: float
    sync_s: float
    """F, the median"""
    sync_s_p99: float
    sync_s_growing: float

    def table(self) -> list[Figure]:
        return [
            Figure("R: sequential durable writes, growing", self.bytes_per_s / 1e6, "MB/s"),
            Figure("the same, overwriting", self.bytes_per_s_overwriting / 1e6, "MB/s"),
            Figure("F: fdatasync of 4 KiB p50, overwriting", self.sync_s * 1e3, "ms"),
            Figure("the same p99", self.sync_s_p99 * 1e3, "ms"),
            Figure("the same p50, growing", self.sync_s_growing * 1e3, "ms"),
        ]


def measure_disk(directory: Path, seconds: float) -> DiskFigures:
    """Measure in *directory*, which must be on the disk of the bookies."""
    path = directory / "disk.measured"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        growing = _sequential(file, seconds, growing=True)
        _fill(file)
        overwriting = _sequential(file, seconds, growing=False)
        syncs = _syncs(file, seconds)
        _empty(file)
        os.posix_fallocate(file, 0, _FILE_BYTES)
        syncs_growing = _syncs(file, seconds)
    finally:
        os.close(file)
        path.unlink()
    return DiskFigures(
        growing,
        overwriting,
        percentile(syncs, 50),
        percentile(syncs, 99),
        percentile(syncs_growing, 50),
    )


def _sequential(file: int, seconds: float, *, growing: bool) -> float:
    written, took = 0, 0.0
    while took < seconds:
        offset = written % _FILE_BYTES
        if growing and offset == 0:
            _empty(file)
        started = time.perf_counter()
        if growing and offset % _RESERVED_BYTES == 0:
            os.posix_fallocate(file, offset, _RESERVED_BYTES)
        written += os.pwritev(file, _BLOCKS, offset)
        os.fdatasync(file)
        took += time.perf_counter() - started
    return written / took


def _syncs(file: int, seconds: float) -> list[float]:
    times: list[float] = []
    began = time.perf_counter()
    while (started := time.perf_counter()) < began + seconds:
        os.pwrite(file, _PAGE, len(times) * len(_PAGE) % _FILE_BYTES)
        os.fdatasync(file)
        times.append(time.perf_counter() - started)
    return times


def _empty(file: int) -> None:
    os.ftruncate(file, 0)
    os.fsync(file)


def _fill(file: int) -> None:
    for offset in range(0, _FILE_BYTES, _WRITE_BYTES):
        os.pwritev(file, _BLOCKS, offset)
    os.fsync(file)
