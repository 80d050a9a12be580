"""A cluster inside the test's process: in-memory metadata, the real wire, bookies kept in memory.

Or, with a directory, bookies with the real storage."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bookie.disk.port import RealDisk
from bookie.server.core import Storage
from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from ledger.client import ClientConfig, LedgerClient
from ledger.metastore.port import MetadataStore, create_node
from ledger.registry import COOKIES, BookieRegistration, register, unregister
from ledger.requests import InfoAnswer
from ledger.security.certificates import Security
from ledger.security.settings import Takes
from ledger.wire import metadata_pb2 as pb
from tests.bookie.memory_storage import MemoryStorage
from tests.namespaces import opened
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S


class LocalBookie:
    """One bookie: its server can be killed and started again over the same storage."""

    def __init__(
        self, name: str, store: MetadataStore, directory: Path | None = None, rack: str = ""
    ) -> None:
        self.name = name
        self.storage = MemoryStorage()
        self._directory = directory
        self._rack = rack
        self._store = store
        self._port = 0
        self._identity, self._life = uuid.uuid4().hex, 0
        self.security: Security | None = None
        self._server: BookieServer | None = None
        self._service: BookieService | None = None
        self._registration: BookieRegistration | None = None

    async def start(self) -> None:
        self._life += 1
        info = InfoAnswer(
            self.name,
            uuid.uuid4().hex,
            "instance",
            read_only=False,
            identity=self._identity,
            life=self._life,
        )
        self._server = BookieServer(security=self.security)
        self._port = self._server.bind("127.0.0.1", self._port)
        self._service = BookieService(self._open(), info, ServiceConfig())
        await self._server.start(self._service)
        self._registration = BookieRegistration(
            self.name,
            f"127.0.0.1:{self._port}",
            info.incarnation,
            self._rack,
            takes=Takes.PLAIN if self.security is None else self.security.takes,
            identity=self._identity,
            life=self._life,
            instance="instance",
        )
        cookie = pb.CookieNode(
            version=2,
            bookie=self.name,
            instance="instance",
            cookie=self._identity,
            address=self._registration.address,
            life=self._life,
        )
        await create_node(self._store, f"{COOKIES}/{self.name}")
        await self._store.set(f"{COOKIES}/{self.name}", cookie.SerializeToString())
        await register(self._store, self._registration)

    def _open(self) -> Storage:
        if self._directory is None:
            self.storage.begin_again()
            return self.storage
        config = StorageConfig(journal_preallocate_bytes=64 * 1024)
        return BookieStorage.open(RealDisk(self._directory), config)

    async def kill(self) -> None:
        """End all connections at once; the registration goes too."""
        if self._server is None or self._service is None or self._registration is None:
            return
        await unregister(self._store, self._registration)
        await self._server.kill()
        self.storage.gate.set()  # nobody hears of what is committed from here on
        await self._service.close()
        self._server = self._service = None


class LocalBookies:
    def __init__(self, uri: str, store: MetadataStore, directory: Path | None) -> None:
        self.uri = uri
        self._directory = directory
        self.store = store
        self.bookies: list[LocalBookie] = []
        self._clients: list[LedgerClient] = []

    async def add(self, rack: str = "") -> LocalBookie:
        name = f"bookie-{len(self.bookies)}"
        directory = None if self._directory is None else self._directory / name
        bookie = LocalBookie(name, self.store, directory, rack)
        await bookie.start()
        self.bookies.append(bookie)
        return bookie

    def of(self, name: str) -> LocalBookie:
        return next(bookie for bookie in self.bookies if bookie.name == name)

    async def client(self, config: ClientConfig | None = None) -> LedgerClient:
        """Return a client of its own store session, closed with the cluster."""
        client = await LedgerClient.connect(self.uri, config or PATIENT)
        self._clients.append(client)
        await client.bookies.wait_for(len(self.bookies), PATIENCE_S)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self.bookies:
            await bookie.kill()
        await self.store.close()


@asynccontextmanager
async def local_bookies(
    count: int = 3, directory: Path | None = None
) -> AsyncIterator[LocalBookies]:
    """Yield a cluster of *count* bookies."""
    uri = f"memory://test-{uuid.uuid4().hex}"
    cluster = LocalBookies(uri, await opened(uri), directory)
    try:
        for _ in range(count):
            await cluster.add()
        yield cluster
    finally:
        await cluster.close()
