"""Other bookies in the places of those that failed, and what the absence of a bookie asks for.

A change serves the writer and a recovery. Failures are collected while a change is under way and
met by the next (rule 24). A bookie that failed is not picked for the change that its failure is a
part of.

Absence concerns the writer alone: whom to leave, and what lacks copies. The registry is a hint,
never a proof. A bookie that has been gone from it for `leave_gone_s` is left if there is another,
though it may take entries still: one that is lost would otherwise stay in the ensemble of an idle
writer, until repair fences that.

The last fragment *lacks* copies once its writer went on without a bookie (rule 27). Repair is told
which one, and can make the copies as soon as the fragment is settled. So the writer begins another
one when all those bookies are back: each has stored something since, or has registered again.

Invariants:
    an index that lacks copies lacks them in the last fragment
    there is a time to leave only while a bookie is gone, is not down, and another one is there
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ledger.ids import BookieId, EntryId
from ledger.metadata import LedgerMetadata
from ledger.protocol.acks import AckTracker
from ledger.protocol.common import ChooseReplacements
from ledger.protocol.writer_events import LacksMarked, MarkLacks
from ledger.requests import Status

_NOT_LISTED: Final = ""


class Absences:
    def __init__(self, acks: AckTracker, *, leave_gone_s: float) -> None:
        self._acks = acks
        self._leave_gone_s = leave_gone_s
        self._listed: Mapping[BookieId, str] = {}
        """Who takes adds, and as which start of its process, as the registry said last."""
        self._gone_since: dict[int, float] = {}
        """Indexes whose bookies the registry does not list."""
        self.leave_at: float | None = None
        """When to leave bookies that are gone."""
        self.absent: dict[int, str] = {}
        """Indexes without copies of the last fragment, and as what their bookies were listed
        when the writer went on without them."""
        self._back: set[int] = set()
        """Those of them whose bookies take entries again."""
        self._marked: dict[BookieId, EntryId] = {}
        """The newest fragment of which repair knows that it was written without a bookie."""
        self._missed: dict[BookieId, None] = {}
        """Bookies that refused, or never answered, what others confirmed; until that is marked."""
        self._marking: MarkLacks | None = None

    # The registry.

    def listed(self, writable: Mapping[BookieId, str], now: float) -> bool:
        """Take note of what the registry says; return whether a bookie has come, or come again."""
        before, self._listed = self._listed, writable
        for index, slot in enumerate(self._acks.slots):
            if slot.bookie in writable:
                self._gone_since.pop(index, None)
            else:
                self._gone_since.setdefault(index, now)
        for index, listed_as in self.absent.items():
            life = writable.get(self._acks.slots[index].bookie, _NOT_LISTED)
            if life == _NOT_LISTED:
                self.absent[index] = life
            elif life != listed_as:
                self._back.add(index)
        self.plan(now)
        return any(before.get(bookie) != life for bookie, life in writable.items())

    def plan(self, now: float, *, pause_s: float = 0.0) -> None:
        """Find out when to leave bookies that are gone: not before *pause_s* from now."""
        members = self._acks.bookies
        gone = [
            since for index, since in self._gone_since.items() if not self._acks.slots[index].down
        ]
        if not gone or all(bookie in members for bookie in self._listed):
            self.leave_at = None
        else:
            self.leave_at = max(min(gone) + self._leave_gone_s, now + pause_s)

    def to_leave(self, now: float) -> tuple[int, ...]:
        """Return the indexes whose bookies are to be left now; they are asked for once."""
        if self.leave_at is None or now < self.leave_at:
            return ()
        self.leave_at = None
        return tuple(
            index
            for index, since in sorted(self._gone_since.items())
            if now >= since + self._leave_gone_s and not self._acks.slots[index].down
        )

    # What lacks copies.

    @property
    def lacking(self) -> tuple[int, ...]:
        """Indexes that lack copies of the last fragment."""
        return tuple(sorted(self.absent))

    @property
    def are_over(self) -> bool:
        """True iff the last fragment lacks copies, and all whose copies they are take entries."""
        return bool(self.absent) and self._back.issuperset(self.absent)

    def went_on_without(self, indexes: Iterable[int]) -> None:
        for index in sorted(indexes):
            bookie = self._acks.slots[index].bookie
            self.absent[index] = self._listed.get(bookie, _NOT_LISTED)
            self._back.discard(index)

    def stored(self, index: int) -> None:
        """The bookie at *index*, which is not down, has stored something."""
        if index in self.absent:
            self._back.add(index)

    def began_fragment(self, replaced: Iterable[int], now: float) -> None:
        """What is not confirmed yet began a fragment, with other bookies at *replaced*."""
        self.absent.clear()
        self._back.clear()
        for index in replaced:
            self._gone_since.pop(index, None)
        self.plan(now)

    def missed(self, index: int) -> None:
        """The bookie at *index* has not stored what is confirmed: with the next fragment that is
        settled, and nobody but repair will ever send it there."""
        self._missed[self._acks.slots[index].bookie] = None

    def to_mark(self, fragment: EntryId, *, closed: bool = False) -> list[MarkLacks]:
        """Return what repair is to know, and does not know yet, of the last fragment, which begins
        at *fragment*, and of those that are settled: all, once the ledger is *closed*."""
        bookies = tuple(
            bookie
            for bookie in (self._acks.slots[index].bookie for index in self.lacking)
            if self._marked.get(bookie) != fragment
        )
        members = self._acks.bookies
        missed = tuple(bookie for bookie in self._missed if closed or bookie not in members)
        if not (bookies or missed) or (self._marking is not None and not closed):
            return []  # again when that one is written; behind the close nothing comes
        self._marking = MarkLacks(bookies, fragment, missed)
        for bookie in missed:
            del self._missed[bookie]
        return [self._marking]

    def marked(self, event: LacksMarked) -> None:
        self._marking = None
        self._marked.update(dict.fromkeys(event.marked.bookies, event.marked.fragment))

    def marking_failed(self) -> None:
        assert self._marking is not None, "it was asked for"
        self._missed.update(dict.fromkeys(self._marking.missed))
        self._marking = None


class EnsembleChange:
    def __init__(self, acks: AckTracker, *, never: tuple[BookieId, ...] = ()) -> None:
        """*never*: bookies that are not picked, beside those of the ensemble."""
        self.failed: dict[int, Status] = {}
        """Indexes that failed and are not replaced yet, with the reason."""
        self.replacing: dict[int, BookieId] = {}
        """Who was picked, by index, and has not got the place yet."""
        self.leaving: tuple[int, ...] = ()
        """Indexes for which others are wanted though theirs have not failed."""
        self._acks = acks
        self._gone = dict.fromkeys(never)

    def fail(self, index: int, status: Status) -> None:
        """Send nothing more to the bookie at *index*."""
        slot = self._acks.slots[index]
        slot.down = True
        self.failed[index] = status
        self._gone[slot.bookie] = None

    def choose(self) -> ChooseReplacements:
        exclude = dict.fromkeys((*self._acks.bookies, *self._gone))
        indexes = self.leaving or tuple(sorted(self.failed))
        return ChooseReplacements(indexes, tuple(exclude), self._acks.bookies)

    def changed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return *metadata* with those picked in the ensemble of what is not confirmed yet."""
        bookies = list(self._acks.bookies)
        for index, bookie in self.replacing.items():
            bookies[index] = bookie
        return metadata.with_ensemble(EntryId(self._acks.confirmed + 1), tuple(bookies))

    def put(self) -> list[int]:
        """Give those picked their places, with nothing stored (rule 22); return the indexes."""
        replaced = sorted(self.replacing)
        for index in replaced:
            self._acks.replace(index, self.replacing[index])
            self.failed.pop(index, None)
        self.replacing = {}
        return replaced

    def revive(self) -> list[int]:
        """Give those that failed their own places again; return the indexes."""
        self.again(self.failed)
        return self.put()

    def again(self, indexes: Iterable[int]) -> None:
        """Pick those at *indexes* themselves: what is not confirmed yet begins a new fragment."""
        self.replacing = {index: self._acks.slots[index].bookie for index in indexes}

    def end(self) -> None:
        """The change is over: who failed in it may be picked for another."""
        self._gone.clear()
