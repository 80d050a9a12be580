"""A metadata store whose server lags behind: for what must ask for a `sync` before it reads."""

from collections.abc import Sequence

from ledger.errors import NoSuchNode
from ledger.metastore import ANY_VERSION, MetadataStore, Op, Versioned
from tests.ledger.flaky_store import FlakyStore


class LaggingStore(FlakyStore):
    """Once `fall_behind` was called, reads see what there was then, up to a `sync` or a write."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self._past: dict[str, tuple[Versioned, list[str]]] | None = None

    async def fall_behind(self) -> None:
        """Know nothing of what others do from now on."""
        past: dict[str, tuple[Versioned, list[str]]] = {}
        paths = ["/"]
        for path in paths:
            found, names = await self._store.get(path), await self._store.children(path)
            past[path] = found, names
            paths += [f"{path.rstrip('/')}/{name}" for name in names]
        self._past = past

    async def get(self, path: str) -> Versioned:
        return await super().get(path) if self._past is None else self._then(path)[0]

    async def exists(self, path: str) -> int | None:
        if self._past is None:
            return await super().exists(path)
        return self._past[path][0].version if path in self._past else None

    async def children(self, path: str) -> list[str]:
        return await super().children(path) if self._past is None else self._then(path)[1]

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        self._past = None
        return await super().create(path, value, ephemeral=ephemeral, sequential=sequential)

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        self._past = None
        return await super().set(path, value, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._past = None
        await super().delete(path, version)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._past = None
        await super().multi(ops)

    async def sync(self, path: str = "/") -> None:
        self._past = None
        await super().sync(path)

    def _then(self, path: str) -> tuple[Versioned, list[str]]:
        assert self._past is not None
        if path not in self._past:
            raise NoSuchNode(path)
        return self._past[path]
