"""Pure: which copies of a ledger's entries are lacking, judged from what its members say.

Only what is settled is judged (rule 80), and of each member only the entries that its index
holds. Who gave no answer, was too busy or is in limbo leaves things *unknown*: never missing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ledger.entry import Header
from ledger.ids import BookieId, EntryId
from ledger.metadata import Fragment, LedgerMetadata
from ledger.protocol.ranges import Ranges
from ledger.quorum import Quorum, next_held, previous_held
from ledger.requests import HeldAnswer, HeldQuery, Status

_Range = tuple[int, int]


class ReplicaFault(Enum):
    """What is wrong with one bookie's copy of an entry."""

    MISSING = "missing"
    """The bookie says that it does not have the entry."""
    DAMAGED = "damaged"
    """Its bytes fail the checksum or the authentication code."""
    DIFFERENT = "different"
    """Whole by itself, and not what most other replicas are."""
    UNREADABLE = "unreadable"
    """The bookie reports an error for the entry."""
    REFUSED = "refused"
    """The bookie neither gives the entry nor says that it has it not: it is in limbo, or holds the
    ledger under another key."""
    UNREACHABLE = "unreachable"
    """The bookie did not answer."""


class LackKind(Enum):
    MEMBER = "member lost"
    """The bookie is gone for good, or is to go: its share has to move."""
    MISSING = "entries missing"
    """It is there and says that it has not got them."""
    DAMAGED = "entries damaged"
    """It is there and has them, but not as they were written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Entries that one member of a fragment should hold."""

    fragment: EntryId
    """The fragment's key: its first entry."""
    index: int
    """Of the ensemble."""
    bookie: BookieId
    ranges: tuple[_Range, ...]
    """Inclusive and ascending; each begins and ends with an entry of *index*. In a striped ledger
    others lie between: see `entries`. Empty if no settled entry belongs to the index."""

    def entries(self, quorum: Quorum) -> Iterator[int]:
        """Yield the entries, ascending; none that the index does not hold."""
        for first, last in self.ranges:
            entry_id = first
            while entry_id <= last:
                yield entry_id
                entry_id = next_held(self.index, entry_id + 1, quorum)


@dataclass(frozen=True, slots=True)
class Lack(Place):
    """What is to be made good at one member of a fragment."""

    kind: LackKind


@dataclass(frozen=True, slots=True)
class Judgement:
    lacks: tuple[Lack, ...]
    """In order of fragments and indexes."""
    unknown: tuple[Place, ...]
    """Of what nobody could say whether it is there; without these, the ledger was checked whole."""


class Share:
    """What one bookie says that it has of a ledger. What is in none of the sets is unknown."""

    def __init__(self) -> None:
        self.held = Ranges()
        self.denied = Ranges()
        self.damaged = Ranges()

    def listed(self, query: HeldQuery, answer: HeldAnswer) -> int | None:
        """Take note of the *answer* to *query*; return from which entry on to ask next, None if
        this was all, or no answer.

        What was once said to be held is not missing because an earlier answer denied it: it may
        have been on its way."""
        if answer.status is Status.NO_SUCH_LEDGER:
            self._deny(query.first, query.last)
            return None
        if answer.status not in {Status.OK, Status.UNKNOWN, Status.IO_ERROR}:
            return None
        here = Ranges()
        for first, last in answer.ranges():
            here.add(first, last)
            self.held.add(first, last)
            self.denied.remove(first, last)
        for first, last in here.gaps(query.first, answer.considered):
            self._deny(first, last)
        return answer.listed + 1 if query.first <= answer.listed < query.last else None

    def read(self, whole: Iterable[int], faults: Mapping[int, ReplicaFault]) -> None:
        """Take note of entries that were read: what came *whole*, and what was wrong with others.
        It counts for more than what was listed."""
        for entry_id in whole:
            self.held.add(entry_id, entry_id)
            self.denied.remove(entry_id, entry_id)
            self.damaged.remove(entry_id, entry_id)
        for entry_id, fault in faults.items():
            match fault:
                case ReplicaFault.MISSING:
                    self.held.remove(entry_id, entry_id)
                    self.denied.add(entry_id, entry_id)
                case ReplicaFault.DAMAGED | ReplicaFault.UNREADABLE | ReplicaFault.DIFFERENT:
                    self.damaged.add(entry_id, entry_id)
                case ReplicaFault.REFUSED | ReplicaFault.UNREACHABLE:
                    pass

    def _deny(self, first: int, last: int) -> None:
        for low, high in list(self.held.gaps(first, last)):
            self.denied.add(low, high)


def judge(
    metadata: LedgerMetadata,
    shares: Mapping[BookieId, Share],
    lost: Collection[BookieId],
) -> Judgement:
    """Return what *metadata*'s members lack by what they say.

    *lost*: members that are gone, or are to leave; whatever they say, their shares have to move.
    A member without a share in *shares* was not heard: all of its entries are unknown."""
    lacks: list[Lack] = []
    unknown: list[Place] = []
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None:
            continue
        for index, bookie in enumerate(fragment.bookies):
            own = _Own(metadata, fragment, index, end)
            if bookie in lost:
                lacks.append(own.lack(LackKind.MEMBER, [(fragment.first_entry, end)]))
                continue
            share = shares.get(bookie) or Share()
            missing = own.lack(LackKind.MISSING, share.denied.between(fragment.first_entry, end))
            damaged = own.lack(LackKind.DAMAGED, share.damaged.between(fragment.first_entry, end))
            lacks += [lack for lack in (missing, damaged) if lack.ranges]
            not_said = own.unsaid(share)
            if not_said.ranges:
                unknown.append(not_said)
    return Judgement(tuple(lacks), tuple(unknown))


def judge_replicas(
    entry_id: int, holders: Iterable[BookieId], found: Mapping[BookieId, Header]
) -> tuple[Header | None, tuple[BookieId, ...]]:
    """Return the header that most of *holders* gave, and who gave another one.

    A draw goes to the ensemble's order, which is the same each time."""
    given = [(bookie, found[bookie]) for bookie in holders if bookie in found]
    if not given:
        return None, ()
    votes = Counter(header for _, header in given)
    most = max(votes.values())
    right = next(header for _, header in given if votes[header] == most)
    assert right.entry_id == entry_id, "the header of another entry"
    return right, tuple(bookie for bookie, header in given if header != right)


class _Own:
    """The settled entries of one index of a fragment."""

    def __init__(
        self, metadata: LedgerMetadata, fragment: Fragment, index: int, end: EntryId
    ) -> None:
        self._quorum = metadata.quorum
        self._fragment = fragment
        self._index = index
        self._end = end

    def lack(self, kind: LackKind, ranges: Iterable[_Range]) -> Lack:
        bookie = self._fragment.bookies[self._index]
        return Lack(self._fragment.first_entry, self._index, bookie, self._of(ranges), kind)

    def unsaid(self, share: Share) -> Place:
        """Return what *share* says nothing of."""
        said = Ranges()
        for ranges in (share.held, share.denied, share.damaged):
            for first, last in ranges.between(self._fragment.first_entry, self._end):
                said.add(first, last)
        bookie = self._fragment.bookies[self._index]
        gaps = said.gaps(self._fragment.first_entry, self._end)
        return Place(self._fragment.first_entry, self._index, bookie, self._of(gaps))

    def _of(self, ranges: Iterable[_Range]) -> tuple[_Range, ...]:
        """Return what of ascending *ranges* the index holds; ranges with no other entry of its
        between them are one."""
        found: list[_Range] = []
        for low, high in ranges:
            first = next_held(self._index, low, self._quorum)
            last = previous_held(self._index, high, self._quorum)
            if first > last:
                continue
            if found and next_held(self._index, found[-1][1] + 1, self._quorum) == first:
                found[-1] = found[-1][0], last
            else:
                found.append((first, last))
        return tuple(found)
