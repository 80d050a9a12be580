"""Ending to accept connections, without one that nobody knows of."""

import asyncio


async def stop_accepting(server: asyncio.Server) -> None:
    """Close *server*; who was accepted before is connected when this returns.

    An event loop takes a turn between accepting and connecting. A server that is closed in that
    turn leaves the connection open until the process ends, and never tells its protocol of it
    (CPython's issue 109564)."""
    loop = server.get_loop()
    try:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)  # the transport is made,
        await asyncio.sleep(0)  # and its protocol told
    finally:
        server.close()
