"""A bookie that demands to know who asks, and clients with certificates, in the test's loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bookie.server.authorizer import Authorizer
from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from ledger.cluster import decode_instance, encode_instance, make_namespace
from ledger.errors import MetadataUnavailable
from ledger.feature_level import ClusterLevel
from ledger.ids import BookieId, LedgerId
from ledger.manager import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import INSTANCE
from ledger.requests import InfoAnswer
from ledger.security.access import Grant, Role, Rules
from ledger.security.certificates import Security
from ledger.security.documents import change_rules, read_rules
from ledger.transport.sockets import SocketTransport
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.server.operations import closed, entry, locked, made
from tests.certificates import certificate, put
from tests.ledger.flaky_store import FlakyStore
from tests.waiting import PATIENCE_S, until

BOOKIE = BookieId("b1")


class Silent(FlakyStore):
    silent = False

    def _before(self, operation: str) -> None:
        if self.silent:
            raise MetadataUnavailable(self.uri, operation, 0)


class Guarded:
    """Made by `guarded`."""

    def __init__(self, directory: Path, store: Silent, ledgers: LedgerStore) -> None:
        self._directory, self.store, self.ledgers = directory, store, ledgers
        self.storage = MemoryStorage()
        self.now = 0.0
        self.guard = Authorizer(store, ledgers, bookie=BOOKIE, clock=lambda: self.now)
        info = InfoAnswer(BOOKIE, "start 1", "instance 1", read_only=False)
        self.service = BookieService(self.storage, info, ServiceConfig())
        self.server = BookieServer(security=self.security("bookie", bookie=BOOKIE))
        self.server.guard = self.guard
        self._transports: dict[str, SocketTransport] = {}
        self._port = 0

    def security(self, name: str, *, bookie: str = "", uris: tuple[str, ...] = ()) -> Security:
        issued = certificate(name, bookie=bookie, uris=uris)
        return Security(put(self._directory / name, issued))

    async def start(self) -> None:
        await self.guard.start()
        self._port = self.server.bind("127.0.0.1", 0)
        await self.server.start(self.service)

    async def stop(self) -> None:
        for transport in self._transports.values():
            await transport.close()
        self.storage.gate.set()
        await self.server.stop()
        await self.service.close()

    def as_(self, name: str, *, bookie: str = "") -> SocketTransport:
        """Return the connections of a client with the certificate of *name*."""
        if name not in self._transports:
            address = f"127.0.0.1:{self._port}"
            security = self.security(name, bookie=bookie)
            self._transports[name] = SocketTransport(
                lambda _: address, timeout_s=PATIENCE_S, security=security
            )
        return self._transports[name]

    async def change(self, change: Callable[[Rules], Rules]) -> None:
        """Change the rules, and wait until the bookie goes by them."""
        await change_rules(self.store, change, by="the test")
        wanted = await read_rules(self.store)
        await until(lambda: self.guard.rules == wanted)

    async def grant(self, who: str, role: Role, logs: str = "*") -> None:
        await self.change(lambda rules: rules.granted(Grant(who, role, logs)))

    async def revoke(self, who: str, role: Role, logs: str = "*") -> None:
        await self.change(lambda rules: rules.revoked(Grant(who, role, logs)))

    async def held(self, held: ClusterLevel) -> None:
        """Let the cluster be at a level."""
        instance, _ = decode_instance((await self.store.get(INSTANCE)).value)
        await self.store.set(INSTANCE, encode_instance(instance, held))

    async def close(self, ledger_id: LedgerId, last_entry: int) -> None:
        """Let the ledger be CLOSED with *last_entry*."""
        await closed(self.ledgers, ledger_id, last_entry)

    async def repair(
        self, ledger_id: LedgerId, *identities: str, targets: tuple[str, ...] = (BOOKIE,)
    ) -> None:
        """Let the ledger's lock say that one of *identities* copies to *targets*."""
        await locked(self.ledgers, ledger_id, *identities, targets=targets)

    async def made(self, log: str | None, *, stored: bool = True) -> LedgerId:
        """Return a new ledger of *log*, None: of none, with one entry here if it is *stored*."""
        ledger_id = await made(self.ledgers, BOOKIE, log)
        if stored:
            self.storage.add(entry(ledger_id))
        return ledger_id


@asynccontextmanager
async def guarded(directory: Path, *, watching: bool = True) -> AsyncIterator[Guarded]:
    """Serve; *watching*: it hears of changes of the rules."""
    store = Silent(MemoryStore("memory://guarded", "guarded"))
    found = Guarded(directory, store, LedgerStore(store, (await make_namespace(store)).layout))
    await found.start()
    watcher = asyncio.ensure_future(found.guard.run()) if watching else None
    try:
        yield found
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        await found.stop()
        await store.close()
