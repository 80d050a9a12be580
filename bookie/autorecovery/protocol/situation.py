"""What a repair knows of a ledger when it has read all, and what follows for its fragments.

Pure. Whether a copy is to be moved, filled up in place or left alone depends on why its bookie is
marked, and on whether it is there: a bookie that came back is not moved from, unless it is to be
emptied or stands badly.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from bookie.autorecovery.protocol.replication_events import Leaving
from ledger.ids import BookieId
from ledger.mark import Lack, Mark, Reason
from ledger.metadata import Fragment, LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    mark: Mark
    metadata: LedgerMetadata
    version: int
    """Of the metadata."""
    registered: frozenset[BookieId]
    leaving: Leaving
    into: frozenset[BookieId] | None
    """Who may get copies that move; None: whoever is writable."""

    def concerns(self, fragment: Fragment) -> bool:
        """Return whether *fragment* may lack what a bookie of the mark should hold."""
        return any(self._may_lack(lack, fragment) for lack in self._lacks_in(fragment))

    def must_go(self, bookie: BookieId, fragment: Fragment) -> bool:
        """Return whether what *bookie* holds of *fragment* is to be moved: it is marked, and not
        back."""
        lack = self.mark.lack_of(bookie)
        if lack is None:
            return False
        if bookie in self.leaving.bookies:
            return True
        if lack.reason is Reason.MISPLACED:
            # Where to is decided already; else it depends on what is better.
            return self.into is not None and bookie in self.registered
        given_up = lack.reason in {Reason.LOST, Reason.DECOMMISSIONING, Reason.AWAY}
        there = bookie in self.registered
        return given_up and not there and self._may_lack(lack, fragment)

    def must_be_out(self, bookie: BookieId) -> bool:
        """Return whether no fragment may name it in the end, not even an empty one."""
        lack = self.mark.lack_of(bookie)
        emptied = lack is not None and lack.reason is Reason.DECOMMISSIONING
        return bookie in self.leaving.bookies or emptied

    def is_worth_a_fence(self, bookie: BookieId) -> bool:
        """Return whether a writer is disturbed for it: not to spread copies better, and not for a
        bookie that is only away. The writer knows of that one, and leaves it when it can."""
        lack = self.mark.lack_of(bookie)
        gentle = lack is None or lack.reason in {Reason.MISPLACED, Reason.AWAY}
        return bookie in self.leaving.bookies or not gentle

    def members_to_ask(self, fragment: Fragment) -> frozenset[BookieId]:
        """Return the marked members that are there."""
        return self.mark.bookies.intersection(fragment.bookies) & self.registered

    def marked_since_ms(self, bookies: Iterable[BookieId]) -> int:
        """Return since when all of *bookies*, which the mark names, are marked."""
        lacks = map(self.mark.lack_of, bookies)
        return max(lack.since_ms for lack in lacks if lack is not None)

    def not_wanted(self) -> tuple[BookieId, ...]:
        """Return who must not get copies. Who lacks some here may get others: where all lack some,
        and one leaves, nobody else could take its place."""
        not_wanted = self.leaving.bookies
        if self.into is not None:
            not_wanted |= self.registered - self.into
        return tuple(sorted(not_wanted))

    def may_be_misplaced(self, fragment: Fragment) -> bool:
        """Return whether to look for a better ensemble: only where every source is there."""
        if not self.registered.issuperset(fragment.bookies):
            return False
        return any(lack.reason is Reason.MISPLACED for lack in self._lacks_in(fragment))

    def lacks_entries(self, fragment: Fragment) -> bool:
        """Return whether a member is marked for more than its place."""
        return any(lack.reason is not Reason.MISPLACED for lack in self._lacks_in(fragment))

    def was_written_without(self, fragment: Fragment) -> bool:
        """Return whether *fragment*, which is open, was written without one of its bookies."""
        return any(lack.fragment >= fragment.first_entry for lack in self._lacks_in(fragment))

    def without_who_left(self, mark: Mark) -> Mark:
        """Return *mark* without bookies that are to be emptied and that no fragment names any more:
        what else the ledger lacks must not keep them. If one is named again, it is marked again."""
        named = {bookie for fragment in self.metadata.fragments for bookie in fragment.bookies}
        kept = tuple(
            lack
            for lack in mark.lacks
            if lack.bookie in named or lack.reason is not Reason.DECOMMISSIONING
        )
        return replace(mark, lacks=kept) if kept else mark

    def _lacks_in(self, fragment: Fragment) -> list[Lack]:
        return [lack for lack in self.mark.lacks if lack.bookie in fragment.bookies]

    def _may_lack(self, lack: Lack, fragment: Fragment) -> bool:
        """Return whether *fragment* may lack copies because of *lack*.

        A writer says which ones it wrote without the bookie. A recovery may have written the last
        one of a CLOSED ledger without it."""
        if lack.reason is not Reason.AWAY or self.metadata.state is LedgerState.CLOSED:
            return True
        return fragment.first_entry <= lack.fragment
