"""What repair did, and upon what: seen at its ports, for the invariants of `invariants`.

Things that happened stand here until they are checked, after the step that they happened in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ledger.ids import BookieId, LedgerId
from ledger.mark import UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata
from ledger.quorum import holds
from tests.simulation.oracle import LedgerHistory, Oracle


@dataclass(frozen=True, slots=True)
class Written:
    """The metadata of a ledger were changed."""

    ledger_id: LedgerId
    by: str
    before: LedgerMetadata
    after: LedgerMetadata

    @property
    def by_a_worker(self) -> bool:
        return self.by.startswith("worker")

    def changed(self) -> Iterator[tuple[Fragment, Fragment]]:
        """Yield what fragments were, and what they are, where that differs."""
        for before, after in zip(self.before.fragments, self.after.fragments, strict=True):
            if before != after:
                yield before, after


@dataclass(frozen=True, slots=True)
class Copied:
    """A worker sends entries to a bookie."""

    ledger_id: LedgerId
    by: str
    bookie: BookieId
    entries: tuple[int, ...]
    frames: bytes
    lengths: tuple[int, ...]
    recovering: bool
    """It recovers the ledger."""
    had: frozenset[int]
    """What the bookie had promised when it was looked at."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A worker begins to recover a ledger, which fences its writer if it is OPEN."""

    ledger_id: LedgerId
    by: str
    now_ms: int
    members: tuple[BookieId, ...]
    """Of the last fragment, as far as the worker knows."""
    writable: tuple[BookieId, ...]
    """Who is there and takes entries, as far as the worker knows."""


@dataclass(frozen=True, slots=True)
class MarkedLost:
    """An auditor marks what a bookie should hold, as lost with it."""

    ledger_id: LedgerId
    by: str
    bookie: BookieId
    registered_s: float | None
    """Since when the bookie is registered; None: it is not."""
    ledgers_read_s: float | None
    """When the auditor last began to read the metadata of a ledger."""


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A mark is gone."""

    ledger_id: LedgerId
    by: str
    mark: UnderreplicatedLedger
    seen: UnderreplicatedLedger | None
    """What who deleted it had read of it last."""
    was_confirmed: bool
    """Whether a call that began after that has returned: the ledger is marked, it says."""


@dataclass(frozen=True, slots=True)
class Revived:
    """The node of a retired name says that somebody has the name."""

    bookie: BookieId
    by: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The name of a bookie was retired, as nothing names it any more."""

    bookie: BookieId
    by: str


@dataclass(frozen=True, slots=True)
class Bounded:
    """A reader was told above which entry nothing was acknowledged before it asked."""

    ledger_id: LedgerId
    by: str
    acknowledged: int
    """The last entry that was, when it asked."""
    bound: int


Happening = Written | Copied | Fenced | MarkedLost | Unmarked | Revived | Forgotten | Bounded


@dataclass(slots=True)
class Repairs:
    ledgers: Oracle
    grace_ms: int
    """How long an open last fragment is left to its writer."""
    disks_fail: bool
    """Whether bookies may be unable for a while to give what they have, as it is."""
    marks: dict[LedgerId, UnderreplicatedLedger] = field(default_factory=dict)
    """Those that there are."""
    locks: dict[LedgerId, None] = field(default_factory=dict)
    first_marked: dict[tuple[LedgerId, BookieId], int] = field(default_factory=dict)
    """Since when a mark ever named a bookie, at the earliest."""
    confirmed: dict[LedgerId, int] = field(default_factory=dict)
    """When the last call began that has returned with the ledger marked."""
    forgotten: set[BookieId] = field(default_factory=set)
    """Bookies whose cookies were deleted."""
    happened: list[Happening] = field(default_factory=list)
    """What is not checked yet."""

    _moment: int = 0

    def moment(self) -> int:
        """Return a number that is higher than all before."""
        self._moment += 1
        return self._moment

    def history(self, ledger_id: LedgerId) -> LedgerHistory:
        return self.ledgers.ledgers[ledger_id]

    def marked(self, ledger_id: LedgerId, mark: UnderreplicatedLedger) -> None:
        self.marks[ledger_id] = mark
        for replica in mark.missing:
            key = ledger_id, replica.bookie
            self.first_marked[key] = min(
                replica.since_ms, self.first_marked.get(key, replica.since_ms)
            )


def held_by(fragment: Fragment, index: int, metadata: LedgerMetadata) -> list[int]:
    """Return the settled entries of *fragment* that *index* holds."""
    end = metadata.settled_end(fragment)
    assert end is not None, "it is settled"
    return [
        entry
        for entry in range(fragment.first_entry, end + 1)
        if holds(index, entry, metadata.quorum)
    ]
