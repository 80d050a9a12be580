"""A cluster as plain values: bookies are sets of entry ids. Actions of a repair are done at once.

It checks what must hold whenever it does one: nothing is swapped in that has not every entry of
its index, nothing unsettled is copied, nobody is fenced without a spare bookie.
"""

from dataclasses import dataclass, field
from typing import Any

from bookie.autorecovery.protocol import repair as protocol
from bookie.autorecovery.protocol.repair_plan import Leaving, Share
from ledger.errors import BadVersion, LogError, MetadataUnavailable, NoSuchLedger
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore.port import ANY_VERSION
from ledger.protocol.procedure import Action
from ledger.quorum import Quorum, holds
from ledger.requests import Status
from tests.procedures import Raised, Returned, Script

LEDGER = LedgerId(7)
FRAMES_MAX = 3
"""Entries in one answer to a read."""
STEPS_MAX = 2000
LOST = MetadataUnavailable("memory", "an action", 1.0)


def names(text: str) -> tuple[BookieId, ...]:
    return tuple(BookieId(name) for name in text)


def ledger(
    *fragments: tuple[int, str],
    last: int | None,
    quorum: Quorum | None = None,
    state: LedgerState = LedgerState.CLOSED,
) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=quorum or Quorum(3, 3, 2),
        fragments=tuple(Fragment(EntryId(first), names(text)) for first, text in fragments),
        state=state,
        last_entry=None if last is None else EntryId(last),
        length=None if last is None else 0,
    )


@dataclass
class World:
    metadata: LedgerMetadata | None
    there: str
    """Bookies that are registered."""
    end: int = -1
    """The last entry that was acknowledged, of a ledger that is not CLOSED."""
    leaving: str = ""
    leaving_version: int = 0
    version: int = 0
    held: dict[BookieId, set[int]] = field(default_factory=dict)
    rotten: dict[BookieId, set[int]] = field(default_factory=dict)
    """Entries that they believe to hold, and cannot give."""
    other: dict[BookieId, set[int]] = field(default_factory=dict)
    """Entries of which they have another frame than those who are not named, whole like that."""
    silent: set[BookieId] = field(default_factory=set)
    """They are registered and do not answer."""
    mark: UnderreplicatedLedger | None = None
    mark_version: int = 0
    locked_by: int | None = None
    """The worker that has the lock."""
    worker: int = 0
    """Which one does the next action."""
    now_ms: int = 1_000_000
    copied: int = 0
    """Entries that were sent to bookies."""
    read: int = 0
    """Entries that were read, to copy them or to look at them."""
    written: list[str] = field(default_factory=list)
    """Names of the actions done."""
    fenced: bool = False
    evictions: int = 0
    offered: dict[BookieId, bool] = field(default_factory=dict)
    """Bookies that offered what they have for eviction, and have promised nothing since; whether
    the metadata were written since."""
    grace_ms: int = 0
    """If positive, nobody may be fenced before; where no worker sleeps over what it has read."""

    def __post_init__(self) -> None:
        metadata = self._metadata
        if metadata.last_entry is not None:
            self.end = metadata.last_entry
        for entry_id in range(self.end + 1):
            for index, bookie in enumerate(metadata.fragment_of(entry_id).bookies):
                if holds(index, entry_id, metadata.quorum):
                    self.of(bookie).add(entry_id)

    def believed(self, bookie: BookieId) -> set[int]:
        """Return what *bookie* says it holds."""
        return self.of(bookie) | self.rotten.get(bookie, set())

    def rot(self, bookie: BookieId, *entries: int) -> None:
        self.of(bookie).difference_update(entries)
        self.rotten.setdefault(bookie, set()).update(entries)

    @property
    def _metadata(self) -> LedgerMetadata:
        assert self.metadata is not None
        return self.metadata

    def of(self, bookie: BookieId) -> set[int]:
        return self.held.setdefault(bookie, set())

    def lacks(self, text: str, reason: Reason = Reason.LOST, since_ms: int = 0) -> "World":
        added = tuple(MissingReplica(bookie, reason, since_ms) for bookie in names(text))
        self.mark = (self.mark or UnderreplicatedLedger(())).merged(added)
        self.mark_version += 1
        return self

    @property
    def locked(self) -> bool:
        return self.locked_by is not None

    @property
    def _lock_is_lost(self) -> bool:
        return self.locked_by != self.worker

    def lose_lock(self) -> None:
        """The session of who has it has ended."""
        self.locked_by = None

    def is_whole(self) -> bool:
        """Return whether every entry is where the metadata say, on a bookie that is there."""
        metadata = self._metadata
        return all(
            bookie in names(self.there) and entry_id in self.of(bookie)
            for entry_id in range(self.end + 1)
            for index, bookie in enumerate(metadata.fragment_of(entry_id).bookies)
            if holds(index, entry_id, metadata.quorum)
        )

    # Evictions, as `bookie.collector.evictor` does them.

    def offer(self, bookie: BookieId) -> None:
        self.offered[bookie] = False

    def supersede(self, bookie: BookieId) -> None:
        """Write the metadata again, if they say that the bookie's copy is nobody's."""
        metadata = self.metadata
        if bookie not in self.offered or metadata is None:
            return
        if metadata.state is LedgerState.CLOSED and not self.is_named(bookie):
            self.version += 1
            self.offered[bookie] = True

    def evict(self, bookie: BookieId) -> None:
        if self.offered.pop(bookie, False):
            self.held.pop(bookie, None)
            self.rotten.pop(bookie, None)
            self.evictions += 1

    def is_named(self, bookie: BookieId) -> bool:
        return any(bookie in fragment.bookies for fragment in self._metadata.fragments)

    # Actions.

    def do(self, action: Action[Any]) -> object:  # noqa: PLR0911, PLR0912 - one each
        """Do *action*; return its answer, or raise as it does."""
        self.written.append(type(action).__name__)
        match action:
            case protocol.TakeLock():
                if self.locked_by not in {None, self.worker}:
                    return False
                self.locked_by = self.worker
                return True
            case protocol.ReadMark():
                return protocol.MarkRead(self.mark, self.mark_version, self.now_ms)
            case protocol.ReadLedger():
                return protocol.LedgerRead(
                    self.metadata,
                    self.version,
                    frozenset(names(self.there)),
                    Leaving(frozenset(names(self.leaving)), self.leaving_version),
                    self.now_ms,
                )
            case protocol.Look():
                return self._look(action)
            case protocol.ChooseReplacements(indexes, exclude, ensemble):
                spare = [
                    bookie for bookie in names(self.there) if bookie not in (*exclude, *ensemble)
                ]
                return tuple(zip(indexes, spare, strict=False))
            case protocol.ChooseBetter(exclude, ensemble):
                return self._better(exclude, ensemble)
            case protocol.ReadMetadata():
                if self.metadata is None:
                    raise NoSuchLedger(LEDGER)
                return self.metadata, self.version
            case protocol.ReadFrames():
                return self._read(action)
            case protocol.SendFrames():
                return self._send(action)
            case protocol.WriteSwap(metadata, version, leaving_version):
                if leaving_version not in {self.leaving_version, ANY_VERSION}:
                    return None
                return self._write(metadata, version)
            case protocol.RecoverLedger():
                self._recover()
            case protocol.WriteMark(mark, version):
                if self.mark is None or version != self.mark_version or self._lock_is_lost:
                    return False
                self.mark, self.mark_version = mark, version + 1
                return True
            case protocol.DeleteMark(version):
                if self._lock_is_lost:
                    raise protocol.LockLost
                if self.mark is not None and version != self.mark_version:
                    return False
                self.mark = self.locked_by = None
                return True
            case protocol.Unlock():
                if self.locked_by == self.worker:
                    self.locked_by = None
            case _:
                raise AssertionError(f"no action of a repair: {action}")
        return None

    def _look(self, action: protocol.Look) -> Share:
        asked = action.question
        if asked.bookie in self.silent:
            return Share(unsure=((asked.first, asked.last),))
        if self.metadata is None:
            return Share(((asked.first, asked.last),))
        if action.thorough:
            self.read += asked.last - asked.first + 1
        had = self.of(asked.bookie) if action.thorough else self.believed(asked.bookie)
        missing = tuple(
            (entry_id, entry_id)
            for entry_id in range(asked.first, asked.last + 1)
            if holds(asked.index, entry_id, self._metadata.quorum) and entry_id not in had
        )
        return Share(missing)

    def _read(self, action: protocol.ReadFrames) -> protocol.FramesRead:
        if action.bookie in self.silent or action.bookie not in names(self.there):
            return protocol.FramesRead(Status.UNREACHABLE, (), -1)
        if self.metadata is None:
            return protocol.FramesRead(Status.NO_SUCH_LEDGER, (), -1)
        quorum = self._metadata.quorum
        found = [
            entry_id
            for entry_id in range(action.first, action.copy.last + 1)
            if action.copy.takes(entry_id, quorum) and entry_id in self.of(action.bookie)
        ]
        rotten = self.rotten.get(action.bookie, set()) - self.of(action.bookie)
        damaged = [each for each in sorted(rotten) if action.first <= each <= action.copy.last]
        if damaged[:1] == [action.first]:
            return protocol.FramesRead(Status.IO_ERROR, (), -1)
        considered = min([action.copy.last, *(each - 1 for each in damaged)])
        if len(found) > FRAMES_MAX:
            considered = min(considered, found[FRAMES_MAX] - 1)
        self.read += len(found[:FRAMES_MAX])
        given = tuple(entry_id for entry_id in found if entry_id <= considered)
        differing: tuple[int, ...] = ()
        if action.witness is not None:
            changed = self.other.get(action.witness, set()) ^ self.other.get(action.bookie, set())
            differing = tuple(entry_id for entry_id in given if entry_id in changed)
        return protocol.FramesRead(Status.OK, given, considered, differing)

    def _better(
        self, exclude: tuple[BookieId, ...], ensemble: tuple[BookieId, ...]
    ) -> tuple[tuple[int, BookieId], ...]:
        """Racks: upper and lower half of the alphabet; an ensemble should not be all of one."""
        racks = [bookie >= "n" for bookie in ensemble]
        if len(set(racks)) > 1:
            return ()
        spare = [
            bookie
            for bookie in names(self.there)
            if bookie not in (*exclude, *ensemble) and (bookie >= "n") is not racks[0]
        ]
        return ((0, spare[0]),) if spare else ()

    def _send(self, action: protocol.SendFrames) -> Status:
        if self.metadata is None:
            return Status.NO_SUCH_LEDGER
        metadata = self._metadata
        for entry_id in action.entries:
            fragment = metadata.fragment_of(entry_id)
            end = metadata.settled_end(fragment)
            assert end is not None, f"entry {entry_id} is copied before it is settled"
            assert entry_id <= end, f"entry {entry_id} is not part of the ledger"
        if action.bookie in self.silent or action.bookie not in names(self.there):
            return Status.UNREACHABLE
        self.offered.pop(action.bookie, None)
        self.of(action.bookie).update(action.entries)
        self.copied += len(action.entries)
        return Status.OK

    def _write(self, metadata: LedgerMetadata, version: int) -> int:
        if self.metadata is None:
            raise NoSuchLedger(LEDGER)
        if version != self.version:
            raise BadVersion("ledger", version)
        changed = [
            (before, after)
            for before, after in zip(self.metadata.fragments, metadata.fragments, strict=True)
            if before != after
        ]
        assert len(changed) == 1, "a swap changes one fragment"
        for before, after in changed:
            assert before.first_entry == after.first_entry, "a swap changes no key"
            last = metadata.settled_end(after)
            assert last is not None, "a swap is in what is settled"
            for index, bookie in enumerate(after.bookies):
                if before.bookies[index] == bookie:
                    continue
                held = [
                    entry_id
                    for entry_id in range(after.first_entry, last + 1)
                    if holds(index, entry_id, metadata.quorum)
                ]
                assert self.of(bookie).issuperset(held), f"{bookie} has not all that it stands for"
        self.metadata, self.version = metadata, version + 1
        return self.version

    def _recover(self) -> None:
        metadata = self._metadata
        if metadata.state is LedgerState.OPEN and self.grace_ms:
            assert self.mark is not None, "nobody is fenced without a mark"
            since = [
                k.since_ms for k in self.mark.missing if k.bookie in metadata.last_fragment.bookies
            ]
            assert self.now_ms >= min(since) + self.grace_ms, "a writer is fenced within its grace"
        if metadata.state is not LedgerState.CLOSED:
            self.fenced = True
            self.metadata = self._metadata.closed(EntryId(self.end), 0)
            self.version += 1


class Running:
    """One worker at one ledger, which may be paused between any two actions."""

    def __init__(
        self,
        world: World,
        *,
        eager: bool = False,
        grace_ms: int = 0,
        worker: int = 0,
        into: str | None = None,
        rejoined: str = "",
    ) -> None:
        self.finish: protocol.RepairEnd | None = None
        self._world, self._worker = world, worker
        targets = None if into is None else frozenset(names(into))
        config = protocol.RepairConfig(open_fragment_grace_ms=grace_ms, into=targets)
        self._script = Script(
            protocol.repair(config, eager=eager, rejoined=frozenset(names(rejoined)))
        )
        self._next = self._script.begin()

    def step(self, lose: str = "") -> None:
        """Do the next action. *lose*: ``"reply"`` says that it failed, though it was done;
        ``"effect"`` that it failed, and it was not done."""
        assert isinstance(self._next, Action), "it is over"
        self._world.worker = self._worker
        try:
            answer = None if lose == "effect" else self._world.do(self._next)
            if lose:
                raise LOST
        except LogError as error:
            self._next = self._script.fail(error)
        else:
            self._next = self._script.answer(answer)
        assert not isinstance(self._next, Raised), "a repair raises nothing"
        if isinstance(self._next, Returned):
            self.finish = self._next.value

    def steps(self, count: int) -> "Running":
        for _ in range(count):
            if self.finish is None:
                self.step()
        return self

    def end(self) -> protocol.RepairEnd:
        for _ in range(STEPS_MAX):
            if self.finish is not None:
                return self.finish
            self.step()
        raise AssertionError("it never ends")


def repair(
    world: World, *, eager: bool = False, grace_ms: int = 0, into: str | None = None
) -> protocol.RepairEnd:
    return Running(world, eager=eager, grace_ms=grace_ms, into=into).end()
