"""The entries in memory: the memtable being filled, the one being written out, the last one.

The last one written out stays until the next one is, for those who read close behind the
writer, so that they are answered without the disk: as long as it is here, all entries of a
ledger above its *floor* are in memory. So there are two memtables at most.
Callers serialise all calls (one lock of the storage).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bookie.index.format import LedgerHeader
from bookie.pieces import FoundPieces, merge
from bookie.storage.memtable import HeldRuns, LedgerEntries, Memtable
from ledger.entry import Checked


@dataclass(frozen=True, slots=True)
class Recent:
    """What memory has of a range of entries of one ledger."""

    found: FoundPieces
    floor: int
    """Entries above it that are not in *found* are nowhere; up to it the disk may have more."""


class Memory:
    """See the module's docstring."""

    def __init__(self, active: Memtable, *, recent_bytes_max: int) -> None:
        """*active*: what a start could not flush."""
        self._recent_bytes_max = recent_bytes_max
        self.active = active
        self.flushing: Memtable | None = None
        self.recent = Memtable()

    def add(self, ledger_id: int, run: Checked, new: Sequence[int] | None) -> None:
        self.active.add(ledger_id, run, new)

    def frame(self, ledger_id: int, entry_id: int) -> bytes | None:
        for entries in self._parts(ledger_id):
            frame = entries.frame(entry_id)
            if frame is not None:
                return frame
        return None

    def floor(self, stored: LedgerHeader) -> int:
        """Return the entry above which all of the ledger is in memory."""
        last = self.recent.ledger(stored.ledger_id)
        return stored.last_entry if last is None else last.floor

    def find(self, stored: LedgerHeader, first: int, last: int, bytes_max: int) -> Recent:
        """Return what is here of the entries in first..last, up to about *bytes_max*."""
        parts = [part.find(first, last, bytes_max) for part in self._parts(stored.ledger_id)]
        found = FoundPieces(
            merge([piece for part in parts for piece in part.pieces]),
            min((part.considered for part in parts), default=last),
        )
        return Recent(found, self.floor(stored))

    def held(self, ledger_id: int, first: int, last: int, runs_max: int) -> list[HeldRuns]:
        """Return which of first..last are here, as each memtable says; see `LedgerEntries.held`."""
        return [part.held(first, last, runs_max) for part in self._parts(ledger_id)]

    def begin_flush(self) -> Memtable:
        """Return what is to be written out; before the flush ends, its floors have to be set."""
        assert self.flushing is None, "one flush at a time"
        memtable, self.active = self.active, Memtable()
        self.recent = Memtable()
        self.flushing = memtable
        return memtable

    def end_flush(self) -> None:
        """Take note that all of it is on disk."""
        assert self.flushing is not None
        small = self.flushing.size_bytes <= self._recent_bytes_max
        self.recent = self.flushing if small else Memtable()
        self.flushing = None

    def remove(self, ledger_id: int) -> None:
        for memtable in (self.active, self.flushing, self.recent):
            if memtable is not None:
                memtable.remove(ledger_id)

    def _parts(self, ledger_id: int) -> list[LedgerEntries]:
        return [
            entries
            for memtable in (self.active, self.flushing, self.recent)
            if memtable is not None and (entries := memtable.ledger(ledger_id))
        ]
