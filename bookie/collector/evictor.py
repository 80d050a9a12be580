"""Drives the eviction of surplus copies; `garbage` says which, when and how many.

First all ledgers that are here are looked at, in no hurry. Those that were surplus then are looked
at again by a later run, in one session with the metadata store's vitals before and after, as
for deletions, and then go. Metadata are checked first, and nobody's lock is taken (#2813).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from bookie.collector.garbage import (
    Alarm,
    AlarmKind,
    StoreMemory,
    Surplus,
    doubt,
    is_surplus,
    too_many_surplus,
)
from bookie.collector.plan import CollectorConfig
from ledger.delays import Throttle
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore

READS_PER_S: Final = 500
"""Of metadata, in a look at all ledgers: 100,000 of them take three minutes."""
_READS_AT_ONCE: Final = 64
_EVICT_AT_ONCE: Final = 64
"""Ledgers; flushes wait meanwhile."""

_log = get_logger(__name__)


class Offering(Protocol):
    """What is needed of `bookie.storage.engine.BookieStorage`."""

    def offer(self, ledger_ids: Sequence[int]) -> int: ...


class Evicting(Offering, Protocol):
    """What is needed of `bookie.server.service.BookieService`."""

    async def evict(self, ledger_ids: Sequence[int], offer: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Evicted:
    """What one run evicted, and why no more."""

    ledgers: int = 0
    alarm: Alarm | None = None


class Evictor:
    """See the module's docstring. One call at a time."""

    def __init__(
        self,
        storage: Evicting,
        ledgers: LedgerStore,
        config: CollectorConfig,
        *,
        bookie: str,
        instance: str,
        ledger_ids: Callable[[], Awaitable[Sequence[int]]],
        clock: Callable[[], float],
    ) -> None:
        """*ledger_ids* returns all ledgers that are here."""
        self.total = 0
        """Ledgers evicted since the start."""
        self._storage = storage
        self._ledgers = ledgers
        self._bookie = bookie
        self._instance = instance
        self._ledger_ids = ledger_ids
        self._clock = clock
        self._surplus = Surplus(config, now=clock())

    @property
    def surplus(self) -> int:
        """How many ledgers were seen to be surplus, and are here still."""
        return len(self._surplus)

    async def run(
        self,
        seen: StoreMemory,
        *,
        may_be_lost: Callable[[int], bool],
        looks: bool = False,
        allowed: int | None = None,
    ) -> Evicted:
        """Evict what may go now. *seen*: what the bookie remembers of the store; *looks*: look at
        all ledgers now, though it is not time; *allowed*: see `Surplus.choose`.

        Raises what the store and the storage raise; then it may be done in part."""
        evicted = await self._evict_seen(seen, allowed)
        is_believed = evicted.alarm is None or evicted.alarm.kind is AlarmKind.MANY_SURPLUS
        if is_believed and (looks or self._surplus.is_due(self._clock())):
            await self._look(may_be_lost)  # only now: what it sees has to be seen once more
        return evicted

    async def _evict_seen(self, seen: StoreMemory, allowed: int | None) -> Evicted:
        if not self._surplus:
            return Evicted()
        held = await self._ledger_ids()
        chosen = self._surplus.choose(len(held), self._clock(), allowed=allowed)
        gone = 0
        for part in _parts(chosen.ledger_ids, _EVICT_AT_ONCE):
            count, alarm = await self._evict(part, seen)
            gone += count
            if alarm is not None:
                return Evicted(gone, alarm)
        if gone:
            _log.info(f"{gone} ledgers were evicted that no fragment names here any more")
        return Evicted(
            gone, too_many_surplus(chosen.waiting, len(held)) if chosen.waiting else None
        )

    async def _look(self, may_be_lost: Callable[[int], bool]) -> None:
        throttle = Throttle(READS_PER_S, now=self._clock())
        surplus: list[int] = []
        for part in _parts(await self._ledger_ids(), _READS_AT_ONCE):
            found = await self._ledgers.read_all(map(LedgerId, part))
            surplus += [
                ledger_id
                for ledger_id, metadata in found.items()
                if is_surplus(metadata, self._bookie) and not may_be_lost(ledger_id)
            ]
            await asyncio.sleep(throttle.take(len(part), self._clock()))
        self._surplus.looked(surplus, self._clock())

    async def _evict(self, part: Sequence[int], seen: StoreMemory) -> tuple[int, Alarm | None]:
        """Return how many of *part* are gone; or why the store is not to be believed."""
        ledger_ids = [LedgerId(one) for one in part]
        with self._ledgers.one_session():
            before = await self._ledgers.vitals()
            alarm = doubt(self._instance, seen, before, before)
            if alarm is not None:
                return 0, alarm
            offer, sure = await settle(self._storage, self._ledgers, self._bookie, ledger_ids)
            after = await self._ledgers.vitals()
        alarm = doubt(self._instance, seen, before, after)
        if alarm is not None:
            return 0, alarm
        await self._storage.evict(sure, offer)
        left = dict.fromkeys(await self._ledger_ids())
        gone = sum(one not in left for one in sure)
        self.total += gone
        self._surplus.settled(part, gone, self._clock())
        return gone, None


async def settle(
    storage: Offering, ledgers: LedgerStore, bookie: str, ledger_ids: Sequence[LedgerId]
) -> tuple[int, list[LedgerId]]:
    """Offer these ledgers; return the offer, and those of them that may be evicted by it, whoever
    was about to name *bookie*: in this order, as `garbage` says why. Raises what the store
    raises."""
    offer = storage.offer(ledger_ids)
    under_repair = dict.fromkeys(await ledgers.under_repair(ledger_ids))
    is_wanted = partial(is_surplus, bookie=bookie)
    sure = [
        one
        for one in ledger_ids
        if one not in under_repair and await ledgers.supersede(one, is_wanted)
    ]
    return offer, sure


def _parts(ledger_ids: Sequence[int], at_once: int) -> list[Sequence[int]]:
    return [ledger_ids[at : at + at_once] for at in range(0, len(ledger_ids), at_once)]
