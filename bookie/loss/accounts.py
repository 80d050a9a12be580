"""What a bookie's main directory says of all that it has: the newest census, and limbo.

Invariants:
    a loss is remembered, durably, before anything is written that would hide it
    a census says that there is a limbo only after its file is durable, and no more before the
        file is removed: who deletes the file alone does not end it
`census` and `limbo` may be read by any thread.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from bookie.disk.port import Disk
from bookie.errors import CensusDamaged
from bookie.journal.format import Mark
from bookie.loss.census import Census, Rolls, read_census, read_file, replace_file, write_census
from bookie.loss.limbo import Limbo, Phase
from ledger.log_events import get_logger

LIMBO_PATH: Final = "limbo"

_log = get_logger(__name__)


class Accounts:
    """See the module's docstring. Raises `OSError` where the disk fails."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self.limbo: Limbo | None = None
        self.census: Census | None = None
        """The newest; None before the first."""
        self.losses: list[str] = []
        """What is wrong with these files themselves."""
        self.on_census: Callable[[Census], None] | None = None
        """Called with each one when it is durable, on the thread that made it so."""
        self._number = 0
        self._load()

    def lost(self, reasons: Sequence[str]) -> None:
        """Remember that something may be lost, durably; nothing, if there are no *reasons*."""
        if not reasons:
            return
        reason = "; ".join(dict.fromkeys(reasons))
        _log.error("bookie_may_have_lost_data", reason=reason)
        with self._lock:
            self._keep(Limbo(reason) if self.limbo is None else self.limbo.again(reason))

    def restored(self, reason: str) -> None:
        """Remember that the metadata store is older than it was, durably."""
        _log.error("metadata_store_was_restored", reason=reason)
        with self._lock:
            before = Limbo(reason, lost=False) if self.limbo is None else self.limbo
            self._keep(before.restored(reason))

    def count(self, rolls: Iterable[Rolls], journals: Sequence[Mark], sizes: Sequence[int]) -> None:
        """Replace the census: all that *rolls*, *journals* and *sizes* say is durable."""
        with self._lock:
            limbo = self.limbo is not None
            self._count(
                Census(self._number + 1, tuple(rolls), tuple(journals), tuple(sizes), limbo)
            )

    def judged(self, change: Callable[[Limbo], Limbo]) -> None:
        """Let the limbo become what *change* makes of it, durably; nothing, if there is none."""
        with self._lock:
            before = self.limbo
            if before is None:
                return
            after = change(before)
            if after == before:
                return
            is_over = after.phase is Phase.OVER and not (after.before or after.floor)
            if is_over and self.census is not None:
                self._count(replace(self.census, number=self._number + 1, limbo=False))
                self.limbo = None
                self._disk.remove(LIMBO_PATH)
                self._disk.sync_directory("")
            else:
                self._keep(after)

    def _load(self) -> None:
        try:
            self.census = read_census(self._disk)
        except CensusDamaged as damage:
            self.losses.append(f"{damage.path} is damaged: {damage.reason}")
        if self.census is not None:
            self._number = self.census.number
        data = read_file(self._disk, LIMBO_PATH)
        path = self._disk.describe(LIMBO_PATH)
        if data is not None:
            try:
                self.limbo = Limbo.decode(data)
            except ValueError as error:
                self.losses.append(f"{path} is damaged: {error}")
        elif self.census is not None and self.census.limbo:
            self.losses.append(f"{path} is gone, which said what may be lost")

    def _keep(self, limbo: Limbo) -> None:
        replace_file(self._disk, LIMBO_PATH, [limbo.encode()])
        self.limbo = limbo

    def _count(self, census: Census) -> None:
        write_census(self._disk, census)
        self.census, self._number = census, census.number
        if self.on_census is not None:
            self.on_census(census)
