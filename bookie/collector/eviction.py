"""Pure: which copies of a bookie are surplus (rule 69), when to look for them, and how many may go.

Moves leave copies behind: a bookie that was replaced in a ledger still holds what it held. A ledger
may be evicted from here only if all of this is so:
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

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from bookie.collector.garbage import PERIOD_S, UNLIMITED, Alarm, AlarmKind
from bookie.collector.plan import CollectorConfig
from ledger.metadata import LedgerMetadata, LedgerState

EVICTED_MAX: Final = 10_000
"""Ledgers that one run looks at again and evicts, at most; the next one goes on."""


def is_surplus(metadata: LedgerMetadata | None, bookie: str) -> bool:
    """Whether what *bookie* holds of a ledger is nobody's copy. None: its metadata cannot be
    read."""
    if metadata is None or metadata.state is not LedgerState.CLOSED:
        return False
    return all(bookie not in fragment.bookies for fragment in metadata.fragments)


@dataclass(frozen=True, slots=True)
class Chosen:
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

    def choose(self, held: int, now: float, *, allowed: int | None = None) -> Chosen:
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
        return Chosen(chosen, max(0, len(ripe) - room))

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


def too_many(waiting: int, held: int) -> Alarm:
    """Return the alarm while ledgers that are surplus wait."""
    return Alarm(
        AlarmKind.MANY_SURPLUS,
        f"{waiting} more of {held} ledgers are named by no fragment here, too many to be evicted "
        "in a day: if this bookie was emptied, or others were added, let them go with 'dlog bookie "
        f"gc --allow-evictions {waiting}'; if not, look whether the metadata store was restored "
        "from a backup",
    )
