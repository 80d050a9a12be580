"""Records that carry the offset they must have, so that each says whether one was lost or doubled.

Invariant: value n is at offset n. A lost record makes all that follow come too early, a doubled
one too late.
"""

import struct
from collections.abc import Iterable
from typing import Final

from dlog.position import Record

_NUMBER: Final = struct.Struct(">Q")
NUMBER_BYTES: Final = _NUMBER.size
"""A record has no less."""


def numbered(number: int, size: int) -> bytes:
    """Return a value of *size* bytes that carries *number*."""
    return _NUMBER.pack(number).ljust(size, b"\0")


class Checked:
    """Takes records in the order of their offsets, from 0 on."""

    def __init__(self) -> None:
        self.records = 0
        self.end = 0
        """After the last number that came or had to come."""
        self.lost = 0
        """Numbers that did not come."""
        self.doubled = 0
        """Records with a number that had come before."""

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            (number,) = _NUMBER.unpack_from(record.value)
            self.count(number)

    def count(self, number: int) -> None:
        """Take the record with this number."""
        self.records += 1
        if number < self.end:
            self.doubled += 1
        else:
            self.expect(number)
            self.end = number + 1

    def expect(self, end: int) -> None:
        """Count as lost what is below *end* and has not come."""
        self.lost += max(0, end - self.end)
        self.end = max(self.end, end)
