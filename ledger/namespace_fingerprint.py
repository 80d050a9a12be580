"""What distinguishes a namespace from another at its place, and from an older state of itself.

Two numbers only ever grow: the next ledger id, and how many ledgers were deleted. Who has seen
them larger looks at a store that lost something.
"""

from dataclasses import dataclass
from typing import Protocol


class Counts(Protocol):
    @property
    def next_id(self) -> int: ...
    @property
    def deletions(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NamespaceFingerprint:
    instance: str
    """Empty: there is no namespace."""
    next_id: int
    """No ledger was given this id yet, or a higher one."""
    deletions: int
    """How many ledgers were deleted, ever."""

    def is_older(self, seen: Counts) -> bool:
        """Whether the store cannot have said this after it said *seen*."""
        return self.next_id < seen.next_id or self.deletions < seen.deletions
