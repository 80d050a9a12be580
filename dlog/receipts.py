"""Receipts: what a log knows of the units that sinks have committed, so that none is in it twice.

A sink (`dlog.aio.write.sink`) commits units: all records of one, or none. A unit has a number, and
an origin that numbers its units, as a query its batches. The log keeps the receipt of the last unit
of each origin. What has that number is in the log, or was when it was committed. A lower number
says nothing of the records that bear it: an origin that goes back is refused.

Where it is kept: a unit that is one entry carries its receipt there, and so does each entry after
it in that segment. Whoever seals the segment reads the last entry, and puts its receipt into the
manifest by the same compare-and-swap. A unit of whole ledgers becomes part of the log by a
compare-and-swap anyway.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

ORIGIN_BYTES: Final = 16
"""Of a UUID."""
NUMBER_MAX: Final = 2**63 - 1
ORIGINS_MAX: Final = 256
"""So many origins of a log are known; the one that committed longest ago is forgotten first,
and before it those whose last unit is number 0: writes that are made once, mostly."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Unit *number* of *origin*."""

    origin: bytes
    number: int

    def __post_init__(self) -> None:
        if len(self.origin) != ORIGIN_BYTES:
            raise ValueError(f"an origin has {ORIGIN_BYTES} bytes, not {len(self.origin)}")
        if not 0 <= self.number <= NUMBER_MAX:
            raise ValueError(f"{self.number} is no number of a unit")

    def __str__(self) -> str:
        return f"unit {self.number} of {self.origin.hex()}"


@dataclass(frozen=True, slots=True)
class Receipts:
    """The last one of each origin."""

    each: tuple[Receipt, ...] = ()
    """In the order in which they committed last."""

    def __post_init__(self) -> None:
        origins = {receipt.origin for receipt in self.each}
        assert len(origins) == len(self.each) <= ORIGINS_MAX, "one receipt for each origin"

    def __iter__(self) -> Iterator[Receipt]:
        return iter(self.each)

    def last(self, origin: bytes) -> int | None:
        """Return the number of the last unit of *origin*; None: it is not known."""
        return next((known.number for known in self.each if known.origin == origin), None)

    def has(self, receipt: Receipt) -> bool:
        """True iff that unit or a later one of its origin was committed."""
        last = self.last(receipt.origin)
        return last is not None and receipt.number <= last

    def with_one(self, receipt: Receipt | None) -> Self:
        """Return them with *receipt*; an origin's last number never falls."""
        if receipt is None or self.has(receipt):
            return self
        others = tuple(known for known in self.each if known.origin != receipt.origin)
        if len(others) == ORIGINS_MAX:
            once = (at for at, known in enumerate(others) if known.number == 0)
            forgotten = next(once, 0)
            others = (*others[:forgotten], *others[forgotten + 1 :])
        return type(self)((*others, receipt))
