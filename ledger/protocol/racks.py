"""Which rack each index of an ensemble should be of: a bounded search, no randomness.

What counts is how many racks the write sets span: first that of the worst write set, since
the loss of a rack takes the most from it, then the sum over all. A greedy descent finds the
best for nearly every cluster; the search goes on only while something better is possible.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ledger.quorum import Quorum, write_set

STEPS_MAX: Final = 2000
"""Assignments that are tried at most; beyond, the best found so far is taken."""

Score = tuple[int, int]
"""Racks of the worst write set, racks of all write sets together."""


def spread_over_racks(
    quorum: Quorum, staying: Mapping[int, str], indexes: Sequence[int], stock: Mapping[str, int]
) -> tuple[str, ...]:
    """Return a rack for each of *indexes*, where *staying* are the racks of other indexes.

    *stock* says how many bookies each rack has to give, at least len(indexes) in all; where
    racks are equally good the earlier one is taken. An index that is neither staying nor to
    be given a rack counts for none."""
    search = _Search(quorum, staying, indexes, stock)
    search.descend(0)
    assert search.best is not None, "the stock is too small"
    return search.best


def rack_score(quorum: Quorum, racks: Mapping[int, str]) -> Score:
    """Return how well *racks*, by index, spreads the write sets."""
    spans = [
        len({racks[index] for index in write_set(residue, quorum) if index in racks})
        for residue in range(quorum.ensemble)
    ]
    return min(spans), sum(spans)


class _Search:
    def __init__(
        self,
        quorum: Quorum,
        staying: Mapping[int, str],
        indexes: Sequence[int],
        stock: Mapping[str, int],
    ) -> None:
        self._quorum = quorum
        self._racks = dict(staying)
        self._indexes = indexes
        self._stock = dict(stock)
        self._limit = self._possible()
        self._steps = 0
        self._score: Score = (-1, -1)
        self.best: tuple[str, ...] | None = None

    def descend(self, depth: int) -> None:
        """Try racks for the index at *depth* and those after it, the best first."""
        if depth == len(self._indexes):
            score = rack_score(self._quorum, self._racks)
            if self.best is None or score > self._score:
                self._score = score
                self.best = tuple(self._racks[index] for index in self._indexes)
            return
        index = self._indexes[depth]
        for rack in self._options(index):
            if self._score == self._limit or (self.best and self._steps >= STEPS_MAX):
                return
            self._steps += 1
            self._stock[rack] -= 1
            self._racks[index] = rack
            self.descend(depth + 1)
            del self._racks[index]
            self._stock[rack] += 1

    def _options(self, index: int) -> list[str]:
        """Return racks with bookies left, those with the fewest near *index* first."""
        crowding = dict.fromkeys((rack for rack, left in self._stock.items() if left), 0)
        for other, rack in self._racks.items():
            if rack in crowding:
                crowding[rack] += self._write_sets_shared(index, other)
        return sorted(crowding, key=lambda rack: crowding[rack])

    def _write_sets_shared(self, one: int, other: int) -> int:
        size = self._quorum.ensemble
        apart = (one - other) % size
        write = self._quorum.write
        return max(0, write - apart) + max(0, write - (size - apart))

    def _possible(self) -> Score:
        """Return a score that no assignment exceeds."""
        spans = []
        for residue in range(self._quorum.ensemble):
            indexes = write_set(residue, self._quorum)
            there = {self._racks[index] for index in indexes if index in self._racks}
            free = sum(1 for index in indexes if index in self._indexes)
            new = sum(1 for rack in self._stock if rack not in there)
            spans.append(len(there) + min(free, new))
        return min(spans), sum(spans)
