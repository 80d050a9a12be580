"""How much of a ledger is on some bookies, by its metadata alone. Pure.

Bytes are payload, and an estimate: entries of a ledger count as if all were of one size, and those
of a ledger that is not CLOSED as nothing, as its length is not known."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from ledger.ids import BookieId
from ledger.metadata import LedgerMetadata
from ledger.quorum import Quorum, holds, write_set


@dataclass(frozen=True, slots=True)
class Weight:
    """What bookies hold of ledgers: copies, so that an entry on two of them counts twice."""

    ledgers: int = 0
    fragments: int = 0
    """Fragments that name one of them; empty ones too."""
    entries: int = 0
    """Of what is settled."""
    bytes: int = 0
    open: int = 0
    """Of the fragments: last ones of ledgers that are not CLOSED. Their entries are not counted, as
    the metadata does not know how many there are."""

    def plus(self, other: "Weight") -> Self:
        return type(self)(
            self.ledgers + other.ledgers,
            self.fragments + other.fragments,
            self.entries + other.entries,
            self.bytes + other.bytes,
            self.open + other.open,
        )


def weight_of(metadata: LedgerMetadata, bookies: Collection[BookieId]) -> Weight:
    """Return what *bookies* hold of the ledger."""
    fragments = entries = unsettled = 0
    for fragment in metadata.fragments:
        indexes = [i for i, bookie in enumerate(fragment.bookies) if bookie in bookies]
        end = metadata.settled_end(fragment)
        fragments += bool(indexes)
        if end is None:
            unsettled += bool(indexes)
        else:
            entries += sum(
                _held(index, fragment.first_entry, end, metadata.quorum) for index in indexes
            )
    size_bytes = 0
    if metadata.length and metadata.last_entry is not None:
        size_bytes = metadata.length * entries // (metadata.last_entry + 1)
    return Weight(int(fragments > 0), fragments, entries, size_bytes, unsettled)


def has_no_source(metadata: LedgerMetadata, there: Collection[BookieId]) -> bool:
    """Return whether there are settled entries of which none of *there* should have a copy."""
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None:
            continue
        some = range(fragment.first_entry, end + 1)[: metadata.quorum.ensemble]
        for entry_id in some:
            holders = (fragment.bookies[i] for i in write_set(entry_id, metadata.quorum))
            if not any(holder in there for holder in holders):
                return True
    return False


def _held(index: int, first: int, last: int, quorum: Quorum) -> int:
    """Return how many of first..last *index* holds."""
    rounds, rest = divmod(max(0, last - first + 1), quorum.ensemble)
    return rounds * quorum.write + sum(
        holds(index, entry_id, quorum) for entry_id in range(last - rest + 1, last + 1)
    )
