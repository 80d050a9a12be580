"""Where clients reach a bookie, and operators, who have a port of their own.

Who connects says first whom it means and what for, in a few hundred bytes and a few seconds. A
bookie that was not meant says so and serves nothing: after a change of addresses a client must not
count its answer as that of another one. What a peer may take is bounded: in connections, in
bytes, in time. Who goes beyond, or cannot be understood, is told off by a line in the log, and
hears the answers to what was taken before it is shown out.
"""

import asyncio
import errno
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from bookie.errors import AddressUnusable, PortInUse
from bookie.server.add_connection import AddConnection
from bookie.server.admission import ALL_BYTES_MAX, ClientPace, ReadAdmission, work_on
from bookie.server.authorizer import Authorizer
from bookie.server.limits import ClientLimits, ConnectionSlots, RejectReason
from bookie.server.operator import OperatorService, OrderConnection
from bookie.server.quota import QuotaThrottle
from bookie.server.read_connection import KEPT_BYTES, QUESTIONS_BYTES_MAX, ReadConnection
from bookie.server.service import BookieService
from ledger.errors import BadMessage, TransportMismatch
from ledger.ids import BookieIdentity
from ledger.log_events import get_logger
from ledger.security.certificates import Security
from ledger.security.names import Identity
from ledger.security.settings import TlsMode
from ledger.security.tls_listener import TlsListener
from ledger.tasks import stop_accepting
from ledger.transport.connection import Backlog, Connection, new_scratch
from ledger.transport.framing import Budget, Frame, FrameReader
from ledger.transport.handshake import (
    IDENTIFIED,
    VERSION_MIN,
    Purpose,
    Refusal,
    answer_to,
    decode_hello,
    encode_answer,
    farewell,
)

_ADDERS_MAX: Final = 1024
_ACCEPTED_AT_ONCE: Final = 2
"""Connections, in one pass of the loop: until one is known, or refused and gone, it costs as much
as several adds, and an add waits for some passes. The system keeps the others waiting."""
_PIECE_S_MAX: Final = 10.0
"""So long the rest of a frame, or of 1 MiB of a longer one, may take."""
_STALLED_S: Final = 1.0
"""Whose message has not grown for so long makes room for other messages, if there is none left."""
_ROOM_SHARE: Final = 64
"""This part of all room is made at once: to look for who has to make it takes a while, and so it
does to end what they hold, behind which adds wait."""
_STIFLED_S: Final = 5.0
"""So long who had to make room, or found none among writers, is neither served nor ended: it would
come again at once, and take more of the bookie than while it waits."""
_IDLE_S_MAX: Final = 120.0
"""Who asks for nothing, and waits for nothing, for so long makes room for others."""
_BACKLOG_BYTES_MAX: Final = ALL_BYTES_MAX
"""Of all clients. Once a second the slowest of them are ended until no more is due."""
_CROWDED_S_MAX: Final = 5.0
"""So long, instead of `ClientLimits.slow_s_max`, while others wait for what the slow ones keep."""
_DRAIN_S_MAX: Final = 2.0
_AGES: Final = 2.0
"""A client exchanges its connections by itself; one that does not is ended when it could have."""
_LOOK_S: Final = 1.0
_TELL_S: Final = 1.0
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

_log = get_logger(__name__)


class BookieServer:
    """Listens from `bind` on, serves from `start` on."""

    def __init__(
        self, limits: ClientLimits | None = None, *, security: Security | None = None
    ) -> None:
        self.guard: Authorizer | None = None
        """Who lets in what was granted; None: whoever is known may do everything."""
        self.delays: QuotaThrottle | None = None
        """What keeps clients to their quotas; None: nothing."""
        self.wire_lowest = VERSION_MIN
        """The lowest version of the wire that it speaks; see `refuse_unidentified`."""
        self.limits = limits or ClientLimits()
        self.places = ConnectionSlots[_ClientConnection](self.limits)
        self.security = security
        self.connections: dict[_ClientConnection, None] = {}
        self.budget = Budget()
        self.budget.make_room = self._make_room
        self.backlog = Backlog()
        self.room = ReadAdmission(self.backlog, self.limits.questions_per_client_max)
        self.scratch = new_scratch()
        self.adders = 0
        self._service: BookieService | None = None
        self.operator: OperatorService | None = None
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._taker: TlsListener | None = None
        self._looking: asyncio.Handle | None = None
        self._unlooked: deque[_ClientConnection] = deque()
        """Who was not looked at yet, this time."""
        self.refusals = 0
        """Of connections, clients and messages, since the start."""
        self.closed_connections = Counter[RejectReason]()
        """The same, by why."""
        self._untold = 0
        self._tell_at = 0.0
        self._empty = asyncio.Event()

    @property
    def service(self) -> BookieService:
        assert self._service is not None
        return self._service

    def bind(self, host: str, port: int) -> int:
        """Listen on *host*:*port*, 0 for any free port; return the port.

        Raises `PortInUse`, `AddressUnusable`."""
        try:
            self._socket = _listening(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from error
            raise AddressUnusable(host, port, error.strerror or str(error)) from error
        return int(self._socket.getsockname()[1])

    async def start(self, service: BookieService, operator: OperatorService | None = None) -> None:
        """Serve; requires a storage that has replayed wholly (rule 64). *operator*: what carries
        out orders, on the port that takes nothing else."""
        assert self._socket is not None
        self._service, self.operator = service, operator
        loop = asyncio.get_running_loop()
        if self.security is None:
            self._server = await loop.create_server(
                lambda: _ClientConnection(self), sock=self._socket, backlog=_ACCEPTED_AT_ONCE
            )
            self._socket.listen()  # asyncio lets no more wait than it takes in one pass
        else:
            self._taker = TlsListener(
                self._socket,
                lambda: _ClientConnection(self),
                self.security,
                refused=self._refused,
                pending_handshakes_max=self.limits.pending_handshakes_max,
                handshake_s_max=self.limits.handshake_s_max,
            )
            self._taker.start()
        self._look()

    def refuse_unidentified(self) -> None:
        """Speak with no client any more that does not say which cluster it is of."""
        self.wire_lowest = IDENTIFIED

    async def stop(self) -> None:
        """Take nothing more, answer what was taken, close all connections."""
        if self._service is not None and self.operator is None:
            self._service.stop_taking()
        await self._close_listening()
        for connection in tuple(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(_DRAIN_S_MAX):
                await self._all_gone()
        except TimeoutError:
            await self.kill()
        self._stop_looking()

    async def kill(self) -> None:
        """Close all connections without an answer."""
        await self._close_listening()
        self._stop_looking()
        for connection in tuple(self.connections):
            connection.abort()
        await self._all_gone()

    def tell(self, event: str, connection: Connection, why: RejectReason, reason: str) -> None:
        """Count, and log, but not as often as unauthenticated clients may want."""
        self.closed_connections[why] += 1
        self._tell(event, connection, reason, connection.identity)

    def _refused(self, peer: str, reason: str) -> None:
        self.closed_connections[RejectReason.HANDSHAKE] += 1
        self._tell("connection_refused", peer, reason, None)

    def _tell(
        self, event: str, from_: Connection | str, reason: str, identity: Identity | None
    ) -> None:
        self.refusals += 1
        now = asyncio.get_running_loop().time()
        if now < self._tell_at:
            self._untold += 1
            return
        who = {} if identity is None else {"identity": str(identity)}
        peer = from_ if isinstance(from_, str) else from_.peer
        _log.warning(event, peer=peer, **who, reason=reason, others_untold=self._untold)
        self._untold, self._tell_at = 0, now + _TELL_S

    def gone(self, connection: "_ClientConnection") -> None:
        self.connections.pop(connection, None)
        self.places.leave(connection)
        if not self.connections:
            self._empty.set()

    async def _all_gone(self) -> None:
        while self.connections:
            self._empty.clear()
            await self._empty.wait()

    async def _close_listening(self) -> None:
        if self._server is not None:
            await stop_accepting(self._server)
        elif self._taker is not None:
            await self._taker.close()
        elif self._socket is not None:
            self._socket.close()

    def _look(self) -> None:
        """Show out who takes too long."""
        self._unlooked.extend(self.connections)
        self._look_on()

    def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not work_on(self._unlooked, lambda each: each.look(now), loop.time):
            self._looking = loop.call_soon(self._look_on)
            return
        self._looking = loop.call_later(_LOOK_S, self._look)
        if self.backlog.unsent_bytes > _BACKLOG_BYTES_MAX:
            self._end_the_slowest()

    def look_again(self, connection: "_ClientConnection") -> None:
        """There is more to do for *connection*, which waits until the others were looked at."""
        self._unlooked.append(connection)

    def _end_the_slowest(self) -> None:
        unsent = [each for each in self.connections if each.unsent_bytes]
        due_bytes = self.backlog.unsent_bytes
        for connection in sorted(unsent, key=lambda each: each.pace.since):
            if due_bytes <= _BACKLOG_BYTES_MAX:
                return
            due_bytes -= connection.unsent_bytes
            connection.cut(
                RejectReason.SLOW, "it is the slowest, and too much is due to all clients"
            )

    def _make_room(self, reader: FrameReader, size_bytes: int) -> None:
        """Stifle connections whose messages are not whole: first those that wait for more, the
        oldest first; then the largest, which may be who asks."""
        budget, now = self.budget, asyncio.get_running_loop().time()
        holding = [each for each in self.connections if each.reader.paid_bytes]
        needed_bytes = max(size_bytes, budget.bytes_max // _ROOM_SHARE)
        for each in sorted(holding, key=lambda one: one.since):
            if budget.left_bytes >= needed_bytes or now - each.since < _STALLED_S:
                break
            if each.reader is not reader:
                each.stifle("no more of a message came, and others need the room")
        for each in sorted(holding, key=lambda one: one.reader.paid_bytes, reverse=True):
            if budget.left_bytes >= size_bytes or each.reader.paid_bytes <= reader.paid_bytes:
                break
            each.stifle("its message is the largest that is not whole, and room is short")
        if budget.left_bytes < size_bytes:
            for each in self.connections:
                if each.reader is reader:
                    each.stifle("there is no room for its message")

    def _stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


class _ClientConnection(Connection):
    """A connection from its first byte to its last; what it is for, `_handler` knows."""

    def __init__(self, server: BookieServer) -> None:
        super().__init__(
            server.scratch, body_bytes_max=0, budget=server.budget, backlog=server.backlog
        )
        self._server = server
        self._handler: AddConnection | ReadConnection | OrderConnection | None = None
        self._is_adder = False
        self.since = self._made_at = asyncio.get_running_loop().time()
        """When what is waited for began."""
        self._progress = 0
        self.pace = ClientPace(self.since)
        self._finish_by: float | None = None
        self._is_stifled = False

    def made(self) -> None:
        server = self._server
        refusal = server.places.take(self, self.source)
        if refusal is not None:
            server.tell("connection_refused", self, *refusal)
            self.is_deaf = True
            self.abort()
            return
        server.connections[self] = None
        surplus = server.places.surplus()
        if surplus is not None:
            surplus.cut(RejectReason.PENDING, "it said nothing, and others want to")
        self.keep_alive(_KEEP_ALIVE)
        if server.security is not None:
            self.identity = server.security.identity(self.certificate)

    def greeted(self, received: bytes) -> bool:
        hello = decode_hello(received)
        if hello is None:
            return False
        server, info = self._server, self._server.service.info
        answer = answer_to(
            hello,
            bookie=info.bookie,
            incarnation=info.incarnation,
            identity=BookieIdentity(info.instance, info.identity, info.life),
            lowest=server.wire_lowest,
        )
        why = RejectReason.UNKNOWN
        if (reason := self._why_unauthenticated()) is not None:
            answer = Refusal(f"bookie {info.bookie} {reason}")
        elif (hello.purpose is Purpose.ORDERS) is (server.operator is None):
            other = "clients" if server.operator is not None else "operators"
            answer = Refusal(f"bookie {info.bookie} takes that on its port for {other}")
        elif hello.purpose is Purpose.ADDS and server.adders >= _ADDERS_MAX:
            why = RejectReason.WRITERS
            answer = Refusal(f"bookie {info.bookie} has {_ADDERS_MAX} writers already")
        self.say(encode_answer(answer))
        if isinstance(answer, Refusal):
            server.tell("client_refused", self, why, answer.reason)
            if why is RejectReason.WRITERS:
                server.places.know(self)
                self._leave_waiting()
            else:
                self.finish()
            return True
        server.places.know(self)
        door = None if server.guard is None else server.guard.door(self.identity, self.peer)
        delays = server.delays
        delaying = None if delays is None else delays.pace(self.identity, door)
        if hello.purpose is Purpose.ADDS:
            self._is_adder = True
            server.adders += 1
            self._handler = AddConnection(server.service, self, self._refuse, door, delaying)
        elif server.operator is not None:
            self._handler = OrderConnection(server.operator, self, door)
        else:
            self.keep_unsent(KEPT_BYTES)
            self.reader.receive_at_most(QUESTIONS_BYTES_MAX)
            self._handler = ReadConnection(server.service, self, server.room, door, delaying)
        self.reader.body_bytes_max = self._handler.body_bytes_max
        return True

    def _why_unauthenticated(self) -> str | None:
        """Return why it is not known who the client is, if it has to be."""
        security = self._server.security
        if security is None:
            return None
        if not self.is_secured:
            required = security.mode is TlsMode.REQUIRED
            return f"takes TLS only; {TransportMismatch.HOW}" if required else None
        if self.identity is None:
            return f"finds no name of a client in the certificate ({self.certificate})"
        return None

    def took_all(self, frames: Sequence[Frame]) -> None:
        handler = self._handler
        if isinstance(handler, AddConnection):
            handler.took_all(frames)
        else:
            super().took_all(frames)

    def took(self, frame: Frame) -> None:
        handler = self._handler
        assert handler is not None
        assert not isinstance(handler, AddConnection), "it takes what comes together"
        handler.took(frame)

    def refused(self, error: BadMessage, received: bytes) -> None:
        if received:
            self.say(farewell(received))
        self._refuse(error)

    def blocked(self) -> None:
        if self._handler is not None:
            self._handler.blocked()

    def unblocked(self) -> None:
        if self._handler is not None:
            self._handler.unblocked()

    def eased(self) -> None:
        if self._handler is not None:
            self._handler.eased()

    def settled(self) -> None:
        if self._is_stifled:
            return
        if self._finish_by is not None and (self._handler is None or self._handler.is_done):
            self.end()

    def stifle(self, reason: str) -> None:
        """Take nothing more, hold nothing, and end it later; what was taken is answered."""
        self._server.tell("connection_stifled", self, RejectReason.STALLED, reason)
        self._leave_waiting()

    def _leave_waiting(self) -> None:
        self._is_stifled = self.is_deaf = True
        self._finish_by = asyncio.get_running_loop().time() + _STIFLED_S
        self.reader.drop()
        if self._handler is not None:
            self._handler.shut()
        self.pause()

    def lost(self, _reason: str) -> None:
        self._server.adders -= self._is_adder
        if self._handler is not None:
            self._handler.close()
        self._server.gone(self)

    def finish(self) -> None:
        """Take nothing more, answer what was taken, then end."""
        if self._finish_by is not None:
            if self._is_stifled and (self._handler is None or self._handler.is_done):
                self._end()
            return
        self._finish_by = asyncio.get_running_loop().time() + _DRAIN_S_MAX
        self.is_deaf = True
        self.reader.drop()
        if self._handler is not None:
            self._handler.shut()
        self.resume()
        self.settled()

    def look(self, now: float) -> None:
        if self.is_lost:
            return
        reason = self._expired(now)
        if reason and self._finish_by is None:
            self._server.tell("connection_ended", self, RejectReason.EXPIRED, reason)
            self.finish()
            return
        if self._handler is not None and self._handler.look(now):
            self._server.look_again(self)
        if self._is_stifled:  # which was told, and counted
            if self._finish_by is not None and now > self._finish_by:
                self._end()
            return
        overdue = self._overdue(now)
        if overdue is not None:
            self.cut(*overdue)

    def cut(self, why: RejectReason, reason: str) -> None:
        """End it at once."""
        self._server.tell("connection_cut", self, why, reason)
        self._end()

    def _end(self) -> None:
        self._server.places.leave(self)
        self.is_deaf = True
        self.reader.drop()
        self.abort()

    def _expired(self, now: float) -> str:
        """Return why the certificate that was shown counts no more; empty if it does."""
        security = self._server.security
        if security is None or self.identity is None:
            return ""
        if time.time() > self.identity.expires_at:
            return "its certificate has expired"
        age_s_max = _AGES * security.age_s_max
        return f"it is older than {age_s_max:g} s" if now - self._made_at > age_s_max else ""

    def _overdue(self, now: float) -> tuple[RejectReason, str] | None:
        """Return why the connection is to be cut, if it is."""
        limits = self._server.limits
        if self._finish_by is not None:
            late = now > self._finish_by
            return (RejectReason.SLOW, "it did not take its answers") if late else None
        if self.is_greeting:
            late = now - self.since > limits.handshake_s_max
            reason = f"it said nothing of use within {limits.handshake_s_max:g} s"
            return (RejectReason.HANDSHAKE, reason) if late else None
        waits_s = self.pace.waits_s(now, sent_bytes=self.sent_bytes, unsent_bytes=self.unsent_bytes)
        slow_s_max = limits.slow_s_max
        if self._server.room.is_crowded:
            slow_s_max = min(slow_s_max, _CROWDED_S_MAX)
        if waits_s > slow_s_max:
            due = f"{self.unsent_bytes} bytes are due to it"
            return RejectReason.SLOW, f"it takes too little within {slow_s_max:g} s; {due}"
        progress, reader = self._progress, self.reader
        self._progress = reader.progress
        idle = not reader.is_under_way and (self._handler is None or self._handler.is_done)
        if progress != reader.progress or not (idle or (self.is_reading and reader.is_under_way)):
            self.since = now
        elif idle and now - self.since > _IDLE_S_MAX:
            return RejectReason.IDLE, f"it asked for nothing within {_IDLE_S_MAX:g} s"
        elif not idle and now - self.since > _PIECE_S_MAX:
            return RejectReason.STALLED, f"no more of a message came within {_PIECE_S_MAX:g} s"
        return None

    def _refuse(self, error: BadMessage) -> None:
        """No answer is what its client hears: it does not know what happened."""
        self._server.tell("message_refused", self, RejectReason.INVALID, str(error))
        self.finish()


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        # A port whose connections of before are still winding up is free; one on which somebody
        # listens is not.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(address)
        listening.listen()
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def is_free(host: str, port: int) -> bool:
    """Return whether *port* could be listened on just now. Raises `AddressUnusable`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise AddressUnusable(host, port, error.strerror or str(error)) from error
        return False
    return True
