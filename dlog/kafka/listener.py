"""Where clients of Kafka's protocol connect: connections, and the requests and responses on them.

Requests of a connection are answered in the order in which they came. Those that produce overlap:
each begins before the one before it is answered, `PRODUCES_MAX` at a time, so appends of a
connection have its order too. Any other request begins when all before it were begun, and is
answered before the next is read, as a broker of Kafka does it.

What a client may take is bounded: connections, the bytes of a request and of all requests at once,
the time for a request to arrive whole, the time for a response to be taken, the time of silence.
Where clients authenticate, those that have not may take less of all of that, and ask for nothing.
A frame that is no request closes its connection, with one line in the log for all of a second.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, cast

from dlog.kafka.protocol.sasl import SaslConnection
from dlog.kafka.wire import (
    API_VERSIONS,
    FRAME_HEADER_BYTES,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    BadRequest,
    Values,
    VersionRange,
    WireRequest,
    decode_request,
    encode_response,
    encode_versions,
)
from ledger.errors import CallerError
from ledger.log_events import get_logger, now_ms
from ledger.security.certificates import Security, certificate_of_peer
from ledger.security.names import source_of
from ledger.security.settings import TlsMode
from ledger.security.tls_listener import TlsListener
from ledger.tasks import stop_accepting

PRODUCES_MAX: Final = 16
UNAUTHENTICATED_BYTES_MAX: Final = 64 * 1024
"""Of a request of a client that is not known yet; a token is the largest that it sends."""
READ_BYTES: Final = 64 * 1024
"""What is read ahead of each connection; twice as much at most."""
STALLED_S: Final = 1.0
"""A request that has not grown for so long makes room for others, if there is none left."""
TELL_S: Final = 1.0
DRAIN_S: Final = 5.0
"""So long requests that were taken have for their answers when the gateway stops."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_MS: Final = 1000
_log = get_logger(__name__)


class KafkaNotServed(CallerError):
    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"the Kafka gateway cannot listen on {host}:{port}: {reason}; give another --listen"
        )
        self.host, self.port, self.reason = host, port, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    connections_max: int = 2048
    from_one_max: int = 1024
    """Connections from one address."""
    request_bytes_max: int = 100 * 1024 * 1024
    requests_bytes_max: int = 512 * 1024 * 1024
    """Of all requests that are read or served at a time; others wait to be read."""
    arrive_s: float = 60.0
    """A request may take so long from its first byte to its last."""
    taken_s: float = 60.0
    """A client may take so long to read what it was sent."""
    idle_s: float = 600.0
    """A connection without a request for so long is closed, as Kafka does it."""
    authenticate_s: float = 30.0
    """Where clients authenticate: so long they have for it from their first byte on."""
    unauthenticated_max: int = 256
    """Connections of clients that are not known yet. One more ends the oldest of them, or is
    closed if its own address has a quarter of them."""


class ClientSession:
    """What is known of the client of one connection."""

    __slots__ = ("client_id", "draws", "host", "identity", "muted_until", "peer", "sasl")

    def __init__(
        self, peer: str, host: str, identity: str, sasl: SaslConnection | None = None
    ) -> None:
        self.peer = peer
        self.host = host
        self.identity = identity
        """By its certificate, password or token, as ``kind:name``; empty without any."""
        self.client_id = ""
        """As the client calls itself."""
        self.sasl = sasl
        """None: clients do not authenticate here."""
        self.draws = False
        """Whether it has drawn on a quota."""
        self.muted_until = 0.0
        """Nothing is read from it before, by the clock of the event loop."""

    def mute(self, milliseconds: int) -> None:
        """Read nothing from the connection for so long, counted from now."""
        if milliseconds:
            until = asyncio.get_running_loop().time() + milliseconds / _MS
            self.muted_until = max(self.muted_until, until)

    @property
    def is_known(self) -> bool:
        """Whether it may ask for more than to authenticate."""
        return self.sasl is None or self.sasl.is_known


class Broker(Protocol):
    """Answers requests; `dlog.kafka.gateway.Gateway` does."""

    @property
    def offered(self) -> dict[int, VersionRange]: ...

    def sasl(self, identity: str) -> SaslConnection | None:
        """Return what a new client has to do to be known; *identity*: by its certificate. None:
        clients do not authenticate here."""

    async def submit_produce(
        self, request: WireRequest, session: ClientSession
    ) -> "asyncio.Future[Values | None]":
        """Begin the appends of *request*; return their end, None if the client waits for none."""

    async def handle(self, request: WireRequest, session: ClientSession) -> Values | None:
        """Return the response to any other request; None: close the connection."""


class RequestBudget:
    """Bytes of requests that are in memory: what came of those that are not whole, and those that
    are served. Counted as they come, never as they are announced."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0
        self._freed = asyncio.Event()

    def has_room(self, size: int) -> bool:
        return not self.held_bytes or self.held_bytes + size <= self._bytes_max

    def hold(self, size: int) -> None:
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        self.held_bytes -= size
        self._freed.set()

    async def freed(self, within_s: float) -> None:
        """Wait until something was given back, or the time is over."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._freed.wait()


class KafkaListener:
    """`bind`, `start`, then `stop`; all on one event loop."""

    def __init__(
        self,
        broker: Broker,
        limits: ListenerLimits,
        security: Security | None,
        *,
        tls_only: bool = False,
        certificates: bool = True,
    ) -> None:
        """*tls_only*: also where TLS is optional. *certificates*: clients have to show one where
        they use TLS."""
        self.broker, self.limits, self.security = broker, limits, security
        self.tls_only = tls_only or (security is not None and security.mode is TlsMode.REQUIRED)
        self._certificates = certificates
        self.budget = RequestBudget(limits.requests_bytes_max)
        self.connections: dict[_ClientConnection, None] = {}
        self.sources = Counter[str]()
        self.unauthenticated: dict[_ClientConnection, str] = {}
        """With where they come from; the oldest first."""
        self.requests = Counter[int]()
        """Served, by API key."""
        self.refusals = 0
        """Connections that were refused or ended for what they sent."""
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tls: TlsListener | None = None
        self._untold = 0
        self._tell_at = 0.0
        self._empty = asyncio.Event()
        self.is_stopping = False

    def bind(self, host: str, port: int) -> int:
        """Listen on *host*:*port*, 0 for any free port; return the port. Raises
        `KafkaNotServed`."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen(128)
                listening.setblocking(False)
            except BaseException:
                listening.close()
                raise
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            reason = "another process listens there" if in_use else error.strerror or str(error)
            raise KafkaNotServed(host, port, reason) from error
        self._socket = listening
        return int(listening.getsockname()[1])

    async def start(self) -> None:
        assert self._socket is not None, "it is bound first"
        if self.security is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connection, sock=self._socket)
        else:
            self._tls = TlsListener(
                self._socket,
                self._connection,
                self.security,
                refused=self.tell,
                open_to_all=not self._certificates,
            )
            self._tls.start()

    async def stop(self) -> None:
        """Take no more requests; answer what was taken, for `DRAIN_S` at most. Idempotent."""
        self.is_stopping = True
        if self._server is not None:
            await stop_accepting(self._server)
        elif self._tls is not None:
            await self._tls.close()
        elif self._socket is not None:
            self._socket.close()
        for connection in tuple(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._all_gone()
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.abort()
            await self._all_gone()

    def tell(self, peer: str, reason: str) -> None:
        """Count a refusal, and log it, but not as often as a client may want."""
        self.refusals += 1
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            self._untold += 1
            return
        _log.warning("kafka_client_refused", peer=peer, reason=reason, others_untold=self._untold)
        self._untold, self._tell_at = 0, now + TELL_S

    async def hold(self, connection: "_ClientConnection", size: int) -> None:
        """Count *size* more bytes of a request of *connection*, once there is room for them.

        Where there is none, the connection is closed that holds most of those whose requests have
        not grown for `STALLED_S`; or, if no request is whole, of all. Else served requests make
        room."""
        budget, loop = self.budget, asyncio.get_running_loop()
        connection.awaits_room = True
        try:
            while not budget.has_room(size):
                unfinished = [each for each in self.connections if each.unfinished_bytes]
                due = loop.time() - STALLED_S
                stalled = [e for e in unfinished if not e.awaits_room and e.grew_at <= due]
                if not stalled and budget.held_bytes == sum(e.unfinished_bytes for e in unfinished):
                    stalled = [each for each in unfinished if each.grew_at <= due]
                if stalled:
                    largest = max(stalled, key=lambda each: each.unfinished_bytes)
                    largest.refuse("its request is not whole, and others need the room")
                    if largest is connection:
                        raise ConnectionAbortedError
                await budget.freed(STALLED_S / 4)
        finally:
            connection.awaits_room = False
        budget.hold(size)

    def close_where(self, is_over: Callable[[ClientSession], bool], reason: str) -> None:
        """End the connections of clients for which *is_over*."""
        for connection in tuple(self.connections):
            if connection.session is not None and is_over(connection.session):
                connection.refuse(reason)

    def await_authentication(self, connection: "_ClientConnection", source: str) -> bool:
        """Count a client that is not known yet; return whether there is room for it."""
        most = self.limits.unauthenticated_max
        waiting = self.unauthenticated
        if sum(each == source for each in waiting.values()) >= max(1, most // 4):
            return False
        if len(waiting) >= most:
            next(iter(waiting)).refuse("it has not authenticated, and others want to")
        waiting[connection] = source
        return True

    def gone(self, connection: "_ClientConnection") -> None:
        self.unauthenticated.pop(connection, None)
        self.connections.pop(connection, None)
        if not self.connections:
            self._empty.set()

    async def _all_gone(self) -> None:
        while self.connections:
            self._empty.clear()
            await self._empty.wait()

    def _connection(self) -> asyncio.BaseProtocol:
        return _ClientConnection(self)


@dataclass(frozen=True, slots=True)
class _Answer:
    request: WireRequest
    values: "asyncio.Future[Values | None] | Values | None"
    """None: of ApiVersions, which needs nobody to answer it."""
    held_bytes: int


class _ClientConnection(asyncio.StreamReaderProtocol):
    """One connection: a task that reads and begins requests, a task that writes answers."""

    def __init__(self, listener: KafkaListener) -> None:
        self._reader = asyncio.StreamReader(limit=READ_BYTES)
        super().__init__(self._reader)
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[_Answer | None] = asyncio.Queue(PRODUCES_MAX)
        self._source = ""
        self._peer = "?"
        self._reading: asyncio.Task[None] | None = None
        self.session: ClientSession | None = None
        self.unfinished_bytes = 0
        """Of a request that is not whole."""
        self.grew_at = 0.0
        """When the last of them came."""
        self.awaits_room = False
        """More of them came, and there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast("asyncio.Transport", transport)
        listener = self._listener
        address = transport.get_extra_info("peername")
        self._source, self._peer = source_of(address), str(address)
        listener.connections[self] = None
        listener.sources[self._source] += 1
        limits = listener.limits
        certificate = certificate_of_peer(transport.get_extra_info("ssl_object"))
        identity = None if listener.security is None else listener.security.identity(certificate)
        secured = transport.get_extra_info("ssl_object") is not None
        known = str(identity) if identity else ""
        session = ClientSession(self._peer, self._source, known, listener.broker.sasl(known))
        if listener.is_stopping:
            self.refuse("the gateway stops")
        elif len(listener.connections) > limits.connections_max:
            self.refuse(f"there are {limits.connections_max} connections already")
        elif listener.sources[self._source] > limits.from_one_max:
            self.refuse(f"there are {limits.from_one_max} connections from there already")
        elif listener.tls_only and not secured:
            self.refuse("this gateway takes TLS only; set security.protocol=SSL or SASL_SSL")
        elif not session.is_known and not listener.await_authentication(self, self._source):
            self.refuse("too many connections from there are not authenticated")
        else:
            self._keep_alive()
            self.session = session
            self._work = asyncio.get_running_loop().create_task(self._serve(session))
            # Not the task itself: one that is cancelled before its first step runs no line.
            self._work.add_done_callback(lambda _: listener.gone(self))

    def eof_received(self) -> bool:
        super().eof_received()
        return False  # whoever sends no more waits for no answer

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        listener = self._listener
        listener.sources[self._source] -= 1
        if not listener.sources[self._source]:
            del listener.sources[self._source]
        if self._work is None:
            listener.gone(self)
        else:
            self._work.cancel()

    def finish(self) -> None:
        """Read nothing more, answer what was taken, and close."""
        if self._reading is not None:
            self._reading.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """End the connection for *reason*."""
        self._listener.tell(self._peer, reason)
        self.abort()

    def _keep_alive(self) -> None:
        assert self._transport is not None
        connected = self._transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    async def _serve(self, session: ClientSession) -> None:
        loop = asyncio.get_running_loop()
        reading = self._reading = loop.create_task(self._read(session))
        writing = loop.create_task(self._write())
        try:
            await reading
            await writing
        except asyncio.CancelledError:
            pass  # the connection is gone
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._give_back_unanswered()
            if self._transport is not None:
                self._transport.close()

    async def _read(self, session: ClientSession) -> None:
        """Read and begin requests until the connection or the gateway ends."""
        try:
            if await self._authenticated(session):
                while await self._request(session):
                    pass
        except asyncio.CancelledError:
            if self._transport is None or self._transport.is_closing():
                raise
        except BadRequest as error:
            self._listener.tell(self._peer, error.reason)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # noqa: BLE001 - one client must not end the others
            self._failed(error)
        with suppress(asyncio.CancelledError):
            await self._answers.put(None)

    async def _authenticated(self, session: ClientSession) -> bool:
        """Serve requests until the client is known; return False if it will never be."""
        if session.is_known:
            return True
        limits, more = self._listener.limits, True
        try:
            async with asyncio.timeout(limits.authenticate_s):
                while more and not session.is_known:
                    more = await self._request(session)
        except TimeoutError:
            raise BadRequest(f"it did not authenticate in {limits.authenticate_s:g} s") from None
        self._listener.unauthenticated.pop(self, None)
        return more

    async def _request(self, session: ClientSession) -> bool:
        """Read one request and begin it; return whether another one may follow."""
        listener, broker = self._listener, self._listener.broker
        limits, sasl = listener.limits, session.sasl
        if session.muted_until:
            await asyncio.sleep(session.muted_until - asyncio.get_running_loop().time())
            session.muted_until = 0.0
        frame = await self._frame(
            limits.request_bytes_max if session.is_known else UNAUTHENTICATED_BYTES_MAX
        )
        size, held = len(frame), True
        try:
            request = decode_request(frame, broker.offered)
            del frame
            if sasl is not None and (reason := _why_not(sasl, request.api)):
                raise BadRequest(reason)
            session.client_id = request.client_id or session.client_id
            listener.requests[request.api] += 1
            if request.api == API_VERSIONS:
                answer = _Answer(request, None, size)
            elif request.api == PRODUCE:
                answer = _Answer(request, await broker.submit_produce(request, session), size)
            else:
                values = await broker.handle(request, session)
                if values is None:
                    return False
                answer = _Answer(request, values, size)
            held = False
        finally:
            if held:
                listener.budget.give_back(size)
        await self._answers.put(answer)
        if sasl is not None and sasl.has_failed:
            listener.tell(self._peer, sasl.failure)
            return False
        return True

    async def _frame(self, bytes_max: int) -> bytes:
        """Return the next request. Its bytes are held when this returns, and only then."""
        limits, loop = self._listener.limits, asyncio.get_running_loop()
        async with asyncio.timeout(limits.idle_s):
            head = await self._reader.readexactly(FRAME_HEADER_BYTES)
        size = int.from_bytes(head, "big", signed=True)
        if not 0 < size <= bytes_max:
            raise BadRequest(
                f"its first bytes are {head!r}: no size of a request up to {bytes_max} bytes"
            )
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(limits.arrive_s):
                while self.unfinished_bytes < size:
                    piece = await self._reader.read(size - self.unfinished_bytes)
                    _check_came(piece)
                    self.grew_at = loop.time()
                    await self._listener.hold(self, len(piece))
                    self.unfinished_bytes += len(piece)
                    pieces.append(piece)
        except BaseException:
            self._listener.budget.give_back(self.unfinished_bytes)
            raise
        finally:
            self.unfinished_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _write(self) -> None:
        """Write answers in the order of the requests, until there are no more."""
        while (answer := await self._answers.get()) is not None:
            try:
                await self._write_one(answer)
            except ConnectionError:
                self.abort()
                return
            except TimeoutError:
                self.refuse("it did not take its response in time")
                return
            except Exception as error:  # noqa: BLE001 - one client must not end the others
                self._failed(error)
                return
            finally:
                self._listener.budget.give_back(answer.held_bytes)

    async def _write_one(self, answer: _Answer) -> None:
        request = answer.request
        if answer.values is None:
            out = encode_versions(request, self._listener.broker.offered)
        else:
            pending = answer.values
            values = await pending if isinstance(pending, asyncio.Future) else pending
            if values is None:  # acks=0: the client waits for nothing
                return
            out = encode_response(request, values)
        if self._transport is None:
            raise ConnectionResetError
        self._transport.write(out)
        async with asyncio.timeout(self._listener.limits.taken_s):
            await self._drain_helper()  # type: ignore[attr-defined] # of FlowControlMixin

    def _give_back_unanswered(self) -> None:
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            if answer is not None:
                self._listener.budget.give_back(answer.held_bytes)

    def _failed(self, error: Exception) -> None:
        """An error that no handler expected: a bug of ours. The client sees a closed connection."""
        _log.exception("kafka_request_failed", peer=self._peer, error=repr(error))
        self.abort()


def _why_not(sasl: SaslConnection, api: int) -> str:
    """Return why a request ends the connection, nothing if it does not."""
    return sasl.check_request(
        authenticates=api in (SASL_HANDSHAKE, SASL_AUTHENTICATE),
        is_open=api == API_VERSIONS,
        now_ms=now_ms(),
    )


def _check_came(piece: bytes) -> None:
    """Raises `ConnectionResetError` at the end of the connection."""
    if not piece:
        raise ConnectionResetError
