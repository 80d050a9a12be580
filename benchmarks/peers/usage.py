"""What processes took of the machine, as the kernel counts it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of some processes, since each was started."""

    cpu_s: float = 0.0
    written_bytes: int = 0
    """Given to files, whether or not they are on the disk already."""
    resident_bytes: int = 0
    """Now."""

    @classmethod
    def of(cls, pids: Iterable[int]) -> Self:
        total = cls()
        for pid in pids:
            proc = Path(f"/proc/{pid}")
            stat, io, status = [(proc / name).read_text() for name in ("stat", "io", "status")]
            total = total.plus(parsed(stat, io, status))
        return total

    def plus(self, other: "Usage") -> Self:
        return type(self)(
            self.cpu_s + other.cpu_s,
            self.written_bytes + other.written_bytes,
            self.resident_bytes + other.resident_bytes,
        )


def parsed(stat: str, io: str, status: str, ticks: int = _TICKS) -> Usage:
    """Return what the files of these names in /proc/PID say."""
    fields = stat.rpartition(")")[2].split()  # a program's name may have blanks in it
    user, system = int(fields[11]), int(fields[12])
    written = int(io.partition("\nwrite_bytes:")[2].split()[0])
    return Usage(
        (user + system) / ticks, written, int(status.partition("VmRSS:")[2].split()[0]) * 1024
    )
