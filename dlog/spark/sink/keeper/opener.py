"""How the keeper opens logs: one client for all of them."""

import asyncio
from collections.abc import Awaitable, Callable

from dlog.aio.port import Ledgers
from dlog.aio.store.manifests import ManifestNode
from dlog.aio.write.sink import Assignment, Sink
from dlog.settings import LogSettings
from dlog.spark.sink.keeper.ownership import Tenure


class ClusterOpener:
    """Connects by *connect* at the first call; *owner* is what others read who took a log."""

    def __init__(self, connect: Callable[[], Awaitable[Ledgers]], *, owner: str) -> None:
        self._connect, self._owner = connect, owner
        self._connecting = asyncio.Lock()
        self._ledgers: Ledgers | None = None

    async def open(self, log: str, *, create: bool, settings: LogSettings | None) -> Sink:
        ledgers = await self._connected()
        return await Sink.open(
            log, client=ledgers, create=create, settings=settings, owner=self._owner
        )

    async def resume(self, log: str, tenure: Tenure) -> Sink:
        ledgers = await self._connected()
        return await Sink.resume(
            log,
            client=ledgers,
            incarnation=tenure.incarnation,
            epoch=tenure.epoch,
            owner=self._owner,
        )

    async def look(self, log: str) -> Assignment:
        ledgers = await self._connected()
        manifest, _ = await ManifestNode(ledgers.store, log).read()
        return Assignment(
            log,
            manifest.incarnation,
            manifest.epoch,
            manifest.settings,
            manifest.sealed_last_txid,
        )

    async def close(self) -> None:
        if self._ledgers is not None:
            await self._ledgers.close()
            self._ledgers = None

    async def _connected(self) -> Ledgers:
        async with self._connecting:
            if self._ledgers is None:
                self._ledgers = await self._connect()
            return self._ledgers
