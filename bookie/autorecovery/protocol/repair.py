"""The repair of one ledger that is marked: from the lock to the mark's end.

    lock -> read the mark and the ledger -> of each fragment: choose bookies, look, copy, swap
    -> [recover] -> [read again] -> change or delete the mark -> unlock

Only what is settled is copied: fragments behind which another one begins, and those of CLOSED
ledgers up to their end. A member that is gone for good is replaced: its entries are copied to
another bookie, verbatim, and then one compare-and-swap puts that one in its place. A member that is
there and lacks entries gets just those. All members are looked at before anything is copied,
so that what cannot be made whole costs nothing.

The open last fragment is its writer's, which normally leaves a lost bookie by itself. Only after a
grace, and only if there is a bookie to continue with, the ledger is recovered: that fences the
writer.

One action is under way at a time, so that stopping after any of them is safe and testable: adds are
idempotent, changes of the metadata go by `LedgerMetadata.replaced`, and a mark is deleted in
the version that was read before the work. Waiting is done in the mark, so that any worker may
continue.

Invariants:
    a swap is written after every frame of its indexes was stored; of a CLOSED ledger, after the
        metadata were read that it changes, so that no bookie can have evicted them since
    the mark is deleted only after a round that left nothing to do or to look at again

The metadata store takes a swap only while nobody was added to those who are to be emptied since
the new bookies were chosen: else it would name one that is forgotten.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from bookie.autorecovery.protocol.repair_plan import (
    CopyRange,
    Leaving,
    Question,
    RepairPlan,
    Share,
    Situation,
    choose,
)
from ledger.errors import BadVersion, LogError, MetadataUnavailable, NoSuchLedger
from ledger.ids import BookieId
from ledger.mark import UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata, LedgerState, SwapRefusal
from ledger.protocol.procedure import Action, Steps
from ledger.quorum import holds
from ledger.requests import Status

ROUNDS_MAX: Final = 4
"""Times that a ledger is read and gone through in one repair; metadata that changes all the
time is left alone for a while."""
SWAP_TRIES_MAX: Final = 5
UNSETTLED_MS: Final = 10_000
"""How long to wait for a writer to leave a fragment that lacks copies."""
AWAY_MS: Final = 60_000
"""How long to wait for a bookie that is away, but not lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairConfig:
    open_fragment_grace_ms: int = 30_000
    """How long after its mark an open last fragment is left to its writer."""
    into: frozenset[BookieId] | None = None
    """Who may get copies that move; None: any writable bookie."""

    def __post_init__(self) -> None:
        assert self.open_fragment_grace_ms >= 0


class RepairOutcome(Enum):
    DONE = "done"
    """Nothing is lacking any more."""
    DEFERRED = "deferred"
    """The mark says why, and until when."""
    BUSY = "busy"
    """Another worker has it."""
    BROKEN_OFF = "broken off"
    """The metadata store did not let the mark be changed."""


@dataclass(frozen=True, slots=True)
class RepairEnd:
    outcome: RepairOutcome
    why: str = ""
    until_ms: int = 0
    """Of a repair that was deferred: when the next one may begin, by the wall clock."""


class LockLost(LogError):
    def __init__(self) -> None:
        super().__init__("the lock went with its session; the mark is left to the next worker")


# Answers.


@dataclass(frozen=True, slots=True)
class MarkRead:
    """What is marked now; None: nothing any more."""

    mark: UnderreplicatedLedger | None
    version: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """*metadata* is None iff the ledger was deleted."""

    metadata: LedgerMetadata | None
    version: int
    registered: frozenset[BookieId]
    leaving: Leaving
    now_ms: int


@dataclass(frozen=True, slots=True)
class FramesRead:
    """The driver holds the frames of *entries*, verified. All of the copy up to *considered* that
    the bookie has are among them."""

    status: Status
    entries: tuple[int, ...]
    considered: int
    differing: tuple[int, ...] = ()
    """Of them those of which the witness gave another frame that is whole, too."""


Places = tuple[tuple[int, BookieId], ...]
"""Bookies by the index that they are to have."""


# Actions.


@dataclass(frozen=True, slots=True)
class TakeLock(Action[bool]):
    """Answer: whether no other worker is at the ledger, as far as that can be known."""


@dataclass(frozen=True, slots=True)
class ReadMark(Action[MarkRead]):
    pass


@dataclass(frozen=True, slots=True)
class ReadLedger(Action[LedgerRead]):
    """Read the metadata, and which bookies are registered."""

    mark: UnderreplicatedLedger
    """Who is to be emptied is known at least as well as it says."""
    fresh: bool = True
    """Every write that ended before this is seen; else every one that ended before the lock."""


@dataclass(frozen=True, slots=True)
class ReadMetadata(Action[tuple[LedgerMetadata, int]]):
    """Answer: the metadata with every write that ended before, and their version. Raises
    `NoSuchLedger`, `MetadataUnavailable`."""


@dataclass(frozen=True, slots=True)
class Look(Action[Share]):
    """Ask a bookie what it has."""

    question: Question
    thorough: bool
    """By reading all of it with digests; else by what the bookie says it holds."""


@dataclass(frozen=True, slots=True)
class ChooseReplacements(Action[Places]):
    """Choose bookies for *indexes* of *ensemble*. Answer: fewer if there are not enough."""

    indexes: tuple[int, ...]
    exclude: tuple[BookieId, ...]
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class ChooseBetter(Action[Places]):
    """Choose whom to exchange so that the write sets of *ensemble* span more racks. Answer: none
    if there is no better ensemble."""

    exclude: tuple[BookieId, ...]
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class ReadFrames(Action[FramesRead]):
    """Read of *copy* from *bookie* what begins at *first*, as much as fits."""

    bookie: BookieId
    copy: CopyRange
    first: int
    witness: BookieId | None = None
    """Who is read too, to compare the bytes. What it does not give is not compared."""


@dataclass(frozen=True, slots=True)
class SendFrames(Action[Status]):
    """Recovery-add the frames of *entries* that were read to *bookie*, and forget them. Answer: OK
    if it has all of them, durably. Raises `LockLost`."""

    bookie: BookieId
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WriteSwap(Action[int | None]):
    """Write metadata of the ledger, which is at *version*, iff the list of who is to be emptied is
    still at *leaving_version*. Answer: the version now; None: more bookies are to be emptied.
    Raises `BadVersion`, `NoSuchLedger`, `MetadataUnavailable`."""

    metadata: LedgerMetadata
    version: int
    leaving_version: int


@dataclass(frozen=True, slots=True)
class RecoverLedger(Action[None]):
    """Fence and close the ledger. Raises whatever keeps it from being CLOSED."""


@dataclass(frozen=True, slots=True)
class WriteMark(Action[bool]):
    """CAS. Answer: False if it says more than it did when it was read, or the lock is lost."""

    mark: UnderreplicatedLedger
    version: int


@dataclass(frozen=True, slots=True)
class DeleteMark(Action[bool]):
    """Delete the mark if it is at *version*, and the lock with it. Answer: False if it says more
    now. Raises `LockLost`: neither is deleted, as another worker may be at it."""

    version: int


@dataclass(frozen=True, slots=True)
class Unlock(Action[None]):
    """Give the lock back, or let it go with the session."""


def repair(
    config: RepairConfig, *, eager: bool = False, rejoined: frozenset[BookieId] = frozenset()
) -> Steps[RepairEnd]:
    """Repair the ledger, if it is marked and nobody else does.

    *eager*: now, whatever the mark says: what it waits for may be there. *rejoined*: all bookies
    that are registered, if some of them have come since the worker last looked: then what waits for
    one is repaired now. Raises nothing that actions raise."""
    try:
        if not (yield from TakeLock()):
            return RepairEnd(RepairOutcome.BUSY)
        end, is_locked = yield from _work_off(_Repair(config), eager=eager, rejoined=rejoined)
    except LogError as error:  # of lock or mark: the mark is as it was
        end, is_locked = RepairEnd(RepairOutcome.BROKEN_OFF, str(error)), True
    if is_locked:
        with suppress(LogError):
            yield from Unlock()
    return end


def _work_off(
    repairing: "_Repair", *, eager: bool, rejoined: frozenset[BookieId]
) -> Steps[tuple[RepairEnd, bool]]:
    """Do what the mark asks for, and change or delete it; return whether the lock is still held."""
    while True:
        seen = yield from ReadMark()
        mark = seen.mark
        if mark is None:
            return RepairEnd(RepairOutcome.DONE), True
        if not eager and mark.waits(seen.now_ms, rejoined):
            return _deferred(mark), True
        left = yield from repairing.make_good(mark, seen.now_ms)
        if left is not None:
            if (yield from WriteMark(left, seen.version)):
                return _deferred(left), True
        elif (yield from DeleteMark(seen.version)):
            return RepairEnd(RepairOutcome.DONE), False
        elif repairing.rounds < ROUNDS_MAX:  # what was added while we worked is done too
            continue
        return RepairEnd(RepairOutcome.DEFERRED, "it was marked again meanwhile"), True


def _deferred(mark: UnderreplicatedLedger) -> RepairEnd:
    return RepairEnd(RepairOutcome.DEFERRED, mark.deferred_why, mark.not_before_ms)


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
    copies: list[CopyRange] = field(default_factory=list)
    """Still to be made; the first one is under way."""
    failed: set[int] = field(default_factory=set)
    """Indexes of which a copy failed."""

    @property
    def is_empty(self) -> bool:
        return self.last < self.first

    def place_of(self, index: int) -> BookieId:
        """Return who gets the copies of *index*."""
        return self.targets[index] if index in self.gone else self.fragment.bookies[index]


class _Repair:
    """What is known and found in all rounds; `make_good` is one or more of them."""

    def __init__(self, config: RepairConfig) -> None:
        self.rounds = 0
        self._config = config
        self._thorough = False
        """Whether what bookies hold is read, and not only asked for."""
        self._mark = UnderreplicatedLedger(())
        self._now_ms = 0
        self._read: Situation | None = None
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

    def make_good(
        self, mark: UnderreplicatedLedger, now_ms: int
    ) -> Steps[UnderreplicatedLedger | None]:
        """Make good what *mark* says; return the mark of what is left, None if nothing is."""
        self._mark, self._now_ms = mark, now_ms
        self._thorough |= mark.attempts > 0 and not mark.wants_bookie
        self._thorough |= mark.thorough
        try:
            while True:
                if not (yield from self._read_ledger()):
                    return None  # deleted: nothing is lacking
                yield from self._round()
                if not self._unseen or self._troubles or self.rounds >= ROUNDS_MAX:
                    return self._left()
        except LogError as error:
            return self._put_off(str(error))

    def _read_ledger(self) -> Steps[bool]:
        self.rounds += 1
        self._new_round()
        # To take the lock was a write: what is read behind it is as new as that.
        ledger = yield from ReadLedger(self._mark, fresh=self.rounds > 1)
        self._now_ms = ledger.now_ms
        if ledger.metadata is None:
            return False
        self._read = Situation(
            mark=self._mark,
            metadata=ledger.metadata,
            version=ledger.version,
            registered=ledger.registered,
            leaving=ledger.leaving,
            into=self._config.into,
        )
        return True

    def _round(self) -> Steps[None]:
        for work in self._concerned(self._situation.metadata):
            if not (yield from self._mend(work)):
                return
        yield from self._settle_last()

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

    def _mend(self, work: _Work) -> Steps[bool]:
        """Do what can be done about one fragment; return False if the round is over."""
        can_be_asked = bool(self._situation.members_to_ask(work.fragment))
        if work.gone:
            yield from self._choose_targets(work)
            if work.is_empty:
                return (yield from self._swap(work, tuple(work.targets)))
            if not work.targets and not can_be_asked:
                return True  # nothing can be done; looking would read it all for nothing
        elif not work.is_empty and self._situation.may_be_misplaced(work.fragment):
            yield from self._choose_better(work)
            if not work.gone and not self._situation.lacks_entries(work.fragment):
                return True
        elif work.is_empty:
            return True
        elif not can_be_asked:
            members = self._situation.mark.bookies.intersection(work.fragment.bookies)
            names = ", ".join(sorted(members))
            self._wait(f"{names} cannot be asked now", self._now_ms + AWAY_MS)
            return True
        yield from self._look(work)
        chosen = self._choose(work)
        while work.copies:
            yield from self._copy(work, work.copies[0])
            work.copies.pop(0)
        may_move = work.targets.keys() - work.failed
        return (yield from self._swap(work, tuple(i for i in chosen.moved if i in may_move)))

    def _choose_targets(self, work: _Work) -> Steps[None]:
        into = self._config.into
        chosen = yield from ChooseReplacements(
            tuple(work.gone), self._situation.not_wanted(), work.fragment.bookies
        )
        # Who has just come is not among those that were not wanted.
        work.targets = {index: bookie for index, bookie in chosen if into is None or bookie in into}
        if len(work.targets) == len(work.gone):
            return
        # Nothing is lacking in an empty one; a bookie that leaves has to be out of it all the same.
        self._wants_bookie |= not work.is_empty or any(
            self._situation.must_be_out(work.fragment.bookies[index]) for index in work.gone
        )

    def _choose_better(self, work: _Work) -> Steps[None]:
        """Move what another ensemble would hold better: the bookies that have it are all there, and
        keep it until the swap."""
        better = yield from ChooseBetter(self._situation.not_wanted(), work.fragment.bookies)
        work.gone, work.targets = dict.fromkeys(dict(better), True), dict(better)

    def _look(self, work: _Work) -> Steps[None]:
        """Look at the members that are there; what others have is not known."""
        for index, bookie in enumerate(work.fragment.bookies):
            if bookie not in self._situation.registered:
                if bookie in self._situation.mark.bookies and index not in work.gone:
                    self._wait(f"{bookie} cannot be asked now", self._now_ms + AWAY_MS)
                work.shares.append(Share(unsure=((work.first, work.last),)))
                continue
            share = yield from Look(Question(bookie, index, work.first, work.last), self._thorough)
            work.shares.append(share)
            if share.unsure and bookie in self._situation.mark.bookies:
                self._troubles.append(f"bookie {bookie} did not say what it has")

    def _choose(self, work: _Work) -> RepairPlan:
        chosen = choose(
            work.first,
            work.last,
            self._situation.metadata.quorum,
            work.shares,
            moving=dict(work.gone),
        )
        self._lost += chosen.lost
        if chosen.unsure:
            self._troubles.append("bookies that may have what is missing did not answer")
        work.copies = [
            copy
            for copy in chosen.copies
            if copy.index not in work.gone or copy.index in work.targets
        ]
        return chosen

    def _copy(self, work: _Work, copy: CopyRange) -> Steps[None]:
        """Make *copy*, unless one of its index has failed."""
        quorum, bookies = self._situation.metadata.quorum, work.fragment.bookies
        witness = None if copy.witness is None else bookies[copy.witness]
        place = work.place_of(copy.index)
        first = copy.next_from(copy.first, quorum)
        while first is not None and copy.index not in work.failed:
            assert holds(copy.index, first, quorum), "only what the index holds is copied"
            frames = yield from ReadFrames(bookies[copy.source], copy, first, witness)
            if frames.status not in {Status.OK, Status.IO_ERROR}:
                self._copy_failed(work, copy, f"a source refused: {frames.status.name}")
            elif not self._has_all(copy, first, frames):
                self._source_failed(work, copy)
            elif frames.differing:
                self._frames_differ(work, copy, frames.differing)
            else:
                status = yield from SendFrames(place, frames.entries)
                if status is Status.OK:
                    self._unseen |= copy.index not in work.gone
                else:
                    self._copy_failed(work, copy, f"a copy was refused: {status.name}")
            first = copy.next_from(frames.considered + 1, quorum)

    def _has_all(self, copy: CopyRange, first: int, frames: FramesRead) -> bool:
        """Return whether *frames* are what a source has that has all of *copy*."""
        quorum = self._situation.metadata.quorum
        expected = tuple(
            entry_id
            for entry_id in range(first, min(frames.considered, copy.last) + 1)
            if copy.takes(entry_id, quorum)
        )
        return frames.status is Status.OK and bool(expected) and frames.entries == expected

    def _frames_differ(self, work: _Work, copy: CopyRange, entries: tuple[int, ...]) -> None:
        """Write nothing: which of the two is right is for a person to say."""
        self._differing += [(entry_id, entry_id) for entry_id in entries]
        assert copy.witness is not None, "there were two to compare"
        names = " and ".join(work.fragment.bookies[i] for i in (copy.source, copy.witness))
        self._copy_failed(work, copy, f"{names} have different frames of entry {entries[0]}")

    def _source_failed(self, work: _Work, copy: CopyRange) -> None:
        """What a bookie said that it holds is not to be read there: next time all is read, and so
        another bookie chosen as the source, and this one repaired."""
        if self._thorough:
            self._copy_failed(work, copy, "a source has not any more what it had")
        else:
            self._thorough = self._unseen = True
            work.failed.add(copy.index)

    def _copy_failed(self, work: _Work, copy: CopyRange, why: str) -> None:
        work.failed.add(copy.index)
        place = work.place_of(copy.index)
        self._troubles.append(f"entries from {work.first} on, for bookie {place}: {why}")

    def _swap(self, work: _Work, moved: tuple[int, ...]) -> Steps[bool]:
        """Let the new bookies take the places of the old ones, all in one write; return False if
        the round is over."""
        assert not work.copies, "a swap comes after every copy"
        assert work.failed.isdisjoint(moved), "nothing moves of which a copy failed"
        for tries in range(SWAP_TRIES_MAX):
            situation = self._situation
            swapped = self._swapped(work, moved)
            if swapped is situation.metadata:  # nothing moves, or a reply was lost
                return True
            if swapped is None:  # somebody else changed it: read it again
                self._unseen = True
                return False
            if tries and situation.metadata.state is LedgerState.CLOSED:
                # The new bookies may have evicted what they got: send it again.
                return False
            try:
                version = yield from WriteSwap(
                    swapped, situation.version, situation.leaving.version
                )
                if version is not None:
                    self._read = replace(situation, metadata=swapped, version=version)
                    return True
                self._unseen = True  # a new bookie among them may be forgotten by now
                return False
            except (BadVersion, NoSuchLedger):
                self._unseen = True
            except MetadataUnavailable:
                self._unseen = True  # it may be written: the next round sees
                return False
            if not (yield from self._read_again()):
                return False
        return False

    def _swapped(self, work: _Work, moved: tuple[int, ...]) -> LedgerMetadata | None:
        """Return the metadata with the new bookies, as they are if those are in them already; None
        if they cannot be put in."""
        swapped = self._situation.metadata
        for index in moved:
            old, new = work.fragment.bookies[index], work.targets[index]
            replaced = swapped.replaced(work.fragment.first_entry, index, old, new)
            if isinstance(replaced, LedgerMetadata):
                swapped = replaced
            elif replaced is not SwapRefusal.DONE:
                return None
        return swapped

    def _read_again(self) -> Steps[bool]:
        """Read the metadata that others have changed; return False if there are none."""
        try:
            metadata, version = yield from ReadMetadata()
        except (NoSuchLedger, MetadataUnavailable):
            return False
        self._read = replace(self._situation, metadata=metadata, version=version)
        return True

    # The last fragment, while its writer may still add to it.

    def _settle_last(self) -> Steps[None]:
        """Leave it to its writer, or recover the ledger if that has taken too long."""
        situation = self._situation
        last = situation.metadata.last_fragment
        settled = situation.metadata.settled_end(last) is not None
        if settled or situation.mark.bookies.isdisjoint(last.bookies):
            return
        if situation.metadata.state is LedgerState.IN_RECOVERY:
            yield from self._recover()  # its writer is fenced already
            return
        if situation.was_written_without(last):
            why = "its writer has not left the fragment that lacks copies"
            self._wait(why, self._now_ms + UNSETTLED_MS)
        gone = tuple(
            index
            for index, bookie in enumerate(last.bookies)
            if situation.must_go(bookie, last) and situation.is_worth_a_fence(bookie)
        )
        if not gone:
            return
        since_ms = situation.marked_since_ms(last.bookies[index] for index in gone)
        over_ms = since_ms + self._config.open_fragment_grace_ms
        if self._now_ms < over_ms:
            self._wait("its writer is given time to leave the lost bookie", over_ms)
            return
        spare = yield from ChooseReplacements(gone, situation.not_wanted(), last.bookies)
        if not spare:
            # Fencing gains nothing, and costs the writer its ledger.
            self._wants_bookie = True
        elif situation.mark.wants_bookie and not self._wants_bookie:
            # It has come just now; the writer takes it by itself, and need not be fenced.
            over_ms = self._now_ms + self._config.open_fragment_grace_ms
            self._wait("its writer is given time to take the bookie that came", over_ms)
        else:
            yield from self._recover()

    def _recover(self) -> Steps[None]:
        try:
            yield from RecoverLedger()
        except LogError as error:
            self._troubles.append(str(error))
        else:
            self._unseen = True

    # What is left, at the end.

    def _wait(self, why: str, until_ms: int) -> None:
        self._wait_why, self._wait_until_ms = why, max(until_ms, self._wait_until_ms)

    def _left(self) -> UnderreplicatedLedger | None:
        """Return the mark after the last round; None if nothing is left."""
        if self._wants_bookie:
            self._troubles.append("there is no bookie to copy to")
        if self._lost:
            self._troubles.append("no bookie has some of the entries")
        if self._troubles or self._unseen:
            return self._put_off("; ".join(dict.fromkeys(self._troubles)))
        if self._wait_until_ms:
            return self._kept(self._mark.put_off(self._wait_why, self._wait_until_ms))
        return None

    def _put_off(self, why: str) -> UnderreplicatedLedger:
        """Return the mark after a repair that did not succeed."""
        deferred = self._mark.deferred(
            why or "it changes all the time",
            now_ms=self._now_ms,
            lost=tuple(sorted(self._lost)),
            differing=tuple(sorted(set(self._differing))),
            wants_bookie=self._wants_bookie,
        )
        return self._kept(deferred)

    def _kept(self, mark: UnderreplicatedLedger) -> UnderreplicatedLedger:
        return mark if self._read is None else self._read.without_who_left(mark)
