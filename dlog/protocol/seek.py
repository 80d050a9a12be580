"""Where in a ledger a place is: binary search over the headers of its batches.

The place is the first entry that is *at or past* what is wanted: that ends after a record
index, whose last txid has reached a txid, or whose newest record has reached a time. The first
two grow from entry to entry. Times may not; then the place is one of several where an entry
that has reached the time, or the end, follows one that has not.

Invariant: entry `low` - 1 is before the place, or `low` is 0; entry `high` is not, or is the end.
"""

from dataclasses import dataclass
from typing import assert_never

from dlog.recordbatch import BatchHeader


@dataclass(frozen=True, slots=True)
class Index:
    """The entry that holds the record with this index in the segment."""

    value: int


@dataclass(frozen=True, slots=True)
class Entry:
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


Wanted = Index | Entry | ReachedTxid | ReachedTime


@dataclass(frozen=True, slots=True)
class Found:
    """*entry* is the place, or one past the last entry. *base_index* is its first record's."""

    entry: int
    base_index: int


class Seek:
    """Searches the entries 0..*last_entry* (-1: none)."""

    def __init__(self, wanted: Wanted, last_entry: int) -> None:
        self._wanted = wanted
        self._low = 0
        self._high = last_entry + 1
        self._low_index = 0
        """Index of the first record of entry `low`."""
        if isinstance(wanted, Index) and wanted.value == 0:
            self._high = 0

    def probe(self) -> int | None:
        """Return the entry whose header is to be told next, or None: it is `found`."""
        if self._low == self._high:
            return None
        return (self._low + self._high) // 2

    def tell(self, entry: int, header: BatchHeader, newest_ms: int | None = None) -> None:
        """Go on with the header of the entry that `probe` returned.

        *newest_ms*: its latest timestamp, needed for `ReachedTime`."""
        assert entry == self.probe(), "not the entry that was asked for"
        if self._reached(entry, header, newest_ms):
            self._high = entry
        else:
            self._low = entry + 1
            self._low_index = header.end_index

    @property
    def found(self) -> Found:
        assert self._low == self._high, "the search is not over"
        return Found(self._low, self._low_index)

    def _reached(self, entry: int, header: BatchHeader, newest_ms: int | None) -> bool:
        match self._wanted:
            case Index(value):
                return header.end_index > value
            case Entry(value):
                return entry >= value
            case ReachedTxid(value):
                return header.last_txid >= value
            case ReachedTime(value):
                assert newest_ms is not None
                return newest_ms >= value
            case _:
                assert_never(self._wanted)
