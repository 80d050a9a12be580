"""When a disk is too full for normal adds, when there is space enough again, and the space that is
kept for the next start.

What is full is decided purely: measurements in, what follows from them out. A directory is *full*
from the high mark on, or when less than the reserve is free; it stays so until it is below the low
mark and has twice the reserve, so that a bookie does not change its mind with every file removed.
One that gave up what it kept for a start is full until it can keep all of that again: the space is
there for starts, and adds would take it from the next.

A start has to write before it may serve anything: its cookies, by which it counts; the files of the
census and the rolls; a new journal file. On a disk that is full to the last byte there is no room
for that, and a bookie that cannot start serves no reads either. So it keeps a file in each
directory that has its space taken ahead, which the next start gives up if there is too little left.
What is in the journals needs no space: if it cannot be flushed, it stays in memory
(`bookie.storage.replay`).

Others may write to the same disk and take what was given up, before the start or after it. Then the
start is refused, with the disk's own error, and changes nothing.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from bookie.disk.port import Directories, Disk, DiskUsage
from bookie.errors import InvalidSetting
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """Shares are of the file system's space, above 0 and at most 1. Raises `InvalidSetting`."""

    warn_share: float = 0.90
    high_share: float = 0.95
    """From here on the bookie is read-only."""
    low_share: float = 0.90
    """Below, it is not any more."""
    reserve_bytes: int = 512 * 1024 * 1024
    """Free space below this is full too: for recovery adds, to compact with, and for a restart,
    which writes what is in the journals to entry logs. Below half of it recovery adds end too."""

    def __post_init__(self) -> None:
        for setting in ("warn_share", "high_share", "low_share"):
            share: float = getattr(self, setting)
            if not 0 < share <= 1:
                raise InvalidSetting(setting, share, "give a share above 0 and at most 1")
        if self.low_share > self.high_share:
            reason = f"give at most {self.high_share:g}, from which on the bookie is read-only"
            raise InvalidSetting("low_share", self.low_share, reason)
        if self.reserve_bytes < 0:
            raise InvalidSetting("reserve_bytes", self.reserve_bytes, "give 0 for no reserve")


class Level(IntEnum):
    FINE = 0
    WARN = 1
    FULL = 2
    EXHAUSTED = 3
    """Not even a recovery adds anything more."""
    UNKNOWN = 4
    """It cannot be asked: taken for full."""


@dataclass(frozen=True, slots=True)
class LevelChanged:
    """To be reported to a person."""

    path: str
    before: Level
    now: Level
    reason: str


def level_of(before: Level, usage: DiskUsage | None, limits: DiskLimits) -> Level:
    """Return the level of a directory that was at *before*; None is a disk that gave no answer."""
    if usage is None:
        return Level.UNKNOWN
    share, free_bytes = usage.used_share, usage.free_bytes
    if free_bytes < limits.reserve_bytes // 2:
        return Level.EXHAUSTED
    is_full = share >= limits.high_share or free_bytes < limits.reserve_bytes
    if before >= Level.FULL:
        is_full = is_full or share >= limits.low_share or free_bytes < 2 * limits.reserve_bytes
    if is_full:
        return Level.FULL
    return Level.WARN if share >= limits.warn_share else Level.FINE


class DiskWatch:
    """The levels of the directories of one bookie."""

    def __init__(
        self, limits: DiskLimits, paths: Sequence[str], *, given_up: Collection[int] = ()
    ) -> None:
        """*given_up*: which directories gave up what they kept for a start."""
        self._limits = limits
        self._paths = tuple(paths)
        self._given_up = set(given_up)
        self._levels = [Level.FINE] * len(paths)
        self._words = [""] * len(paths)

    def observe(self, at: int, usage: DiskUsage | None) -> LevelChanged | None:
        """Take note of what directory number *at* was found to be; return what changed by it."""
        path, before = self._paths[at], self._levels[at]
        now = level_of(before, usage, self._limits)
        if at in self._given_up and usage is not None:
            if usage.free_bytes < 2 * RESERVE_BYTES:
                now = max(now, Level.FULL)
            else:
                self._given_up.discard(at)
        self._levels[at] = now
        self._words[at] = f"{path} {_words(usage)}"
        return LevelChanged(path, before, now, self._words[at]) if now is not before else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the bookie has to be read-only, one sentence per directory."""
        return self._where(Level.FULL, Level.EXHAUSTED, Level.UNKNOWN)

    @property
    def is_exhausted(self) -> bool:
        """Whether some disk has no space for recovery adds either."""
        return Level.EXHAUSTED in self._levels

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._where(Level.WARN)

    def _where(self, *levels: Level) -> tuple[str, ...]:
        found = zip(self._words, self._levels, strict=True)
        return tuple(words for words, level in found if level in levels)


def _words(usage: DiskUsage | None) -> str:
    if usage is None:
        return "cannot be asked for its space"
    return f"is {usage.used_share:.1%} full, {usage.free_bytes / 2**20:,.0f} MiB are free"
