"""Runs a module as ``python -m`` does, with a wall clock that can be made wrong from outside; a
bookie also with a page cache that goes with the process (`page_cache`).

The file CLOCK holds how many seconds the clock is wrong; it is read again every `LOOK_S`. What is
wrong is what Python's `time.time` and `time.time_ns` return, which is all that dlog asks for the
time of day: the kernel's clock, and so the times of files, stay right.

Call: python -m tests.integration.chaos.launcher CLOCK MODULE [ARGUMENT ...]
"""

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

LAUNCHER: Final = "tests.integration.chaos.launcher"
LOOK_S: Final = 0.05
_NS: Final = 1_000_000_000


class Clock:
    """The right time and what *path* says is added to it."""

    def __init__(self, path: Path, right_ns: Callable[[], int] = time.time_ns) -> None:
        self._path, self._right_ns = path, right_ns
        self._offset_ns = 0
        self._look_at = 0.0

    def time_ns(self) -> int:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._offset_ns = self._offset()
        return self._right_ns() + self._offset_ns

    def time(self) -> float:
        return self.time_ns() / _NS

    def _offset(self) -> int:
        try:
            return round(float(self._path.read_text()) * _NS)
        except FileNotFoundError:
            return 0


def set_clock(path: Path, offset_s: float) -> None:
    """Let the clock of the process that looks at *path* be wrong by *offset_s*."""
    new = path.with_suffix(".new")
    new.write_text(f"{offset_s}\n")
    new.replace(path)


def main() -> None:
    _, clock_path, module, *arguments = sys.argv
    clock = Clock(Path(clock_path))
    time.time, time.time_ns = clock.time, clock.time_ns  # before anything is imported that asks
    if module == "bookie":
        import bookie.config
        from tests.integration.chaos.page_cache import CachedDisk

        vars(bookie.config)["RealDisk"] = CachedDisk
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
