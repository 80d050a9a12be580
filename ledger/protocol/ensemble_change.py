"""Other bookies in the places of those that failed: for the writer and for a recovery.

Failures are collected while a change is under way and met by the next (rule 24). A bookie
that failed is not picked for the change that its failure is a part of.
"""

from collections.abc import Iterable

from ledger.ids import BookieId, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common_events import ChooseReplacements
from ledger.requests import Status


class EnsembleChange:
    def __init__(self, acks: AckTracker, *, never: tuple[BookieId, ...] = ()) -> None:
        """*never*: bookies that are not picked, beside those of the ensemble."""
        self.failed: dict[int, Status] = {}
        """Indexes that failed and are not replaced yet, with the reason."""
        self.replacing: dict[int, BookieId] = {}
        """Who was picked, by index, and has not got the place yet."""
        self.leaving: tuple[int, ...] = ()
        """Indexes for which others are wanted though theirs have not failed."""
        self._acks = acks
        self._gone = dict.fromkeys(never)

    def fail(self, index: int, status: Status) -> None:
        """Send nothing more to the bookie at *index*."""
        slot = self._acks.slots[index]
        slot.down = True
        self.failed[index] = status
        self._gone[slot.bookie] = None

    def choose(self) -> ChooseReplacements:
        exclude = dict.fromkeys((*self._acks.bookies, *self._gone))
        indexes = self.leaving or tuple(sorted(self.failed))
        return ChooseReplacements(indexes, tuple(exclude), self._acks.bookies)

    def changed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return *metadata* with those picked in the ensemble of what is not confirmed yet."""
        bookies = list(self._acks.bookies)
        for index, bookie in self.replacing.items():
            bookies[index] = bookie
        return metadata.with_ensemble(EntryId(self._acks.confirmed + 1), tuple(bookies))

    def put(self) -> list[int]:
        """Give those picked their places, with nothing stored (rule 22); return the indexes."""
        replaced = sorted(self.replacing)
        for index in replaced:
            self._acks.replace(index, self.replacing[index])
            self.failed.pop(index, None)
        self.replacing = {}
        return replaced

    def revive(self) -> list[int]:
        """Give those that failed their own places again; return the indexes."""
        self.again(self.failed)
        return self.put()

    def again(self, indexes: Iterable[int]) -> None:
        """Pick those at *indexes* themselves: what is not confirmed yet begins a new fragment."""
        self.replacing = {index: self._acks.slots[index].bookie for index in indexes}

    def end(self) -> None:
        """The change is over: who failed in it may be picked for another."""
        self._gone.clear()
