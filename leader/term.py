"""One term of leadership: from the election until the first sign that it may be over.

Invariants:
    `lost` is set once and never cleared
    after `lease_s` without proof from the metadata store `is_current()` is False for ever

Proof is that our node was seen in the store; it counts from the moment the question was
sent. So a leader that was paused or cut off stops believing in itself by its own clock,
without hearing from anybody. That narrows the time in which two believe to lead; only fencing
and the manifest's compare-and-swap end it (docs/architecture.md, "Decisions").
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from types import TracebackType
from typing import Final, Self

from leader import metrics
from leader.election import Candidacy, Elected, leaders_path, standing
from leader.lifeline import Lifeline
from leader.withdrawal import first_of, withdraw
from ledger.errors import LogError, MetadataUnavailable, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore, Session, Watch

LEASE_S: Final = 5.0
"""Half of the default session timeout: we stop believing before another can be elected."""

PROOFS_PER_LEASE: Final = 4

_log = get_logger(__name__)


class Term:
    """Leadership of *log*, as far as this process knows. Made by `leader.campaign`.

    Must be made inside the running event loop. An async context manager: resigns at the end."""

    def __init__(
        self,
        store: MetadataStore,
        session: Session,
        *,
        log: str,
        candidate: str,
        candidacy: Candidacy,
        proven_at: float,
        lease_s: float = LEASE_S,
        lifeline: Lifeline | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.log = log
        self.candidate = candidate
        self.epoch = candidacy.sequence
        """Larger than that of every term of this log before."""
        self.lost = asyncio.Event()
        """Set when leadership is over or can no longer be proven; then stop, at once."""
        self.lost_reason = ""
        self._store, self._session, self._candidacy = store, session, candidacy
        self._path = f"{leaders_path(log)}/{candidacy.name}"
        self._lease_s, self._clock, self._proven_at = lease_s, clock, proven_at
        self._lifeline = lifeline
        metrics.HELD.add(self)
        self._guardian = asyncio.create_task(self._guard(), name=f"term of {log}")

    @property
    def followers(self) -> int:
        """How many candidates would learn at once if this process died: 0 or 1, mostly.

        Without any, leadership passes on when the session ends."""
        return 0 if self._lifeline is None else self._lifeline.followers

    def is_current(self) -> bool:
        """Return the local view, without asking anybody: False means it is over for ever."""
        return (
            not self.lost.is_set()
            and not self._session.lost.is_set()
            and self._clock() <= self._proven_at + self._lease_s
        )

    async def verify(self) -> bool:
        """Ask the metadata store, and return True iff it says that we lead.

        Raises `MetadataUnavailable`, which decides nothing."""
        asked_at = self._clock()
        if not self.is_current():
            return False
        await self._store.sync(self._path)
        try:
            children = await self._store.children(leaders_path(self.log))
        except NoSuchNode:
            children = []
        found = standing(children, self._candidacy.token)
        if not (isinstance(found, Elected) and found.own == self._candidacy):
            self._lose("node_gone")
            return False
        if not self.is_current():
            return False
        self._proven_at = max(self._proven_at, asked_at)
        return True

    async def resign(self) -> None:
        """Step down and let the next candidate lead. Idempotent.

        Takes no longer than `leader.withdrawal.WITHDRAW_S`; if the metadata store is out of
        reach, or this is cancelled, the node is deleted later, in the background."""
        self._lose("resigned")
        self._guardian.cancel()  # it may be asking a store that does not answer
        await withdraw(self._store, self.log, self._candidacy.token)
        await asyncio.wait({self._guardian})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.resign()

    async def _guard(self) -> None:
        """Prove leadership again and again; when that fails, say so and clear the way."""
        reason = "cancelled"
        try:
            with closing(self._store.watch(self._path)) as watch:
                reason = await self._until_lost(watch)
        except LogError as error:
            reason = str(error)
        finally:
            self._lose(reason)
        if self.lost_reason != "resigned":
            await withdraw(self._store, self.log, self._candidacy.token)

    async def _until_lost(self, watch: Watch) -> str:
        while True:
            if self.lost.is_set():
                return self.lost_reason
            if self._session.lost.is_set():
                return "session_lost"
            if self._clock() > self._proven_at + self._lease_s:
                return "lease_expired"
            asked_at = self._clock()
            if await self._node_exists() is False:
                return "node_gone"
            await first_of(
                watch.changed(),
                self._session.lost.wait(),
                self.lost.wait(),
                timeout_s=asked_at + self._lease_s / PROOFS_PER_LEASE - self._clock(),
            )

    async def _node_exists(self) -> bool | None:
        """Return what the store says, or None if it says nothing; count a yes as proof."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(self._proven_at + self._lease_s - asked_at):
                await self._store.sync(self._path)
                version = await self._store.exists(self._path)
        except (MetadataUnavailable, TimeoutError):
            return None
        if version is None:
            return False
        if self._clock() <= self._proven_at + self._lease_s:
            self._proven_at = max(self._proven_at, asked_at)
        return True

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self.lost_reason = reason
        self.lost.set()
        metrics.HELD.remove(self)
        metrics.TERMS_OVER.add(reason if reason in metrics.REASONS else "other")
        if self._lifeline is not None:
            self._lifeline.close()  # seen by who follows, after we stopped believing
        _log.info("term_over", log=self.log, epoch=self.epoch, reason=reason)
