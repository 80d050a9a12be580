"""Lookups in the metadata store that a bookie makes on behalf of its clients.

That is whether a ledger exists that was never here (`MadeLedgers`), and which log it belongs to
(`Owners`, for the authorizer and for quotas).

Bounded: so many questions at once, so many that wait, so long for an answer and for a turn; and a
store that did not answer is not asked again for a while, so that nobody waits for it with each
ledger. What waits here holds up the adds to all ledgers that come on the same stream.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from typing import Final, NamedTuple, Protocol, TypeVar

from bookie.server.unknown_ledger_policy import UnknownLedgerPolicy
from ledger.errors import DamagedMetadata, LogError, NoSuchLedger, NoSuchNode
from ledger.feature_level import OWNERS
from ledger.feature_level_upgrade import read_held
from ledger.ids import LedgerId
from ledger.ledger_owner import (
    LedgerOwner,
    belonging,
    name_in,
    owner_in,
    owner_path,
    renamed_path,
)
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.metadata import LedgerMetadata
from ledger.requests import Status

ASKING_MAX: Final = 32
WAITING_MAX: Final = 1000
TURN_S_MAX: Final = 1.0
ANSWER_S_MAX: Final = 2.0
"""With `TURN_S_MAX` less than the 5 s after which a client gives up a bookie that is silent."""
SILENCE_S: Final = 5.0
TOLD_S: Final = 1.0
"""So often, at most, the log says that one was refused."""
_ALWAYS: Final = float("-inf")
_Answer = TypeVar("_Answer")
_log = get_logger(__name__)


class MadeLedgers:
    """Asks about ledgers that were never here; `UnknownLedgerPolicy` decides. Belongs to one event
    loop."""

    def __init__(
        self,
        ledgers: LedgerStore,
        *,
        unmade_max: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*unmade_max*: see `UnknownLedgerPolicy`."""
        self._ledgers = ledgers
        self._vouching = UnknownLedgerPolicy(unmade_max=unmade_max)
        self._clock = clock
        self._slots = asyncio.Semaphore(ASKING_MAX)
        self._waiting = 0
        self._silent_until = 0.0
        self._told_at = -TOLD_S

    async def admits(self, ledger_id: int, key: bytes) -> Status:
        """Return OK if a promise may be made about *ledger_id*, which was never here, to a
        client that gave *key*; `NO_SUCH_LEDGER` if nobody made it with that key,
        `TOO_MANY_REQUESTS` if that is not known now."""
        if self._waiting >= WAITING_MAX:
            return Status.TOO_MANY_REQUESTS
        self._waiting += 1
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await self._slots.acquire()
            try:
                found = await self._found(LedgerId(ledger_id), key)
            finally:
                self._slots.release()
        except TimeoutError:  # the store is slow, not silent
            return Status.TOO_MANY_REQUESTS
        finally:
            self._waiting -= 1
        if self._vouching.admits(found=found):
            return Status.OK
        now = self._clock()
        if now >= self._told_at + TOLD_S:
            self._told_at = now
            _log.warning("ledger_not_taken", ledger_id=ledger_id, made=found)
        return Status.TOO_MANY_REQUESTS if found is None else Status.NO_SUCH_LEDGER

    async def _found(self, ledger_id: LedgerId, key: bytes) -> bool | None:
        if self._clock() < self._silent_until:
            return None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return compare_digest(await self._key(ledger_id), key)
        except NoSuchLedger:
            return False
        except DamagedMetadata:
            return None
        except (LogError, TimeoutError):
            self._silent_until = self._clock() + SILENCE_S
            return None

    async def _key(self, ledger_id: LedgerId) -> bytes:
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except NoSuchLedger:  # this server of the store may not have seen it yet
            metadata, _ = await self._ledgers.read(ledger_id, fresh=True)
        return metadata.access_key


class Owned(NamedTuple):
    """What has to be known of a ledger."""

    log: str | None
    """None: it belongs to none."""
    ensemble: int
    write_quorum: int


class LedgerLookups:
    """Questions about one ledger, bounded as the module's docstring says. Belongs to one event
    loop."""

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


class OwnerTable(Protocol):
    """Where it is remembered."""

    @property
    def names(self) -> int:
        """Counts how often logs may have got other names."""

    def learn_owned(self, ledger_id: int, owned: Owned, *, names: int) -> None:
        """Take note of what was found out after *names* was read here."""


class Owners:
    """Asks which log a ledger belongs to. Belongs to one event loop.

    The owner node of the ledger says it. Its metadata do where no such node is, and only below
    level `OWNERS`: from there on each ledger has one, and one without belongs to no log.
    """

    def __init__(
        self,
        table: OwnerTable,
        ledgers: LedgerStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table, self._ledgers = table, ledgers
        self._lookups = LedgerLookups(clock=clock)

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

    async def _owner(self, ledger_id: LedgerId) -> LedgerOwner | None:
        path = owner_path(ledger_id)
        return owner_in((await self._ledgers.store.get(path)).value, path)

    async def _owner_of_before(
        self, ledger_id: LedgerId, metadata: LedgerMetadata
    ) -> LedgerOwner | None:
        """Return whose a ledger is that had no owner node."""
        if (await read_held(self._ledgers.store)).level < OWNERS:
            return belonging(metadata.custom)
        with suppress(NoSuchNode):  # made before the cluster rose to the level
            return await self._owner(ledger_id)
        return None
