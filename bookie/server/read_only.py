"""Keeps a bookie read-only for as long as there is a reason for it, and lets the cluster know.

The reasons: a disk that is too full (`bookie.disk.watch`), what the storage itself refuses adds
for, and an operator. Disks are asked twice a second, and so is the storage: it refuses by
itself at once, and this only reports it. An operator's order is kept as an empty file in the main
directory, so that a restart does not forget it.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookie.disk.port import Directories, Disk, DiskUsage
from bookie.disk.watch import DiskLimits, DiskWatch, Level, LevelChanged
from bookie.errors import OrderNotKept, StorageFailed
from bookie.identity.stamp import places
from ledger.log_events import get_logger

PATH: Final = "readonly"
_BY_OPERATOR: Final = "an operator said so"

_log = get_logger(__name__)


class Refusing(Protocol):
    """What is needed of `bookie.storage.engine.BookieStorage`."""

    @property
    def read_only(self) -> bool: ...
    @property
    def troubles(self) -> tuple[str, ...]: ...
    def set_read_only(self, *, read_only: bool, recovery_too: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A directory when it was last asked; no usage is no answer."""

    path: str
    place: str
    usage: DiskUsage | None


class ReadOnlyKeeper:
    """`look` once before anything is served, then `run` until cancelled."""

    def __init__(
        self,
        storage: Refusing,
        directories: Directories,
        limits: DiskLimits,
        *,
        given_up: Collection[int] = (),
        interval_s: float = 0.5,
        on_space: Callable[[], None] = lambda: None,
        on_change: Callable[[bool], None] = lambda _read_only: None,
    ) -> None:
        """*given_up*: see `DiskWatch`. *on_space* is called when a disk is not full any
        more, *on_change* with what the bookie has become: read-only or not."""
        self._storage = storage
        self._main = directories.main
        self._disks = list(zip(directories.every(), places(directories), strict=True))
        paths = [disk.describe("") for disk, _ in self._disks]
        self._watch = DiskWatch(limits, paths, given_up=given_up)
        self._interval_s = interval_s
        self._on_space = on_space
        self._on_change = on_change
        self._by_operator = False
        self._told = False
        self._turn = asyncio.Lock()
        self.measured: tuple[Measured, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        by_operator = (_BY_OPERATOR,) if self._by_operator else ()
        return (*by_operator, *self._watch.reasons, *self._storage.troubles)

    @property
    def kinds(self) -> dict[str, bool]:
        """Which kinds of reasons there are, in words that stay the same."""
        return {
            "operator": self._by_operator,
            "disk": bool(self._watch.reasons),
            "storage": bool(self._storage.troubles),
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        return self._watch.warnings

    def look(self) -> bool:
        """Read the order, if there is one, and ask the disks; return whether the bookie is
        read-only. Blocks. Raises `StorageFailed`."""
        try:
            self._main.sync_directory("")  # what is believed here stays so
            self._by_operator = PATH in self._main.list("")
        except OSError as error:
            raise StorageFailed(f"reading {self._main.describe('')}", str(error)) from error
        self._learn(self._measure())
        return self._storage.read_only

    async def run(self) -> None:
        while True:
            async with self._turn:
                self._learn(await asyncio.to_thread(self._measure))
            await asyncio.sleep(self._interval_s)

    async def set_by_operator(self, *, read_only: bool) -> None:
        """Be read-only, even after a restart; or only for other reasons. Raises `OrderNotKept`.

        Carried out wholly also for a caller that does not wait: never kept and not obeyed."""
        await asyncio.shield(self._obey(read_only=read_only))

    async def _obey(self, *, read_only: bool) -> None:
        async with self._turn:
            try:
                await asyncio.to_thread(_keep, self._main, read_only=read_only)
            except OSError as error:
                raise OrderNotKept(self._main.describe(PATH), str(error)) from error
            self._by_operator = read_only
            self._apply()

    def _measure(self) -> tuple[Measured, ...]:
        return tuple(Measured(d.describe(""), place, _usage(d)) for d, place in self._disks)

    def _learn(self, measured: Sequence[Measured]) -> None:
        self.measured = tuple(measured)
        changes = [self._watch.observe(at, one.usage) for at, one in enumerate(measured)]
        for change in changes:
            if change is not None:
                _report(change)
        self._apply()
        if any(
            change is not None and change.now < Level.FULL <= change.before for change in changes
        ):
            self._on_space()

    def _apply(self) -> None:
        self._storage.set_read_only(
            read_only=bool(self._by_operator or self._watch.reasons),
            recovery_too=self._watch.is_exhausted,
        )
        read_only = self._storage.read_only
        if read_only == self._told:
            return
        self._told = read_only
        if read_only:
            _log.warning("read_only", reasons="; ".join(self.reasons))
        else:
            _log.info("writable_again")
        self._on_change(read_only)


def _usage(disk: Disk) -> DiskUsage | None:
    try:
        return disk.usage()
    except OSError:
        return None


def _report(change: LevelChanged) -> None:
    report = _log.info if change.now is Level.FINE else _log.warning
    report("disk_level", level=change.now.name.lower(), reason=change.reason)


def _keep(disk: Disk, *, read_only: bool) -> None:
    """Make the order durable."""
    if read_only:
        disk.create(PATH).close()
    elif PATH in disk.list(""):
        disk.remove(PATH)
    disk.sync_directory("")
