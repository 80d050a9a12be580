"""Entries read ahead of those who read a ledger from the disk one range after the other.

A read that begins where the last one of its ledger ended is made larger; what it finds beyond
what was asked for is kept here for the reads that follow. A stretch is worth something only
as long as the ledger's header is the very same object: every flush of the ledger makes a new
one, so an entry that was repaired meanwhile is never denied (rule 58).

Invariant: not more than *bytes_max* are kept, the longest unused go first.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from bookie.index.format import LedgerHeader
from bookie.pieces import FoundPieces, limit

_FOLLOWED_MAX: Final = 4096
"""Ledgers for which the end of the last read is remembered."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    header: LedgerHeader
    first: int
    found: FoundPieces
    size_bytes: int


class ReadCache:
    """Safe to be used from any thread."""

    def __init__(self, *, bytes_max: int, ahead_bytes: int) -> None:
        self._bytes_max = bytes_max
        self._ahead_bytes = ahead_bytes
        self._lock = threading.Lock()
        self._stretches: OrderedDict[int, _Stretch] = OrderedDict()
        self._ends: OrderedDict[int, int] = OrderedDict()
        self.size_bytes = 0
        self.hits = self.misses = 0
        """Reads that were answered without the disk, and those that were not."""

    def wanted_bytes(self, ledger_id: int, first: int, bytes_max: int) -> int:
        """Return how much to read from disk for a read that asks for *bytes_max*."""
        with self._lock:
            follows = self._ends.get(ledger_id) == first - 1
        return max(bytes_max, self._ahead_bytes) if follows and self._bytes_max else bytes_max

    def find(
        self, header: LedgerHeader, first: int, last: int, bytes_max: int
    ) -> FoundPieces | None:
        """Return what the disk has of first..last, as `EntryLogReader.find` would, if *first* is
        in what is kept; its `considered` may end before *last*."""
        with self._lock:
            stretch = self._stretches.get(header.ledger_id)
            if (
                stretch is None
                or stretch.header is not header
                or not stretch.first <= first <= stretch.found.considered
            ):
                return None
            self._stretches.move_to_end(header.ledger_id)
            self.hits += 1
        pieces = [
            part
            for piece in stretch.found.pieces
            if (part := piece.between(first, last)) is not None
        ]
        found = limit(pieces, min(last, stretch.found.considered), bytes_max)
        self._follow(header.ledger_id, found.considered)
        return found

    def put(
        self, header: LedgerHeader, first: int, found: FoundPieces, bytes_max: int
    ) -> FoundPieces:
        """Keep what was read from *first* on; return the part that was asked for."""
        self.misses += 1
        asked = limit(found.pieces, found.considered, bytes_max)
        self._follow(header.ledger_id, asked.considered)
        if asked.considered < found.considered:
            size_bytes = sum(piece.size_bytes for piece in found.pieces)
            with self._lock:
                self._drop(header.ledger_id)
                self._stretches[header.ledger_id] = _Stretch(header, first, found, size_bytes)
                self.size_bytes += size_bytes
                while self.size_bytes > self._bytes_max:
                    self._drop(next(iter(self._stretches)))
        return asked

    def _drop(self, ledger_id: int) -> None:
        stretch = self._stretches.pop(ledger_id, None)
        if stretch is not None:
            self.size_bytes -= stretch.size_bytes

    def _follow(self, ledger_id: int, end: int) -> None:
        with self._lock:
            self._ends[ledger_id] = end
            self._ends.move_to_end(ledger_id)
            if len(self._ends) > _FOLLOWED_MAX:
                self._ends.popitem(last=False)
