"""Places in a log, and the record that stands at one.

A record has one *offset* (dense, for programs) and one *DLSN* (where it physically is: order
by DLSN is order by offset). Named tuples: a reader makes millions of them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, NamedTuple, Self, overload

from dlog.headers import NO_HEADERS, Headers

NO_TXID: Final = -(2**63)
"""Stands for "no txid" in formats; never a txid itself."""
TXID_MAX: Final = 2**63 - 1

TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The times of records: milliseconds since 1970 within the years 1 to 9999, which the calendars of
Python, Arrow and Spark share. Records of older programs may have others."""


def timestamp_error(timestamp_ms: int) -> str | None:
    """Return why *timestamp_ms* cannot be the time of a record; None: it can. Guesses the unit."""
    if TIMESTAMP_MS_MIN <= timestamp_ms <= TIMESTAMP_MS_MAX:
        return None
    reason = "outside of the years 1 to 9999; give milliseconds since 1970"
    for unit, per_ms in (("microseconds", 1_000), ("nanoseconds", 1_000_000)):
        year = 1970 + timestamp_ms / per_ms / _YEAR_MS
        if _YEARS_LIKELY[0] <= year <= _YEARS_LIKELY[1]:
            return f"{reason} (as {unit} it would be the year {year:.0f}: divide by {per_ms:,})"
    return reason


_YEAR_MS: Final = 31_556_952_000
_YEARS_LIKELY: Final = (1971, 2200)


class DLSN(NamedTuple):
    """Physical place of a record: segment number, entry in its ledger, slot in the entry."""

    segment: int
    entry: int
    slot: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}:{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `str` wrote. Raises ValueError."""
        parts = text.split(":")
        if len(parts) != len(cls._fields) or not all(part.isdecimal() for part in parts):
            raise ValueError(f"{text!r} is no DLSN; write segment:entry:slot, as 3:17:0")
        return cls(*map(int, parts))


class Position(int):
    """The offset of the record that is read next, and which incarnation of the log it belongs to.

    It is the offset, so it compares and counts as one. To keep it in a file or a database store
    `str(position)`, as "120@6f3a...": a number alone means another record once the log was
    deleted and re-created, or renamed while another one took its name."""

    incarnation: str | None
    """None: not known, as in a reader that has not looked at its log."""

    def __new__(cls, offset: int, incarnation: str | None = None) -> Self:
        position = super().__new__(cls, offset)
        position.incarnation = incarnation
        return position

    @property
    def offset(self) -> int:
        return int(self)

    def __str__(self) -> str:
        return f"{int(self)}" if self.incarnation is None else f"{int(self)}@{self.incarnation}"

    def __repr__(self) -> str:
        return f"Position({int(self)}, {self.incarnation!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (int(self), self.incarnation)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `str` wrote. Raises ValueError."""
        offset, at, incarnation = text.partition("@")
        is_offset = offset.isascii() and offset.isdecimal() and int(offset) < 2**63
        if not is_offset or (at and not _INCARNATION.fullmatch(incarnation)):
            raise ValueError(f"{text!r} is no position; write offset@incarnation, as str() does")
        return cls(int(offset), incarnation or None)


_INCARNATION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class RecordId(NamedTuple):
    """What an append resolves to."""

    offset: int
    dlsn: DLSN


class Place(NamedTuple):
    """Where the records of one entry are. All of them share it, so none costs a DLSN that
    nobody asks for."""

    segment: int
    entry: int
    first_offset: int

    def dlsn(self, offset: int) -> DLSN:
        """Return where the record at *offset* is. Requires that it is one of this entry's."""
        return DLSN(self.segment, self.entry, offset - self.first_offset)


@dataclass(frozen=True, slots=True)
class Span:
    """Records that follow each other in one entry."""

    offset: int
    segment: int
    entry: int
    slot: int
    count: int


class RecordIds(Sequence[RecordId]):
    """What `append_many` resolves to: the ids of its records, in order; offsets are dense."""

    __slots__ = ("_spans", "first_offset")

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = tuple(spans)
        self.first_offset = self._spans[0].offset

    @property
    def end_offset(self) -> int:
        """The offset after the last one."""
        return self._spans[-1].offset + self._spans[-1].count

    def __len__(self) -> int:
        return self.end_offset - self.first_offset

    @overload
    def __getitem__(self, index: int, /) -> RecordId: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[RecordId]: ...
    def __getitem__(self, index: int | slice, /) -> RecordId | list[RecordId]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        offset = range(self.first_offset, self.end_offset)[index]
        span = next(s for s in self._spans if offset < s.offset + s.count)
        slot = span.slot + offset - span.offset
        return RecordId(offset, DLSN(span.segment, span.entry, slot))

    def __repr__(self) -> str:
        return f"RecordIds({self[0]} to {self[-1]})"


class Record(NamedTuple):
    """One record as a reader gets it."""

    offset: int
    place: Place
    """Of its entry."""
    timestamp_ms: int
    txid: int | None
    key: bytes | None
    value: bytes
    headers: Headers = NO_HEADERS

    @property
    def dlsn(self) -> DLSN:
        """Where it physically is."""
        return self.place.dlsn(self.offset)


# The generated constructor of a named tuple is a Python call; this one is four times as fast.
new_record: Callable[[tuple[int, Place, int, int | None, bytes | None, bytes, Headers]], Record] = (
    partial(tuple.__new__, Record)
)


@dataclass(frozen=True, slots=True)
class Txid:
    """As a start: the first record whose txid is *value* or larger."""

    value: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """As a start: the first record whose timestamp is *value* (milliseconds) or later.

    Timestamps of different writers need not agree: each segment is looked at by itself, in
    the log's order, and the first one whose newest records reach *value* is searched. Inside
    a segment, which has one writer, timestamps are taken not to decrease. If they do there
    (a clock was set back, or the application gave them so), reading begins with a record
    that reaches *value* and follows a batch that does not; earlier ones may exist."""

    value: int


Start = Literal["start", "end", "earliest", "latest"] | int | DLSN | Txid | Timestamp
"""Where a reader begins: an offset, which may be a `Position`, or one of the other ways to name a
place. "earliest" and "latest" are Kafka's words for "start" and "end"."""

BeyondEnd = Literal["raise", "wait"]
"""What becomes of a start beyond the end of the log."""

Stop = Literal["end", "latest"] | int | DLSN
"""Where a reader ends, exclusive; "end" is the end of the log as it was when it was opened."""
