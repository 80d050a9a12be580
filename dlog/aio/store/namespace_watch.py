"""Watching a namespace: which logs are added to it and removed from it."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self

from dlog.aio.cancellation import is_cancelled
from dlog.aio.port import Ledgers
from dlog.names import LOGS_PATH, is_own, name_of
from ledger.backoff import Backoff
from ledger.errors import HandleClosed, LogError, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore

BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0

_log = get_logger(__name__)


class LogChange(NamedTuple):
    """A log that is there now and was not before, or the other way round."""

    kind: Literal["added", "removed"]
    log: str


async def log_names(store: MetadataStore, prefix: str = "") -> list[str]:
    """Return the names of all logs that begin with *prefix*, dlog's own among them, sorted."""
    await store.sync(LOGS_PATH)
    try:
        nodes = await store.children(LOGS_PATH)
    except NoSuchNode:
        return []
    return sorted(name for name in map(name_of, nodes) if name.startswith(prefix))


async def listed_names(store: MetadataStore, prefix: str = "") -> list[str]:
    """Return the names that begin with *prefix*, sorted; dlog's own only if *prefix* is of them:
    who reads all logs means all that were written by applications."""
    names = await log_names(store, prefix)
    return names if is_own(prefix) else [name for name in names if not is_own(name)]


class LogWatch:
    """Made by `watch_logs`: an async iterator of `LogChange`, without end; close it.

    It compares what it saw with what there is: a log that is deleted and re-created between
    two looks is no change, a renamed one is removed and added. Trouble with the metadata store,
    the loss of its session too, is waited out; what changed meanwhile is reported afterwards.
    Cancelling a read loses nothing. Used by one task at a time."""

    def __init__(
        self, ledgers: Ledgers, *, prefix: str, known: list[str], owns_ledgers: bool
    ) -> None:
        self._ledgers = ledgers
        self._store = ledgers.store
        self._prefix = prefix
        self._owns_ledgers = owns_ledgers
        self._known = known
        self._changes: deque[LogChange] = deque()
        self._watch = self._store.watch(LOGS_PATH)
        self._fresh = False
        """Whether nothing has changed since the last look, as far as we know."""
        self._backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)
        self._closed = False

    @property
    def logs(self) -> tuple[str, ...]:
        """The names at the last look, whose changes were all reported, or are about to be."""
        return tuple(self._known)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogChange:
        """Return the next change; wait for it. Raises `HandleClosed`, and what cannot pass."""
        while not self._changes:
            if self._closed:
                raise HandleClosed("watch of logs")
            if self._fresh:
                await self._wait()
                continue
            await self._look()
        return self._changes.popleft()

    async def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._changes.clear()
        self._watch.close()
        if self._owns_ledgers:
            await self._ledgers.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _wait(self) -> None:
        try:
            await self._watch.changed()
        except asyncio.CancelledError:
            if is_cancelled() and not self._closed:
                raise
        self._fresh = False

    async def _look(self) -> None:
        try:
            names = await listed_names(self._store, self._prefix)
        except LogError as error:
            if self._closed or not error.retryable:
                raise
            delay_s = self._backoff.next()
            _log.warning("log_watch_interrupted", error=str(error), retry_in_s=delay_s)
            await asyncio.sleep(delay_s)
            return
        self._backoff.reset()
        self._fresh = True
        before, after = dict.fromkeys(self._known), dict.fromkeys(names)
        self._known = names
        self._changes.extend(LogChange("removed", name) for name in before if name not in after)
        self._changes.extend(LogChange("added", name) for name in after if name not in before)
