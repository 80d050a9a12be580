"""A server between a client and a bookie that damages what passes through it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from struct import Struct

from ledger.transport.framing import HEADER_BYTES, FrameKind, frame_header

Damage = Callable[[bytes], bytes]

_HEADER = Struct("<IBxxxQ")
_HELLO = Struct("<14xH")
_ANSWER = Struct("<10xHHxx")
_CRC_BYTES = 4


def unharmed(message: bytes) -> bytes:
    return message


def flipped(at: int, bit: int = 0) -> Damage:
    """Flip one bit of the byte at *at*, which counts from the end if it is negative."""

    def flip(message: bytes) -> bytes:
        damaged = bytearray(message)
        damaged[at] ^= 1 << bit
        return bytes(damaged)

    return flip


def replaced(old: bytes, new: bytes) -> Damage:
    """Put *new* where *old* is; it must be there, once."""

    def replace(message: bytes) -> bytes:
        assert message.count(old) == 1
        return message.replace(old, new)

    return replace


class Middleman:
    """Passes every message on. Set `to_bookie` and `to_client` to what shall happen on the way:
    to messages, whose frames are made anew, so that no damage is seen in a header."""

    def __init__(self, bookie_address: str) -> None:
        self.to_bookie: Damage = unharmed
        self.to_client: Damage = unharmed
        self.address = ""
        self.trouble: list[AssertionError] = []
        """Of damages that did not find what they damage."""
        self._bookie_address = bookie_address
        self._passing: dict[asyncio.Task[None], None] = {}

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._pass(reader, writer))
        self._passing[task] = None
        task.add_done_callback(self._passing.pop)

    async def close(self) -> None:
        tasks = list(self._passing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._bookie_address.rpartition(":")
        back: asyncio.StreamWriter | None = None
        try:
            there, back = await asyncio.open_connection(host, int(port))
            back.write(await _greeting(reader, _HELLO))
            writer.write(await _greeting(there, _ANSWER))
            await asyncio.gather(
                self._pass_frames(reader, back, lambda: self.to_bookie),
                self._pass_frames(there, writer, lambda: self.to_client),
            )
        except (OSError, asyncio.IncompleteReadError, AssertionError):
            pass
        finally:
            for each in (writer, back):
                if each is not None:
                    each.close()

    async def _pass_frames(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        damage: Callable[[], Damage],
    ) -> None:
        try:
            while True:
                head = await source.readexactly(HEADER_BYTES)
                length, kind, number = _HEADER.unpack_from(head)
                body = await source.readexactly(length)
                if kind != FrameKind.CANCEL:
                    body = self._damaged(damage(), body)
                target.write(frame_header(FrameKind(kind), number, len(body)) + body)
                await target.drain()
        except asyncio.IncompleteReadError:
            with suppress(OSError):
                target.write_eof()  # the other way may still have something to say

    def _damaged(self, damage: Damage, message: bytes) -> bytes:
        try:
            return damage(message)
        except AssertionError as error:
            self.trouble.append(error)
            raise


async def _greeting(source: asyncio.StreamReader, head: Struct) -> bytes:
    received = await source.readexactly(head.size)
    return received + await source.readexactly(sum(head.unpack(received)) + _CRC_BYTES)


@asynccontextmanager
async def between(bookie_address: str) -> AsyncIterator[Middleman]:
    """Serve a `Middleman` in front of the bookie at *bookie_address*."""
    middleman = Middleman(bookie_address)
    server = await asyncio.start_server(middleman.connected, "127.0.0.1", 0)
    middleman.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield middleman
    finally:
        server.close()
        await middleman.close()
    if middleman.trouble:
        raise middleman.trouble[0]
