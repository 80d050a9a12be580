"""Which copies a command moves: what lost bookies held, or what makes bookies equally full. Pure.

A recovery by hand copies what bookies that are gone held to others:

    look at the bookies -> survey what they hold -> passes over all ledgers, until one meets none
    that names them, or nothing more can be done

A pass repairs each ledger that names one of them. What waits (for its writer, for another worker,
for a bookie that does not answer) is taken again in the next pass; what has entries that nobody
gives, or no bookie to go to, is tried in each pass and does not keep the command running. Nothing
is kept but what the metadata store and the bookies have, so it may be interrupted, and repeated.

A rebalance decides of each ledger alone, in one pass over all. Only what is CLOSED moves, from a
bookie that holds more than the mean to one that holds less, and only if one of the two is far from
it. A ledger moves at most once in a pass.

Bytes are payload, and an estimate: entries of a ledger count as if all were of one size, and those
of a ledger that is not CLOSED as nothing, as its length is not known.

Invariants:
    nothing is copied for a lost bookie that is there
    a recovery is complete only after a pass over all ledgers that met none
    a move to rebalance makes the fuller of its two bookies emptier: the pass ends, and the next one
        goes on
    no fragment gets a bookie twice, none spans fewer racks than before
    no more is moved to rebalance than was allowed
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Self

from ledger.errors import LogError
from ledger.ids import BookieId, LedgerId
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.protocol.procedure import Action, Now, Steps, Wait
from ledger.quorum import Quorum, holds, write_set
from ledger.values import counted

TOLERANCE: Final = 0.1
PAUSE_S: Final = 5.0
IDLE_S_MAX: Final = 120.0
"""How long passes are made in which no ledger is repaired."""
NAMED_MAX: Final = 100
"""Ledgers that a report names."""
NOBODY: Final[frozenset[BookieId]] = frozenset()


@dataclass(frozen=True, slots=True)
class Weight:
    """What bookies hold of ledgers: copies, so that an entry on two of them counts twice."""

    ledgers: int = 0
    fragments: int = 0
    """Fragments that name one of them; empty ones too."""
    entries: int = 0
    """Of what is settled."""
    bytes: int = 0
    open: int = 0
    """Of the fragments: last ones of ledgers that are not CLOSED. Their entries are not counted, as
    the metadata does not know how many there are."""

    def plus(self, other: "Weight") -> Self:
        return type(self)(
            self.ledgers + other.ledgers,
            self.fragments + other.fragments,
            self.entries + other.entries,
            self.bytes + other.bytes,
            self.open + other.open,
        )


def members_of(metadata: LedgerMetadata) -> frozenset[BookieId]:
    """Return all bookies that the ledger names, of empty fragments too."""
    return frozenset(bookie for fragment in metadata.fragments for bookie in fragment.bookies)


def weight_of(metadata: LedgerMetadata, bookies: Collection[BookieId]) -> Weight:
    """Return what *bookies* hold of the ledger."""
    fragments = entries = unsettled = 0
    for fragment in metadata.fragments:
        indexes = [i for i, bookie in enumerate(fragment.bookies) if bookie in bookies]
        end = metadata.settled_end(fragment)
        fragments += bool(indexes)
        if end is None:
            unsettled += bool(indexes)
        else:
            entries += sum(
                _held(index, fragment.first_entry, end, metadata.quorum) for index in indexes
            )
    size_bytes = 0
    if metadata.length and metadata.last_entry is not None:
        size_bytes = metadata.length * entries // (metadata.last_entry + 1)
    return Weight(int(fragments > 0), fragments, entries, size_bytes, unsettled)


def has_no_source(metadata: LedgerMetadata, there: Collection[BookieId]) -> bool:
    """Return whether there are settled entries of which none of *there* should have a copy."""
    for fragment in metadata.fragments:
        end = metadata.settled_end(fragment)
        if end is None:
            continue
        some = range(fragment.first_entry, end + 1)[: metadata.quorum.ensemble]
        for entry_id in some:
            holders = (fragment.bookies[i] for i in write_set(entry_id, metadata.quorum))
            if not any(holder in there for holder in holders):
                return True
    return False


def _held(index: int, first: int, last: int, quorum: Quorum) -> int:
    """Return how many of first..last *index* holds."""
    rounds, rest = divmod(max(0, last - first + 1), quorum.ensemble)
    return rounds * quorum.write + sum(
        holds(index, entry_id, quorum) for entry_id in range(last - rest + 1, last + 1)
    )


@dataclass(frozen=True, slots=True)
class Move:
    """What *source* holds of a ledger goes to *target*."""

    source: BookieId
    target: BookieId
    bytes: int
    """See `weight_of`."""


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
        giving = [b for b in members_of(metadata) & self.loads.keys() if self.loads[b] > self._mean]
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


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """Recover what *bookies* held; *into* these, empty: whoever is writable."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId] = NOBODY
    survey_only: bool = False

    def __post_init__(self) -> None:
        assert self.bookies, "some are named"


# Answers.


@dataclass(frozen=True, slots=True)
class BookiesSeen:
    known: frozenset[BookieId]
    """Who has a cookie."""
    registered: frozenset[BookieId]
    writable: frozenset[BookieId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What the bookies hold now."""

    held: Weight = field(default_factory=Weight)
    without_source: tuple[LedgerId, ...] = ()
    """Ledgers with entries that no bookie which is there should have; at most `NAMED_MAX`."""
    unreadable: int = 0
    """Ledgers whose metadata cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnded:
    named: int = 0
    """Ledgers that named one of the bookies when they were read."""
    repaired: int = 0
    """Of them, those that do not any more."""
    lost: tuple[LedgerId, ...] = ()
    """Of them, those with entries that nobody gave; at most `NAMED_MAX`."""
    stuck: int = 0
    """Of them, those that have to do without: with lost entries, or with no bookie to go to."""
    unreadable: int = 0
    why: str = ""
    """Of one that was not repaired."""


# Actions.


@dataclass(frozen=True, slots=True)
class ReadBookies(Action[BookiesSeen]):
    """Find out who is there."""


@dataclass(frozen=True, slots=True)
class Survey(Action[Surveyed]):
    """Read the metadata of all ledgers."""

    bookies: frozenset[BookieId]


@dataclass(frozen=True, slots=True)
class RepairAll(Action[PassEnded]):
    """Read the metadata of all ledgers, and repair those that name one of *bookies*."""

    bookies: frozenset[BookieId]
    into: frozenset[BookieId]


class RecoveryOutcome(Enum):
    COMPLETE = "nothing names them any more"
    SURVEYED = "this is what would be copied"
    UNKNOWN = "not known"
    SERVES = "still there"
    NO_TARGET = "cannot be copied to"
    INCOMPLETE = "not all could be copied"


@dataclass(frozen=True, slots=True)
class RecoveryEnd:
    outcome: RecoveryOutcome
    why: str = ""
    """What to know and do about it; empty if nothing is to be done."""
    left: int = 0
    """Ledgers that still name them."""
    lost: tuple[LedgerId, ...] = ()


def recover(
    request: RecoveryRequest, *, pause_s: float = PAUSE_S, idle_s_max: float = IDLE_S_MAX
) -> Steps[RecoveryEnd]:
    """Return how it ended; errors of the metadata store are borne for *idle_s_max*."""
    progress_at = yield from Now()
    """When a ledger was repaired last."""
    is_surveyed = False
    last = PassEnded()
    while True:
        try:
            seen = yield from ReadBookies()
            refusal = _refusal(request, seen, last)
            if refusal is not None:
                return refusal
            if not is_surveyed:
                surveyed = yield from Survey(request.bookies)
                is_surveyed, progress_at = True, (yield from Now())
                end = _end_of_survey(request, seen, surveyed)
                if end is not None:
                    return end
            ended = yield from RepairAll(request.bookies, request.into)
        except LogError as error:
            if (yield from Now()) - progress_at >= idle_s_max:
                return RecoveryEnd(RecoveryOutcome.INCOMPLETE, str(error), last.named)
        else:
            before, last = last, ended
            if not ended.named:
                return _complete(ended)
            now = yield from Now()
            left = ended.named - ended.repaired
            if ended.repaired and not (before.named and ended.named >= before.named):
                progress_at = now
                if not left:
                    continue
            if (left and left == ended.stuck) or now - progress_at >= idle_s_max:
                why = ended.why or "ledgers name them again and again"
                return RecoveryEnd(RecoveryOutcome.INCOMPLETE, why, left, ended.lost)
        yield from Wait(pause_s)


def _refusal(request: RecoveryRequest, seen: BookiesSeen, last: PassEnded) -> RecoveryEnd | None:
    """Return why nothing is copied for them, or to where they are to be copied."""
    if serving := request.bookies & seen.registered:
        names = _names(serving)
        why = f"bookie {names} is registered and serves; 'dlog bookie decommission' empties it"
        return RecoveryEnd(RecoveryOutcome.SERVES, why, last.named)
    if useless := request.into - seen.writable | request.into & request.bookies:
        names = _names(useless)
        why = f"bookie {names} is not there, or not writable; 'dlog bookie list' shows who is"
        return RecoveryEnd(RecoveryOutcome.NO_TARGET, why, last.named)
    return None


def _end_of_survey(
    request: RecoveryRequest, seen: BookiesSeen, surveyed: Surveyed
) -> RecoveryEnd | None:
    unknown = request.bookies - seen.known
    if not surveyed.held.fragments and unknown:
        why = f"no ledger and no cookie names {_names(unknown)}; 'dlog bookie list' shows names"
        return RecoveryEnd(RecoveryOutcome.UNKNOWN, why)
    if request.survey_only:
        return RecoveryEnd(
            RecoveryOutcome.SURVEYED, "", surveyed.held.ledgers, surveyed.without_source
        )
    return None


def _complete(ended: PassEnded) -> RecoveryEnd:
    if ended.unreadable:
        why = f"the metadata of {counted(ended.unreadable, 'ledger')} cannot be read"
        return RecoveryEnd(RecoveryOutcome.INCOMPLETE, why)
    return RecoveryEnd(RecoveryOutcome.COMPLETE)


def _names(bookies: frozenset[BookieId]) -> str:
    return ", ".join(sorted(bookies))
