"""How the sources of one driver learn of each other's news, so that none waits while another moves.

Spark asks the sources of a query one after the other, each in a process of its own, and a source
of which nothing comes waits before it says so: else Spark would ask 77 times a second. Without a
word from the others it would hold up the batch of a source that has news by as long as it waits.
So a source with news touches a file of the driver, and a waiting one looks at it.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlog.spark.sink.keeper.drivers import Program, own_driver
from dlog.spark.sink.keeper.place import UnsafeDirectory, private_directory
from ledger.log_events import get_logger

LISTEN_S: Final = 0.05
"""How often a waiting source looks: each look costs 0.2 ms, so 0.5 % of a core."""
_SUFFIX: Final = ".news"
FILES_MAX: Final = 1000
"""How many files of other drivers are looked at, to remove those of drivers that have ended."""

_log = get_logger(__name__)


class NewsFile:
    """The file as one source sees it; *path* None: there are no others."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._seen = self._touched_at()

    @classmethod
    def of_driver(cls) -> "NewsFile":
        """Return that of this process's driver; one without others where no file can be kept."""
        try:
            directory, driver = private_directory(), own_driver()
            path = directory / f"{driver.pid}-{driver.started}{_SUFFIX}"
            os.close(os.open(path, os.O_CREAT, 0o600))  # untouched, as it would be news
            _remove_leftovers(directory)
            return cls(path)
        except (OSError, UnsafeDirectory) as error:
            _log.warning("sources_do_not_hear_of_each_other", error=str(error))
            return cls()

    def touch(self) -> None:
        """Say that there is news here. It is none to this source itself."""
        if self._path is None:
            return
        now_ns = time.time_ns()
        with suppress(OSError):
            os.utime(self._path, ns=(now_ns, now_ns))  # the kernel's own time has ticks of 4 ms
            self._seen = now_ns

    def has_changed(self) -> bool:
        """Return whether another source has touched it since this was asked last."""
        before, self._seen = self._seen, self._touched_at()
        return before != self._seen

    def _touched_at(self) -> int:
        with suppress(OSError):
            if self._path is not None:
                return self._path.stat().st_mtime_ns
        return 0


def _remove_leftovers(directory: Path) -> None:
    for path in sorted(directory.glob(f"*{_SUFFIX}"))[:FILES_MAX]:
        pid, _, started = path.stem.partition("-")
        if pid.isdecimal() and Program.of(int(pid)) != Program(int(pid), started):
            path.unlink(missing_ok=True)
