"""A set of entry ids kept as ranges: acknowledgements that come as ranges, and what bookies hold.

Invariant: ranges are disjoint, not adjacent, and ascending.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """Entry ids as inclusive ranges; nearly always one of them."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add all ids of first..last; an empty range (last < first) adds nothing."""
        if last < first:
            return
        start = bisect_right(self._lasts, first - 2)
        end = bisect_right(self._firsts, last + 1)
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]

    def end_from(self, first: int) -> int:
        """Return the last id of the unbroken run that begins at *first*; first - 1 if none."""
        index = bisect_right(self._firsts, first) - 1
        if index < 0 or self._lasts[index] < first:
            return first - 1
        return self._lasts[index]

    def drop_below(self, first: int) -> None:
        """Forget all ids below *first*."""
        keep = bisect_right(self._lasts, first - 1)
        del self._firsts[:keep], self._lasts[:keep]
        if self._firsts and self._firsts[0] < first:
            self._firsts[0] = first

    def remove(self, first: int, last: int) -> None:
        """Forget all ids of first..last; an empty range forgets nothing."""
        if last < first:
            return
        start = bisect_left(self._lasts, first)
        end = bisect_right(self._firsts, last)
        kept = list(zip(self._firsts[start:end], self._lasts[start:end], strict=True))
        rest = [(low, min(high, first - 1)) for low, high in kept[:1] if low < first]
        rest += [(max(low, last + 1), high) for low, high in kept[-1:] if high > last]
        self._firsts[start:end] = [low for low, _ in rest]
        self._lasts[start:end] = [high for _, high in rest]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of it in first..last, as (first, last), ascending."""
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                return
            yield max(first, self._firsts[at]), min(last, self._lasts[at])

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
        return f"Ranges({list(zip(self._firsts, self._lasts, strict=True))})"
