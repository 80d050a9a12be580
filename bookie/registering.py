"""Keeps a bookie registered for as long as it serves (rule 79).

The node is ephemeral: it goes with the session that made it, and a node of a session that
ended here may still stand for a while. So it is not enough to have created it: it is watched,
and made again whenever it, or the session, is gone.
"""

import asyncio
from contextlib import suppress
from typing import Final

from ledger.errors import MetadataError
from ledger.log_events import get_logger
from ledger.metastore import MetadataStore
from ledger.registry import BookieRegistration, register, unregister

_RETRY_S_MIN: Final = 0.2
_RETRY_S_MAX: Final = 5.0
_CLOSE_S_MAX: Final = 2.0

_log = get_logger(__name__)


class Registrar:
    """Registers once in `start`, which may raise; then stays registered until `close`."""

    def __init__(self, store: MetadataStore, registration: BookieRegistration) -> None:
        self._store = store
        self._registration = registration
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register. Raises `NodeExists`, `MetadataUnavailable`."""
        await register(self._store, self._registration)
        self._task = asyncio.create_task(self._stay(), name="registration")

    async def close(self) -> None:
        """Take the registration back, if the store can be reached; idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        with suppress(MetadataError, TimeoutError):  # then it goes with the session
            async with asyncio.timeout(_CLOSE_S_MAX):
                await unregister(self._store, self._registration)

    async def _stay(self) -> None:
        retry_s = _RETRY_S_MIN
        while True:
            try:
                await self._until_gone()
                _log.warning("registration_lost", bookie=self._registration.bookie)
                await asyncio.sleep(_RETRY_S_MIN)  # the next session may not be there yet
                await register(self._store, self._registration)
            except MetadataError as error:
                _log.warning("not_registered", bookie=self._registration.bookie, reason=str(error))
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
            else:
                _log.info("registered_again", bookie=self._registration.bookie)
                retry_s = _RETRY_S_MIN

    async def _until_gone(self) -> None:
        """Return once the session is lost or the node is not there."""
        session = self._store.session
        watch = self._store.watch(self._registration.path)
        lost = asyncio.ensure_future(session.lost.wait())
        changed: asyncio.Future[None] | None = None
        try:
            while not session.lost.is_set():
                if await self._store.exists(self._registration.path) is None:
                    return
                changed = asyncio.ensure_future(watch.changed())
                await asyncio.wait((lost, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            lost.cancel()
            if changed is not None:
                changed.cancel()
            watch.close()
