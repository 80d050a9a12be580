"""What writers told and readers wrote down, and whether it is one history."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(slots=True)
class Seen:
    """What one reader was given."""

    records: dict[int, bytes]
    gaps: list[tuple[int, int]]
    """Records it was told are gone: from, up to."""
    end: int

    def missed(self, offset: int) -> bool:
        return any(first <= offset < end for first, end in self.gaps)


@dataclass(slots=True)
class History:
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Record by offset."""
    times: list[float] = field(default_factory=list)
    refused: int = 0
    truncated_before: int = 0
    """The highest truncation that was asked for."""
    broken: list[str] = field(default_factory=list)
    _records: set[bytes] = field(default_factory=set)
    _epochs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """First and last offset that was acknowledged in each epoch."""

    def told(self, offset: int, record: bytes, epoch: int) -> None:
        before = self.acknowledged.setdefault(offset, record)
        if before != record:
            self.broken.append(f"offset {offset} was acknowledged as {before!r} and {record!r}")
        if record in self._records:
            self.broken.append(f"{record!r} was acknowledged twice")
        self._records.add(record)
        first, last = self._epochs.get(epoch, (offset, offset))
        self._epochs[epoch] = min(first, offset), max(last, offset)

    @property
    def epochs(self) -> int:
        return len(self._epochs)

    def longest_outage(self, begin: float, end: float) -> float:
        """Return the longest time without an acknowledgement that reaches into *begin* to *end*."""
        times = self.times
        near = times[max(0, bisect_left(times, begin) - 1) : bisect_right(times, end) + 1]
        return max((b - a for a, b in pairwise(near)), default=end - begin)

    def check(self, readers: dict[str, Seen], end: int) -> None:
        """Every reader has every acknowledged record, once, in order, and all have the same."""
        found = list(self.broken)
        for (epoch, (_, last)), (later, (first, _)) in pairwise(sorted(self._epochs.items())):
            if last >= first:
                found.append(f"epoch {epoch} acknowledged offset {last}, epoch {later} {first}")
        everything: dict[int, bytes] = {}
        for name, seen in readers.items():
            found += self._check_reader(name, seen, end, everything)
        offsets: dict[bytes, int] = {}
        for offset, record in everything.items():
            if (other := offsets.setdefault(record, offset)) != offset:
                found.append(f"{record!r} is at offsets {other} and {offset}")
        found += _out_of_order(everything)
        assert not found, f"{len(found)} promises broken:\n" + "\n".join(found[:40])

    def _check_reader(
        self, name: str, seen: Seen, end: int, everything: dict[int, bytes]
    ) -> Iterable[str]:
        if seen.end != end:
            yield f"{name} read up to {seen.end}, the log ends at {end}"
        for first, to in seen.gaps:
            if to > self.truncated_before:
                yield f"{name} was told {first} to {to} is gone, up to {self.truncated_before} may"
        for offset, record in self.acknowledged.items():
            got = seen.records.get(offset)
            if got != record and not (got is None and seen.missed(offset)):
                yield f"{name} got {got!r} at {offset}, where {record!r} was acknowledged"
        for offset, record in seen.records.items():
            if everything.setdefault(offset, record) != record:
                yield f"{name} got {record!r} at {offset}, another {everything[offset]!r}"


def seen_by(path: Path) -> Seen:
    """Read what a reader wrote down. Raises AssertionError where it skips or goes back."""
    seen = Seen({}, [], 0)
    for line in path.read_bytes().splitlines():
        first, *rest = line.split()
        if first == b"trimmed":
            begin, end = map(int, rest)
            assert begin == seen.end or not seen.records, f"{path.name}: {line!r} at {seen.end}"
            assert begin < end, f"{path.name}: {line!r}"
            seen.gaps.append((begin, end))
            seen.end = end
            continue
        offset = int(first)
        if not seen.records and not seen.gaps and offset:
            seen.gaps.append((0, offset))  # the log began there when it was opened
            seen.end = offset
        assert offset == seen.end, f"{path.name}: got {offset}, {seen.end} was next"
        seen.records[offset] = rest[0]
        seen.end = offset + 1
    return seen


def _out_of_order(records: dict[int, bytes]) -> Iterable[str]:
    """Records of one life must stand in the order of its appends."""
    last: dict[bytes, int] = {}
    for offset in sorted(records):
        life, _, sequence = records[offset].rpartition(b":")
        if int(sequence) <= last.get(life, -1):
            yield f"{records[offset]!r} at {offset} stands behind {last[life]} of its life"
        last[life] = int(sequence)
