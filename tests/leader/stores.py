"""A metadata store with the bad days that a test asks for, around a real one."""

from collections import Counter
from collections.abc import Sequence

from ledger.errors import MetadataUnavailable
from ledger.metastore.port import ANY_VERSION, MetadataStore, Op, Session, Versioned, Watch


class TroubledStore:
    """Counts calls; loses replies (the call is done) and refuses calls (it is not)."""

    def __init__(self, store: MetadataStore) -> None:
        self.inner = store
        self.calls: Counter[str] = Counter()
        self.lose_replies: Counter[str] = Counter()
        self.refuse: Counter[str] = Counter()

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def session(self) -> Session:
        return self.inner.session

    async def get(self, path: str) -> Versioned:
        self._before("get")
        return await self.inner.get(path)

    async def exists(self, path: str) -> int | None:
        self._before("exists")
        return await self.inner.exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self._before("create")
        made = await self.inner.create(path, value, ephemeral=ephemeral, sequential=sequential)
        self._after("create")
        return made

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        self._before("set")
        return await self.inner.set(path, value, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._before("delete")
        await self.inner.delete(path, version)
        self._after("delete")

    async def children(self, path: str) -> list[str]:
        self._before("children")
        return await self.inner.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._before("multi")
        await self.inner.multi(ops)

    async def sync(self, path: str = "/") -> None:
        self._before("sync")
        await self.inner.sync(path)

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        self._before("verify")
        await self.inner.verify()

    def watch(self, path: str) -> Watch:
        self.calls["watch"] += 1
        return self.inner.watch(path)

    async def close(self) -> None:
        await self.inner.close()

    def _before(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.refuse[operation] > 0:
            self.refuse[operation] -= 1
            raise MetadataUnavailable(self.uri, operation, 0.0, "refused by the test")

    def _after(self, operation: str) -> None:
        if self.lose_replies[operation] > 0:
            self.lose_replies[operation] -= 1
            raise MetadataUnavailable(self.uri, operation, 0.0, "reply lost by the test")
