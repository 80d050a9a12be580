"""Which bookie of an ensemble has stored what, and how far entries are confirmed by that.

Shared by the writer and by recovery's write-back. An acknowledgement counts only for the
bookie that now stands at its index (rule 8): every replacement gives the index a new
generation, and whatever an older generation says is dropped, in `stored`, in one place.

Entries are confirmed in order only (rule 7). Ranges are in ids of the whole ledger: an id
that is not in the write set of an index counts as stored there, so a run of a striped
ensemble is one range too.

Invariants:
    confirmed only grows
    an id is confirmed iff Qa slots of its write set stored it, and every lower id is confirmed
"""

from collections.abc import Iterable, Iterator

from ledger.ids import BookieId
from ledger.protocol.ranges import Ranges
from ledger.quorum import Quorum, all_reach_ack_quorum, holds, write_set


class Slot:
    """One index of the ensemble."""

    __slots__ = ("bookie", "down", "generation", "stored")

    def __init__(self, bookie: BookieId, generation: int) -> None:
        self.bookie = bookie
        self.generation = generation
        self.stored = Ranges()
        self.down = False
        """Nothing is sent to a slot that is down; what it stored before still counts."""


class AckTracker:
    def __init__(self, quorum: Quorum, bookies: Iterable[BookieId], *, confirmed: int) -> None:
        self.quorum = quorum
        self.slots = [Slot(bookie, 0) for bookie in bookies]
        self.confirmed = confirmed
        self.bookies = tuple(slot.bookie for slot in self.slots)
        residues = quorum.ensemble if self._is_striped else 1
        self._write_sets = tuple(write_set(residue, quorum) for residue in range(residues))
        """By residue; one, if all are the same bookies."""

    @property
    def _is_striped(self) -> bool:
        """Whether there are ids that some bookie of the ensemble does not hold."""
        return self.quorum.ensemble > self.quorum.write

    def is_current(self, index: int, generation: int) -> bool:
        """Return True iff an answer of *generation* is of the bookie now at *index*."""
        return self.slots[index].generation == generation

    def wants(self, index: int, first: int, last: int) -> bool:
        """Return True iff *index* holds any id of first..last; if not, the range is stored.

        An empty range is not wanted."""
        if not self._is_striped and first <= last:
            return True
        if any(holds(index, entry, self.quorum) for entry in self._some(first, last)):
            return True
        self.slots[index].stored.add(first, last)
        return False

    def takers(self, indexes: Iterable[int], first: int, last: int) -> Iterator[tuple[int, Slot]]:
        """Yield those of *indexes* to which first..last is to be sent."""
        for index in indexes:
            slot = self.slots[index]
            if not slot.down and self.wants(index, first, last):
                yield index, slot

    def stored(self, index: int, generation: int, first: int, last: int) -> None:
        if self.is_current(index, generation):
            self.slots[index].stored.add(first, last)

    def replace(self, index: int, bookie: BookieId) -> None:
        """Put *bookie* at *index*; all that the index stored above `confirmed` is un-set."""
        self.slots[index] = Slot(bookie, self.slots[index].generation + 1)
        self.bookies = tuple(slot.bookie for slot in self.slots)

    def quorum_is_up(self) -> bool:
        """Return True iff every write set still has Qa members that are not down."""
        up = [index for index, slot in enumerate(self.slots) if not slot.down]
        return all_reach_ack_quorum(up, self.quorum)

    def advance(self, pushed: int) -> int:
        """Move `confirmed` as far as the stored ranges allow, at most to *pushed*.

        No loop over entries: for the ids of one residue the same write set decides, so its
        Qa-th largest unbroken end is how far they are stored."""
        while self.confirmed < pushed:
            start = self.confirmed + 1
            ends = [slot.stored.end_from(start) for slot in self.slots]
            boundary = min(
                self._first_missing(residue, ends, start)
                for residue in range(len(self._write_sets))
            )
            reached = min(boundary - 1, pushed)
            if reached <= self.confirmed:
                break
            self.confirmed = reached
        for slot in self.slots:
            slot.stored.drop_below(self.confirmed + 1)
        return self.confirmed

    def _first_missing(self, residue: int, ends: list[int], start: int) -> int:
        """Return the first id >= start of *residue*, modulo how many write sets there are, that Qa
        of its write set have not stored."""
        stored = sorted((ends[index] for index in self._write_sets[residue]), reverse=True)
        after = max(stored[self.quorum.ack - 1] + 1, start)
        return after + (residue - after) % len(self._write_sets)

    def _some(self, first: int, last: int) -> range:
        """Return enough of first..last to meet every residue once."""
        return range(first, min(last, first + self.quorum.ensemble - 1) + 1)
