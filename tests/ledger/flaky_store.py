"""Metadata stores whose replies get lost, or are wrong: for what must survive that."""

from collections.abc import Sequence
from typing import TypeVar

from ledger.errors import DamagedMetadata, LogError, MetadataUnavailable, NoSuchNode
from ledger.metastore import ANY_VERSION, MetadataStore, Op, Session, Versioned, Watch
from ledger.metastore.memory import MemoryStore

_R = TypeVar("_R")


class FlakyStore:
    """Passes everything on to *store*.

    `lose_replies` lists operations: the next call of each is done and not answered.
    `lose_requests` the same: it is not even done."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose_replies: list[str] = []
        self.lose_requests: list[str] = []

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def session(self) -> Session:
        return self._store.session

    async def get(self, path: str) -> Versioned:
        self._before("get")
        return self._after("get", await self._store.get(path))

    async def exists(self, path: str) -> int | None:
        self._before("exists")
        return self._after("exists", await self._store.exists(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self._before("create")
        made = await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
        return self._after("create", made)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        self._before("set")
        return self._after("set", await self._store.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._before("delete")
        await self._store.delete(path, version)
        self._after("delete", None)

    async def children(self, path: str) -> list[str]:
        self._before("children")
        return self._after("children", await self._store.children(path))

    async def multi(self, ops: Sequence[Op]) -> None:
        self._before("multi")
        await self._store.multi(ops)
        self._after("multi", None)

    async def sync(self, path: str = "/") -> None:
        self._before("sync")
        await self._store.sync(path)

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        self._before("verify")
        await self._store.verify()

    def watch(self, path: str) -> Watch:
        return self._store.watch(path)

    async def close(self) -> None:
        await self._store.close()

    def _before(self, operation: str) -> None:
        if operation in self.lose_requests:
            self.lose_requests.remove(operation)
            raise self._lost(operation)

    def _after(self, operation: str, result: _R) -> _R:
        if operation in self.lose_replies:
            self.lose_replies.remove(operation)
            raise self._lost(operation)
        return result

    def _lost(self, operation: str) -> LogError:
        return MetadataUnavailable(self.uri, operation, 0.0)


class LyingStore(MemoryStore):
    """Leaves names out of lists, does not find nodes, and is found damaged, as a test says."""

    def __init__(self) -> None:
        super().__init__("memory://lying", "lying")
        self.unlisted: dict[str, int] = {}
        """How many lists lack the node, by its path."""
        self.unread: set[str] = set()
        self.is_damaged = False

    async def children(self, path: str) -> list[str]:
        names = await super().children(path)
        for name in list(names):
            if self.unlisted.get(f"{path}/{name}", 0) > 0:
                self.unlisted[f"{path}/{name}"] -= 1
                names.remove(name)
        return names

    async def get(self, path: str) -> Versioned:
        if path in self.unread:
            raise NoSuchNode(path)
        return await super().get(path)

    async def exists(self, path: str) -> int | None:
        return None if path in self.unread else await super().exists(path)

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        await super().verify()
        if self.is_damaged:
            raise DamagedMetadata("the store", "a test says so")
