"""A cluster inside the test's process: in-memory metadata, real gRPC, bookies kept in memory."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie.server import BookieServer
from bookie.service import BookieService, ServiceConfig
from ledger.client import ClientConfig, LedgerClient
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from ledger.registry import BookieRegistration, register, unregister
from ledger.requests import InfoAnswer
from tests.bookie.memory_storage import MemoryStorage


class LocalBookie:
    """One bookie: its server can be killed and started again over the same storage."""

    def __init__(self, name: str, store: MetadataStore) -> None:
        self.name = name
        self.storage = MemoryStorage()
        self._store = store
        self._port = 0
        self._server: BookieServer | None = None
        self._service: BookieService | None = None
        self._registration: BookieRegistration | None = None

    async def start(self) -> None:
        info = InfoAnswer(self.name, uuid.uuid4().hex, "instance", read_only=False)
        self._server = BookieServer()
        self._port = self._server.bind("127.0.0.1", self._port)
        self._service = BookieService(self.storage, info, ServiceConfig())
        await self._server.start(self._service)
        self._registration = BookieRegistration(
            self.name, f"127.0.0.1:{self._port}", info.incarnation
        )
        await register(self._store, self._registration)

    async def kill(self) -> None:
        """End all connections at once; the registration goes too."""
        if self._server is None or self._service is None or self._registration is None:
            return
        await unregister(self._store, self._registration)
        await self._server.kill()
        await self._service.close()
        self._server = self._service = None


class LocalBookies:
    def __init__(self, uri: str, store: MetadataStore) -> None:
        self.uri = uri
        self.store = store
        self.bookies: list[LocalBookie] = []
        self._clients: list[LedgerClient] = []

    async def add(self) -> LocalBookie:
        bookie = LocalBookie(f"bookie-{len(self.bookies)}", self.store)
        await bookie.start()
        self.bookies.append(bookie)
        return bookie

    def of(self, name: str) -> LocalBookie:
        return next(bookie for bookie in self.bookies if bookie.name == name)

    async def client(self) -> LedgerClient:
        """Return a client of its own store session, closed with the cluster."""
        client = await LedgerClient.connect(self.uri, ClientConfig(bookie_timeout_s=2.0))
        self._clients.append(client)
        await client.bookies.wait_for(len(self.bookies), 5)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self.bookies:
            await bookie.kill()
        await self.store.close()


@asynccontextmanager
async def local_bookies(count: int = 3) -> AsyncIterator[LocalBookies]:
    """Yield a cluster of *count* bookies."""
    uri = f"memory://test-{uuid.uuid4().hex}"
    cluster = LocalBookies(uri, await open_store(uri))
    try:
        for _ in range(count):
            await cluster.add()
        yield cluster
    finally:
        await cluster.close()
