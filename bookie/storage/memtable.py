"""The memtable: entries that are in the journal but not in the entry logs yet.

There is one being filled and, during a checkpoint, one being written out. Per ledger it keeps
the runs as they came, in one ascending list; an entry that comes late (a repair, a write-back
of recovery) goes to a dictionary beside it. So the common add costs nothing per entry.

Invariants:
    the runs of a ledger ascend and do not overlap
    no entry is both in a run and among the late ones
Callers serialise all calls (one lock of the storage).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.index.format import LedgerHeader
from bookie.pieces import FoundPieces, Piece, limit, merge, whole
from ledger.entry import Checked

_RUN_BYTES: Final = 600
_ENTRY_BYTES: Final = 20
_LEDGER_BYTES: Final = 400
"""What a run, an entry and a ledger cost on top of the frames, roughly."""


@dataclass(frozen=True, slots=True)
class HeldRuns:
    """Which entries of first..considered are in a memtable: those of its *runs*, and *late* ones in
    no order. There may be more of both."""

    runs: Sequence[Checked]
    late: Sequence[int]
    considered: int


class LedgerEntries:
    """The entries of one ledger in one memtable."""

    def __init__(self) -> None:
        self.floor = -1
        """Set when it is written out: the highest entry that was on disk before."""
        self._runs: list[Checked] = []
        self._firsts: list[int] = []
        self._late: dict[int, Piece] = {}

    def add(self, run: Checked, new: Sequence[int] | None) -> None:
        """Take *run*, or only its entries at the indexes *new*; what is here already stays."""
        first = run.entries[0]
        if new is None and (not self._runs or first > self._runs[-1].entries[-1]):
            self._runs.append(run)
            self._firsts.append(first)
            return
        for index in range(len(run.entries)) if new is None else new:
            if self.frame(run.entries[index]) is None:
                self._late[run.entries[index]] = Piece(run, index, index + 1)

    def frame(self, entry_id: int) -> bytes | None:
        late = self._late.get(entry_id)
        if late is not None:
            return late.run.frame(late.begin)
        at = bisect_right(self._firsts, entry_id) - 1
        if at < 0:
            return None
        run = self._runs[at]
        index = bisect_left(run.entries, entry_id)
        if index == len(run.entries) or run.entries[index] != entry_id:
            return None
        return run.frame(index)

    def find(self, first: int, last: int, bytes_max: int) -> FoundPieces:
        """Return the entries in first..last, up to about *bytes_max*, at least one."""
        pieces: list[Piece] = []
        left_bytes = bytes_max
        considered = last
        for at in range(max(0, bisect_right(self._firsts, first) - 1), len(self._runs)):
            if self._firsts[at] > last:
                break
            piece = whole(self._runs[at]).between(first, last)
            if piece is None:
                continue
            pieces.append(piece)
            left_bytes -= piece.size_bytes
            if left_bytes <= 0:
                considered = piece.last
                break
        if self._late:
            late = [self._late[e] for e in sorted(self._late) if first <= e <= considered]
            pieces = merge([*pieces, *late])
        return limit(pieces, considered, bytes_max)

    def held(self, first: int, last: int, runs_max: int) -> HeldRuns:
        """Return which entries in first..last are here, looking at *runs_max* runs at most."""
        begin = max(0, bisect_right(self._firsts, first) - 1)
        end = bisect_right(self._firsts, last, begin)
        considered = last
        if end - begin > runs_max:
            end = begin + runs_max
            considered = self._firsts[end] - 1
        return HeldRuns(self._runs[begin:end], list(self._late), considered)

    def pieces(self) -> list[Piece]:
        """Return all entries in ascending order."""
        return merge([*map(whole, self._runs), *self._late.values()])


class Memtable:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerEntries] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return the number of ledgers."""
        return len(self._ledgers)

    def add(self, ledger_id: int, run: Checked, new: Sequence[int] | None = None) -> None:
        """See `LedgerEntries.add`."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            ledger = self._ledgers[ledger_id] = LedgerEntries()
            self.size_bytes += _LEDGER_BYTES
        ledger.add(run, new)
        self.size_bytes += len(run.data) + _RUN_BYTES + _ENTRY_BYTES * len(run.entries)

    def ledger(self, ledger_id: int) -> LedgerEntries | None:
        return self._ledgers.get(ledger_id)

    def set_floors(self, headers: Iterable[LedgerHeader]) -> None:
        """Take note of what was on disk before; *headers* say it, of all ledgers that are here."""
        for header in headers:
            entries = self._ledgers.get(header.ledger_id)
            if entries is not None:
                entries.floor = header.last_entry

    def remove(self, ledger_id: int) -> None:
        """Forget the ledger; its bytes count until the memtable is written out."""
        self._ledgers.pop(ledger_id, None)


@dataclass(frozen=True, slots=True)
class Recent:
    """What memory has of a range of entries of one ledger."""

    found: FoundPieces
    floor: int
    """Entries above it that are not in *found* are nowhere; up to it the disk may have more."""


class Memory:
    """The entries in memory: the memtable being filled, the one being written out, the last one.

    The last one written out stays until the next one is, for those who read close behind the
    writer, so that they are answered without the disk: as long as it is here, all entries of a
    ledger above its *floor* are in memory. So there are two memtables at most.
    Callers serialise all calls (one lock of the storage).
    """

    def __init__(self, active: Memtable, *, recent_bytes_max: int) -> None:
        """*active*: what a start could not flush."""
        self._recent_bytes_max = recent_bytes_max
        self.active = active
        self.flushing: Memtable | None = None
        self.recent = Memtable()

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
