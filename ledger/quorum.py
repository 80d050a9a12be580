"""Quorum arithmetic: who holds an entry, when it is replicated, when a read of all is enough.

Functions on values only; tested exhaustively against a brute-force model (rules 1, 39, 43).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ledger.errors import InvalidQuorum

ENSEMBLE_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Quorum:
    """Sizes of a ledger: ensemble E, write quorum Qw, ack quorum Qa."""

    ensemble: int = 3
    write: int = 3
    ack: int = 2

    def __post_init__(self) -> None:
        reason = ""
        if self.ack < 1:
            reason = "the ack quorum must be at least 1"
        elif self.write < self.ack:
            reason = "the write quorum is smaller than the ack quorum"
        elif self.ensemble < self.write:
            reason = "the ensemble is smaller than the write quorum"
        elif self.ensemble > ENSEMBLE_MAX:
            reason = f"the ensemble is larger than {ENSEMBLE_MAX}"
        if reason:
            raise InvalidQuorum(self.ensemble, self.write, self.ack, reason)

    @property
    def coverage(self) -> int:
        """How many of a write set must answer so that fewer than Qa are left: Qw - Qa + 1."""
        return self.write - self.ack + 1


def write_set(entry_id: int, quorum: Quorum) -> tuple[int, ...]:
    """Return the ensemble indexes that hold *entry_id*, in order: (e + i) mod E."""
    start = entry_id % quorum.ensemble
    return tuple((start + i) % quorum.ensemble for i in range(quorum.write))


def holds(index: int, entry_id: int, quorum: Quorum) -> bool:
    """Return True iff ensemble index *index* is in the write set of *entry_id*."""
    return (index - entry_id) % quorum.ensemble < quorum.write


def all_reach_ack_quorum(present: Collection[int], quorum: Quorum) -> bool:
    """Return True iff every write set has at least Qa of the indexes *present*: without the others,
    every entry can be acknowledged."""
    return all(
        sum(index in present for index in write_set(residue, quorum)) >= quorum.ack
        for residue in range(quorum.ensemble)
    )


def all_covered(answered: Collection[int], quorum: Quorum) -> bool:
    """Return True iff every write set has at least Qw - Qa + 1 of the indexes *answered*.

    Then no write set has Qa members left that have not answered: nothing can be
    acknowledged without one that has (rule 39)."""
    return all(covered(answered, residue, quorum) for residue in range(quorum.ensemble))


def covered(answered: Collection[int], entry_id: int, quorum: Quorum) -> bool:
    """Return True iff at least Qw - Qa + 1 of *entry_id*'s write set are in *answered*."""
    count = sum(1 for index in write_set(entry_id, quorum) if index in answered)
    return count >= quorum.coverage
