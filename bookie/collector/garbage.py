"""Pure: which ledgers of a bookie are garbage (rule 68).

A ledger may be deleted here only if all of this is so:
    it was here before the listing of the metadata store began, so it cannot be one that is made
        meanwhile
    the listing came to its end without an error, and does not name it
    a read of its own, after that, says that it does not exist
Whatever else happens, nothing at all is deleted (#870, #865, BK-955, BK-956, #4731). The one who
asks has to bring answers that are no older than the question.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

CANDIDATES_MAX = 10_000
"""Ledgers that one collection verifies and deletes, at most; the next one goes on."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Ledgers that the listing does not name, each to be verified by a read of its own."""

    ledger_ids: tuple[int, ...]


def candidates(snapshot: Iterable[int], listed: Collection[int]) -> Candidates:
    """Requires that *snapshot* was taken before the listing began, and *listed* is all of it."""
    named = dict.fromkeys(listed)
    missing = (ledger_id for ledger_id in snapshot if ledger_id not in named)
    return Candidates(tuple(islice(missing, CANDIDATES_MAX)))


def verified(chosen: Candidates, absent: Sequence[int]) -> tuple[int, ...]:
    """Return what to delete, of *absent*: those that a read said do not exist."""
    gone = dict.fromkeys(absent)
    assert all(ledger_id in chosen.ledger_ids for ledger_id in gone) or not gone
    return tuple(ledger_id for ledger_id in chosen.ledger_ids if ledger_id in gone)
