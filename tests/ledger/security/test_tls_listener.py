"""Connections of which it is not known yet whether they are secured."""

import asyncio
import socket
import ssl
from typing import Any, cast

from ledger.security.tls_listener import TlsListener


async def test_a_connection_that_came_as_the_listener_stopped_is_closed() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listener = TlsListener(listening, asyncio.Protocol, cast("Any", ssl))  # nobody gets that far
    listener.start()
    with socket.create_connection(listening.getsockname()) as client:
        listener._accept()  # its task takes no step before it is cancelled
        assert len(listener._pending) == 1
        accepted = [task.get_coro() for task in listener._pending]
        await listener.close()
        assert accepted, "what holds the socket is alive: nothing but the listener can close it"
        client.settimeout(30.0)
        assert client.recv(1) == b""
