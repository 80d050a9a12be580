"""Moves the named consumer of each log of a query to where Spark has committed.

It tells others how far the query is: `dlog consumer lag`, and retention that waits for consumers.
The query itself never reads it, as its checkpoint is its only state. So trouble with a consumer is
a warning, and the next commit makes it good.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dlog.aio.port import Ledgers
from dlog.aio.read.consumer import open_state
from dlog.aio.store import ConsumerNode, ManifestNode
from dlog.errors import ConsumerFenced, NoSuchConsumer, NoSuchLog
from dlog.protocol.consumer_steps import Stored
from dlog.spark.offsets import StreamPosition, name_of
from ledger.errors import LogError
from ledger.log_events import get_logger, now_ms
from ledger.process import this_process

MOVES_AT_ONCE_MAX: Final = 32
MOVE_S: Final = 5.0
"""How long moving all of them may keep the query waiting."""

_log = get_logger(__name__)


@dataclass(slots=True)
class _Opened:
    """One log's consumer, as it was opened and as it was stored last."""

    incarnation: str
    node: ConsumerNode
    opened: Stored
    stored: Stored


class ConsumerMover:
    """The consumers called *name* of the logs of one query. Used by one task at a time."""

    def __init__(self, ledgers: Ledgers, name: str) -> None:
        self._ledgers = ledgers
        self._name = name
        self._opened: dict[str, _Opened] = {}

    async def move(self, positions: Mapping[str, StreamPosition]) -> bool:
        """Move each log's consumer forward to its position; create it there if it is missing.

        It never moves back. Nothing is raised: what failed is logged, and False is returned. A
        consumer that another process has for itself is left alone, which is a failure too."""
        for log in [each for each in self._opened if each not in positions]:
            del self._opened[log]
        at_once = asyncio.Semaphore(MOVES_AT_ONCE_MAX)

        async def move(log: str, position: StreamPosition) -> bool:
            async with at_once:
                return await self._try(log, position)

        try:
            async with asyncio.timeout(MOVE_S):
                moves = (move(log, positions[log]) for log in sorted(positions))
                return all(await asyncio.gather(*moves))
        except TimeoutError:
            _log.warning("consumers_not_moved", consumer=self._name, waited_s=MOVE_S)
            return False

    async def _try(self, log: str, position: StreamPosition) -> bool:
        try:
            try:
                await self._move(log, position)
            except (ConsumerFenced, NoSuchConsumer):  # reset, deleted, or its log was renamed
                self._opened.pop(log, None)
                await self._move(log, position)
        except LogError as error:
            self._opened.pop(log, None)
            _log.warning("consumer_not_moved", consumer=self._name, log=log, error=str(error))
            return False
        return True

    async def _move(self, log: str, position: StreamPosition) -> None:
        found = self._opened.get(log)
        if found is None or found.incarnation != position.incarnation:
            found = self._opened[log] = await self._open(log, position)
        by, now, offset = found.opened[0], now_ms(), position.next_offset
        found.stored = await found.node.edit(
            lambda state: state.committed(offset, by=by, name=self._name, now_ms=now),
            found.stored,
        )

    async def _open(self, log: str, position: StreamPosition) -> _Opened:
        manifests = ManifestNode(self._ledgers.store, name_of(log))
        manifests.follow(position.incarnation)
        manifest, _ = await manifests.read()  # it may have another name by now
        if manifest.incarnation != position.incarnation:
            raise NoSuchLog(log, "it was deleted, and another one has its name")
        node = ConsumerNode(self._ledgers.store, manifests.log, self._name)
        stored = await open_state(
            self._ledgers,
            manifests,
            node,
            position.next_offset,
            exclusive=False,
            wait_s=0.0,
            owner=this_process(),
        )
        return _Opened(position.incarnation, node, stored, stored)
