"""Watches of one store, by path. Level triggered; used on one event loop."""

import asyncio
from collections.abc import Callable, Iterable


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
