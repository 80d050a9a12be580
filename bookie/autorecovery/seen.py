"""What a worker reads for all of its repairs, and not anew for each one; never older than a second.

Hints only, but for who is to be emptied: of a ledger that is marked for a bookie that was not to be
emptied when this was read, it is read again, as that is written before any mark.
"""

import asyncio
from typing import Final

from bookie.autorecovery.marks import Marks
from ledger.ids import BookieId, LedgerId
from ledger.mark import Mark, Reason

SEEN_S: Final = 1.0


class Seen:
    """For one worker."""

    def __init__(self, marks: Marks) -> None:
        self.leaving: frozenset[BookieId] = frozenset()
        """Bookies that are to be emptied."""
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
        self.leaving = await self._marks.decommissioning()
        self._read_at = now
        self.revision += 1

    async def leaving_for(self, mark: Mark | None) -> frozenset[BookieId]:
        """Return who is to be emptied, for the repair of what *mark* says. Raises as `refresh`."""
        lacks = () if mark is None else mark.lacks
        emptied = {lack.bookie for lack in lacks if lack.reason is Reason.DECOMMISSIONING}
        await self.refresh()
        if not emptied <= self.leaving:
            self.leaving = await self._marks.decommissioning()
        return self.leaving
