"""Tells a follower at once that the process before it has died.

A session of ZooKeeper outlives a killed process by its whole time-out, although the kernel has
closed every connection of the dead at once. So each candidate listens on a port of its own
and names it in its node; the candidate behind it connects and waits for the end. If the
connection ends *and* the port then refuses, the process is gone, and the follower may delete
its node instead of waiting for the session. A port that refuses from the start may have died
before the follower came: `leader.refusals` decides whether that is known.

A candidate listens before its node is made, and for as long as it may lead. Nothing is
concluded from silence, nor from a port where another process listens: the right one proves
itself by a secret from the node. A wrong conclusion would cost an election, never a record:
fencing decides who can write.
"""

import asyncio
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from leader.refusals import LifelineAddress, Refusals

CONNECT_S: Final = 2.0
SECRET_BYTES: Final = 16
REFUSAL_TRIES: Final = 10
REFUSAL_PAUSE_S: Final = 0.02

_NOTHING_TOLD: Final = (OSError, EOFError, TimeoutError)


_refusals: Final = Refusals()


class Lifeline:
    """Listens for as long as this process may lead; made by `open`."""

    def __init__(
        self,
        server: asyncio.Server,
        address: LifelineAddress,
        followers: set[asyncio.StreamWriter],
    ) -> None:
        self.address = address
        self._server = server
        self._followers = followers

    @classmethod
    async def open(cls, host: str) -> Self:
        """Listen on a free port of *host*, which followers must be able to reach.

        Raises `OSError`."""
        secret = secrets.token_bytes(SECRET_BYTES)
        followers: set[asyncio.StreamWriter] = set()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            followers.add(writer)
            try:
                writer.write(secret)
                await reader.read()  # until the follower lets go
            except ConnectionError:
                return
            finally:
                followers.discard(writer)
                writer.close()

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family)
        port = listening.getsockname()[1]
        server = await asyncio.start_server(greet, sock=listening, start_serving=False)
        lifeline = cls(server, LifelineAddress(host, port, secret, network()), followers)
        try:
            await server.start_serving()
        except BaseException:
            lifeline.close()
            raise
        return lifeline

    @property
    def followers(self) -> int:
        """How many candidates will learn of our death at once."""
        return len(self._followers)

    def close(self) -> None:
        """Let the followers know that this candidate is over. Idempotent."""
        self._server.close()
        for writer in list(self._followers):
            writer.close()


def network() -> str:
    """Return a name of the network stack of this process, or nothing where there is none.

    No living process of this boot can have another stack of the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""  # not Linux


async def has_died(address: LifelineAddress, refusals: Refusals = _refusals) -> bool:
    """Wait for the end of the process at *address*: True once it counts as gone.

    False as soon as it turns out that nothing can be told from here."""
    try:
        reader, connection = await _verified(address)
    except TimeoutError:
        return False
    except _NOTHING_TOLD:
        return await _refuses(address) and refusals.is_death(address, here=network())
    refusals.proven(address)
    try:
        with suppress(OSError):
            while await reader.read(1024):
                pass  # it says nothing more; the end is the message
    finally:
        connection.close()
    return await _refuses(address)


async def _verified(
    address: LifelineAddress,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to the right process. Raises one of `_NOTHING_TOLD`."""
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            said = await reader.readexactly(len(address.secret))
        except BaseException:
            writer.close()
            raise
    if not secrets.compare_digest(said, address.secret):
        writer.close()
        raise ConnectionAbortedError("another process listens there")
    return reader, writer


async def _refuses(address: LifelineAddress) -> bool:
    """Return True iff the host answers that nobody listens there any more.

    The kernel closes the sockets of the dead one after the other, so the port may take a
    connection for a moment longer, and say nothing."""
    for _ in range(REFUSAL_TRIES):
        try:
            _, writer = await _verified(address)
        except ConnectionRefusedError:
            return True
        except _NOTHING_TOLD:
            await asyncio.sleep(REFUSAL_PAUSE_S)
        else:
            writer.close()
            return False  # it lives
    return False
