"""A way to ZooKeeper that can fall silent: connections are taken, and nobody answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Final

_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65536


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
        self.connections = 0
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
            back = asyncio.create_task(_answer(to_reader, writer, answers))
            self._open[writer] = back
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(_CHUNK_BYTES):
                    to_writer.write(chunk)
            back.cancel()
            to_writer.close()
        del self._open[writer]
        writer.close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers
) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        if answers is Answers.GREETING:
            head = await reader.readexactly(4)
            writer.write(head + await reader.readexactly(int.from_bytes(head, "big")))
            await _drained(reader)
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
        writer.close()


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
