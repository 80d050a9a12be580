"""A bookie's server in the test's own event loop, and servers that misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from bookie.server.limits import ClientLimits, ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from ledger.ids import BookieId, BookieIdentity
from ledger.requests import AddRun, InfoAnswer, Status
from ledger.security.certificates import Security
from ledger.transport.sockets import SocketTransport
from tests.bookie.memory_storage import MemoryStorage
from tests.waiting import PATIENCE_S, eventually
from tests.waiting import until as until  # noqa: PLC0414 - who serves also waits

BOOKIE = BookieId("b1")
OURS = BookieIdentity("instance 1", "data 1", 3)
"""Of the bookie that is served."""


@dataclass(frozen=True, slots=True)
class Secured:
    """What both ends have, if connections are secured."""

    bookie: Security
    client: Security


secured: ContextVar[Secured | None] = ContextVar("secured", default=None)


class Bookie:
    """A served `MemoryStorage`."""

    def __init__(
        self, storage: MemoryStorage, name: str = BOOKIE, limits: ClientLimits | None = None
    ) -> None:
        self.storage = storage
        info = InfoAnswer(name, "start 1", "instance 1", False, OURS.identity, OURS.life)
        self.service = BookieService(storage, info, ServiceConfig())
        both = secured.get()
        self.server = BookieServer(limits, security=None if both is None else both.bookie)
        self.address = ""

    async def start(self, port: int = 0) -> None:
        port = self.server.bind("127.0.0.1", port)
        self.address = f"127.0.0.1:{port}"
        await self.server.start(self.service)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def stop(self) -> None:
        self._open_gates()
        await self.server.stop()
        await self.service.close()

    async def kill(self) -> None:
        await self.server.kill()
        self._open_gates()
        await self.service.close()

    def _open_gates(self) -> None:
        for gate in self.storage.gates:
            gate.set()


@asynccontextmanager
async def serving(
    storage: MemoryStorage | None = None, limits: ClientLimits | None = None
) -> AsyncIterator[Bookie]:
    bookie = Bookie(storage or MemoryStorage(), limits=limits)
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()


@asynccontextmanager
async def transport_to(
    address: str | Callable[[], str | None], **settings: float
) -> AsyncIterator[SocketTransport]:
    resolve = address if callable(address) else lambda: str(address)
    settings.setdefault("timeout_s", PATIENCE_S)
    both = secured.get()
    transport = SocketTransport(
        lambda _: resolve(),
        security=None if both is None else both.client,
        takes=lambda _: None if both is None else both.bookie.takes,
        **settings,  # type: ignore[arg-type]
    )
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Say nothing, ever: the kernel accepts the connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def refused_address() -> str:
    """Return an address where nobody listens, as this process has it until it ends."""
    unused = socket.socket()
    unused.bind(("127.0.0.1", 0))
    _UNUSED.append(unused)
    return f"127.0.0.1:{unused.getsockname()[1]}"


_UNUSED: Final[list[socket.socket]] = []


class Answers:
    """Collects what `on_done` was called with, by name, in order."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Status]] = []
        self._changed = asyncio.Event()

    def expect(self, name: str) -> Callable[[Status], None]:
        def on_done(status: Status) -> None:
            self.got.append((name, status))
            self._changed.set()

        return on_done

    async def wait(self, count: int, timeout_s: float = PATIENCE_S) -> list[tuple[str, Status]]:
        async with asyncio.timeout(timeout_s):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.got


async def add(
    transport: SocketTransport,
    run: AddRun,
    bookie: BookieId = BOOKIE,
    timeout_s: float = PATIENCE_S,
) -> Status:
    answers = Answers()
    transport.add(bookie, run, answers.expect("run"))
    return (await answers.wait(1, timeout_s))[0][1]


async def add_until_ok(
    transport: SocketTransport,
    run: AddRun,
    bookie: BookieId = BOOKIE,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Repeat *run* until it is stored: waits out the back-off after a lost bookie."""

    async def stored() -> bool:
        return await add(transport, run, bookie) is Status.OK

    await eventually(stored, "the run is stored", timeout_s=timeout_s)
