"""One real bookie in the process of a test: identity, storage, service, server, registration.

Only its disk is not real (`memory_disk`). A kill leaves what a killed process leaves: clients
see connections end, nothing more is written, and the next start replays the journal.
"""

import asyncio
from functools import partial
from typing import Final

from bookie.disk.port import Directories
from bookie.errors import PortInUse
from bookie.identity.cookie import Cookie
from bookie.identity.lives import LifeKeeper
from bookie.identity.registration import Registrar
from bookie.identity.restore import honour
from bookie.identity.stamp import identify, settle_doubt
from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.loss_resolver import LossResolver
from bookie.server.service import BookieService
from bookie.storage.config import StorageConfig
from bookie.storage.engine import BookieStorage
from dlog.testing.memory_disk import MemoryDisk
from ledger.cluster import Namespace
from ledger.feature_level import IDENTITIES
from ledger.manager import LedgerStore
from ledger.metastore.port import MetadataStore
from ledger.registry import BookieRegistration
from ledger.requests import InfoAnswer

HOST: Final = "127.0.0.1"
_STORAGE: Final = StorageConfig(
    memtable_bytes_max=32 * 1024 * 1024,
    recovery_reserve_bytes=8 * 1024 * 1024,
    journal_file_bytes_max=16 * 1024 * 1024,
    journal_preallocate_bytes=64 * 1024,
    entry_log_bytes_max=64 * 1024 * 1024,
)
_SERVICE: Final = ServiceConfig(checkpoint_bytes=8 * 1024 * 1024, read_threads=1)


class _Killed(Exception):
    """Why a killed bookie's storage goes on no more."""


class InProcessBookie:
    """Made and owned by `dlog.testing.AsyncCluster`."""

    def __init__(
        self, name: str, namespace: Namespace, store: MetadataStore, bytes_max: int
    ) -> None:
        self.name = name
        self._namespace = namespace
        self._store = store
        self._disk = MemoryDisk(name, bytes_max)
        self._port = 0
        self._read_only = False
        self._running: tuple[BookieServer, BookieService, BookieStorage] | None = None
        self._life: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._registrar: Registrar | None = None
        self._incarnation = ""
        self._cookie: Cookie

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def address(self) -> str:
        """Where it listens, or did last, as host:port."""
        return f"{HOST}:{self._port}"

    async def start(self) -> None:
        """Start it on what it had stored; it serves and is registered when this returns.

        Raises `WrongDirectory` if that is not what it last had."""
        assert self._running is None, f"{self.name} runs"
        server = BookieServer()
        try:
            try:
                self._port = server.bind(HOST, self._port)
            except PortInUse:  # somebody took it meanwhile; clients find the new one
                self._port = server.bind(HOST, 0)
            identity = await identify(
                self._store,
                Directories.single(self._disk),
                bookie=self.name,
                instance=self._namespace.instance,
                address=self.address,
            )
            self._incarnation, self._cookie = identity.incarnation, identity.cookie
            restored = identity.restored
            opening = partial(
                BookieStorage.open,
                self._disk,
                _STORAGE,
                doubt=identity.doubt or "",
                restored="" if restored is None else restored.reason,
            )
            storage = await asyncio.to_thread(opening)
            if identity.doubt is not None:
                settle_doubt(Directories.single(self._disk))
            if restored is not None:
                ledgers = LedgerStore(self._store, self._namespace.layout)
                await honour(ledgers, storage, Directories.single(self._disk), restored)
        except BaseException:
            await server.kill()
            raise
        storage.set_read_only(read_only=self._read_only)
        info = InfoAnswer(
            self.name,
            self._incarnation,
            self._namespace.instance,
            self._read_only,
            self._cookie.cookie,
            self._cookie.life,
        )
        if self._namespace.held.level >= IDENTITIES:
            server.refuse_unidentified()
        service = BookieService(storage, info, _SERVICE)
        self._running = server, service, storage
        try:
            self._begin_life(storage, service, LifeKeeper(self._store, identity.claim))
            await server.start(service)
            await self._register()
        except BaseException:
            await self.kill()
            raise

    async def kill(self) -> None:
        """End it as SIGKILL would; its registration goes at once. Idempotent."""
        running, self._running = self._running, None
        if running is None:
            return
        server, service, _ = running
        service.fail(_Killed(f"{self.name} was killed"))  # from here on nothing is written
        for task in (self._life, self._settling):
            if task is not None:
                task.cancel()
        await server.kill()
        await self._unregister()
        await service.close()

    async def set_read_only(self, *, read_only: bool) -> None:
        """Refuse ordinary adds from now on, or take them again; reads go on either way."""
        self._read_only = read_only
        if self._running is not None:
            self._running[2].set_read_only(read_only=read_only)
            await self.register_again()

    async def register_again(self) -> None:
        """Register now, instead of when it notices that its registration is gone or stale."""
        if self._running is not None:
            await self._unregister()
            await self._register()

    def _begin_life(
        self, storage: BookieStorage, service: BookieService, living: LifeKeeper
    ) -> None:
        def ended(life: "asyncio.Task[None]") -> None:
            error = None if life.cancelled() else life.exception()
            if error is not None:
                service.fail(error)  # another one took its identity

        storage.on_census(living.checkpointed)
        living.checkpointed(storage.census)
        self._life = asyncio.create_task(living.run(), name=f"life of {self.name}")
        self._life.add_done_callback(ended)
        ledgers = LedgerStore(self._store, self._namespace.layout)
        instance = self._namespace.instance
        settler = LossResolver(
            storage, ledgers, self.name, instance=instance, on_change=living.set_limbo
        )
        self._settling = asyncio.create_task(settler.run(), name=f"settler of {self.name}")

    async def _register(self) -> None:
        registration = BookieRegistration(
            self.name,
            self.address,
            self._incarnation,
            read_only=self._read_only,
            identity=self._cookie.cookie,
            life=self._cookie.life,
            instance=self._cookie.instance,
        )
        self._registrar = Registrar(self._store, registration)
        await self._registrar.start()

    async def _unregister(self) -> None:
        registrar, self._registrar = self._registrar, None
        if registrar is not None:
            await registrar.close()
