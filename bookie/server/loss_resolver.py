"""Finds out what a bookie in limbo has to doubt, and ends its limbo ledger by ledger.

What the metadata store says is asked only after this life of the bookie was claimed there, so no
other process has promised anything in its name since. Each look sees all that was written before
it began. It counts only if the store was the bookie's own namespace all the while, and no older
state of it: a re-created one has none of the doubtful ledgers, and the true one may come back. A
look that fails or does not count changes nothing, and is repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, Protocol, assert_never

from bookie.collector.garbage import StoreMemory, doubt
from bookie.errors import StoreNotBelieved
from bookie.loss.limbo import Limbo, LimboPhase, is_doubtful
from ledger.errors import LogError
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore

LOOK_S: Final = 5.0
"""Between two looks at what is doubtful."""
_RETRY_S: Final = 1.0
_AT_ONCE: Final = 16
_BATCH: Final = 128
"""Ledgers that one look reads one after the other."""

_log = get_logger(__name__)


class Doubting(Protocol):
    """What is needed of `bookie.storage.engine.BookieStorage`."""

    @property
    def limbo(self) -> Limbo | None: ...
    @property
    def doubts(self) -> str: ...
    def judged(self, change: Callable[[Limbo], Limbo]) -> None: ...


async def listed(ledgers: LedgerStore) -> list[LedgerId]:
    """Return all ledgers that there are, of a store that is whole. Raises what the store raises."""
    await ledgers.store.verify()
    return [ledger_id async for ledger_id in ledgers.list()]


async def doubtful_of(
    ledgers: LedgerStore, bookie: str, ledger_ids: Sequence[int], *, floor: int = 0
) -> list[LedgerId]:
    """Return those of *ledger_ids* for which a "no" of *bookie* would be evidence. *floor*: ledgers
    below it were made before the store was restored.

    One whose metadata cannot be read stays doubtful, and one that the store lists and hides.
    Raises `MetadataUnavailable`."""
    ids = [LedgerId(one) for one in ledger_ids]
    found = await ledgers.read_all(ids)
    missing = [ledger_id for ledger_id in ids if ledger_id not in found]
    found |= dict.fromkeys(await ledgers.hidden(missing))
    return [
        ledger_id
        for ledger_id, metadata in found.items()
        if metadata is None or is_doubtful(metadata, bookie, is_older=ledger_id < floor)
    ]


Doubtful = Callable[[Sequence[int]], Awaitable[list[LedgerId]]]
"""`doubtful_of` for one bookie."""


async def look(limbo: Limbo, ledgers: LedgerStore, doubtful: Doubtful) -> Callable[[Limbo], Limbo]:
    """Return what a look at the store makes of a limbo. Raises what the store raises."""
    match limbo.phase:
        case LimboPhase.BEGUN:
            before = await listed(ledgers)
            found = await doubtful(before)
            return lambda now: now.known(before, found)
        case LimboPhase.SETTLING:
            left = await doubtful(sorted(limbo.doubtful))
            return lambda now: now.still(left)
        case LimboPhase.OVER:
            there = dict.fromkeys(await listed(ledgers))
            missing = [LedgerId(one) for one in limbo.before if one not in there]
            gone = dict.fromkeys(await ledgers.absent(missing))  # each is read by itself
            kept = [LedgerId(one) for one in limbo.before if one not in gone]
            return lambda now: now.only(kept)
        case _:
            assert_never(limbo.phase)


class LossResolver:
    """`run` until it returns: nothing is doubtful any more; or until cancelled."""

    def __init__(
        self,
        storage: Doubting,
        ledgers: LedgerStore,
        bookie: str,
        *,
        instance: str,
        seen: Callable[[], StoreMemory | None] = lambda: None,
        on_change: Callable[[str], None] = lambda _doubts: None,
        look_s: float = LOOK_S,
    ) -> None:
        """*instance* is the namespace that the bookie belongs to, *seen* returns what it remembers
        of the store, and may block and raise `OSError`. *on_change* gets what is in doubt, at
        the start and after each change."""
        self._storage = storage
        self._ledgers = ledgers
        self._bookie = bookie
        self._instance = instance
        self._seen = seen
        self._on_change = on_change
        self._look_s = look_s

    async def run(self) -> None:
        """See the class's docstring."""
        limbo = self._storage.limbo
        self._on_change(self._storage.doubts)
        was_over = limbo is not None and limbo.phase is LimboPhase.OVER
        while limbo is not None:
            try:
                await self.look()
            except (LogError, OSError) as error:
                _log.warning("limbo_not_looked_at", bookie=self._bookie, reason=str(error))
                retry_s = self._look_s if isinstance(error, StoreNotBelieved) else _RETRY_S
                await asyncio.sleep(retry_s)
                continue
            limbo = self._storage.limbo
            if was_over or limbo is None or limbo.phase is LimboPhase.OVER:
                return
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Look once. Raises `StoreNotBelieved`, what the store raises, and `OSError`: then nothing
        has changed."""
        limbo = self._storage.limbo
        assert limbo is not None, "there is nothing to look for"
        seen = await asyncio.to_thread(self._seen)
        with self._ledgers.one_session():
            before = await self._ledgers.vitals()
            change = await look(limbo, self._ledgers, self._doubtful_of)
            after = await self._ledgers.vitals()
        alarm = doubt(self._instance, seen or StoreMemory(0, 0), before, after)
        if alarm is not None:
            raise StoreNotBelieved(alarm.reason)
        await asyncio.to_thread(self._storage.judged, change)
        if self._storage.limbo != limbo:
            self._on_change(self._storage.doubts)
            self._report()

    async def _doubtful_of(self, ledger_ids: Sequence[int]) -> list[LedgerId]:
        doubtful: list[LedgerId] = []
        parts = [ledger_ids[at : at + _BATCH] for at in range(0, len(ledger_ids), _BATCH)]
        waiting = iter(parts)
        while some := list(islice(waiting, _AT_ONCE)):
            limbo = self._storage.limbo
            floor = 0 if limbo is None else limbo.floor
            looks = (doubtful_of(self._ledgers, self._bookie, part, floor=floor) for part in some)
            for found in await asyncio.gather(*looks):
                doubtful += found
        return doubtful

    def _report(self) -> None:
        if self._storage.doubts:
            _log.warning("in_limbo", bookie=self._bookie, reason=self._storage.doubts)
        else:
            _log.info("limbo_is_over", bookie=self._bookie)
