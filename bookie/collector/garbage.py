"""Which ledgers of a bookie are garbage (rule 68), which of its copies are surplus (rule 69), and
which of both it may delete by itself. Pure.

A ledger may be deleted here only if all of this is so:
    it was here before the listing of the metadata store began, so it cannot be one that is made
        meanwhile
    the listing came to its end without an error, and does not name it
    a read of its own, after that, says that it does not exist
    before and after all that, in the same session, the store was the namespace that the bookie
        belongs to, and not an older state of it than the bookie has seen before
    its deletion left a trace: no more ledgers are gone here than were counted as deleted, in the
        transactions that deleted them, since the bookie looked last; or few enough are gone
        without a trace; or an operator allowed it
Whatever else happens, nothing at all is deleted (#870, #865, BK-955, BK-956, #4731). The one who
asks has to bring answers that are no older than the question.

How many were counted is known for the whole namespace, and a bookie has a part of it, so more may
be explained than it should. That is why so much else is asked, too.

Copies are surplus because moves leave them behind: a bookie that was replaced in a ledger still
holds what it held. A ledger may be evicted from here only if all of this is so:
    it is CLOSED, and none of its fragments names this bookie: nobody reads it here, and no recovery
        asks here where it ends
    that was so twice, in looks some time apart, and both times from the metadata
    it is not marked as lacking copies, and nobody repairs it
    the bookie may not have lost anything of it (`bookie.loss.limbo`)
    its metadata were written again, unchanged, after it was offered, in the version that said all
        this; and nothing was promised of it here since it was offered

The last one is what makes it safe, whoever sleeps how long. A worker of repair copies entries here,
and then names this bookie by a compare-and-swap of the version that it had read *before* it copied
them. If it read that before the ledger's metadata were written again, its swap fails, and it copies
again. If it read that afterwards, so also after the ledger was offered, its copies came when they
kept the ledger from being evicted, or when it was evicted already and they made it anew. The
two looks and the marks save work only. The decision is number 66 in docs/decisions.md.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain, islice
from typing import Final

from bookie.collector.plan import CollectorConfig
from ledger.metadata import LedgerMetadata, LedgerState
from ledger.namespace_fingerprint import Counts, NamespaceFingerprint

CANDIDATES_MAX = 10_000
"""Ledgers that one collection verifies and deletes, at most; the next one goes on."""
PERIOD_S: Final = 86_400
"""In which a share of the ledgers may go without a trace, however many collections there are."""
UNLIMITED: Final = 2**62
"""Allowed by an operator: all."""
EVICTED_MAX: Final = 10_000
"""Ledgers that one run looks at again and evicts, at most; the next one goes on."""


class AlarmKind(StrEnum):
    OTHER_NAMESPACE = "other-namespace"
    """The store holds another namespace, or none, where this bookie's was."""
    OLDER_NAMESPACE = "older-namespace"
    """The store has forgotten what it said before: it was restored from a backup."""
    UNTRACED_DELETIONS = "untraced-deletions"
    """Ledgers are gone, and nothing in the store says that anybody deleted them."""
    MANY_SURPLUS = "many-surplus-copies"
    """More copies are named by no fragment any more than may be evicted in a day."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Why ledgers are kept that the metadata store does not know, or does not name this bookie for;
    until an operator acts."""

    kind: AlarmKind
    reason: str


@dataclass(frozen=True, slots=True)
class StoreMemory:
    """What a bookie remembers of the metadata store, durably."""

    next_id: int
    deletions: int
    """Counted when the last collection began that came to its end."""
    untraced: int = 0
    """Ledgers deleted without a trace since the period began."""
    period_began_at: int = 0
    """Seconds since 1970."""
    older: bool = False
    """The store was found to be older than this; only an operator's word ends that."""

    def room(self, held: int, share: float, now: int) -> int:
        """Return how many of *held* ledgers may go without a trace now: *share* of them in a
        period, and one of however few."""
        taken = self.untraced if now < self.period_began_at + PERIOD_S else 0
        return max(0, max(1, int(share * (held + taken))) - taken) if share > 0 else 0

    def settled_for(self, now: Counts) -> "StoreMemory":
        """Return the same after an operator said that a store is right which is older."""
        return replace(
            self,
            older=False,
            next_id=min(self.next_id, now.next_id),
            deletions=min(self.deletions, now.deletions),
        )

    def taking(self, untraced: int, now: int) -> "StoreMemory":
        """Return the same after so many more are deleted without a trace."""
        if not untraced:
            return self
        if now >= self.period_began_at + PERIOD_S:
            return replace(self, untraced=untraced, period_began_at=now)
        return replace(self, untraced=self.untraced + untraced)


@dataclass(frozen=True, slots=True)
class Verdict:
    doomed: tuple[int, ...]
    """To be deleted now."""
    untraced: int
    """How many of them left no trace."""
    waiting: tuple[int, ...]
    """Gone from the store, and kept here until an operator has said a word."""


def candidates(
    snapshot: Iterable[int], listed: Iterable[int], waiting: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the ledgers that are to be read, each by itself; those *waiting* come last.

    Requires that *snapshot* was taken before the listing began, and *listed* is all of it."""
    named = dict.fromkeys(listed)
    kept = dict.fromkeys(waiting)
    unlisted = [one for one in snapshot if one not in named]
    in_turn = chain(
        (one for one in unlisted if one not in kept), (one for one in unlisted if one in kept)
    )
    return tuple(islice(in_turn, CANDIDATES_MAX))


def verified(chosen: Sequence[int], absent: Collection[int]) -> tuple[int, ...]:
    """Return what is garbage of *chosen*: what a read said does not exist."""
    gone = dict.fromkeys(absent)
    assert gone.keys() <= dict.fromkeys(chosen).keys(), "only candidates are asked for"
    return tuple(one for one in chosen if one in gone)


def doubt(
    instance: str, seen: StoreMemory, before: NamespaceFingerprint, after: NamespaceFingerprint
) -> Alarm | None:
    """Return why the store, as it was before and after it was asked, is not to be believed."""
    for vitals in (before, after):
        if vitals.instance != instance:
            found = f"is namespace {vitals.instance}" if vitals.instance else "has no namespace"
            return Alarm(
                AlarmKind.OTHER_NAMESPACE,
                f"the metadata store {found}, and this bookie belongs to {instance}: nothing is "
                "deleted; restore the metadata store, or format this bookie for the new one",
            )
    if seen.older or before.is_older(seen) or after.is_older(before):
        return Alarm(
            AlarmKind.OLDER_NAMESPACE,
            f"the metadata store has forgotten what it said before (it counts {after.deletions} "
            f"deletions and ledger ids up to {after.next_id}; this bookie saw {seen.deletions} and "
            f"{seen.next_id}): it was restored from a backup, ledgers that were made since are not "
            "in it, and nothing is deleted; restore a newer state, or give them up with "
            "'dlog bookie gc --allow-deletions all'",
        )
    return None


def judge(gone: Sequence[int], *, counted: int, waiting: Collection[int], room: int) -> Verdict:
    """Return what to do about ledgers that are *gone* from the store; some are *waiting* since
    an earlier collection.

    *counted*: deletions that left their trace since then; *room*: how many may go without. If
    more are gone than were counted, nobody can say of any that it is one of those."""
    kept = dict.fromkeys(waiting)
    new = [one for one in gone if one not in kept]
    old = [one for one in gone if one in kept]
    traced, untraced = (new, old) if len(new) <= counted else ([], [*new, *old])
    doomed = untraced[: max(0, room)]
    return Verdict((*traced, *doomed), len(doomed), tuple(untraced[len(doomed) :]))


def too_many(waiting: int, held: int) -> Alarm:
    """Return the alarm while ledgers wait."""
    return Alarm(
        AlarmKind.UNTRACED_DELETIONS,
        f"{waiting} of {held} ledgers are gone from the metadata store, and nothing there says "
        "that they were deleted: they are kept; look what became of them ('dlog log audit'), then "
        f"restore them, or let them go with 'dlog bookie gc --allow-deletions {waiting}'",
    )


def is_surplus(metadata: LedgerMetadata | None, bookie: str) -> bool:
    """Whether what *bookie* holds of a ledger is nobody's copy. None: its metadata cannot be
    read."""
    if metadata is None or metadata.state is not LedgerState.CLOSED:
        return False
    return all(bookie not in fragment.bookies for fragment in metadata.fragments)


@dataclass(frozen=True, slots=True)
class SurplusChoice:
    """What is to be looked at again, and evicted if it is surplus still."""

    ledger_ids: tuple[int, ...]
    waiting: int
    """How many others wait for an operator's word, or the next day."""


class Surplus:
    """The ledgers that were seen to be surplus, and since when. Times are of any clock, the same
    for all calls."""

    def __init__(self, config: CollectorConfig, *, now: float) -> None:
        self._config = config
        # The first look comes soon: a bookie may be started again every day.
        soon_s = min(config.eviction_pause_s, config.eviction_interval_s)
        self._looked_at = now - config.eviction_interval_s + soon_s
        self._since: dict[int, float] = {}
        self._period_began_at = now
        self._evicted = 0
        """In the period."""

    def __len__(self) -> int:
        return len(self._since)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look at all ledgers that are here."""
        interval_s = self._config.eviction_interval_s
        return interval_s > 0 and now >= self._looked_at + interval_s

    def looked(self, surplus: Iterable[int], now: float) -> None:
        """Take note that these, of all ledgers that are here, were seen to be surplus."""
        self._looked_at = now
        self._since = {one: self._since.get(one, now) for one in surplus}

    def choose(self, held: int, now: float, *, allowed: int | None = None) -> SurplusChoice:
        """Return which were seen long enough ago, as many as may go now, of *held* ledgers.

        *allowed*: so many, by an operator's word; negative: all. None: what may go without."""
        ripe = [
            one
            for one, since in self._since.items()
            if now >= since + self._config.eviction_pause_s
        ]
        room = self._room(held, now) if allowed is None else allowed
        room = UNLIMITED if room < 0 else room
        chosen = tuple(islice(ripe, min(room, EVICTED_MAX)))
        return SurplusChoice(chosen, max(0, len(ripe) - room))

    def _room(self, held: int, now: float) -> int:
        """Return how many of *held* may go by themselves: a share in a day, and one of however
        few."""
        taken = self._evicted if now < self._period_began_at + PERIOD_S else 0
        share = self._config.evicted_share
        return max(0, max(1, int(share * (held + taken))) - taken) if share > 0 else 0

    def settled(self, ledger_ids: Collection[int], evicted: int, now: float) -> None:
        """Take note that these were looked at again, and so many of them are gone: the others have
        to be seen anew."""
        for ledger_id in ledger_ids:
            self._since.pop(ledger_id, None)
        if now >= self._period_began_at + PERIOD_S:
            self._evicted, self._period_began_at = 0, now
        self._evicted += evicted


def too_many_surplus(waiting: int, held: int) -> Alarm:
    """Return the alarm while ledgers that are surplus wait."""
    return Alarm(
        AlarmKind.MANY_SURPLUS,
        f"{waiting} more of {held} ledgers are named by no fragment here, too many to be evicted "
        "in a day: if this bookie was emptied, or others were added, let them go with 'dlog bookie "
        f"gc --allow-evictions {waiting}'; if not, look whether the metadata store was restored "
        "from a backup",
    )
