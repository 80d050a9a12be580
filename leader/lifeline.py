"""Shows a follower at once that the process before it has died.

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

Where TLS is required, followers and candidates show each other certificates, of any name: that it
is the right process, its secret says.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, cast

from leader.refusals import LifelineAddress, Refusals
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode
from ledger.security.tls_listener import TlsListener

CONNECT_S: Final = 2.0
SECRET_BYTES: Final = 16
REFUSAL_TRIES: Final = 10
REFUSAL_PAUSE_S: Final = 0.02
LISTEN_AGAIN_S: Final = 1.0
FOLLOWERS_MAX: Final = 64
"""Connections at once; one candidate follows another, so more are strangers'. Each takes a
descriptor of an application that has better use for it."""

_NOTHING_TOLD: Final = (OSError, EOFError, TimeoutError)


_refusals: Final = Refusals()


class Lifeline:
    """Listens for as long as this process may lead; made by `open`, on a running event loop.

    Plain sockets: a connection of an `asyncio.Server` that is taken while the server closes
    belongs to nobody, and its follower would wait for the end of the process."""

    def __init__(
        self,
        listening: socket.socket,
        address: LifelineAddress,
        security: Security | None = None,
    ) -> None:
        self.address = address
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._followers: dict[socket.socket, None] = {}
        self._secured: dict[_SecuredFollower, None] = {}
        self._taker: TlsListener | None = None
        if security is None:
            self._listen()
        else:
            self._taker = TlsListener(listening, self._secured_follower, security)
            self._taker.start()

    @classmethod
    def open(
        cls, host: str, security: Security | None = None, *, listen: str | None = None
    ) -> Self:
        """Listen on a free port of *host*, which followers must be able to reach; for those with
        TLS only, if *security* requires it. *listen*: the address to listen on where followers
        know it by another name. Raises `OSError`."""
        listen = host if listen is None else listen
        family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        listening = socket.create_server((listen, 0), family=family)
        listening.setblocking(False)
        port = listening.getsockname()[1]
        secret = secrets.token_bytes(SECRET_BYTES)
        tls = security is not None and security.mode is TlsMode.REQUIRED
        address = LifelineAddress(host, port, secret, network(), tls)
        return cls(listening, address, security if tls else None)

    @property
    def followers(self) -> int:
        """How many candidates will learn of our death at once."""
        return len(self._followers) + len(self._secured)

    def close(self) -> None:
        """Let the followers know that this candidate is over. Idempotent."""
        if self._taker is not None:
            self._taker.stop()
        elif not self._closed():
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for secured in list(self._secured):
            secured.end()
        for follower in list(self._followers):
            self._let_go(follower)

    def _secured_follower(self) -> "_SecuredFollower":
        return _SecuredFollower(self.address.secret, self._secured)

    def _closed(self) -> bool:
        return self._listening.fileno() == -1

    def _listen(self) -> None:
        if not self._closed():
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        try:
            follower, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the peer is gone
        except OSError:  # no descriptors are left; it would be reported again at once, for ever
            self._loop.remove_reader(self._listening)
            self._loop.call_later(LISTEN_AGAIN_S, self._listen)
            return
        if len(self._followers) >= FOLLOWERS_MAX:
            follower.close()  # a follower that is sent away waits for the session instead
            return
        follower.setblocking(False)
        self._followers[follower] = None
        self._loop.add_reader(follower, self._hear, follower)
        try:
            follower.send(self.address.secret)  # a new connection has room for it
        except OSError:
            self._let_go(follower)

    def _hear(self, follower: socket.socket) -> None:
        try:
            follower.recv(1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        self._let_go(follower)  # it is gone; or it speaks, which no follower does

    def _let_go(self, follower: socket.socket) -> None:
        del self._followers[follower]
        self._loop.remove_reader(follower)
        follower.close()


class _SecuredFollower(asyncio.Protocol):
    """One of *followers*, once it is known to have TLS."""

    def __init__(self, secret: bytes, followers: "dict[_SecuredFollower, None]") -> None:
        self._secret, self._followers = secret, followers
        self._transport: asyncio.Transport | None = None

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        is_secured = transport.get_extra_info("ssl_object") is not None
        if not is_secured or len(self._followers) >= FOLLOWERS_MAX:
            self.end()
            return
        self._followers[self] = None
        self._transport.write(self._secret)

    def data_received(self, _data: bytes) -> None:
        self.end()  # it speaks, which no follower does

    def connection_lost(self, _error: Exception | None) -> None:
        self._followers.pop(self, None)


def network() -> str:
    """Return a name of the network stack of this process, or nothing where there is none.

    No living process of this boot can have another stack of the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""  # not Linux


async def has_died(
    address: LifelineAddress,
    refusals: Refusals = _refusals,
    *,
    security: Security | None = None,
    connected: Callable[[asyncio.StreamReader], None] = lambda _: None,
) -> bool:
    """Wait for the end of the process at *address*: True once it counts as gone.

    False as soon as it turns out that nothing can be learned from here, with what *security* this
    process has. *connected* gets the connection: once that is at its end, this is about to return.
    """
    try:
        reader, connection = await _verified(address, security)
    except TimeoutError:
        return False
    except _NOTHING_TOLD:
        gone = await _refuses(address, security)
        return gone and refusals.is_death(address, here=network())
    refusals.proven(address)
    connected(reader)
    try:
        with suppress(OSError):
            while await reader.read(1024):
                pass  # it says nothing more; the end is the message
    finally:
        connection.transport.abort()
    return await _refuses(address, security)


async def is_gone(
    address: LifelineAddress, refusals: Refusals = _refusals, *, security: Security | None = None
) -> bool:
    """Return True iff the process at *address* counts as gone now, as `has_died` would find."""
    try:
        _, connection = await _verified(address, security)
    except TimeoutError:
        return False
    except _NOTHING_TOLD:
        gone = await _refuses(address, security)
        return gone and refusals.is_death(address, here=network())
    refusals.proven(address)
    connection.transport.abort()
    return False


async def _verified(
    address: LifelineAddress, security: Security | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to the right process. Raises one of `_NOTHING_TOLD`."""
    async with asyncio.timeout(CONNECT_S):
        context = security.client() if address.tls and security is not None else None
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        required = security is not None and security.mode is TlsMode.REQUIRED
        if context is None and (address.tls or required):
            writer.transport.abort()
            raise ConnectionAbortedError("one end requires TLS, and the other one has none")
        try:
            said = await reader.readexactly(len(address.secret))
        except BaseException:
            writer.close()
            raise
    if not secrets.compare_digest(said, address.secret):
        writer.close()
        raise ConnectionAbortedError("another process listens there")
    return reader, writer


async def _refuses(address: LifelineAddress, security: Security | None) -> bool:
    """Return True iff the host answers that nobody listens there any more.

    The kernel closes the sockets of the dead one after the other, so the port may take a
    connection for a moment longer, and say nothing."""
    for _ in range(REFUSAL_TRIES):
        try:
            _, writer = await _verified(address, security)
        except ConnectionRefusedError:
            return True
        except _NOTHING_TOLD:
            await asyncio.sleep(REFUSAL_PAUSE_S)
        else:
            writer.transport.abort()
            return False  # it lives
    return False
