"""Which ledgers go from full bookies to empty ones: each decided alone, in one pass over all. Pure.

Only what is CLOSED moves, from a bookie that holds more than the mean to one that holds less, and
only if one of the two is far from it. A ledger moves at most once in a pass.

Invariants:
    a move makes the fuller of its two bookies emptier: the pass ends, and the next one goes on
    no fragment gets a bookie twice, none spans fewer racks than before
    no more is moved than was allowed
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie.autorecovery.protocol.ledger_weight import weight_of
from ledger.ids import BookieId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState

TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Move:
    """What *source* holds of a ledger goes to *target*."""

    source: BookieId
    target: BookieId
    bytes: int
    """See `ledger_weight`."""


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
        *tolerance*: so much more or less than the mean is much the same, as a share of it.
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
        members = {bookie for fragment in metadata.fragments for bookie in fragment.bookies}
        giving = [b for b in members & self.loads.keys() if self.loads[b] > self._mean]
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
