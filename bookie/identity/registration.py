"""Keeps a bookie registered for as long as it serves (rule 79).

The node is ephemeral: it goes with the session that made it, and a node of a session that
ended here may still stand for a while. So it is not enough to have created it: it is watched,
and re-created whenever it, or the session, is gone.

A bookie that becomes read-only, or writable again, moves from one list to the other: the new
node is made before the old one goes, so that it is never in neither; for a moment it is in both.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ledger.delays import Backoff
from ledger.errors import MetadataError, MetadataUnavailable
from ledger.log_events import get_logger
from ledger.metastore import MetadataStore
from ledger.registry import BookieRegistration, register, unregister

_FIRST_TRIES: Final = 5
_RETRY_S_MIN: Final = 0.2
_RETRY_S_MAX: Final = 5.0
_CLOSE_S_MAX: Final = 2.0

_log = get_logger(__name__)


class Registrar:
    """Registers once in `start`, which may raise; then stays registered until `close`."""

    def __init__(
        self,
        store: MetadataStore,
        registration: BookieRegistration,
        *,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """*on_lost* is called when the session or the registration was found to be gone: the
        process may have stood still, and its name may be retired meanwhile."""
        self._store, self._on_lost = store, on_lost
        self._registration = registration
        """As it is to be."""
        self._announced = registration
        """As it was last announced."""
        self._half_done = False
        """Whether an announcement failed: there may be nodes in both lists."""
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register. Raises `NodeExists`, `MetadataUnavailable`.

        A session that ended meanwhile, because the machine stood still, is replaced in a
        moment: a bookie that has just come up does not end for that."""
        self._announced = self._registration
        for tries_left in reversed(range(_FIRST_TRIES)):
            session = self._store.session
            try:
                await register(self._store, self._announced)
                break
            except MetadataUnavailable:
                if not (session.lost.is_set() and tries_left):
                    raise
                await asyncio.sleep(_RETRY_S_MIN)
        self._task = asyncio.create_task(self._stay(), name="registration")

    @property
    def trouble(self) -> str:
        """Why clients may not find the bookie; empty if there is no reason."""
        if self._task is None:
            return "not registered"
        if self._store.session.lost.is_set():
            return "the session of the metadata store is lost"
        return "the registration could not be renewed" if self._half_done else ""

    def set_read_only(self, *, read_only: bool, reason: str = "") -> None:
        """Move to the list where the bookie belongs from now on, as soon as the store lets it."""
        self._registration = replace(
            self._registration,
            read_only=read_only,
            read_only_reason=reason if read_only else "",
        )
        self._moved.set()

    async def close(self, *, take_back: bool = True) -> None:
        """Take the registration back, if the store can be reached; idempotent.

        Without *take_back* it goes with the session, if it was made in it: what stands there now
        may be another process's."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        if not take_back:
            return
        with suppress(MetadataError, TimeoutError):  # then it goes with the session
            async with asyncio.timeout(_CLOSE_S_MAX):
                # A move may have been under way: the node may be in either list, or in both.
                for read_only in (False, True):
                    registration = replace(self._registration, read_only=read_only)
                    await unregister(self._store, registration)

    async def _stay(self) -> None:
        backoff = Backoff(_RETRY_S_MIN, _RETRY_S_MAX)
        while True:
            try:
                if not await self._until_gone_or_moved():
                    _log.warning("registration_lost", bookie=self._registration.bookie)
                    self._on_lost()
                    await asyncio.sleep(_RETRY_S_MIN)  # the next session may not be there yet
                registration, self._half_done = self._registration, True
                await register(self._store, registration)
            except MetadataError as error:
                _log.warning("not_registered", bookie=self._registration.bookie, reason=str(error))
                await asyncio.sleep(backoff.next())
            else:
                read_only = registration.read_only
                _log.info("registered_again", bookie=registration.bookie, read_only=read_only)
                self._announced, self._half_done = registration, False
                backoff.reset()

    async def _until_gone_or_moved(self) -> bool:
        """Return False once the session is lost or the node is not there, True if it is there
        and belongs into the other list, or may be in both."""
        session = self._store.session
        announced = self._announced
        watch = self._store.watch(announced.path)
        lost = asyncio.ensure_future(_set(session.lost))
        waits: list[asyncio.Task[None]] = []
        try:
            while not session.lost.is_set():
                self._moved.clear()
                if self._half_done or self._registration != announced:
                    return True
                if await self._store.exists(announced.path) is None:
                    return False
                waits = [asyncio.ensure_future(w) for w in (watch.changed(), _set(self._moved))]
                await asyncio.wait((lost, *waits), return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
        finally:
            lost.cancel()
            for wait in waits:
                wait.cancel()
            watch.close()
        return False


async def _set(event: asyncio.Event) -> None:
    await event.wait()
