"""No connection is left behind by a server that ends."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator

import pytest

from ledger.tasks import stop_accepting
from tests.waiting import until


class Noting(asyncio.Protocol):
    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._made.pop()


@contextlib.contextmanager
def client_of(port: int) -> Iterator[None]:
    with socket.socket() as client:
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        yield


async def test_who_was_just_accepted_when_a_server_ends_is_known_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    made: list[asyncio.BaseTransport] = []
    server = await loop.create_server(lambda: Noting(made), "127.0.0.1", 0)
    accepted = asyncio.Event()
    accept = type(loop)._accept_connection2  # type: ignore[attr-defined]

    def accept_and_tell(*given: object) -> object:
        accepted.set()
        return accept(*given)

    monkeypatch.setattr(type(loop), "_accept_connection2", accept_and_tell)
    ending = asyncio.create_task(ended(accepted, server))
    with client_of(server.sockets[0].getsockname()[1]):
        await ending
        assert len(made) == 1
        made[0].close()
    await until(lambda: not made)
    gc.collect()  # what is unclosed would be reported here


async def ended(accepted: asyncio.Event, server: asyncio.Server) -> None:
    """End *server* in the very turn in which it accepts."""
    await accepted.wait()
    await stop_accepting(server)


async def test_a_server_that_ended_accepts_nobody() -> None:
    made: list[asyncio.BaseTransport] = []
    server = await asyncio.get_running_loop().create_server(lambda: Noting(made), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await stop_accepting(server)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert not made
