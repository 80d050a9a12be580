"""Pieces: stretches of entries of one ledger that lie together in one buffer.

Memory and disk both answer with pieces, so that nothing on the way of a read touches single
entries unless it must: only where pieces overlap are they taken apart.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ledger.entry import Checked


@dataclass(frozen=True, slots=True)
class Piece:
    """The entries with index begin..end-1 of *run*; never empty."""

    run: Checked
    begin: int
    end: int

    @property
    def first(self) -> int:
        return self.run.entries[self.begin]

    @property
    def last(self) -> int:
        return self.run.entries[self.end - 1]

    @property
    def size_bytes(self) -> int:
        return self.run.starts[self.end] - self.run.starts[self.begin]

    @property
    def entries(self) -> "array[int]":
        return self.run.entries[self.begin : self.end]

    @property
    def lengths(self) -> "array[int]":
        starts = self.run.starts[self.begin : self.end + 1]
        return array("I", [b - a for a, b in pairwise(starts)])

    def view(self) -> memoryview:
        """Return the frames, one after the other, without a copy."""
        starts = self.run.starts
        return memoryview(self.run.data)[starts[self.begin] : starts[self.end]]

    def between(self, first: int, last: int) -> "Piece | None":
        """Return the part with ids in first..last, or None if that is nothing."""
        begin = bisect_left(self.run.entries, first, self.begin, self.end)
        end = bisect_right(self.run.entries, last, begin, self.end)
        return Piece(self.run, begin, end) if begin < end else None


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """Pieces in ascending order; every id from the first asked for up to *considered* that is
    not in them is not where they come from."""

    pieces: Sequence[Piece]
    considered: int


def whole(run: Checked) -> Piece:
    return Piece(run, 0, len(run.entries))


def merge(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the same entries in ascending order, each once; of two the earlier given."""
    ordered = sorted(pieces, key=_first)
    if all(a.last < b.first for a, b in pairwise(ordered)):
        return ordered
    single: dict[int, Piece] = {}
    for piece in pieces:
        for index in range(piece.begin, piece.end):
            single.setdefault(piece.run.entries[index], Piece(piece.run, index, index + 1))
    return [single[entry_id] for entry_id in sorted(single)]


def limit(pieces: Iterable[Piece], considered: int, bytes_max: int) -> FoundPieces:
    """Return what of ascending *pieces* lies up to *considered* and fits into *bytes_max*; the
    first entry always fits."""
    kept: list[Piece] = []
    left_bytes = bytes_max
    for piece in pieces:
        part = piece.between(piece.first, considered)
        if part is None:
            break
        if part.size_bytes > left_bytes:
            starts = part.run.starts
            room_to = starts[part.begin] + left_bytes
            end = bisect_right(starts, room_to, part.begin, part.end + 1) - 1
            end = max(end, part.begin if kept else part.begin + 1)
            if end > part.begin:
                kept.append(Piece(part.run, part.begin, end))
            if end < part.end:
                return FoundPieces(kept, part.run.entries[end] - 1)
        else:
            kept.append(part)
        left_bytes -= part.size_bytes
    return FoundPieces(kept, considered)


def _first(piece: Piece) -> int:
    return piece.first
