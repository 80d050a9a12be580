"""The repair of one ledger that is marked: from the lock to the mark's end.

    LOCKING -> READING the mark and the ledger -> for each fragment: CHOOSING, LOOKING, COPYING,
    SWAPPING -> [RECOVERING] -> [READING again] -> MARKING -> UNLOCKING

Only what is settled is copied: fragments behind which another one begins, and those of CLOSED
ledgers up to their end. A member that is gone for good is replaced: its entries are copied to
another bookie, verbatim, and then one compare-and-swap puts that one in its place. A member that is
there and lacks entries gets just those. All members are looked at before anything is copied,
so that what cannot be made whole costs nothing.

The open last fragment is its writer's, who normally leaves a lost bookie by itself. Only after a
grace, and only if there is a bookie to go on with, the ledger is recovered: that fences the writer.

One thing is under way at a time, so that stopping after any effect is safe and testable: adds are
idempotent, changes of the metadata go by `LedgerMetadata.replaced`, and a mark is deleted in
the version that was read before the work.

Invariants (asserted):
    a swap is written after every frame of its indexes was stored; of a CLOSED ledger, after the
        metadata were read that it changes, so that no bookie can have evicted them since
    the mark is deleted only after a round that left nothing to do or to look at again

The metadata store takes a swap only while nobody was added to those who are to be emptied since
the new bookies were chosen: else it would name one that is forgotten.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from bookie.autorecovery.protocol.copy_plan import Chosen, Copy, Share, Spans, choose
from bookie.autorecovery.protocol.replication_events import (
    Begin,
    ChooseBetter,
    DeleteMark,
    EffectFailed,
    Finish,
    FramesRead,
    FramesRefused,
    FramesStored,
    LedgerRead,
    LockRefused,
    LockTaken,
    Look,
    Looked,
    MarkGrew,
    MarkRead,
    MarkStored,
    MoreLeave,
    Outcome,
    ReadFrames,
    ReadLedger,
    ReadMark,
    Recovered,
    RecoverLedger,
    RecoveryRefused,
    ReplicationEffect,
    ReplicationEvent,
    SendFrames,
    TakeLock,
    Unlock,
    Unlocked,
    WriteMark,
    WriteSwap,
)
from bookie.autorecovery.protocol.situation import Situation
from ledger.ids import BookieId, LedgerId
from ledger.mark import Mark
from ledger.metadata import Fragment, LedgerMetadata, LedgerState, SwapRefusal
from ledger.protocol.common_events import (
    ChooseReplacements,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    ReplacementsChosen,
)
from ledger.quorum import holds
from ledger.requests import Status

ROUNDS_MAX: Final = 4
"""Times that a ledger is read and gone through in one replication; metadata that changes all the
time is left alone for a while."""
SWAP_TRIES_MAX: Final = 5
UNSETTLED_MS: Final = 10_000
"""How long to wait for a writer to leave a fragment that lacks copies."""
AWAY_MS: Final = 60_000
"""How long to wait for a bookie that is away, but not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    open_fragment_grace_ms: int = 30_000
    """How long after its mark an open last fragment is left to its writer."""
    into: frozenset[BookieId] | None = None
    """Who may get copies that move; None: whoever is writable."""

    def __post_init__(self) -> None:
        assert self.open_fragment_grace_ms >= 0


class Phase(Enum):
    NEW = "new"
    LOCKING = "taking the lock"
    READING_MARK = "reading the mark"
    READING_LEDGER = "reading the metadata"
    CHOOSING = "choosing bookies"
    PLACING = "choosing a better ensemble"
    LOOKING = "looking at what is there"
    READING = "reading frames"
    SENDING = "sending frames"
    SWAPPING = "swapping"
    CHOOSING_SPARE = "looking for a spare bookie"
    RECOVERING = "recovering"
    MARKING = "changing the mark"
    UNMARKING = "deleting mark and lock"
    UNLOCKING = "giving the lock back"
    DONE = "done"


@dataclass(slots=True)
class _Work:
    """One fragment while it is worked on."""

    fragment: Fragment
    first: int
    last: int
    gone: dict[int, bool]
    """Indexes that should move, and whether their bookies can still be read from."""
    targets: dict[int, BookieId] = field(default_factory=dict)
    """New bookies of those that can."""
    shares: list[Share] = field(default_factory=list)
    chosen: Chosen | None = None
    copies: list[Copy] = field(default_factory=list)
    """Still to be made; the first one is under way."""
    position: int = 0
    """Where the copy under way goes on."""
    failed: set[int] = field(default_factory=set)
    """Indexes of which a copy failed."""

    @property
    def is_empty(self) -> bool:
        return self.last < self.first


class Replication:
    def __init__(self, ledger_id: LedgerId, config: ReplicationConfig | None = None) -> None:
        self.ledger_id = ledger_id
        self.phase = Phase.NEW
        self._config = config or ReplicationConfig()
        self._eager = False
        self._came: frozenset[BookieId] = frozenset()
        self._mark: Mark | None = None
        self._mark_version = -1
        self._now_ms = 0
        self._read: Situation | None = None
        self._rounds = 0
        self._thorough = False
        """Whether what bookies hold is read, and not only asked for."""
        self._todo: list[_Work] = []
        self._swap_tries = 0
        self._swapping: LedgerMetadata | None = None
        self._moved: tuple[int, ...] = ()
        """Indexes of the swap under way."""
        self._outcome = Finish(Outcome.DONE)
        self._new_round()

    def _new_round(self) -> None:
        self._unseen = False
        """Whether something is to be looked at again: what was repaired in place, was changed by
        others meanwhile, or may have been done. A move that was written is known."""
        self._lost: list[tuple[int, int]] = []
        self._differing: list[tuple[int, int]] = []
        self._troubles: list[str] = []
        self._wants_bookie = False
        self._wait_until_ms = 0
        self._wait_why = ""

    @property
    def _situation(self) -> Situation:
        assert self._read is not None, "mark and metadata were read"
        return self._read

    def deadline(self) -> float | None:
        """Never: waiting is done in the mark, so that any worker may go on."""
        return None

    def step(self, event: ReplicationEvent, *, now: float) -> list[ReplicationEffect]:  # noqa: ARG002
        """Apply *event*; return what the driver must do: one thing, or nothing if it is over."""
        effect = self._next(event)
        return [] if effect is None else [effect]

    def _next(self, event: ReplicationEvent) -> ReplicationEffect | None:  # noqa: PLR0911, C901, PLR0912
        match self.phase, event:
            case Phase.NEW, Begin(eager, came):
                self._eager, self._came = eager, came
                self.phase = Phase.LOCKING
                return TakeLock()
            case Phase.LOCKING, LockTaken():
                return self._read_mark()
            case Phase.LOCKING, LockRefused():
                return self._finish(Finish(Outcome.BUSY))
            case Phase.READING_MARK, MarkRead():
                return self._mark_read(event)
            case Phase.READING_LEDGER, LedgerRead():
                return self._ledger_read(event)
            case Phase.CHOOSING, ReplacementsChosen():
                return self._targets_chosen(event)
            case Phase.PLACING, ReplacementsChosen():
                return self._placed(event)
            case Phase.LOOKING, Looked():
                return self._looked(event.share)
            case Phase.READING, FramesRead():
                return self._frames_read(event)
            case Phase.SENDING, FramesStored():
                work = self._todo[0]
                self._unseen |= work.copies[0].index not in work.gone
                return self._copy()
            case Phase.SENDING, FramesRefused():
                return self._copy_failed(f"a copy was refused: {event.status.name}")
            case (
                Phase.SWAPPING,
                MetadataWritten() | MetadataRead() | MetadataFailed() | MoreLeave(),
            ):
                return self._swap_answered(event)
            case Phase.CHOOSING_SPARE, ReplacementsChosen():
                return self._spare_chosen(event)
            case Phase.RECOVERING, Recovered():
                self._unseen = True
                return self._end_round()
            case Phase.RECOVERING, RecoveryRefused():
                self._troubles.append(event.why)
                return self._end_round()
            case Phase.UNMARKING, MarkStored():  # the lock went with the mark
                return self._finish(self._outcome)
            case Phase.MARKING, MarkStored():
                return self._unlock()
            case Phase.MARKING | Phase.UNMARKING, MarkGrew():
                return self._mark_grew()
            case Phase.UNLOCKING, Unlocked() | EffectFailed():
                return self._finish(self._outcome)
            case _, EffectFailed():
                return self._effect_failed(event.why)
            case _:
                pass
        assert self.phase is Phase.DONE, f"{event} while {self.phase.value}"
        return None

    # The mark and the metadata.

    def _read_mark(self) -> ReplicationEffect:
        self.phase = Phase.READING_MARK
        return ReadMark()

    def _mark_read(self, event: MarkRead) -> ReplicationEffect:
        self._mark, self._mark_version, self._now_ms = event.mark, event.version, event.now_ms
        if event.mark is None:
            return self._unlock()
        if not self._eager and event.mark.waits(event.now_ms, self._came):
            until_ms = event.mark.not_before_ms
            self._outcome = Finish(Outcome.DEFERRED, event.mark.deferred_why, until_ms)
            return self._unlock()
        self._thorough |= event.mark.attempts > 0 and not event.mark.wants_bookie
        self._thorough |= event.mark.thorough
        return self._read_ledger()

    def _read_ledger(self) -> ReplicationEffect:
        self.phase = Phase.READING_LEDGER
        self._rounds += 1
        self._new_round()
        # To take the lock was a write: what is read behind it is as new as that.
        return ReadLedger(fresh=self._rounds > 1)

    def _ledger_read(self, event: LedgerRead) -> ReplicationEffect:
        self._now_ms = event.now_ms
        if event.metadata is None:  # deleted: nothing is lacking
            return self._delete_mark()
        assert self._mark is not None, "it was read first"
        self._read = Situation(
            mark=self._mark,
            metadata=event.metadata,
            version=event.version,
            registered=event.registered,
            leaving=event.leaving,
            into=self._config.into,
        )
        self._todo = self._concerned(event.metadata)
        return self._next_fragment()

    def _concerned(self, metadata: LedgerMetadata) -> list[_Work]:
        """Return the settled fragments that may lack what a bookie of the mark should hold."""
        works: list[_Work] = []
        for fragment in metadata.fragments:
            end = metadata.settled_end(fragment)
            if end is None or not self._situation.concerns(fragment):
                continue
            gone = {
                index: bookie in self._situation.registered
                for index, bookie in enumerate(fragment.bookies)
                if self._situation.must_go(bookie, fragment)
            }
            works.append(_Work(fragment, fragment.first_entry, end, gone))
        return works

    # One fragment: choose, look, copy, swap.

    def _next_fragment(self) -> ReplicationEffect:
        while self._todo:
            work = self._todo[0]
            if work.gone:
                self.phase = Phase.CHOOSING
                return ChooseReplacements(
                    tuple(work.gone), self._situation.not_wanted(), work.fragment.bookies
                )
            if self._may_be_misplaced(work):
                self.phase = Phase.PLACING
                return ChooseBetter(self._situation.not_wanted(), work.fragment.bookies)
            if not work.is_empty and self._situation.members_to_ask(work.fragment):
                return self._begin_looking(work)
            if not work.is_empty:
                members = self._situation.mark.bookies.intersection(work.fragment.bookies)
                names = ", ".join(sorted(members))
                self._wait(f"{names} cannot be asked now", self._now_ms + AWAY_MS)
            self._todo.pop(0)
        return self._after_fragments()

    def _may_be_misplaced(self, work: _Work) -> bool:
        """Return whether to look for a better ensemble: only where every source is there."""
        return not work.is_empty and self._situation.may_be_misplaced(work.fragment)

    def _placed(self, event: ReplacementsChosen) -> ReplicationEffect:
        """Move what another ensemble would hold better: the bookies that have it are all there, and
        keep it until the swap."""
        work = self._todo[0]
        work.gone, work.targets = dict.fromkeys(dict(event.bookies), True), dict(event.bookies)
        if work.gone or self._situation.lacks_entries(work.fragment):
            return self._begin_looking(work)
        self._todo.pop(0)
        return self._next_fragment()

    def _targets_chosen(self, event: ReplacementsChosen) -> ReplicationEffect:
        work = self._todo[0]
        into = self._config.into
        # Who has just come is not among those that were not wanted.
        work.targets = {
            index: bookie for index, bookie in event.bookies if into is None or bookie in into
        }
        short = len(work.targets) < len(work.gone)
        if work.is_empty:
            # Nothing is lacking in it; a bookie that leaves has to be out of it all the same.
            must_be_out = self._situation.must_be_out
            if short and any(must_be_out(work.fragment.bookies[index]) for index in work.gone):
                self._wants_bookie = True
            return self._swap(work, tuple(work.targets))
        if short:
            self._wants_bookie = True
            if not work.targets and not self._situation.members_to_ask(work.fragment):
                self._todo.pop(0)  # nothing can be done; looking would read it all for nothing
                return self._next_fragment()
        return self._begin_looking(work)

    def _begin_looking(self, work: _Work) -> ReplicationEffect:
        self.phase = Phase.LOOKING
        return self._look_on(work)

    def _look_on(self, work: _Work) -> ReplicationEffect:
        """Look at the next member that is there; what others have is not known."""
        for index in range(len(work.shares), len(work.fragment.bookies)):
            bookie = work.fragment.bookies[index]
            if bookie in self._situation.registered:
                return Look(bookie, index, work.first, work.last, self._thorough)
            if bookie in self._situation.mark.bookies and index not in work.gone:
                self._wait(f"{bookie} cannot be asked now", self._now_ms + AWAY_MS)
            work.shares.append(Share(unsure=((work.first, work.last),)))
        return self._choose(work)

    def _looked(self, share: Share) -> ReplicationEffect:
        work = self._todo[0]
        bookie = work.fragment.bookies[len(work.shares)]
        work.shares.append(share)
        if share.unsure and bookie in self._situation.mark.bookies:
            self._troubles.append(f"bookie {bookie} did not say what it has")
        return self._look_on(work)

    def _choose(self, work: _Work) -> ReplicationEffect:
        work.chosen = choose(
            work.first,
            work.last,
            self._situation.metadata.quorum,
            work.shares,
            moving={index: work.gone[index] for index in work.gone},
        )
        self._lost += work.chosen.lost
        if work.chosen.unsure:
            self._troubles.append("bookies that may have what is missing did not answer")
        work.copies = [
            copy
            for copy in work.chosen.copies
            if copy.index not in work.gone or copy.index in work.targets
        ]
        return self._copy()

    def _copy(self) -> ReplicationEffect:
        """Read what comes next of the copy under way; if there is none, swap."""
        work = self._todo[0]
        quorum = self._situation.metadata.quorum
        while work.copies:
            copy = work.copies[0]
            first = copy.next_from(work.position, quorum)
            if first is not None and copy.index not in work.failed:
                assert holds(copy.index, first, quorum), "only what the index holds is copied"
                self.phase = Phase.READING
                bookies = work.fragment.bookies
                witness = None if copy.witness is None else bookies[copy.witness]
                return ReadFrames(bookies[copy.source], copy, first, witness)
            work.copies.pop(0)
            if work.copies:
                work.position = work.copies[0].first
        assert work.chosen is not None
        moved = [
            index
            for index in work.chosen.moved
            if index in work.targets and index not in work.failed
        ]
        return self._swap(work, tuple(moved))

    def _frames_read(self, event: FramesRead) -> ReplicationEffect:
        work = self._todo[0]
        copy = work.copies[0]
        first = copy.next_from(work.position, self._situation.metadata.quorum)
        if event.status is Status.IO_ERROR:
            return self._source_failed()
        if event.status is not Status.OK:
            return self._copy_failed(f"a source refused: {event.status.name}")
        if not event.entries or event.entries[0] != first or event.considered < first:
            return self._source_failed()
        work.position = event.considered + 1
        expected = [
            entry_id
            for entry_id in range(first, min(event.considered, copy.last) + 1)
            if copy.takes(entry_id, self._situation.metadata.quorum)
        ]
        if list(event.entries) != expected:
            return self._source_failed()
        if event.differing:
            return self._frames_differ(work, copy, event.differing)
        self.phase = Phase.SENDING
        return SendFrames(self._place_of(work, copy.index), event.entries)

    def _place_of(self, work: _Work, index: int) -> BookieId:
        return work.targets[index] if index in work.gone else work.fragment.bookies[index]

    def _frames_differ(
        self, work: _Work, copy: Copy, entries: tuple[int, ...]
    ) -> ReplicationEffect:
        """Write nothing: which of the two is right is for a person to say."""
        self._differing += [(entry_id, entry_id) for entry_id in entries]
        assert copy.witness is not None, "there were two to compare"
        names = " and ".join(work.fragment.bookies[each] for each in (copy.source, copy.witness))
        return self._copy_failed(f"{names} have different frames of entry {entries[0]}")

    def _source_failed(self) -> ReplicationEffect:
        """What a bookie said that it holds is not to be read there: next time all is read, and so
        another bookie chosen as the source, and this one repaired."""
        if self._thorough:
            return self._copy_failed("a source has not any more what it had")
        self._thorough = self._unseen = True
        self._todo[0].failed.add(self._todo[0].copies[0].index)
        return self._copy()

    def _copy_failed(self, why: str) -> ReplicationEffect:
        work = self._todo[0]
        index = work.copies[0].index
        work.failed.add(index)
        self._troubles.append(
            f"entries from {work.first} on, for bookie {self._place_of(work, index)}: {why}"
        )
        return self._copy()

    def _swap(
        self, work: _Work, moved: tuple[int, ...], *, again: bool = False
    ) -> ReplicationEffect:
        """Let the new bookies take the places of the old ones, all in one write. *again*: in
        metadata that were read after the copies were made."""
        assert not work.copies, "a swap comes after every copy"
        assert work.failed.isdisjoint(moved), "nothing moves of which a copy failed"
        if not moved:
            return self._fragment_done()
        swapped = self._situation.metadata
        for index in moved:
            old, new = work.fragment.bookies[index], work.targets[index]
            replaced = swapped.replaced(work.fragment.first_entry, index, old, new)
            if isinstance(replaced, LedgerMetadata):
                swapped = replaced
            elif replaced is not SwapRefusal.DONE:  # somebody else was here: see what is there now
                self._unseen = True
                return self._end_round()
        if swapped is self._situation.metadata:  # a reply was lost
            return self._fragment_done()
        if again and self._situation.metadata.state is LedgerState.CLOSED:
            # The new bookies may have evicted what they got: send it again.
            return self._end_round()
        self.phase = Phase.SWAPPING
        self._swapping = swapped
        self._moved = moved
        return WriteSwap(swapped, self._situation.version, self._situation.leaving.version)

    def _swap_answered(
        self, event: MetadataWritten | MetadataRead | MetadataFailed | MoreLeave
    ) -> ReplicationEffect:
        self._unseen |= not isinstance(event, MetadataWritten)
        match event:
            case MetadataWritten(version):
                assert self._swapping is not None
                self._saw(self._swapping, version)
                return self._fragment_done()
            case MetadataRead(metadata, version):
                self._swap_tries += 1
                if metadata is None or self._swap_tries >= SWAP_TRIES_MAX:
                    return self._end_round()
                self._saw(metadata, version)
                return self._swap(self._todo[0], self._moved, again=True)
            case MetadataFailed():
                return self._end_round()  # it may be written: the next round sees
            case MoreLeave():
                return self._end_round()  # a new bookie among them may be forgotten by now

    def _saw(self, metadata: LedgerMetadata, version: int) -> None:
        self._read = replace(self._situation, metadata=metadata, version=version)

    def _fragment_done(self) -> ReplicationEffect:
        self._todo.pop(0)
        self._swap_tries = 0
        return self._next_fragment()

    # The last fragment, while its writer may still add to it.

    def _after_fragments(self) -> ReplicationEffect:
        last = self._situation.metadata.last_fragment
        settled = self._situation.metadata.settled_end(last) is not None
        if settled or self._situation.mark.bookies.isdisjoint(last.bookies):
            return self._end_round()
        gone = tuple(
            index
            for index, bookie in enumerate(last.bookies)
            if self._situation.must_go(bookie, last) and self._situation.is_worth_a_fence(bookie)
        )
        if self._situation.metadata.state is LedgerState.IN_RECOVERY:
            return self._recover()  # its writer is fenced already
        if self._situation.was_written_without(last):
            why = "its writer has not left the fragment that lacks copies"
            self._wait(why, self._now_ms + UNSETTLED_MS)
        if not gone:
            return self._end_round()
        since_ms = self._situation.marked_since_ms(last.bookies[index] for index in gone)
        over_ms = since_ms + self._config.open_fragment_grace_ms
        if self._now_ms < over_ms:
            self._wait("its writer is given time to leave the lost bookie", over_ms)
            return self._end_round()
        self.phase = Phase.CHOOSING_SPARE
        return ChooseReplacements(gone, self._situation.not_wanted(), last.bookies)

    def _spare_chosen(self, event: ReplacementsChosen) -> ReplicationEffect:
        wanted_one = self._situation.mark.wants_bookie
        if event.bookies and wanted_one and not self._wants_bookie:
            # It has come just now; the writer takes it by itself, and need not be fenced.
            over_ms = self._now_ms + self._config.open_fragment_grace_ms
            self._wait("its writer is given time to take the bookie that came", over_ms)
            return self._end_round()
        if event.bookies:
            return self._recover()
        # Fencing gains nothing, and costs the writer its ledger.
        self._wants_bookie = True
        return self._end_round()

    def _recover(self) -> ReplicationEffect:
        self.phase = Phase.RECOVERING
        return RecoverLedger()

    # The end of a round, and of all.

    def _wait(self, why: str, until_ms: int) -> None:
        self._wait_why, self._wait_until_ms = why, max(until_ms, self._wait_until_ms)

    def _end_round(self) -> ReplicationEffect:
        self._todo = []
        assert self._mark is not None
        if self._unseen and not self._troubles and self._rounds < ROUNDS_MAX:
            return self._read_ledger()
        if self._wants_bookie:
            self._troubles.append("there is no bookie to copy to")
        if self._lost:
            self._troubles.append("no bookie has some of the entries")
        if self._troubles or self._unseen:
            why = "; ".join(dict.fromkeys(self._troubles)) or "it changes all the time"
            return self._defer(why)
        if self._wait_until_ms:
            return self._write_mark(
                self._mark.put_off(self._wait_why, self._wait_until_ms), self._wait_why
            )
        return self._delete_mark()

    def _defer(self, why: str) -> ReplicationEffect:
        assert self._mark is not None
        lost: Spans = tuple(sorted(self._lost))
        deferred = self._mark.deferred(
            why,
            now_ms=self._now_ms,
            lost=lost,
            differing=tuple(sorted(set(self._differing))),
            wants_bookie=self._wants_bookie,
        )
        return self._write_mark(deferred, why)

    def _write_mark(self, mark: Mark, why: str) -> ReplicationEffect:
        self.phase = Phase.MARKING
        if self._read is not None:
            mark = self._read.without_who_left(mark)
        self._outcome = Finish(Outcome.DEFERRED, why, mark.not_before_ms)
        return WriteMark(mark, self._mark_version)

    def _delete_mark(self) -> ReplicationEffect:
        self.phase = Phase.UNMARKING
        self._outcome = Finish(Outcome.DONE)
        return DeleteMark(self._mark_version)

    def _mark_grew(self) -> ReplicationEffect:
        """Something was added while we worked: it is looked at too, if we thought to be done."""
        if self._outcome.outcome is Outcome.DONE and self._rounds < ROUNDS_MAX:
            return self._read_mark()
        self._outcome = Finish(Outcome.DEFERRED, "it was marked again meanwhile")
        return self._unlock()

    def _effect_failed(self, why: str) -> ReplicationEffect:
        if self.phase in {Phase.LOCKING, Phase.READING_MARK, Phase.MARKING, Phase.UNMARKING}:
            self._outcome = Finish(Outcome.BROKEN_OFF, why)
            return self._unlock()
        assert self._mark is not None
        self._todo = []
        return self._defer(why)

    def _unlock(self) -> ReplicationEffect:
        self.phase = Phase.UNLOCKING
        return Unlock()

    def _finish(self, finish: Finish) -> ReplicationEffect:
        self.phase = Phase.DONE
        return finish
