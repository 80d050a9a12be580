"""The HTTP server of the console: where it listens, who may come, and its end."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from dlog.console.pages import Console, ConsoleAccess
from dlog.console.poller import ROUND_S, Gatherer
from dlog.console.request_guard import LOOPBACK, TOKEN_CHARACTERS_MIN
from ledger.client import LedgerClient
from ledger.errors import CallerError
from ledger.security.certificates import Security

CONNECTIONS_MAX: Final = 128
FROM_ONE_MAX: Final = 64
"""Connections from one address, those that have not got through TLS yet among them."""
HEAD_BYTES_MAX: Final = 16 * 1024
"""Of a request, before its body."""
BEGIN_S: Final = 10.0
"""A browser may take so long from one request, or its connection, to the head of the next."""
TAKE_S: Final = 30.0
"""What a browser is sent may wait so long for it, also if it is gone without a word."""
END_S: Final = 2
"""Streams may take so long to end."""


class ConsoleNotServed(CallerError):
    def __init__(self, reason: str) -> None:
        super().__init__(f"the console cannot be served: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    hosts: Sequence[str] = ()
    """Further names that browsers may know it by."""
    token: str = field(default="", repr=False)
    """What opens it; empty: one is made, and an address that opens it once."""
    allow_changes: bool = False
    """Let who has shown the token change something."""
    tls: bool = False
    """Serve HTTPS with this process's certificate."""
    round_s: float = ROUND_S


@dataclass(frozen=True, slots=True)
class Served:
    address: str
    token: str = field(repr=False)
    login: str = field(repr=False)
    """An address that opens it once; empty: the token was given, and is known to who gave it."""


def access_of(options: ConsoleOptions) -> ConsoleAccess:
    """Raises `ConsoleNotServed` for what would not be safe."""
    local = options.host in LOOPBACK
    if not local and not options.tls:
        raise ConsoleNotServed(
            f"others reach {options.host}, so it needs TLS: set DLOG_TLS and its files and give "
            "--tls, or leave --host out and use a tunnel"
        )
    if options.token and len(options.token) < TOKEN_CHARACTERS_MIN:
        raise ConsoleNotServed(f"its token has fewer than {TOKEN_CHARACTERS_MIN} characters")
    return ConsoleAccess(
        hosts=frozenset({*LOOPBACK, options.host.lower(), *map(str.lower, options.hosts)}),
        token=options.token or secrets.token_urlsafe(24),
        once="" if options.token else secrets.token_urlsafe(24),
        allow_changes=options.allow_changes,
        secure=options.tls,
    )


def listen(host: str, port: int) -> socket.socket:
    """Raises `ConsoleNotServed` if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or error
        raise ConsoleNotServed(f"port {port} of {host}: {reason}; see --port") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; each connection has it from here
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * TAKE_S))
    return _Listening(family, fileno=made.detach())


class _Listening(socket.socket):
    """Takes `FROM_ONE_MAX` connections from one address, so that none can have all."""

    def __init__(self, family: int, *, fileno: int) -> None:
        super().__init__(family, socket.SOCK_STREAM, fileno=fileno)
        self._taken: list[tuple[str, socket.socket]] = []

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connection, address = super().accept()
            self._taken = [each for each in self._taken if each[1].fileno() >= 0]
            if sum(host == address[0] for host, _ in self._taken) < FROM_ONE_MAX:
                self._taken.append((address[0], connection))
                return connection, address
            connection.close()


@asynccontextmanager
async def console(
    client: LedgerClient, options: ConsoleOptions, *, security: Security | None = None
) -> AsyncIterator[Served]:
    """Serve the console of *client*'s cluster as long as this lasts. Raises `ConsoleNotServed`."""
    access = access_of(options)
    security = security if options.tls else None
    if options.tls and security is None:
        raise ConsoleNotServed("--tls needs DLOG_TLS, DLOG_TLS_CERT and DLOG_TLS_KEY")
    gatherer = Gatherer(client, round_s=options.round_s)
    made = Console(gatherer, access)
    config = uvicorn.Config(
        made.app,
        host=options.host,
        port=options.port,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=END_S,
        http=_Prompt,
        loop="none",
        ssl_context_factory=None if not security else lambda *_: security.lasting_server(),
    )
    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"{'https' if options.tls else 'http'}://{shown}:{port}/"
    server = _Server(config)
    gathering = asyncio.ensure_future(gatherer.run())
    serving = asyncio.ensure_future(server.serve([listening]))
    try:
        login = f"{address}login?token={access.once}" if access.once else ""
        yield Served(address, access.token, login)
    finally:
        gatherer.stop()
        server.should_exit = True
        await asyncio.wait([serving])
        await made.works.close()
        gathering.cancel()
        await asyncio.wait([gathering])
        listening.close()


class _Prompt(H11Protocol):
    """Shuts connections on which nothing is asked: uvicorn has no limit to the time that the first
    request may take to come, and who holds all connections would keep everybody out."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(BEGIN_S, self._shut_unless_asked)

    def _shut_unless_asked(self) -> None:
        asked: RequestResponseCycle | None = self.cycle
        if asked is None or asked.response_complete:
            self.transport.close()


class _Server(uvicorn.Server):
    """Leaves signals to the program that it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
