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
    ranges are disjoint, not adjacent, and ascending
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from ledger.ids import BookieId
from ledger.quorum import Quorum, all_reach_ack_quorum, holds, write_set


class Ranges:
    """Entry ids as inclusive ranges; nearly always one of them."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add all ids of first..last; an empty range (last < first) adds nothing."""
        if last < first:
            return
        if not self.lasts:
            self.firsts.append(first)
            self.lasts.append(last)
            return
        start = bisect_right(self.lasts, first - 2)
        end = bisect_right(self.firsts, last + 1)
        if start < end:
            first = min(first, self.firsts[start])
            last = max(last, self.lasts[end - 1])
        self.firsts[start:end] = [first]
        self.lasts[start:end] = [last]

    def end_from(self, first: int) -> int:
        """Return the last id of the unbroken run that begins at *first*; first - 1 if none."""
        index = bisect_right(self.firsts, first) - 1
        if index < 0 or self.lasts[index] < first:
            return first - 1
        return self.lasts[index]

    def drop_below(self, first: int) -> None:
        """Forget all ids below *first*."""
        keep = bisect_right(self.lasts, first - 1)
        del self.firsts[:keep], self.lasts[:keep]
        if self.firsts and self.firsts[0] < first:
            self.firsts[0] = first

    def remove(self, first: int, last: int) -> None:
        """Forget all ids of first..last; an empty range forgets nothing."""
        if last < first:
            return
        start = bisect_left(self.lasts, first)
        end = bisect_right(self.firsts, last)
        kept = list(zip(self.firsts[start:end], self.lasts[start:end], strict=True))
        rest = [(low, min(high, first - 1)) for low, high in kept[:1] if low < first]
        rest += [(max(low, last + 1), high) for low, high in kept[-1:] if high > last]
        self.firsts[start:end] = [low for low, _ in rest]
        self.lasts[start:end] = [high for _, high in rest]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of it in first..last, as (first, last), ascending."""
        for at in range(bisect_left(self.lasts, first), len(self.firsts)):
            if self.firsts[at] > last:
                return
            yield max(first, self.firsts[at]), min(last, self.lasts[at])

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield what of first..last is not in it, as (first, last), ascending."""
        at = first
        for low, high in self.between(first, last):
            if at < low:
                yield at, low - 1
            at = high + 1
        if at <= last:
            yield at, last

    def __contains__(self, entry_id: int) -> bool:
        return self.end_from(entry_id) >= entry_id

    def __repr__(self) -> str:
        return f"Ranges({list(zip(self.firsts, self.lasts, strict=True))})"


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
        self.is_striped = quorum.ensemble > quorum.write
        """Whether there are ids that some bookie of the ensemble does not hold."""
        residues = quorum.ensemble if self.is_striped else 1
        self._write_sets = tuple(write_set(residue, quorum) for residue in range(residues))
        """By residue; one, if all are the same bookies."""

    def is_current(self, index: int, generation: int) -> bool:
        """Return True iff an answer of *generation* is of the bookie now at *index*."""
        return self.slots[index].generation == generation

    def wants(self, index: int, first: int, last: int) -> bool:
        """Return True iff *index* holds any id of first..last; if not, the range is stored.

        An empty range is not wanted."""
        if not self.is_striped and first <= last:
            return True
        if any(holds(index, entry, self.quorum) for entry in self._some(first, last)):
            return True
        self.slots[index].stored.add(first, last)
        return False

    def takers(self, indexes: Iterable[int], first: int, last: int) -> list[tuple[int, Slot]]:
        """Return those of *indexes* to which first..last is to be sent."""
        up: list[tuple[int, Slot]] = []
        for index in indexes:
            slot = self.slots[index]
            if not slot.down:
                up.append((index, slot))
        if not self.is_striped and first <= last:
            return up
        return [(index, slot) for index, slot in up if self.wants(index, first, last)]

    def stored(self, index: int, generation: int, first: int, last: int) -> None:
        slot = self.slots[index]
        if slot.generation == generation and last > self.confirmed:  # else nobody asks for it
            stored = slot.stored
            if stored.lasts or last < first:
                stored.add(first, last)
            else:  # nothing is stored above what is confirmed: calls are left to what is rare
                stored.firsts.append(first)
                stored.lasts.append(last)

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
        before = self.confirmed
        while self.confirmed < pushed:
            start = self.confirmed + 1
            ends: list[int] = []
            for slot in self.slots:
                firsts, lasts = slot.stored.firsts, slot.stored.lasts
                if not lasts:
                    ends.append(start - 1)
                elif firsts[0] <= start <= lasts[0]:
                    ends.append(lasts[0])
                else:
                    ends.append(slot.stored.end_from(start))
            if self.is_striped:
                residues = range(len(self._write_sets))
                boundary = min(self._first_missing(residue, ends, start) for residue in residues)
                reached = min(boundary - 1, pushed)
            else:  # all entries have one write set, which is all slots
                ends.sort(reverse=True)
                reached = min(ends[self.quorum.ack - 1], pushed)
            if reached <= self.confirmed:
                break
            self.confirmed = reached
        if self.confirmed > before:
            for slot in self.slots:
                stored = slot.stored
                if not stored.lasts:
                    continue
                if stored.lasts[-1] <= self.confirmed:
                    stored.firsts.clear()
                    stored.lasts.clear()
                else:
                    stored.drop_below(self.confirmed + 1)
        return self.confirmed

    def _first_missing(self, residue: int, ends: list[int], start: int) -> int:
        """Return the first id >= start of *residue*, modulo how many write sets there are, that Qa
        of its write set have not stored."""
        stored = sorted(map(ends.__getitem__, self._write_sets[residue]), reverse=True)
        after = max(stored[self.quorum.ack - 1] + 1, start)
        return after + (residue - after) % len(self._write_sets)

    def _some(self, first: int, last: int) -> range:
        """Return enough of first..last to meet every residue once."""
        return range(first, min(last, first + self.quorum.ensemble - 1) + 1)
