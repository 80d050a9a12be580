"""The store in memory: shared by name in one process and event loop. For tests.

It does what the others do, and can be told to do what they do on a bad day: `expire` ends
the session as a server would, `cut` makes the store unreachable until `heal`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from ledger.errors import HandleClosed, MetadataUnavailable
from ledger.metastore.paths import check_path
from ledger.metastore.port import ANY_VERSION, Op, Session, Versioned, Watch
from ledger.metastore.tree import Tree
from ledger.metastore.watches import WatchTable

_hubs: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, "_Hub"]]] = WeakKeyDictionary()


class _Hub:
    """One tree and the stores that are open on it."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.stores: list[MemoryStore] = []
        self.sessions = 0

    def new_session(self) -> Session:
        self.sessions += 1
        return Session(f"memory-{self.sessions}")

    def publish(self) -> None:
        changed = self.tree.take_changed()
        for store in self.stores:
            store.wake(changed)


class MemoryStore:
    """Implements `ledger.metastore.MetadataStore`. Needs a running event loop."""

    def __init__(self, uri: str, name: str, *, timeout_s: float = 10.0) -> None:
        hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
        self._hub = hubs.setdefault(name, _Hub())
        self._hub.stores.append(self)
        self._uri = uri
        self._timeout_s = timeout_s
        self._session = self._hub.new_session()
        self._watches = WatchTable()
        self._cut = False
        self._closed = False

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def session(self) -> Session:
        return self._session

    async def get(self, path: str) -> Versioned:
        return (await self._turn("get")).get(path)

    async def exists(self, path: str) -> int | None:
        return (await self._turn("exists")).exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        tree = await self._turn("create")
        owner = self._session.session_id if ephemeral else None
        made = tree.create(path, value, owner=owner, sequential=sequential)
        self._hub.publish()
        return made

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        now_at = (await self._turn("set")).set(path, value, version)
        self._hub.publish()
        return now_at

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        (await self._turn("delete")).delete(path, version)
        self._hub.publish()

    async def children(self, path: str) -> list[str]:
        return (await self._turn("children")).children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        (await self._turn("multi")).multi(ops, owner=self._session.session_id)
        self._hub.publish()

    async def sync(self, path: str = "/") -> None:
        check_path(path)
        await self._turn("sync")

    def watch(self, path: str) -> Watch:
        self._check_open()
        return self._watches.add(check_path(path))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        self._hub.stores.remove(self)
        self._end_session()

    def expire(self) -> None:
        """End the session as a server does that has not heard of us; begin a new one."""
        self._end_session()
        self._session = self._hub.new_session()

    def cut(self) -> None:
        """Make the store unreachable: each call fails, the session cannot be proven."""
        self._cut = True
        self._session.lost.set()

    def heal(self) -> None:
        """End a `cut`. The session was lost meanwhile."""
        self._cut = False
        self.expire()

    def wake(self, paths: Sequence[str]) -> None:
        self._watches.wake(paths)

    def _end_session(self) -> None:
        self._session.lost.set()
        self._hub.tree.end_session(self._session.session_id)
        self._hub.publish()

    async def _turn(self, operation: str) -> Tree:
        await asyncio.sleep(0)  # let others in between, as a real store would
        self._check_open()
        if self._cut:
            raise MetadataUnavailable(self._uri, operation, self._timeout_s)
        return self._hub.tree

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"metadata store {self._uri}")
