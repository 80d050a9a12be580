"""Space that a bookie keeps for its next start: a file in each directory.

A start has to write before it may serve anything: its cookies, by which it counts; the files of the
census and the rolls; a new journal file. On a disk that is full to the last byte there is no room
for that, and a bookie that cannot start serves no reads either. So it keeps a file that has its
space taken ahead, which the next start gives up if there is too little left. What is in the
journals needs no space: if it cannot be flushed, it stays in memory (`bookie.storage.replay`).

Others may write to the same disk and take what was given up, before the start or after it. Then the
start is refused, with the disk's own error, and changes nothing.
"""

from contextlib import suppress
from typing import Final

from bookie.disk.directories import Directories
from bookie.disk.port import Disk
from ledger.log_events import get_logger

PATH: Final = "reserve"
RESERVE_BYTES: Final = 2 * 1024 * 1024
"""In each directory. The rolls are the largest of what a start writes, and have 8 bytes for each
ledger: 200,000 of them in one ledger directory."""
_RESERVE_BYTES_MIN: Final = 64 * 1024

_log = get_logger(__name__)


class Reserve:
    """Requires the directories' locks. `give_up` and `keep` block, and raise nothing: without a
    reserve a start works as long as there is space."""

    def __init__(self, directories: Directories, *, size_bytes: int = RESERVE_BYTES) -> None:
        self._disks = directories.every()
        self._size_bytes = size_bytes

    def give_up(self) -> frozenset[int]:
        """Remove the files where there is too little space for a start; return the numbers of
        those directories, which are no less full for it."""
        given_up: set[int] = set()
        for at, disk in enumerate(self._disks):
            with suppress(OSError):  # what needs the space reports it
                if PATH in disk.list("") and disk.usage().free_bytes < self._size_bytes:
                    _log.warning("reserve_given_up", directory=disk.describe(""))
                    disk.remove(PATH)
                    given_up.add(at)
                    disk.sync_directory("")
        return frozenset(given_up)

    def keep(self) -> None:
        """Take the space, where it is not taken; on a disk that is nearly full half of what is
        left, so that there is something for a few starts more."""
        for disk in self._disks:
            size_bytes = self._size_bytes
            with suppress(OSError):
                if PATH in disk.list(""):
                    continue
                while size_bytes >= _RESERVE_BYTES_MIN:
                    if disk.usage().free_bytes >= 2 * size_bytes:
                        self._take(disk, size_bytes)
                        break
                    size_bytes //= 2

    def _take(self, disk: Disk, size_bytes: int) -> None:
        try:
            file = disk.create(PATH)
            try:
                file.preallocate(size_bytes)
                file.sync()
            finally:
                file.close()
        except OSError:
            with suppress(OSError):
                disk.remove(PATH)
            raise
        disk.sync_directory("")
