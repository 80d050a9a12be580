"""A metadata store whose next writes go wrong, in the two ways that look the same."""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from ledger.errors import MetadataUnavailable
from ledger.metastore.port import ANY_VERSION, MetadataStore, Op, Session, Versioned, Watch

Fault = Literal["lost request", "lost reply"]


class FaultyStore:
    """Passes everything on; `set`, `create`, `multi` fail as `faults` says, one fault per call."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.faults: deque[Fault | None] = deque()
        self.down = False

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def session(self) -> Session:
        return self._store.session

    async def get(self, path: str) -> Versioned:
        self._check()
        return await self._store.get(path)

    async def exists(self, path: str) -> int | None:
        self._check()
        return await self._store.exists(path)

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        fault = self._fault()
        if fault != "lost request":
            made = await self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
            if fault is None:
                return made
        raise MetadataUnavailable(self.uri, "create", 0.1)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        fault = self._fault()
        if fault != "lost request":
            written = await self._store.set(path, value, version)
            if fault is None:
                return written
        raise MetadataUnavailable(self.uri, "set", 0.1)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._check()
        await self._store.delete(path, version)

    async def children(self, path: str) -> list[str]:
        self._check()
        return await self._store.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        fault = self._fault()
        if fault != "lost request":
            await self._store.multi(ops)
            if fault is None:
                return
        raise MetadataUnavailable(self.uri, "multi", 0.1)

    async def sync(self, path: str = "/") -> None:
        self._check()
        await self._store.sync(path)

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        self._check()
        await self._store.verify()

    def watch(self, path: str) -> Watch:
        return self._store.watch(path)

    async def close(self) -> None:
        await self._store.close()

    def _fault(self) -> Fault | None:
        self._check()
        return self.faults.popleft() if self.faults else None

    def _check(self) -> None:
        if self.down:
            raise MetadataUnavailable(self.uri, "call", 0.1)


class OvertakenStore(FaultyStore):
    """Its user sleeps once, after a call that the test chooses, while others do something."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self._sleeps: tuple[str, Callable[[], Awaitable[None]]] | None = None

    def sleeps_after(self, call: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """*call*: "multi", or the path of a node that is read; whatever its outcome is."""
        self._sleeps = (call, meanwhile)

    async def get(self, path: str) -> Versioned:
        try:
            return await super().get(path)
        finally:
            await self._sleep(path)

    async def children(self, path: str) -> list[str]:
        try:
            return await super().children(path)
        finally:
            await self._sleep(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        try:
            await super().multi(ops)
        finally:
            await self._sleep("multi")

    async def _sleep(self, call: str) -> None:
        if self._sleeps is not None and self._sleeps[0] == call:
            _, meanwhile = self._sleeps
            self._sleeps = None
            await meanwhile()
