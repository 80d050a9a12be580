"""What killed keepers of dead drivers left beside the socket: the next keeper removes it.

Nobody needs the files of a place whose lock nobody holds and whose driver, whose id the lock file
has, is not there any more. They are removed under that lock, and it goes last; a keeper that waits
for a lock that was removed notices, and locks the one that is there now (`Place.alone`).
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from dlog.spark.sink.keeper.drivers import Program
from dlog.spark.sink.keeper.place import Place, is_at

FILES_MAX: Final = 1000
"""How many files are looked at."""
UNKNOWN_S: Final = 24 * 3600.0
"""Files that do not say whose they are, are left alone for so long."""


def remove_leftovers(place: Place) -> None:
    """Remove those beside *place*, as far as that can be done."""
    with suppress(OSError):
        files = sorted(place.directory.iterdir())[:FILES_MAX]
        for name in sorted({path.stem for path in files} - {place.name}):
            _look_at(Place(place.directory, name))


def _look_at(place: Place) -> None:
    try:
        descriptor = os.open(place.lock, os.O_RDWR)
    except FileNotFoundError:  # its keeper never began
        if _age_s(place.errors) > UNKNOWN_S:
            place.remove()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(descriptor, place.lock) and _is_left(place, descriptor):
            place.remove()
    except BlockingIOError:  # a keeper that lives
        pass
    finally:
        os.close(descriptor)


def _is_left(place: Place, descriptor: int) -> bool:
    pid, _, started = os.pread(descriptor, 100, 0).decode(errors="replace").partition(" ")
    if pid.isdecimal() and started:
        return Program.of(int(pid)) != Program(int(pid), started)
    return _age_s(place.lock) > UNKNOWN_S


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
