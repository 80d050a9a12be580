"""A metadata store that counts the calls to another one, by kind."""

from collections import Counter
from collections.abc import Sequence

from ledger.metastore.port import (
    ANY_VERSION,
    MetadataStore,
    Op,
    Session,
    Versioned,
    Watch,
)


class CountingStore:
    """Implements `MetadataStore`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def session(self) -> Session:
        return self._store.session

    async def get(self, path: str) -> Versioned:
        self.calls["get"] += 1
        return await self._store.get(path)

    async def exists(self, path: str) -> int | None:
        self.calls["exists"] += 1
        return await self._store.exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self.calls["create"] += 1
        return await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        self.calls["set"] += 1
        return await self._store.set(path, value, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self.calls["delete"] += 1
        await self._store.delete(path, version)

    async def children(self, path: str) -> list[str]:
        self.calls["children"] += 1
        return await self._store.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        self.calls["multi"] += 1
        await self._store.multi(ops)

    async def sync(self, path: str = "/") -> None:
        self.calls["sync"] += 1
        await self._store.sync(path)

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        self.calls["verify"] += 1
        await self._store.verify()

    def watch(self, path: str) -> Watch:
        return self._store.watch(path)

    async def close(self) -> None:
        await self._store.close()
