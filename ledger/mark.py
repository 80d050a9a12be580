"""The mark of a ledger that lacks copies: what is known to be wrong, and when to try again. Pure.

Invariants:
    a bookie stands once in a mark; bookies ascend
    what is merged into a mark is never less than what was in it
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Self

from ledger.errors import DamagedMetadata
from ledger.ids import BookieId, EntryId
from ledger.nodes import parse_node
from ledger.wire import metadata_pb2 as pb

FORMAT_VERSION: Final = 1
RETRY_MS_MIN: Final = 10_000
RETRY_MS_MAX: Final = 3_600_000
LOST_RANGES_MAX: Final = 100
"""A mark names at most that many ranges of lost entries; the last one then reaches to the end."""


class Reason(IntEnum):
    """Why the copies on a bookie are not as they should be. Persisted: keep the numbers."""

    LOST = 1
    """The bookie has been away for longer than the delay."""
    DECOMMISSIONING = 2
    """The bookie is to be emptied; it serves meanwhile."""
    DAMAGED = 3
    """The bookie is there; entries on it were found damaged."""
    MISSING = 4
    """The bookie is there; it said that it has not got some entries."""
    AWAY = 5
    """The ledger's writer went on without the bookie, which was away: maybe for a moment."""
    MISPLACED = 6
    """The bookie is there; with another one in its place the ensemble would span more racks."""


NO_FRAGMENT: Final = EntryId(-1)


@dataclass(frozen=True, slots=True)
class MissingReplica:
    """The ledger lacks what *bookie* should hold."""

    bookie: BookieId
    reason: Reason
    since_ms: int
    """When it was marked first, by the wall clock; the grace of an open fragment counts from it."""
    fragment: EntryId = NO_FRAGMENT
    """The newest fragment that was written without the bookie, by its first entry. As long as its
    writer may add to that one, nobody can make its copies good."""


def written_without(
    bookies: Iterable[BookieId],
    fragment: EntryId,
    since_ms: int,
    *,
    missed: Iterable[BookieId] = (),
) -> tuple[MissingReplica, ...]:
    """Return what to mark if the fragment at *fragment* is written without *bookies*, and others
    *missed* entries before it: who is there again has just those copied to it."""
    away = tuple(MissingReplica(bookie, Reason.AWAY, since_ms, fragment) for bookie in bookies)
    return away + tuple(MissingReplica(bookie, Reason.MISSING, since_ms) for bookie in missed)


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """The mark of a ledger: what of it is missing, and when to try again."""

    missing: tuple[MissingReplica, ...]
    attempts: int = 0
    """Repairs that ended without success since the last missing replica was added."""
    not_before_ms: int = 0
    """No worker tries before, by the wall clock."""
    lost: tuple[tuple[int, int], ...] = ()
    """Entries that no bookie gave in the last attempt, as inclusive ranges."""
    deferred_why: str = ""
    wants_bookie: bool = False
    """What is missing is a bookie to copy to: try again when one registers."""
    thorough: bool = False
    """Something was found damaged: what bookies say that they hold is not to be believed, also of
    those that were marked as lost before and came back."""
    urgent: bool = False
    """Some entries had fewer than Qa right copies on bookies that were there when it was marked."""
    differing: tuple[tuple[int, int], ...] = ()
    """Entries of which two bookies gave different whole frames in the last attempt: a person has to
    say which is right."""

    @property
    def bookies(self) -> frozenset[BookieId]:
        return frozenset(replica.bookie for replica in self.missing)

    def waits(self, now_ms: int, rejoined: Collection[BookieId]) -> bool:
        """Return whether its time has not come, nor what it may wait for. *rejoined*: the bookies
        that are registered since some came; none if none did."""
        return self.not_before_ms > now_ms and not (rejoined and self._is_helped_by(rejoined))

    def _is_helped_by(self, there: Collection[BookieId]) -> bool:
        """Return whether, of the bookies that are *there* since some came, one may be what this
        waits for."""
        returned = any(
            replica.reason in {Reason.LOST, Reason.AWAY, Reason.MISSING} and replica.bookie in there
            for replica in self.missing
        )
        return self.wants_bookie or returned

    def missing_of(self, bookie: BookieId) -> MissingReplica | None:
        return next((replica for replica in self.missing if replica.bookie == bookie), None)

    def merged(self, missing: tuple[MissingReplica, ...], *, urgent: bool = False) -> Self:
        """Return the mark with *missing* added; itself if it says all that already.

        What is new is tried at once, whatever was deferred before."""
        by_bookie = {replica.bookie: replica for replica in self.missing}
        for replica in missing:
            known = by_bookie.get(replica.bookie)
            if known is None:
                by_bookie[replica.bookie] = replica
            else:
                by_bookie[replica.bookie] = replace(
                    known,
                    reason=max(known.reason, replica.reason, key=_weight),
                    fragment=max(known.fragment, replica.fragment),
                )
        merged = tuple(by_bookie[bookie] for bookie in sorted(by_bookie))
        thorough = self.thorough or any(replica.reason is Reason.DAMAGED for replica in missing)
        urgent = self.urgent or urgent
        if (merged, thorough, urgent) == (self.missing, self.thorough, self.urgent):
            return self
        return replace(
            self, missing=merged, thorough=thorough, urgent=urgent, attempts=0, not_before_ms=0
        )

    def deferred(
        self,
        why: str,
        *,
        now_ms: int,
        lost: tuple[tuple[int, int], ...] = (),
        differing: tuple[tuple[int, int], ...] = (),
        wants_bookie: bool = False,
    ) -> Self:
        """Return the mark after an attempt that did not succeed: the next one has to wait, twice
        as long as this one had to."""
        pause_ms = min(RETRY_MS_MIN << min(self.attempts, 20), RETRY_MS_MAX)
        return replace(
            self,
            attempts=self.attempts + 1,
            not_before_ms=now_ms + pause_ms,
            lost=_bounded(lost),
            differing=_bounded(differing),
            deferred_why=why,
            wants_bookie=wants_bookie,
        )

    def put_off(self, why: str, until_ms: int) -> Self:
        """Return the mark with nothing to be done before *until_ms*: no attempt has failed."""
        return replace(self, not_before_ms=until_ms, deferred_why=why, wants_bookie=False)

    def encode(self) -> bytes:
        node = pb.MarkNode(
            version=FORMAT_VERSION,
            lacks=[
                pb.LackNode(
                    bookie=replica.bookie,
                    reason=pb.LackReason.ValueType(replica.reason),
                    since_ms=replica.since_ms,
                    fragment=None if replica.fragment == NO_FRAGMENT else replica.fragment,
                )
                for replica in self.missing
            ],
            attempts=self.attempts,
            not_before_ms=self.not_before_ms,
            lost=[pb.RangeNode(first=first, last=last) for first, last in self.lost],
            deferred_why=self.deferred_why,
            wants_bookie=self.wants_bookie,
            thorough=self.thorough,
            urgent=self.urgent,
            differing=[pb.RangeNode(first=first, last=last) for first, last in self.differing],
        )
        return node.SerializeToString(deterministic=True)

    @classmethod
    def decode(cls, value: bytes, *, path: str) -> Self:
        """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
        try:
            node = pb.MarkNode()
            parse_node(node, value, path, version=FORMAT_VERSION)
            return cls(
                tuple(
                    MissingReplica(
                        BookieId(replica.bookie),
                        Reason(replica.reason),
                        replica.since_ms,
                        EntryId(replica.fragment) if replica.HasField("fragment") else NO_FRAGMENT,
                    )
                    for replica in node.lacks
                ),
                attempts=node.attempts,
                not_before_ms=node.not_before_ms,
                lost=tuple((each.first, each.last) for each in node.lost),
                deferred_why=node.deferred_why,
                wants_bookie=node.wants_bookie,
                thorough=node.thorough,
                urgent=node.urgent,
                differing=tuple((each.first, each.last) for each in node.differing),
            )
        except ValueError as error:  # a reason that is none
            raise DamagedMetadata(path, str(error)) from error


_WEIGHTS: Final = (
    Reason.MISPLACED,
    Reason.MISSING,
    Reason.AWAY,
    Reason.DAMAGED,
    Reason.LOST,
    Reason.DECOMMISSIONING,
)


def _weight(reason: Reason) -> int:
    """Of two reasons the one that asks for more counts: a bookie that goes is moved from."""
    return _WEIGHTS.index(reason)


def _bounded(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if len(ranges) <= LOST_RANGES_MAX:
        return ranges
    kept = ranges[: LOST_RANGES_MAX - 1]
    return (*kept, (ranges[LOST_RANGES_MAX - 1][0], ranges[-1][1]))
