"""A way to ZooKeeper that can fall silent, and lose or damage single answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final

_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65536
_HEADER_BYTES: Final = 16


def lost(_answer: bytes) -> bytes:
    return b""


def without_content(answer: bytes) -> bytes:
    """Return what says to whom it answers, and nothing more."""
    return _HEADER_BYTES.to_bytes(4, "big") + answer[4 : 4 + _HEADER_BYTES]


class Answers(Enum):
    ALL = "all"
    GREETING = "greeting"
    """The reply to Connect, and nothing more."""
    NONE = "none"


class Proxy:
    """Made by `proxy`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.port = 0
        self.next: list[Answers] = []
        """For the next connections; after these, all."""
        self.spoil: Callable[[bytes], bytes] | None = None
        """Once: what takes the place of the next answer to a call."""
        self.connections = 0
        self.answers = 0
        """Those to calls; not those to Connect, pings and the like."""
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    def silence(self) -> None:
        """Let no answer through on connections that are open now."""
        for task in self._open.values():
            task.cancel()

    def cut(self) -> None:
        """End all connections."""
        for writer in list(self._open):
            writer.close()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        answers = self.next.pop(0) if self.next else Answers.ALL
        if answers is Answers.NONE:
            self._open[writer] = asyncio.create_task(asyncio.sleep(0))
            await _drained(reader)
        else:
            to_reader, to_writer = await asyncio.open_connection(_HOST, self._server_port)
            back = asyncio.create_task(self._answer(to_reader, writer, answers))
            self._open[writer] = back
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(_CHUNK_BYTES):
                    to_writer.write(chunk)
            back.cancel()
            to_writer.close()
        del self._open[writer]
        writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(await _frame(reader))
            if answers is Answers.GREETING:
                await _drained(reader)
            while True:
                frame = await _frame(reader)
                if int.from_bytes(frame[4:8], "big", signed=True) > 0:
                    self.answers += 1
                    if self.spoil is not None:
                        frame, self.spoil = self.spoil(frame), None
                writer.write(frame)
        writer.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Return the next answer, with its length before it."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


async def _drained(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(_CHUNK_BYTES):
            pass


@asynccontextmanager
async def proxy(server_port: int) -> AsyncIterator[Proxy]:
    made = Proxy(server_port)
    server = await asyncio.start_server(made.connected, _HOST, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await server.wait_closed()
