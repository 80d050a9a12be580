"""The store in memory: shared by name in one process and event loop. For tests.

It does what the others do, and can be made to do what they do on a bad day: `expire` ends
the session as a server would, `cut` makes the store unreachable until `heal`.

A `MemoryHub` that is shared under a name is the tree behind it in every loop of the process.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from weakref import WeakKeyDictionary, ref

from ledger.errors import HandleClosed, MetadataUnavailable
from ledger.metastore.ops import check_path
from ledger.metastore.port import ANY_VERSION, Op, Session, Versioned, Watch
from ledger.metastore.session import WatchTable
from ledger.metastore.tree import Tree

_hubs: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, "MemoryHub"]]] = (
    WeakKeyDictionary()
)
_shared: Final[dict[str, "MemoryHub"]] = {}


class MemoryHub:
    """One tree and the stores that are open on it, each on the event loop that made it."""

    def __init__(self) -> None:
        self._tree = Tree()
        self._lock = threading.Lock()
        self._stores: list[MemoryStore] = []
        self._sessions = 0
        self._is_cut = False

    @contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Be what ``memory://name`` means in the whole process, while this lasts."""
        assert name not in _shared, f"{name} is shared already"
        _shared[name] = self
        try:
            yield
        finally:
            del _shared[name]

    def cut(self) -> None:
        """Make every store on this tree unreachable, those too that are opened meanwhile."""
        with self._lock:
            self._is_cut = True
            stores = list(self._stores)
        for store in stores:
            store.post(store.cut)

    def heal(self) -> None:
        """End a `cut`. Every session was lost meanwhile."""
        with self._lock:
            self._is_cut = False
            stores = list(self._stores)
        for store in stores:
            store.post(store.heal)

    def join(self, store: "MemoryStore") -> bool:
        """Add *store*; return whether it is to begin cut off."""
        with self._lock:
            self._stores.append(store)
            return self._is_cut

    def leave(self, store: "MemoryStore") -> None:
        with self._lock:
            self._stores.remove(store)

    def new_session(self) -> Session:
        with self._lock:
            self._sessions += 1
            return Session(f"memory-{self._sessions}")

    @contextmanager
    def tree(self) -> Iterator[Tree]:
        """Hold the tree for one step; then wake those who watch what it changed."""
        with self._lock:
            yield self._tree
            changed = self._tree.take_changed()
            if changed:
                for store in self._stores:
                    store.post(store.wake, changed)


class MemoryStore:
    """Implements `ledger.metastore.MetadataStore`. Needs a running event loop."""

    def __init__(self, uri: str, name: str, *, timeout_s: float = 10.0) -> None:
        loop = asyncio.get_running_loop()
        self._loop = ref(loop)  # a store that nobody closed keeps no loop alive
        hubs = _hubs.setdefault(loop, {})
        self._hub = _shared.get(name) or hubs.setdefault(name, MemoryHub())
        self._uri = uri
        self._timeout_s = timeout_s
        self._session = self._hub.new_session()
        self._watches = WatchTable()
        self._closed = False
        self._cut = self._hub.join(self)
        if self._cut:
            self._session.lost.set()

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def session(self) -> Session:
        return self._session

    @property
    def acls(self) -> None:
        return None

    async def get(self, path: str) -> Versioned:
        await self._turn("get")
        with self._hub.tree() as tree:
            return tree.get(path)

    async def exists(self, path: str) -> int | None:
        await self._turn("exists")
        with self._hub.tree() as tree:
            return tree.exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        await self._turn("create")
        owner = self._session.session_id if ephemeral else None
        with self._hub.tree() as tree:
            return tree.create(path, value, owner=owner, sequential=sequential)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        await self._turn("set")
        with self._hub.tree() as tree:
            return tree.set(path, value, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._turn("delete")
        with self._hub.tree() as tree:
            tree.delete(path, version)

    async def children(self, path: str) -> list[str]:
        await self._turn("children")
        with self._hub.tree() as tree:
            return tree.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._turn("multi")
        with self._hub.tree() as tree:
            tree.multi(ops, owner=self._session.session_id)

    async def sync(self, path: str = "/") -> None:
        check_path(path)
        await self._turn("sync")

    async def verify(self) -> None:
        await self._turn("verify")

    def watch(self, path: str) -> Watch:
        self._check_open()
        return self._watches.add(check_path(path))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._watches.close()
        self._hub.leave(self)
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

    def post(self, call: Callable[..., None], *arguments: object) -> None:
        """Do *call* on this store's loop: now if that is the running one, else soon."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            return  # nobody waits there
        if loop is asyncio._get_running_loop():  # noqa: SLF001 - None outside of any
            call(*arguments)
            return
        with suppress(RuntimeError):  # closed since
            loop.call_soon_threadsafe(call, *arguments)

    def _end_session(self) -> None:
        self._session.lost.set()
        with self._hub.tree() as tree:
            tree.end_session(self._session.session_id)

    async def _turn(self, operation: str) -> None:
        await asyncio.sleep(0)  # let others in between, as a real store would
        self._check_open()
        if self._cut:
            raise MetadataUnavailable(self._uri, operation, self._timeout_s)

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"metadata store {self._uri}")
