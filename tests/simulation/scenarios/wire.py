"""The real wire for stories about it: a served bookie, a cable to it, and one that lies.

Everything but the cable is production code: `SocketTransport`, `BookieServer`, `BookieService`
and `BookieStorage`, over TCP on this machine. The cable relays bytes and may change, chop or
cut them; the liar speaks the protocol and acknowledges what it is meant to.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from struct import Struct
from typing import Final

from bookie.server.limits import ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from ledger.ids import BookieId
from ledger.requests import AddRun, InfoAnswer, Status
from ledger.transport.framing import HEADER_BYTES, FrameKind, frame_header
from ledger.transport.handshake import VERSION_MIN, Welcome, decode_hello, encode_answer
from ledger.transport.sockets import SocketTransport

BOOKIE: Final = BookieId("b1")
DEADLINE_S: Final = 20.0
_CHUNK_BYTES: Final = 1 << 16
_HEADER: Final = Struct("<IBxxxQ")


@asynccontextmanager
async def served(storage: BookieStorage) -> AsyncIterator[str]:
    """Yield the address of bookie b1 on *storage*, which is closed in the end."""
    info = InfoAnswer(BOOKIE, "start 1", "instance 1", read_only=False)
    service, server = BookieService(storage, info, ServiceConfig()), BookieServer()
    port = server.bind("127.0.0.1", 0)
    await server.start(service)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()
        await service.close()


@asynccontextmanager
async def transport_to(
    address: str, *, timeout_s: float = 5.0, batch_bytes_max: int = 1
) -> AsyncIterator[SocketTransport]:
    """Yield a transport; each run is a batch of its own unless *batch_bytes_max* is larger."""
    transport = SocketTransport(
        lambda _: address, timeout_s=timeout_s, batch_bytes_max=batch_bytes_max
    )
    try:
        yield transport
    finally:
        await transport.close()


async def add(transport: SocketTransport, *runs: AddRun) -> list[Status]:
    """Send *runs*, one behind the other; return their answers, of which each got one in turn."""
    answers: list[tuple[int, Status]] = []
    all_answered = asyncio.Event()

    def answered(number: int, status: Status) -> None:
        answers.append((number, status))
        if len(answers) >= len(runs):
            all_answered.set()

    for number, run in enumerate(runs):
        transport.add(BOOKIE, run, partial(answered, number))
    async with asyncio.timeout(DEADLINE_S):
        await all_answered.wait()
    assert [number for number, _ in answers] == list(range(len(runs)))
    return [status for _, status in answers]


async def add_until_ok(transport: SocketTransport, run: AddRun) -> None:
    """Send *run* again until it is stored: waits out the pause after a broken connection."""
    async with asyncio.timeout(DEADLINE_S):
        while await add(transport, run) != [Status.OK]:  # noqa: ASYNC110 - of a back-off
            await asyncio.sleep(0.01)


class Cable:
    """A TCP relay to *address*. What is set here holds for all connections from then on."""

    def __init__(self, address: str) -> None:
        self.address = ""
        self.pattern_up = b""
        """The first time that the client sends this, a bit of its last byte is changed."""
        self.pattern_down = b""
        """The same for what the bookie sends."""
        self.cut_after_bytes: int | None = None
        """The connection that is to send more than this to the bookie is cut there, once."""
        self.cut_silently = False
        """Nobody learns of the cut: what the client sends from there on just does not arrive."""
        self.piece_bytes = _CHUNK_BYTES
        """In pieces of at most so many bytes."""
        self.damaged = 0
        self.cuts = 0
        self._to = address.rpartition(":")
        self._relays: dict[asyncio.Future[None], None] = {}
        self._writers: list[asyncio.StreamWriter] = []

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._relays[task] = None
        self._writers.append(writer)

    async def close(self) -> None:
        for task in self._relays:
            task.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(w.wait_closed() for w in self._writers), return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection(self._to[0], int(self._to[2]))
            self._writers.append(back)
            # What one end has said still arrives when it, or the cable, is broken off.
            up, down = self._pass(reader, back, up=True), self._pass(there, writer, up=False)
            await asyncio.gather(up, down)

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, up: bool
    ) -> None:
        """Pass on what *source* sends until it ends or the cable is cut; then end *target*."""
        try:
            with suppress(OSError):
                await self._pass_bytes(source, target, up=up)
        finally:
            target.close()

    async def _pass_bytes(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, up: bool
    ) -> None:
        passed_bytes = 0
        tail = b""
        while chunk := await source.read(_CHUNK_BYTES):
            chunk, tail = self._damage(chunk, tail, up=up)
            cut = self.cut_after_bytes if up else None
            is_last = cut is not None and passed_bytes + len(chunk) > cut
            if is_last and cut is not None:
                self.cut_after_bytes = None
                self.cuts += 1
                chunk = chunk[: max(0, cut - passed_bytes)]
            for at in range(0, len(chunk), self.piece_bytes):
                target.write(chunk[at : at + self.piece_bytes])
                await target.drain()
            passed_bytes += len(chunk)
            if is_last:
                while self.cut_silently and await source.read(_CHUNK_BYTES):
                    continue
                return

    def _damage(self, chunk: bytes, tail: bytes, *, up: bool) -> tuple[bytes, bytes]:
        """Change the end of the pattern if it ends in *chunk*; it may have begun in *tail*."""
        pattern = self.pattern_up if up else self.pattern_down
        if not pattern:
            return chunk, b""
        seen = tail + chunk
        at = seen.find(pattern)
        if at < 0:
            return chunk, seen[max(0, len(seen) - len(pattern) + 1) :]
        if up:
            self.pattern_up = b""
        else:
            self.pattern_down = b""
        self.damaged += 1
        last = at + len(pattern) - 1 - len(tail)
        return chunk[:last] + bytes([chunk[last] ^ 1]) + chunk[last + 1 :], b""


@asynccontextmanager
async def cable_to(address: str) -> AsyncIterator[Cable]:
    cable = Cable(address)
    server = await asyncio.start_server(cable.connected, "127.0.0.1", 0)
    cable.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield cable
    finally:
        server.close()
        await cable.close()
        await server.wait_closed()


@asynccontextmanager
async def liar(answers: Callable[[int], Sequence[bytes]]) -> AsyncIterator[str]:
    """Yield the address of a bookie that answers batch number n with ``answers(n)``."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = b""
        with suppress(OSError, asyncio.IncompleteReadError):
            while decode_hello(received) is None:
                received += await reader.readexactly(1)
            writer.write(encode_answer(Welcome(VERSION_MIN, BOOKIE, "start 1")))
            while True:
                length, _, batch = _HEADER.unpack_from(await reader.readexactly(HEADER_BYTES))
                await reader.readexactly(length)
                for ack in answers(batch):
                    writer.write(frame_header(FrameKind.ADDED, batch, len(ack)) + ack)
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
