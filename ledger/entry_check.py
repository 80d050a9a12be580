"""Pure: what can be wrong with one bookie's copy of an entry, judged by what the others gave."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from ledger.entry import Header
from ledger.ids import BookieId


class ReplicaFault(Enum):
    """What is wrong with one bookie's copy of an entry."""

    MISSING = "missing"
    """The bookie says that it does not have the entry."""
    DAMAGED = "damaged"
    """Its bytes fail the checksum or the authentication code."""
    DIFFERENT = "different"
    """Whole by itself, and not what most other replicas are."""
    UNREADABLE = "unreadable"
    """The bookie reports an error for the entry."""
    REFUSED = "refused"
    """The bookie neither gives the entry nor says that it has it not: it is in limbo, or holds the
    ledger under another key."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer."""


def judge_replicas(
    entry_id: int, holders: Iterable[BookieId], found: Mapping[BookieId, Header]
) -> tuple[Header | None, tuple[BookieId, ...]]:
    """Return the header that most of *holders* gave, and who gave another one.

    A draw goes to the ensemble's order, which is the same each time."""
    given = [(bookie, found[bookie]) for bookie in holders if bookie in found]
    if not given:
        return None, ()
    votes = Counter(header for _, header in given)
    most = max(votes.values())
    right = next(header for _, header in given if votes[header] == most)
    assert right.entry_id == entry_id, "the header of another entry"
    return right, tuple(bookie for bookie, header in given if header != right)
