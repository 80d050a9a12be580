"""What a repair knows of a ledger, and what it does about one settled fragment of it: what stays,
what moves, what is copied where, and what cannot be. Pure.

`Situation` says what follows for a copy from why its bookie is marked, and from whether it is
there: a bookie that came back is not moved from, unless it is to be emptied or stands badly.

A *share* is what one bookie was found to have of what its index should hold. Ids that the index
does not hold are left out of account everywhere, so that a share that is complete is one range
whatever E and Qw are.

Invariants of `choose`:
    nothing is copied that the index does not hold
    an entry is lost only if every bookie that should have it said that it has not
    of an index that moves either all is copied, or nothing
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final

from ledger.ids import BookieId
from ledger.mark import MissingReplica, Reason, UnderreplicatedLedger
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum, holds, write_set

# What is known of the ledger.


@dataclass(frozen=True, slots=True)
class Leaving:
    """The list of bookies that are to be emptied."""

    bookies: frozenset[BookieId]
    version: int
    """Read before the list was: who is added to that changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    mark: UnderreplicatedLedger
    metadata: LedgerMetadata
    version: int
    """Of the metadata."""
    registered: frozenset[BookieId]
    leaving: Leaving
    into: frozenset[BookieId] | None
    """Who may get copies that move; None: any writable bookie."""

    def concerns(self, fragment: Fragment) -> bool:
        """Return whether *fragment* may lack what a bookie of the mark should hold."""
        return any(self._may_lack(replica, fragment) for replica in self._missing_in(fragment))

    def must_go(self, bookie: BookieId, fragment: Fragment) -> bool:
        """Return whether what *bookie* holds of *fragment* is to be moved: it is marked, and not
        back."""
        replica = self.mark.missing_of(bookie)
        if replica is None:
            return False
        if bookie in self.leaving.bookies:
            return True
        if replica.reason is Reason.MISPLACED:
            # Where to is decided already; else it depends on what is better.
            return self.into is not None and bookie in self.registered
        given_up = replica.reason in {Reason.LOST, Reason.DECOMMISSIONING, Reason.AWAY}
        there = bookie in self.registered
        return given_up and not there and self._may_lack(replica, fragment)

    def must_be_out(self, bookie: BookieId) -> bool:
        """Return whether no fragment may name it in the end, not even an empty one."""
        replica = self.mark.missing_of(bookie)
        emptied = replica is not None and replica.reason is Reason.DECOMMISSIONING
        return bookie in self.leaving.bookies or emptied

    def is_worth_a_fence(self, bookie: BookieId) -> bool:
        """Return whether a writer is disturbed for it: not to spread copies better, and not for a
        bookie that is only away. The writer knows of that one, and leaves it when it can."""
        replica = self.mark.missing_of(bookie)
        gentle = replica is None or replica.reason in {Reason.MISPLACED, Reason.AWAY}
        return bookie in self.leaving.bookies or not gentle

    def members_to_ask(self, fragment: Fragment) -> frozenset[BookieId]:
        """Return the marked members that are there."""
        return self.mark.bookies.intersection(fragment.bookies) & self.registered

    def marked_since_ms(self, bookies: Iterable[BookieId]) -> int:
        """Return since when all of *bookies*, which the mark names, are marked."""
        missing = map(self.mark.missing_of, bookies)
        return max(replica.since_ms for replica in missing if replica is not None)

    def not_wanted(self) -> tuple[BookieId, ...]:
        """Return who must not get copies. Who lacks some here may get others: where all lack some,
        and one leaves, nobody else could take its place."""
        not_wanted = self.leaving.bookies
        if self.into is not None:
            not_wanted |= self.registered - self.into
        return tuple(sorted(not_wanted))

    def may_be_misplaced(self, fragment: Fragment) -> bool:
        """Return whether to look for a better ensemble: only where every source is registered."""
        if not self.registered.issuperset(fragment.bookies):
            return False
        return any(replica.reason is Reason.MISPLACED for replica in self._missing_in(fragment))

    def lacks_entries(self, fragment: Fragment) -> bool:
        """Return whether a member is marked for more than its place."""
        return any(replica.reason is not Reason.MISPLACED for replica in self._missing_in(fragment))

    def was_written_without(self, fragment: Fragment) -> bool:
        """Return whether *fragment*, which is open, was written without one of its bookies."""
        return any(
            replica.fragment >= fragment.first_entry for replica in self._missing_in(fragment)
        )

    def without_who_left(self, mark: UnderreplicatedLedger) -> UnderreplicatedLedger:
        """Return *mark* without bookies that are to be emptied and that no fragment names any more:
        what else the ledger lacks must not keep them. If one is named again, it is marked again."""
        named = {bookie for fragment in self.metadata.fragments for bookie in fragment.bookies}
        kept = tuple(
            replica
            for replica in mark.missing
            if replica.bookie in named or replica.reason is not Reason.DECOMMISSIONING
        )
        return replace(mark, missing=kept) if kept else mark

    def _missing_in(self, fragment: Fragment) -> list[MissingReplica]:
        return [replica for replica in self.mark.missing if replica.bookie in fragment.bookies]

    def _may_lack(self, replica: MissingReplica, fragment: Fragment) -> bool:
        """Return whether *fragment* may lack copies because of *replica*.

        A writer says which ones it wrote without the bookie. A recovery may have written the last
        one of a CLOSED ledger without it."""
        if replica.reason is not Reason.AWAY or self.metadata.state is LedgerState.CLOSED:
            return True
        return fragment.first_entry <= replica.fragment


# What is copied where.

Spans = tuple[tuple[int, int], ...]
"""Inclusive ranges of entry ids, ascending and apart."""

NO_SPANS: Final[Spans] = ()


class ReplicaState(Enum):
    """What is known of an entry at one index."""

    HELD = "held"
    MISSING = "missing"
    """The bookie said that it has not, or cannot give it."""
    UNSURE = "unsure"
    """It did not answer, or may not deny it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one bookie has; what is in neither is held."""

    missing: Spans = NO_SPANS
    unsure: Spans = NO_SPANS

    def at(self, entry_id: int) -> ReplicaState:
        if _in(self.missing, entry_id):
            return ReplicaState.MISSING
        return ReplicaState.UNSURE if _in(self.unsure, entry_id) else ReplicaState.HELD

    def within(self, other: "Share") -> "Share":
        """Return what is held by this share and by *other*."""
        return Share(
            _merged([*self.missing, *other.missing]), _merged([*self.unsure, *other.unsure])
        )


NO_SHARE: Final = Share()
"""Lacks nothing."""


@dataclass(frozen=True, slots=True)
class Question:
    """What *bookie* is asked: what it has of what *index* holds of first..last, in a settled
    fragment."""

    bookie: BookieId
    index: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CopyRange:
    """The entries first..last of *residues* modulo E, from one index to another place."""

    index: int
    """Whose entries they are."""
    source: int
    """The index that they are read from."""
    first: int
    last: int
    residues: tuple[int, ...]
    witness: int | None = None
    """Another index that has them all: what it gives must be the same bytes."""

    def takes(self, entry_id: int, quorum: Quorum) -> bool:
        return self.first <= entry_id <= self.last and entry_id % quorum.ensemble in self.residues

    def next_from(self, entry_id: int, quorum: Quorum) -> int | None:
        """Return the first entry of the copy from *entry_id* on."""
        for candidate in range(max(entry_id, self.first), self.last + 1):
            if candidate % quorum.ensemble in self.residues:
                return candidate
        return None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What is to be done about a fragment."""

    copies: tuple[CopyRange, ...]
    moved: tuple[int, ...]
    """Indexes that go to another bookie once all of their copies are made."""
    lost: Spans
    """Entries that are to be copied, and no bookie has; of a striped fragment, ranges of them."""
    unsure: bool
    """Something could not be decided, because a bookie did not answer."""


def choose(
    first: int,
    last: int,
    quorum: Quorum,
    shares: Sequence[Share],
    *,
    moving: Mapping[int, bool],
) -> RepairPlan:
    """Return what makes the fragment first..last whole.

    *moving*: the indexes that get another bookie, and whether the old one can be read from.
    All others are repaired in place, as far as they are known to lack something."""
    copies: list[CopyRange] = []
    moved: list[int] = []
    lost: list[tuple[int, int]] = []
    unsure = False
    for index in range(quorum.ensemble):
        found, gaps, doubtful = _copies_for(index, first, last, quorum, shares, moving)
        lost += gaps
        unsure |= doubtful
        if index not in moving:
            copies += found
        elif not gaps and not doubtful:
            copies += found
            moved.append(index)
    return RepairPlan(tuple(copies), tuple(moved), _merged(lost), unsure)


def _copies_for(
    index: int,
    first: int,
    last: int,
    quorum: Quorum,
    shares: Sequence[Share],
    moving: Mapping[int, bool],
) -> tuple[list[CopyRange], list[tuple[int, int]], bool]:
    """Return the copies that *index* needs, the ranges it cannot get, and whether that is so only
    because somebody did not answer."""
    copies: list[CopyRange] = []
    lost: list[tuple[int, int]] = []
    unsure = False
    for start, end in pieces(first, last, shares):
        if index not in moving and shares[index].at(start) is not ReplicaState.MISSING:
            continue
        wanted: dict[int, set[int]] = {}
        for residue in range(quorum.ensemble):
            if not holds(index, residue, quorum) or _first_of(residue, start, quorum) > end:
                continue
            sources, doubtful = _sources(index, residue, start, quorum, shares, moving)
            if sources:
                wanted[residue] = sources
            elif doubtful:
                unsure = True
            else:
                lost.append(_span_of(residue, start, end, quorum))
        copies += [
            CopyRange(index, source, start, end, residues, _witness(source, residues, wanted))
            for source, residues in _shared_out(index, wanted, quorum, moving)
        ]
    return copies, lost, unsure


def _sources(
    index: int,
    residue: int,
    at: int,
    quorum: Quorum,
    shares: Sequence[Share],
    moving: Mapping[int, bool],
) -> tuple[set[int], bool]:
    """Return where the entries of *residue* around *at* can be read; and if nowhere, whether
    somebody might have them who did not say."""
    # A bookie that is away for good is no hope: it was given time to come back.
    holders = [
        holder
        for holder in write_set(residue, quorum)
        if (holder != index or moving.get(index, False)) and moving.get(holder, True)
    ]
    standings = {holder: shares[holder].at(at) for holder in holders}
    held = {holder for holder in holders if standings[holder] is ReplicaState.HELD}
    return held, ReplicaState.UNSURE in standings.values()


def _shared_out(
    index: int, wanted: Mapping[int, set[int]], quorum: Quorum, moving: Mapping[int, bool]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield who is read from, and for which residues: of few bookies much, as what a read passes
    over was read all the same. Bookies that are to be emptied last, they have enough to do."""
    left = dict(wanted)
    while left:
        residues_of: dict[int, list[int]] = {}
        for residue, sources in left.items():
            for source in sources:
                residues_of.setdefault(source, []).append(residue)
        best = min(
            residues_of,
            key=lambda source: (
                source in moving,
                -len(residues_of[source]),
                (source - index) % quorum.ensemble,
            ),
        )
        yield best, tuple(sorted(residues_of[best]))
        for residue in residues_of[best]:
            del left[residue]


def _witness(source: int, residues: Sequence[int], wanted: Mapping[int, set[int]]) -> int | None:
    """Return another index than *source* that has all *residues*, if there is one."""
    have_all = set.intersection(*(wanted[residue] for residue in residues)) - {source}
    return min(have_all, default=None)


def pieces(first: int, last: int, shares: Iterable[Share]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of first..last within which no share changes."""
    edges = {first, last + 1}
    for share in shares:
        for start, end in (*share.missing, *share.unsure):
            edges.update(edge for edge in (start, end + 1) if first <= edge <= last)
    ordered = sorted(edges)
    for start, after in pairwise(ordered):
        yield start, after - 1


def _first_of(residue: int, start: int, quorum: Quorum) -> int:
    return start + (residue - start) % quorum.ensemble


def _span_of(residue: int, start: int, end: int, quorum: Quorum) -> tuple[int, int]:
    """Return the range from the first to the last entry of *residue* in start..end."""
    return _first_of(residue, start, quorum), end - (end - residue) % quorum.ensemble


def _merged(spans: Iterable[tuple[int, int]]) -> Spans:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _in(spans: Spans, entry_id: int) -> bool:
    at = bisect_right(spans, entry_id, key=lambda span: span[0]) - 1
    return at >= 0 and entry_id <= spans[at][1]
