"""Asks the metadata store about ledgers that were never here; `unknown_ledger_policy` decides.

Bounded: so many questions at once, so many that wait, so long for an answer and for a turn; and a
store that did not answer is not asked again for a while, so that nobody waits for it with each
ledger. What waits here holds up the adds to all ledgers that come on the same stream.
"""

import asyncio
import time
from collections.abc import Callable
from hmac import compare_digest
from typing import Final

from bookie.server.unknown_ledger_policy import Vouching
from ledger.errors import DamagedMetadata, LogError, NoSuchLedger
from ledger.ids import LedgerId
from ledger.log_events import get_logger
from ledger.manager import LedgerStore
from ledger.requests import Status

ASKING_MAX: Final = 32
WAITING_MAX: Final = 1000
TURN_S_MAX: Final = 1.0
ANSWER_S_MAX: Final = 2.0
"""With `TURN_S_MAX` less than the 5 s after which a client gives up a bookie that is silent."""
SILENCE_S: Final = 5.0
TOLD_S: Final = 1.0
"""So often, at most, the log says that one was refused."""

_log = get_logger(__name__)


class MadeLedgers:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(
        self,
        ledgers: LedgerStore,
        *,
        unmade_max: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*unmade_max*: see `Vouching`."""
        self._ledgers = ledgers
        self._vouching = Vouching(unmade_max=unmade_max)
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
