"""Evictions of a simulated bookie, as `bookie.collector.evictor` does them, on its one thread.

A look at all ledgers that are here, another look at those that were surplus, and the eviction, with
pauses of any length between. Which, and in which order what is asked, is production's.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie.collector.evictor import settle
from bookie.collector.garbage import is_surplus
from ledger.errors import MetadataError
from ledger.ids import LedgerId
from ledger.manager import LedgerStore
from tests.simulation.kernel.host import Host
from tests.simulation.store import SimStore, drive

if TYPE_CHECKING:
    from tests.simulation.bookie import SimBookie
    from tests.simulation.cluster import Cluster

PAUSES_S: Final = (0.0, 0.01, 0.3, 3.0)


class Evicting:
    """One life of a bookie; begins at once, and ends with its host."""

    def __init__(self, cluster: "Cluster", bookie: "SimBookie") -> None:
        self._cluster = cluster
        self._bookie = bookie
        self._ledgers = LedgerStore(
            SimStore(cluster.metadata, bookie.host), cluster.choices.layout.name
        )
        self._pause(self._look)

    @property
    def _host(self) -> Host:
        return self._bookie.host

    def _pause(self, then: Callable[[], None]) -> None:
        scheduler = self._cluster.scheduler
        pause_s = scheduler.random.choice(PAUSES_S) * scheduler.random.random()
        self._host.after(pause_s, then)

    def _again(self) -> None:
        pause_s = self._cluster.scheduler.random.uniform(*self._cluster.checkpoint_s)
        self._host.after(pause_s, self._look)

    def _look(self) -> None:
        here = [LedgerId(one) for one in self._bookie.storage.ledger_ids()]
        drive(self._surplus_of(here), self._looked)

    async def _surplus_of(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        try:
            found = await self._ledgers.read_all(ledger_ids)
        except MetadataError:
            return []
        return [one for one, said in found.items() if is_surplus(said, self._bookie.name)]

    def _looked(self, surplus: list[LedgerId]) -> None:
        if surplus:
            self._pause(partial(self._settle, surplus))
        else:
            self._again()

    def _settle(self, surplus: list[LedgerId]) -> None:
        drive(self._settled(surplus), self._evict_soon)

    async def _settled(self, surplus: list[LedgerId]) -> tuple[int, list[LedgerId]]:
        try:
            return await settle(self._bookie.storage, self._ledgers, self._bookie.name, surplus)
        except MetadataError:
            return 0, []

    def _evict_soon(self, settled: tuple[int, list[LedgerId]]) -> None:
        self._pause(partial(self._evict, *settled))

    def _evict(self, offer: int, sure: list[LedgerId]) -> None:
        self._bookie.evict(sure, offer)
        self._again()
