"""What a worker reads for all of its repairs, and not anew for each one; never older than a second.

Hints only, but for who is to be emptied: of a ledger that is marked for a bookie that was not to be
emptied when this was read, it is read again, as that is written before any mark.
"""

import asyncio
from typing import Final

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.replication_events import Leaving
from ledger.ids import LedgerId
from ledger.mark import Mark, Reason

SEEN_S: Final = 1.0


class Seen:
    """For one worker."""

    def __init__(self, marks: Marks) -> None:
        self._leaving = Leaving(frozenset(), -1)
        self.urgent: tuple[LedgerId, ...] = ()
        """Marked ledgers that come before others."""
        self.locked: frozenset[LedgerId] = frozenset()
        """Ledgers that are being repaired, also by this worker."""
        self.revision = 0
        """Grows each time that all of this was read."""
        self._marks = marks
        self._clock = asyncio.get_running_loop().time
        self._read_at: float | None = None

    async def refresh(self) -> None:
        """Read all again if it is old. Raises `MetadataUnavailable`."""
        now = self._clock()
        if self._read_at is not None and now < self._read_at + SEEN_S:
            return
        self.urgent = await self._marks.urgent()
        self.locked = await self._marks.locked_ledgers()
        self._leaving = await self._marks.leaving()
        self._read_at = now
        self.revision += 1

    def forget(self) -> None:
        """Let all be read again: it has changed."""
        self._read_at = None

    async def leaving_for(self, mark: Mark | None) -> Leaving:
        """Return who is to be emptied, for the repair of what *mark* says. Raises as `refresh`."""
        lacks = () if mark is None else mark.lacks
        emptied = {lack.bookie for lack in lacks if lack.reason is Reason.DECOMMISSIONING}
        await self.refresh()
        if not emptied <= self._leaving.bookies:
            self._leaving = await self._marks.leaving()
        return self._leaving
