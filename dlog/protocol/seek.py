"""Where in a ledger a place is: binary search over the headers of its batches.

The place is the first entry that is *at or past* what is wanted: that ends after a record
index, whose last txid has reached a txid, or whose newest record has reached a time. The first
two grow from entry to entry. Times may not; then the place is one of several where an entry
that has reached the time, or the end, follows one that has not.

A plain value and no machine: it wants one header after the other and nothing else, waits for
nothing, and a failure of who reads the header concerns it not at all.

Invariant: entry `low` - 1 is before the place, or `low` is 0; entry `high` is not, or is the end.
"""

from dataclasses import dataclass, replace
from typing import Self, assert_never

from dlog.recordbatch import BatchHeader


@dataclass(frozen=True, slots=True)
class Index:
    """The entry that holds the record with this index in the segment."""

    value: int


@dataclass(frozen=True, slots=True)
class ProbedEntry:
    """The entry with this id."""

    value: int


@dataclass(frozen=True, slots=True)
class ReachedTxid:
    """The first entry in which the log's txids reach this one."""

    value: int


@dataclass(frozen=True, slots=True)
class ReachedTime:
    """The first entry with a record of this timestamp, in milliseconds, or later."""

    value: int


Wanted = Index | ProbedEntry | ReachedTxid | ReachedTime


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """*entry* is the place, or one past the last entry. *base_index* is its first record's."""

    entry: int
    base_index: int


@dataclass(frozen=True, slots=True)
class Seek:
    """A search among the entries *low* .. *high* - 1; what is wanted may also be at *high*."""

    wanted: Wanted
    low: int
    high: int
    low_index: int = 0
    """Index of the first record of entry *low*."""

    @classmethod
    def among(cls, wanted: Wanted, last_entry: int) -> Self:
        """Return the search among the entries 0..*last_entry* (-1: none)."""
        at_start = isinstance(wanted, Index) and wanted.value == 0
        return cls(wanted, 0, 0 if at_start else last_entry + 1)

    @property
    def probe(self) -> int | None:
        """The entry whose header is to be looked at next; None: it is `found`."""
        return None if self.low == self.high else (self.low + self.high) // 2

    def narrowed(self, header: BatchHeader, newest_ms: int | None = None) -> Self:
        """Return the search that goes on after the *header* of the entry `probe`.

        *newest_ms*: its latest timestamp, needed for `ReachedTime`."""
        entry = self.probe
        assert entry is not None, "the search is over"
        if self._reached(entry, header, newest_ms):
            return replace(self, high=entry)
        return replace(self, low=entry + 1, low_index=header.end_index)

    @property
    def found(self) -> FoundEntry:
        assert self.low == self.high, "the search is not over"
        return FoundEntry(self.low, self.low_index)

    def _reached(self, entry: int, header: BatchHeader, newest_ms: int | None) -> bool:
        match self.wanted:
            case Index(value):
                return header.end_index > value
            case ProbedEntry(value):
                return entry >= value
            case ReachedTxid(value):
                return header.last_txid >= value
            case ReachedTime(value):
                assert newest_ms is not None
                return newest_ms >= value
            case _:
                assert_never(self.wanted)
