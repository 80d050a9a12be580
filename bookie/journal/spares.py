"""Journal files that the mark has left behind, kept to be written again.

Blocks that were written before need no note of the file system that they are in use, so a sync
writes data alone; that is all that they are good for. What is in them does not matter, not even
whether it is whole: who takes one gives it a header with an epoch that nobody could know.

Invariants:
    a file becomes a spare only after the mark that has left it behind is durable
    its name as a spare is durable before it is taken
    there are at most `files_max`, and none on a disk that is well filled or was found full

`take` and `give_up` are the journal thread's, `keep`, `trim` and `give_up` the sync thread's.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from bookie.disk.port import Disk
from bookie.journal.format import DIRECTORY, SPARE_SUFFIX, path_of, spare_of

USED_SHARE_MAX: Final = 0.8
"""From here on the disk's space is worth more than faster syncs."""


class Spares:
    """Those of one journal; begins with what an earlier process left."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._lock = threading.Lock()
        self._paths = [
            f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if name.endswith(SPARE_SUFFIX)
        ]

    @property
    def paths(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._paths)

    def take(self) -> str | None:
        """Return the path of one, which is the caller's from now on; None if there is none."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def keep(self, journal_ids: Sequence[int]) -> None:
        """Let these journal files be spares, or remove those that are too many."""
        if not journal_ids:
            return
        kept: list[str] = []
        room = self._allowed() - len(self.paths)
        for journal_id in journal_ids:
            if len(kept) < room:
                kept.append(spare_of(journal_id))
                self._disk.rename(path_of(journal_id), kept[-1])
            else:
                self._disk.remove(path_of(journal_id))
        self._disk.sync_directory(DIRECTORY)
        with self._lock:
            self._paths += kept

    def trim(self) -> None:
        """Remove those that are too many."""
        self._remove_beyond(self._allowed())

    def give_up(self) -> bool:
        """Remove all, as there is no space; return whether there was any."""
        return self._remove_beyond(0)

    def _allowed(self) -> int:
        try:
            return self._files_max if self._disk.usage().used_share < USED_SHARE_MAX else 0
        except OSError:  # a disk that cannot be asked
            return 0

    def _remove_beyond(self, count: int) -> bool:
        with self._lock:
            surplus = self._paths[count:]
            del self._paths[count:]
        for path in surplus:
            with suppress(FileNotFoundError):  # somebody needed the space
                self._disk.remove(path)
        if surplus:
            self._disk.sync_directory(DIRECTORY)
        return bool(surplus)
