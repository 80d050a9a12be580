"""Asks the metadata store which log a ledger belongs to, for `acl_cache` and `token_buckets`.

The owner node of the ledger says it. Its metadata do where no such node is, and only below level
`OWNERS`: from there on each ledger has one, and one without belongs to no log.

Bounded as the questions of `made_ledgers` are, for the same reasons.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from bookie.server.ledger_info import Owned
from bookie.server.made_ledgers import (
    ANSWER_S_MAX,
    ASKING_MAX,
    SILENCE_S,
    TURN_S_MAX,
    WAITING_MAX,
)
from ledger.errors import LogError, NoSuchLedger, NoSuchNode
from ledger.feature_level import OWNERS
from ledger.feature_level_upgrade import read_held
from ledger.ids import LedgerId
from ledger.ledger_owner import (
    Belonging,
    belonging,
    name_in,
    owner_in,
    owner_path,
    renamed_path,
)
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.requests import Status

_Answer = TypeVar("_Answer")
_ALWAYS: Final = float("-inf")


class Lookups:
    """Questions to the metadata store on behalf of clients, bounded as those of `made_ledgers`.
    Belongs to one event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots = asyncio.Semaphore(ASKING_MAX)
        self._waiting = 0
        self._silent_until = _ALWAYS

    async def run(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer | Status:
        """Return what *ask* does; `NO_SUCH_LEDGER` if it raises that, `TOO_MANY_REQUESTS` if there
        is no answer now."""
        if self._waiting >= WAITING_MAX:
            return Status.TOO_MANY_REQUESTS
        self._waiting += 1
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await self._slots.acquire()
            try:
                return await self._answer(ask)
            finally:
                self._slots.release()
        except TimeoutError:
            return Status.TOO_MANY_REQUESTS
        finally:
            self._waiting -= 1

    async def _answer(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer | Status:
        if self._clock() < self._silent_until:
            return Status.TOO_MANY_REQUESTS
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await ask()
        except NoSuchLedger:
            return Status.NO_SUCH_LEDGER
        except (LogError, TimeoutError):
            self._silent_until = self._clock() + SILENCE_S
            return Status.TOO_MANY_REQUESTS


class Table(Protocol):
    """Where it is remembered."""

    @property
    def names(self) -> int:
        """Counts how often logs may have got other names."""

    def learn_owned(self, ledger_id: int, owned: Owned, *, names: int) -> None:
        """Take note of what was found out after *names* was read here."""


class Owners:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(
        self,
        table: Table,
        ledgers: LedgerStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._ledgers = table, ledgers
        self._lookups = Lookups(clock=clock)

    async def learn(self, ledger_id: int) -> Status:
        """Let the table know whose the ledger is. Return OK; `NO_SUCH_LEDGER` if there is none;
        `TOO_MANY_REQUESTS` if that is not known now."""
        return await self._lookups.run(partial(self._learn, LedgerId(ledger_id)))

    async def _learn(self, ledger_id: LedgerId) -> Status:
        names = self._table.names
        owned = await self._owned(ledger_id)
        self._table.learn_owned(ledger_id, owned, names=names)
        return Status.OK

    async def _owned(self, ledger_id: LedgerId) -> Owned:
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedger:  # this server of the store may not have seen it yet
            metadata, _ = await self._ledgers.read(ledger_id, fresh=True)
        log = await self._log(ledger_id, metadata)
        return Owned(log, metadata.quorum.ensemble, metadata.quorum.write)

    async def _log(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> str | None:
        try:
            found = await self._owner(ledger_id)
        except NoSuchNode:
            found = await self._owner_of_before(ledger_id, metadata)
        if found is None:
            return None
        path = renamed_path(found.incarnation)
        try:
            return name_in((await self._ledgers.store.get(path)).value, path)
        except NoSuchNode:
            return found.log

    async def _owner(self, ledger_id: LedgerId) -> Belonging | None:
        path = owner_path(ledger_id)
        return owner_in((await self._ledgers.store.get(path)).value, path)

    async def _owner_of_before(
        self, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> Belonging | None:
        """Return whose a ledger is that had no owner node."""
        if (await read_held(self._ledgers.store)).level < OWNERS:
            return belonging(metadata.custom)
        with suppress(NoSuchNode):  # made before the cluster rose to the level
            return await self._owner(ledger_id)
        return None
