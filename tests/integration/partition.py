"""A network that tests can cut: a TCP proxy for each (client, bookie) pair.

Clients are given the proxies' addresses instead of the bookies', and nothing else of them is
changed. A cut link swallows nothing: what was sent meanwhile is held back and arrives, late,
when the link is whole again, as TCP's retransmissions would. That is the mean case: adds of a
writer that everybody took for dead arrive at bookies that were fenced meanwhile.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from ledger import LedgerClient
from ledger.transport.sockets import SocketTransport
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S

_CHUNK_BYTES = 64 * 1024

Resolve = Callable[[str], str | None]


class Link:
    """What lies between one client and one bookie. Each direction can be cut alone."""

    def __init__(self, bookie: str, resolve: Resolve) -> None:
        self._bookie = bookie
        self._resolve = resolve
        self._to_bookie = asyncio.Event()
        self._from_bookie = asyncio.Event()
        self._listening: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], None] = {}
        self.address = ""
        self.heal()

    async def start(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)
        host, port = self._listening.getsockname()
        self.address = f"{host}:{port}"

    def cut(self, *, to_bookie: bool = True, from_bookie: bool = True) -> None:
        """Hold back what is sent from now on."""
        if to_bookie:
            self._to_bookie.clear()
        if from_bookie:
            self._from_bookie.clear()

    def heal(self) -> None:
        self._to_bookie.set()
        self._from_bookie.set()

    def reset(self) -> None:
        """Break the connections of this moment; what is under way on them is lost."""
        for task in self._connections:
            task.cancel()

    async def close(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
        self.reset()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # whoever it was is gone
        task = asyncio.get_running_loop().create_task(self._carry(connection))
        self._connections[task] = None

        def ended(done: asyncio.Task[None]) -> None:
            self._connections.pop(done, None)
            connection.close()  # also if it was cancelled before its first step

        task.add_done_callback(ended)

    async def _carry(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._to_bookie.wait()  # the handshake needs both ways
            await self._from_bookie.wait()
            address = self._resolve(self._bookie)
            if address is None:
                return
            host, _, port = address.rpartition(":")
            answers, upstream = await asyncio.open_connection(host, int(port))
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, upstream, self._to_bookie))
                group.create_task(_pump(answers, writer, self._from_bookie))
        except OSError:
            pass  # nobody listens there now
        finally:
            writer.transport.abort()
            if upstream is not None:
                upstream.transport.abort()


async def _pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, whole: asyncio.Event
) -> None:
    """Carry bytes while *whole* is set, to the end of the stream or of either connection."""
    with suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            await whole.wait()
            target.write(data)
            await target.drain()
    await whole.wait()  # neither does news of the end get through
    target.close()


class Network:
    """The links of all clients of a test."""

    def __init__(self, bookies: Iterable[str]) -> None:
        self.bookies = tuple(bookies)
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, client: str, bookie: str) -> Link:
        return self._links[client, bookie]

    def links_of(self, client: str) -> list[Link]:
        return [link for (owner, _), link in self._links.items() if owner == client]

    def heal(self) -> None:
        for link in self._links.values():
            link.heal()

    @asynccontextmanager
    async def client(self, name: str, uri: str, *, timeout_s: float) -> AsyncIterator[LedgerClient]:
        """Connect a client whose way to each bookie is a link of its own."""
        client = await LedgerClient.connect(uri, replace(PATIENT, bookie_timeout_s=timeout_s))
        try:
            for bookie in self.bookies:
                link = self._links[name, bookie] = Link(bookie, client.bookies.address)
                await link.start()
            direct = client._environment.transport
            client._environment.transport = SocketTransport(
                lambda bookie: self._links[name, bookie].address,
                timeout_s=timeout_s,
                meant=client.bookies.identity,
            )
            await direct.close()
            await client.bookies.wait_for(len(self.bookies), PATIENCE_S)
            yield client
        finally:
            await client.close()
            for link in self.links_of(name):
                link.heal()
                await link.close()
