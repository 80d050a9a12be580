"""What implementations of the metadata store share: their session as its owner sees it, and
watches.

A store that has heard nothing for a whole session timeout ends the session. The owner steps
down before that: it calls the session lost two thirds of the timeout after it *sent* the
last request that was answered. The timer runs on the event loop, so also when the
store's threads hang; a process that was stopped finds it overdue when it wakes.

Watches are by path and level triggered; they are used on one event loop.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from ledger.metastore.port import Session

_TRUSTED_SHARE: Final = 2 / 3


def trusted_s(session_timeout_s: float) -> float:
    """Return how long after its last proof a session is believed in."""
    return session_timeout_s * _TRUSTED_SHARE


class Lease:
    """One session. *on_lost* is called once, when it ends in any way."""

    def __init__(
        self, session_id: str, *, proven_at: float, timeout_s: float, on_lost: Callable[[], None]
    ) -> None:
        self.session = Session(session_id)
        self._loop = asyncio.get_running_loop()
        self._proven_at = proven_at
        self._trusted_s = trusted_s(timeout_s)
        self._on_lost = on_lost
        self._timer = self._loop.call_at(proven_at + self._trusted_s, self._check)

    def prove(self, sent_at: float) -> None:
        """Take an answer to what was sent at *sent_at* on the monotonic clock."""
        self._proven_at = max(self._proven_at, sent_at)

    def end(self) -> None:
        """The session has ended. Idempotent."""
        self._timer.cancel()
        if not self.session.lost.is_set():
            self.session.lost.set()
            self._on_lost()

    def _check(self) -> None:
        due = self._proven_at + self._trusted_s
        if self._loop.time() >= due:
            self.end()
        else:
            self._timer = self._loop.call_at(due, self._check)


class PathWatch:
    """One caller's watch of one path; see `ledger.metastore.port.Watch`."""

    def __init__(self, path: str, on_close: Callable[["PathWatch"], None]) -> None:
        self.path = path
        self._on_close = on_close
        self._event = asyncio.Event()
        self._closed = False

    async def changed(self) -> None:
        # The event stays set until a caller really returns: a waiter that is cancelled
        # after the change, and before it ran, leaves the change for the next one.
        await self._event.wait()
        if self._closed:
            raise asyncio.CancelledError
        self._event.clear()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._event.set()
            self._on_close(self)

    def wake(self) -> None:
        self._event.set()


class WatchTable:
    """All watches of one store.

    *on_first* is called when a path gets its first watch, *on_last* when its last closes."""

    def __init__(
        self,
        on_first: Callable[[str], None] = lambda _: None,
        on_last: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_first, self._on_last = on_first, on_last
        self._by_path: dict[str, list[PathWatch]] = {}

    def add(self, path: str) -> PathWatch:
        watch = PathWatch(path, self._remove)
        watches = self._by_path.setdefault(path, [])
        watches.append(watch)
        if len(watches) == 1:
            self._on_first(path)
        return watch

    def paths(self) -> list[str]:
        return list(self._by_path)

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def wake(self, paths: Iterable[str]) -> None:
        for path in paths:
            for watch in self._by_path.get(path, ()):
                watch.wake()

    def close(self) -> None:
        for watches in list(self._by_path.values()):
            for watch in list(watches):
                watch.close()

    def _remove(self, watch: PathWatch) -> None:
        watches = self._by_path[watch.path]
        watches.remove(watch)
        if not watches:
            del self._by_path[watch.path]
            self._on_last(watch.path)
