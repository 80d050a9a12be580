"""How much bookies hold, and which copies move to make them equally full. Pure.

It is decided of each ledger alone, in one pass over all. Only what is CLOSED moves, from a bookie
that holds more than the mean to one that holds less, and only if one of the two is far from it. A
ledger moves at most once in a pass.

Bytes are payload, and an estimate: entries of a ledger count as if all were of one size, and those
of a ledger that is not CLOSED as nothing, as its length is not known.

Invariants:
    a move makes the fuller of its two bookies emptier: the pass ends, and the next one continues
    no fragment gets a bookie twice, none spans fewer racks than before
    no more is moved than was allowed
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from ledger.ids import BookieId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum, holds, write_set

TOLERANCE: Final = 0.1


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


def members_of(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return all bookies that the ledger names, of empty fragments too."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.bookies)


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


@dataclass(frozen=True, slots=True)
class Move:
    """What *source* holds of a ledger goes to *target*."""

    source: BookieId
    target: BookieId
    bytes: int
    """See `weight_of`."""


class Rebalancing:
    """Fed with one ledger after the other."""

    def __init__(
        self,
        loads: Mapping[BookieId, int],
        *,
        racks: Mapping[BookieId, str],
        tolerance: float = TOLERANCE,
        bytes_max: int | None = None,
    ) -> None:
        """*loads*: bytes that each bookie holds which may give and take; also those with nothing.
        *tolerance*: how far from the mean, as a share of it, is not far.
        *bytes_max*: what moves in all; None: no bound."""
        assert tolerance >= 0
        self.loads = dict(loads)
        """What each will hold when all moves so far are made."""
        self.moved_bytes = 0
        self._racks, self._bytes_max = racks, bytes_max
        self._mean = sum(loads.values()) / len(loads) if loads else 0.0
        self._near = self._mean * (1 - tolerance), self._mean * (1 + tolerance)

    @property
    def is_even(self) -> bool:
        """Whether all bookies hold much the same."""
        return not any(map(self._is_far, self.loads.values()))

    def choose(self, metadata: LedgerMetadata) -> Move | None:
        """Return what of the ledger is to be moved, and count it as moved; None: nothing."""
        if metadata.state is not LedgerState.CLOSED:
            return None
        giving = [b for b in members_of(metadata) & self.loads.keys() if self.loads[b] > self._mean]
        for source in sorted(giving, key=lambda bookie: (-self.loads[bookie], bookie)):
            size_bytes = weight_of(metadata, {source}).bytes
            target = self._target(metadata, source, size_bytes)
            if target is not None:
                self.loads[source] -= size_bytes
                self.loads[target] += size_bytes
                self.moved_bytes += size_bytes
                return Move(source, target, size_bytes)
        return None

    def _target(
        self, metadata: LedgerMetadata, source: BookieId, size_bytes: int
    ) -> BookieId | None:
        """Return the emptiest bookie that can take what *source* has of the ledger."""
        too_much = self._bytes_max is not None and self.moved_bytes + size_bytes > self._bytes_max
        if not size_bytes or too_much:
            return None
        concerned = [each for each in metadata.fragments if source in each.bookies]
        for target in sorted(self.loads, key=lambda bookie: (self.loads[bookie], bookie)):
            load = self.loads[target]
            is_far = self._is_far(load) or self._is_far(self.loads[source])
            if load >= self._mean or load + size_bytes >= self.loads[source] or not is_far:
                return None  # and so it is with all that come after it
            if all(self._may_swap(fragment, source, target) for fragment in concerned):
                return target
        return None

    def _is_far(self, load: int) -> bool:
        """Return whether *load* is far from the mean."""
        least, most = self._near
        return not least <= load <= most

    def _may_swap(self, fragment: Fragment, source: BookieId, target: BookieId) -> bool:
        if target in fragment.bookies:
            return False
        before = {self._racks.get(bookie, "") for bookie in fragment.bookies}
        after = {self._racks.get(b, "") for b in fragment.bookies if b != source}
        return len(after | {self._racks.get(target, "")}) >= len(before)
