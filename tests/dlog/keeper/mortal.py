"""A process that dies at one step: its client of a fake cluster does nothing from there on.

Steps are what changes something for others: writes to the metadata store, ledgers that are made,
closed, recovered and deleted, entries that are added. The one at which it dies is not done, or is
done and its answer lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ledger.ids import EntryId, LedgerId
from ledger.metadata import LedgerMetadata
from ledger.metastore.port import ANY_VERSION, MetadataStore, Op, Session, Versioned, Watch
from ledger.quorum import Quorum
from tests.dlog.fake_ledgers import FakeLedgers, FakeReader, FakeWriter, Settled, tell

T = TypeVar("T")


class Life:
    """How long a process lives: until step *dies_at*, which is *done* or not. None: for ever."""

    def __init__(self, dies_at: int | None = None, *, done: bool = False) -> None:
        self._dies_at, self._done = dies_at, done
        self.steps = 0
        self.ended = asyncio.Event()

    def step(self) -> bool:
        """Return whether the process does the next step; it may end with it."""
        if self.ended.is_set():
            return False
        self.steps += 1
        if self.steps != self._dies_at:
            return True
        self.ended.set()
        return self._done

    async def act(self, perform: Callable[[], Awaitable[T]]) -> T:
        if not self.step():
            await self.nothing()
        answer = await perform()
        if self.ended.is_set():
            await self.nothing()
        return answer

    async def nothing(self) -> None:
        """Nobody is there to go on."""
        await asyncio.get_running_loop().create_future()

    async def look(self, perform: Callable[[], Awaitable[T]]) -> T:
        if self.ended.is_set():
            await self.nothing()
        return await perform()


class MortalWriter:
    def __init__(self, life: Life, writer: FakeWriter) -> None:
        self._life, self._writer = life, writer
        self.ledger_id = writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def error(self) -> Any:
        return self._writer.error

    def add(self, payload: bytes) -> asyncio.Future[EntryId]:
        adding: asyncio.Future[EntryId] | None = None
        if self._life.step():
            adding = self._writer.add(payload)
        if adding is None or self._life.ended.is_set():
            return asyncio.get_running_loop().create_future()
        return adding

    def add_all(self, entries: Sequence[tuple[bytes, Settled]]) -> None:
        for payload, settled in entries:
            tell(self.add(payload), settled)

    def publish(self) -> None:
        if self._life.step():
            self._writer.publish()

    async def close(self) -> LedgerMetadata:
        return await self._life.act(self._writer.close)

    async def abandon(self) -> None:
        await self._writer.abandon()


class MortalStore:
    def __init__(self, life: Life, store: MetadataStore) -> None:
        self._life, self._store = life, store

    @property
    def uri(self) -> str:
        return self._store.uri

    @property
    def session(self) -> Session:
        return self._store.session

    async def get(self, path: str) -> Versioned:
        return await self._life.look(lambda: self._store.get(path))

    async def exists(self, path: str) -> int | None:
        return await self._life.look(lambda: self._store.exists(path))

    async def children(self, path: str) -> list[str]:
        return await self._life.look(lambda: self._store.children(path))

    async def sync(self, path: str = "/") -> None:
        await self._life.look(lambda: self._store.sync(path))

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._life.act(
            lambda: self._store.create(path, value, ephemeral=ephemeral, sequential=sequential)
        )

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        return await self._life.act(lambda: self._store.set(path, value, version))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._life.act(lambda: self._store.delete(path, version))

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._life.act(lambda: self._store.multi(ops))

    @property
    def acls(self) -> None:
        return None

    async def verify(self) -> None:
        await self._life.look(self._store.verify)

    def watch(self, path: str) -> Watch:
        return self._store.watch(path)

    async def close(self) -> None:
        await self._store.close()


class MortalLedgers(FakeLedgers):
    def __init__(self, life: Life, ledgers: FakeLedgers) -> None:
        super().__init__(ledgers.cluster, MortalStore(life, ledgers.store))
        self._life = life

    async def create(self, quorum: Quorum | None = None, **more: Any) -> Any:
        create = super().create
        writer = await self._life.act(lambda: create(quorum, **more))
        return MortalWriter(self._life, writer)

    async def open_no_recovery(self, ledger_id: LedgerId) -> FakeReader:
        opened = super().open_no_recovery
        return await self._life.look(lambda: opened(ledger_id))

    async def recover(self, ledger_id: LedgerId) -> LedgerMetadata:
        recover = super().recover
        return await self._life.act(lambda: recover(ledger_id))

    async def delete(self, ledger_id: LedgerId) -> None:
        delete = super().delete
        await self._life.act(lambda: delete(ledger_id))
