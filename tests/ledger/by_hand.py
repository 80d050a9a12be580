"""A peer of a bookie that says exactly what a test wants it to say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from struct import Struct

from ledger.requests import AddRun
from ledger.transport.framing import HEADER_BYTES, Frame, FrameKind, frame_header
from ledger.transport.handshake import (
    Answer,
    Hello,
    Purpose,
    Refusal,
    Welcome,
    decode_answer,
    encode_hello,
)
from ledger.transport.messages import batch_message
from tests.ledger.serving import BOOKIE
from tests.waiting import PATIENCE_S

_HEADER = Struct("<IBxxxQ")


@dataclass
class Peer:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def greet(self, hello: Hello) -> Answer:
        """Say *hello*, and return the answer."""
        self.writer.write(encode_hello(hello))
        received = b""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                received += await self.reader.readexactly(1)
                answer = decode_answer(received)
                if answer is not None:
                    return answer

    def send(
        self, kind: FrameKind, number: int, body: bytes = b"", length: int | None = None
    ) -> None:
        """Send a frame; *length*, if it is to lie."""
        header = frame_header(kind, number, len(body) if length is None else length)
        self.writer.write(header + body)

    def add(self, batch: int, *runs: AddRun) -> None:
        self.send(FrameKind.ADD, batch, batch_message(runs))

    async def frame(self) -> Frame:
        """Return the next frame of the bookie."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(HEADER_BYTES)
            length, kind, number = _HEADER.unpack_from(head)
            return Frame(kind, number, await self.reader.readexactly(length))

    async def rest(self) -> bytes:
        """Return what still comes until the bookie ends the connection."""
        received = b""
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while data := await self.reader.read(65536):
                    received += data
        return received


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Peer]:
    """Yield a peer that has said nothing yet."""
    host, _, port = address.rpartition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        peer.writer.transport.abort()


@asynccontextmanager
async def greeted(
    address: str, purpose: Purpose = Purpose.ADDS, bookie: str = BOOKIE
) -> AsyncIterator[Peer]:
    """Yield a peer that may send frames."""
    async with connected(address) as peer:
        answer = await peer.greet(Hello(purpose, bookie))
        assert isinstance(answer, Welcome), answer
        yield peer


async def refusal(address: str, hello: Hello) -> str:
    """Return why the bookie does not serve who says *hello*."""
    async with connected(address) as peer:
        answer = await peer.greet(hello)
        assert isinstance(answer, Refusal), answer
        assert await peer.rest() == b""
        return answer.reason
