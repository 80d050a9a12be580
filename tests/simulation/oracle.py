"""What really happened, seen from outside: the oracle that the invariants are checked against.

The simulated hosts report here what they promised to somebody: an acknowledgement, a durable
copy, a fence, a value read, a ledger closed. The oracle draws no conclusion; each file of
`invariants` draws one. An add whose fate its writer does not know is in `sent` only: it may
be in the ledger or not, but if so with those bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ledger.ids import NO_ENTRY, BookieId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.quorum import Quorum
from ledger.requests import AddRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which bookies were picked of which, by whom."""

    who: str
    wanted: int
    chosen: tuple[BookieId, ...]
    available: tuple[BookieId, ...]
    exclude: tuple[BookieId, ...]
    """None of these may be picked; the other members of the ensemble are among them."""
    avoid: tuple[BookieId, ...]
    """These only if there are not enough others."""

    @property
    def free(self) -> list[BookieId]:
        return [bookie for bookie in self.available if bookie not in self.exclude]


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradedChoice:
    """An ensemble that names bookies which were away."""

    who: str
    quorum: Quorum
    ensemble: tuple[BookieId, ...]
    available: tuple[BookieId, ...]
    known: tuple[BookieId, ...]
    """Those who were away and may come back."""


@dataclass(slots=True)
class LedgerHistory:
    """All promises about one ledger."""

    ledger_id: LedgerId
    sent: list[bytes] = field(default_factory=list)
    """Frames by entry id, as the writer made them."""
    acknowledged: int = NO_ENTRY
    """Last entry whose add was resolved to the writer's caller."""
    acknowledgements: list[tuple[int, int]] = field(default_factory=list)
    """(first, last) of each confirmation, in the order of delivery."""
    copies: dict[int, dict[str, int]] = field(default_factory=dict)
    """Bookies that said by OK that they store an entry durably, by entry id; and how many versions
    the metadata had when they said it last."""
    added: dict[int, dict[str, None]] = field(default_factory=dict)
    """The same, of the writer's adds only."""
    broken_promises: list[str] = field(default_factory=list)
    """What a bookie had promised and did not have after a restart."""
    fenced: dict[str, None] = field(default_factory=dict)
    """Bookies that answered a fencing request."""
    broken_fences: list[str] = field(default_factory=list)
    metadata: list[tuple[int, LedgerMetadata]] = field(default_factory=list)
    """All (version, metadata) ever stored, in order."""
    deleted: bool = False
    evicting: dict[str, None] = field(default_factory=dict)
    """Bookies that began to evict it; they have all of it still, or nothing."""
    evictions: list[tuple[str, int]] = field(default_factory=list)
    """(bookie, place in `metadata`) of each eviction, in order."""
    lost_disks: dict[str, None] = field(default_factory=dict)
    """Bookies whose disk was lost or damaged; the same object for all ledgers."""
    stored_since: dict[str, set[int]] = field(default_factory=dict)
    """What such a bookie said that it stores since it lost its disk."""
    seen_lac: int = NO_ENTRY
    """Highest last-add-confirmed that any client believed, the writer included."""
    seen_lac_by: str = ""
    reads: list[tuple[str, int, bytes]] = field(default_factory=list)
    """(reader, entry id, frame) of each entry delivered to an application as confirmed."""
    peeks: list[tuple[str, int, bytes]] = field(default_factory=list)
    """The same, of entries delivered by unconfirmed reads above what was confirmed."""
    owners: list[str] = field(default_factory=list)
    """Who was answered that it had created this ledger."""
    revived: bool = False
    """Whether it was stored again after it was deleted."""
    choices: list[Choice] = field(default_factory=list)
    """What placement chose for it, in order."""
    degraded_choices: list[DegradedChoice] = field(default_factory=list)
    conclusions: list[tuple[str, LedgerMetadata]] = field(default_factory=list)
    """(client, metadata) for each client that learned that the ledger is CLOSED."""
    may_move: bool = False
    """Whether somebody repairs: members of what is settled may be replaced."""
    checked: dict[str, int] = field(default_factory=dict)
    """How far an invariant has looked into a list that only grows, by invariant."""

    @property
    def recorded(self) -> LedgerMetadata:
        """What the metadata store holds now."""
        return self.metadata[-1][1]

    @property
    def is_there(self) -> bool:
        """Whether the metadata store has the ledger."""
        return bool(self.metadata) and not self.deleted

    def unchecked(self, invariant: str, last: int) -> range:
        """Return those entries up to *last* that *invariant* must look at now.

        Copies are only ever added, so what was right stays right until metadata changes, a disk is
        lost, or copies are evicted."""
        key = f"{invariant} metadata"
        state = len(self.metadata) + len(self.lost_disks) + len(self.evictions)
        if self.checked.get(key) != state:
            self.checked[key] = state
            self.checked[invariant] = 0
        first = self.checked[invariant]
        self.checked[invariant] = max(first, last + 1)
        return range(first, last + 1)

    def copies_in_write_set(self, entry_id: int) -> int:
        """Return how many of the recorded write set of *entry_id* promised a durable copy."""
        return len(self._holders(entry_id))

    def copies_left(self, entry_id: int) -> int:
        """Return the same without those whose disk was lost."""
        return sum(
            bookie not in self.lost_disks or entry_id in self.stored_since.get(bookie, ())
            for bookie in self._holders(entry_id)
        )

    def _holders(self, entry_id: int) -> list[str]:
        metadata = self.recorded
        bookies = metadata.fragment_of(entry_id).bookies
        quorum = metadata.quorum
        held = self.copies.get(entry_id, {})
        write_set = (bookies[(entry_id + i) % quorum.ensemble] for i in range(quorum.write))
        return [bookie for bookie in write_set if bookie in held]


class Oracle:
    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, LedgerHistory] = {}
        self.changed: dict[LedgerId, None] = {}
        """Ledgers about which something was reported since the last check."""
        self.lost_disks: dict[str, None] = {}
        self.may_move = False

    def ledger(self, ledger_id: int) -> LedgerHistory:
        """Return the history of a ledger, to add a report to it."""
        key = LedgerId(ledger_id)
        self.changed[key] = None
        history = self.ledgers.get(key)
        if history is None:
            history = self.ledgers[key] = LedgerHistory(
                key, lost_disks=self.lost_disks, may_move=self.may_move
            )
        return history

    def appended(self, ledger_id: int, frames: Iterable[bytes]) -> None:
        self.ledger(ledger_id).sent.extend(frames)

    def sent(self, run: AddRun) -> None:
        """Take note of the frames that a ledger's writer sends, the first time."""
        frames = self.ledger(run.ledger_id).sent
        start = 0
        for entry, length in zip(run.entries, run.lengths, strict=True):
            while len(frames) <= entry:
                frames.append(b"")
            if not frames[entry]:
                frames[entry] = bytes(run.frames[start : start + length])
            start += length

    def acknowledged(self, ledger_id: int, last: int, *, who: str) -> None:
        history = self.ledger(ledger_id)
        history.acknowledgements.append((history.acknowledged + 1, last))
        history.acknowledged = last
        self.saw_lac(ledger_id, last, who=who)

    def saw_lac(self, ledger_id: int, last_add_confirmed: int, *, who: str) -> None:
        history = self.ledger(ledger_id)
        if last_add_confirmed > history.seen_lac:
            history.seen_lac, history.seen_lac_by = last_add_confirmed, who

    def stored(
        self, bookie: str, ledger_id: int, entries: Iterable[int], *, by_writer: bool = False
    ) -> None:
        """*bookie* answered OK: it holds *entries* durably."""
        history, entries = self.ledger(ledger_id), tuple(entries)
        if bookie in self.lost_disks:
            history.stored_since.setdefault(bookie, set()).update(entries)
        for entry_id in entries:
            history.copies.setdefault(entry_id, {})[bookie] = len(history.metadata)
            if by_writer:
                history.added.setdefault(entry_id, {})[bookie] = None

    def listed(self, bookie: str, ledger_id: int, entries: Iterable[int]) -> bool:
        """*bookie* said that it holds *entries*, durably. Return whether that was news."""
        copies = self.ledger(ledger_id).copies
        new = [entry for entry in entries if bookie not in copies.get(entry, ())]
        self.stored(bookie, ledger_id, new)
        return bool(new)

    def lost_disk(self, bookie: str, *, wholly: bool) -> None:
        """*bookie* has lost, from outside, what it promised: not its fault, and counted against
        what Qa promises. If not *wholly*, it may have kept some, and must know what not."""
        self.lost_disks[bookie] = None
        for ledger_id, history in self.ledgers.items():
            self.changed[ledger_id] = None
            history.stored_since.pop(bookie, None)
            if wholly:
                history.fenced.pop(bookie, None)

    def evicted(self, bookie: str, ledger_id: int) -> None:
        """*bookie* has nothing of the ledger any more, by its own decision."""
        history = self.ledger(ledger_id)
        history.evicting.pop(bookie, None)
        history.evictions.append((bookie, len(history.metadata) - 1))
        for held in history.copies.values():
            held.pop(bookie, None)

    def read(self, ledger_id: int, entry_id: int, frame: bytes, *, who: str) -> None:
        self.ledger(ledger_id).reads.append((who, entry_id, frame))

    def concluded(self, ledger_id: int, metadata: LedgerMetadata, *, who: str) -> None:
        self.ledger(ledger_id).conclusions.append((who, metadata))

    def recorded(self, ledger_id: int, version: int, metadata: LedgerMetadata) -> None:
        """The metadata store holds this now."""
        history = self.ledger(ledger_id)
        history.revived |= history.deleted
        history.metadata.append((version, metadata))

    def deleted(self, ledger_id: int) -> None:
        """The metadata store does not hold the ledger any more."""
        self.ledger(ledger_id).deleted = True

    def created(self, ledger_id: int, *, who: str) -> None:
        """*who* was answered that the new ledger is its own."""
        self.ledger(ledger_id).owners.append(who)

    def peeked(self, ledger_id: int, entry_id: int, frame: bytes, *, who: str) -> None:
        """*who* was given an entry by an unconfirmed read, above what is confirmed."""
        self.ledger(ledger_id).peeks.append((who, entry_id, frame))

    def placed(self, ledger_id: int, choice: Choice) -> None:
        self.ledger(ledger_id).choices.append(choice)

    def placed_degraded(self, ledger_id: int, choice: DegradedChoice) -> None:
        self.ledger(ledger_id).degraded_choices.append(choice)
