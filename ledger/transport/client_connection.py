"""The client's end of a connection: finds its bookie, says hello, and asks questions by number."""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.delays import Backoff
from ledger.errors import BadMessage, TransportMismatch
from ledger.ids import BookieIdentity
from ledger.log_events import get_logger
from ledger.security.certificates import Security
from ledger.security.names import Certificate, why_not_bookie
from ledger.security.settings import Takes, TlsMode, is_secured, why_failed
from ledger.security.tls_listener import SHUTDOWN_S_MAX
from ledger.transport.connection import Connection
from ledger.transport.envelope import Received
from ledger.transport.framing import Blocks, Budget, Frame, FrameKind
from ledger.transport.handshake import (
    Hello,
    Purpose,
    Refusal,
    Welcome,
    decode_answer,
    encode_hello,
    hello_to,
    why_not_meant,
)
from ledger.transport.messages import MESSAGE_BYTES_MAX

_BACKOFF_S_MIN: Final = 0.05
RECONNECT_S_MAX: Final = 0.25
"""Who asks a bookie that was away, and has just come back, hears of it after as long as this at
most. A recovery asks five times within 800 ms, and fails if too few answer."""
_CLOSED_IN_SILENCE: Final = (
    "it ended the connection without a word: it may not believe our certificate; its log says why"
)
ANSWER_BYTES: Final = 4 * 1024 * 1024
"""An answer of up to so much is received where it stays; what is larger, in pieces."""
_ANSWERS: Final = (FrameKind.ANSWER, FrameKind.NOT_KNOWN)
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """How a bookie is reached."""

    address: str
    """host:port"""
    security: Security | None = None
    """None: nothing is secured here."""
    takes: Takes | None = None
    """What the bookie said that its address takes; None: not known."""
    meant: BookieIdentity | None = None
    """Who has to be there; None: the bookie is of a release that does not say who it is."""

    def leads_to(self, met: BookieIdentity | None, meant: BookieIdentity | None) -> bool:
        """Whether a connection by this way, to *met*, is one to who is *meant* by now."""
        if meant is None or self.meant is None:
            return meant is self.meant
        if (self.meant.instance, self.meant.identity) != (meant.instance, meant.identity):
            return False
        return met is None or met.life >= meant.life

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def generation(self) -> int:
        """Changes with the files that a connection is secured with."""
        return 0 if self.security is None else self.security.generation


class ClientConnection(Connection):
    """Ready once its bookie has answered the hello."""

    def __init__(
        self,
        hello: Hello,
        scratch: memoryview,
        *,
        on_frame: Callable[[Frame], None],
        on_room: Callable[[], None],
        on_lost: Callable[[str], None],
        blocks: Blocks | None = None,
    ) -> None:
        # One bookie's answers, one at a time: nobody else's memory is at stake.
        budget = Budget(MESSAGE_BYTES_MAX)
        super().__init__(
            scratch,
            body_bytes_max=MESSAGE_BYTES_MAX,
            budget=budget,
            piece_bytes_max=ANSWER_BYTES,
            blocks=blocks,
        )
        self.was_ready = False
        self.was_refused = False
        """Whether the peer said why it does not serve, or is nobody who could."""
        self.is_another = False
        """Whether another bookie is there than the one that is meant."""
        self.met: BookieIdentity | None = None
        """Who the bookie is, once it has said so."""
        self._hello = hello
        self._host = ""
        self._own: Certificate | None = None
        self._on_frame, self._on_room, self._on_lost = on_frame, on_room, on_lost
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[Welcome | Refusal] = loop.create_future()
        self._gone: asyncio.Future[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self.was_ready and not self.is_lost

    @property
    def is_there(self) -> bool:
        """Whether it was made and is not freed yet."""
        return self._gone is not None and not self.is_lost

    def expect_at(self, host: str, own: Certificate) -> None:
        """Take nobody at *host* for the bookie whose certificate is not the bookie's, as a process
        with the certificate *own* sees it."""
        self._host, self._own = host, own

    async def gone(self) -> None:
        """Wait until the connection is freed, if there ever was one."""
        if self._gone is not None:
            await asyncio.wait([self._gone])

    def made(self) -> None:
        self._gone = asyncio.get_running_loop().create_future()
        if self.certificate is not None:
            bookie, host = self._hello.bookie, self._host
            reason = why_not_bookie(self.certificate, bookie, host, own=self._own)
            if reason is not None:
                self._refuse(reason)
                return
        self.say(encode_hello(self._hello))

    def greeted(self, received: bytes) -> bool:
        answer = decode_answer(received)
        if answer is None:
            return False
        if isinstance(answer, Welcome):
            if (reason := why_not_meant(self._hello, answer)) is not None:
                self.is_another = True
                self._refuse(reason)
                return True
            self.was_ready, self.met = True, answer.identity
        else:
            self.was_refused, self.is_another = True, answer.is_another
        self._settle(answer)
        return True

    def took_all(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if self.was_ready and not self.is_lost and not self.is_deaf:
                self._on_frame(frame)

    def refused(self, error: BadMessage, _received: bytes) -> None:
        self.was_refused = True
        self._fail(str(error))

    def unblocked(self) -> None:
        self._on_room()

    def lost(self, reason: str) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        if self.is_secured and self.is_greeting and not self.was_refused:
            self.was_refused, reason = True, _CLOSED_IN_SILENCE
        self._fail(reason)

    def _refuse(self, reason: str) -> None:
        """Take nothing that the peer says."""
        self.was_refused = self.is_deaf = True
        self._fail(reason)
        self.abort()

    def _fail(self, reason: str) -> None:
        self._settle(Refusal(reason))
        self._on_lost(reason)

    def _settle(self, answer: Welcome | Refusal) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(answer)


async def connect(
    connection: ClientConnection, bookie: str, way: Way, timeout_s: float
) -> str | None:
    """Connect to *bookie* by *way* and wait for its welcome; return None, or why it is none."""
    loop = asyncio.get_running_loop()
    context = None
    try:
        async with asyncio.timeout(timeout_s):
            mode = TlsMode.OFF if way.security is None else way.security.mode
            if is_secured(mode, way.takes, name=bookie):
                assert way.security is not None
                context = way.security.client()
                connection.expect_at(way.host, way.security.certificate)
            await loop.create_connection(
                lambda: connection,
                way.host,
                way.port,
                ssl=context,
                ssl_handshake_timeout=timeout_s if context else None,
                ssl_shutdown_timeout=SHUTDOWN_S_MAX if context else None,
            )
            answer = await connection.welcomed
    except TimeoutError:
        return f"no connection within {timeout_s:g} s"
    except TransportMismatch as error:
        connection.was_refused = True
        return str(error)
    except (OSError, ValueError) as error:
        connection.was_refused = connection.was_refused or isinstance(error, ssl.SSLError)
        return why_failed(error)
    return answer.reason if isinstance(answer, Refusal) else None


class RequestConnection:
    """Asks one bookie at one address; connects when it is first asked.

    Answers come in any order. Who is not waited for any more is told so."""

    def __init__(
        self,
        bookie: str,
        way: Way,
        scratch: memoryview,
        *,
        connect_timeout_s: float,
        blocks: Blocks | None = None,
    ) -> None:
        """*blocks*: where large answers are received."""
        self.way = way
        self._hello = hello_to(Purpose.ASKS, bookie, way.meant)
        self._scratch = scratch
        self._blocks = blocks
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self.used_at = self.made_at = self._loop.time()
        self._generation = way.generation
        self._backoff = Backoff(_BACKOFF_S_MIN, RECONNECT_S_MAX)
        self._retry_at = 0.0
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._number = 0
        self._open: dict[int, asyncio.Future[Frame | None]] = {}
        self._closed = False
        self._retired = False
        self._dropped: list[ClientConnection] = []
        """Not freed yet."""

    @property
    def address(self) -> str:
        return self.way.address

    def is_outdated(self, now: float) -> bool:
        """Whether the files that it is secured with were renewed since, or it is too old."""
        security = self.way.security
        if security is None or self._connection is None or not self._connection.is_secured:
            return False
        return self._generation != security.generation or now - self.made_at > security.age_s_max

    def leads_to(self, meant: BookieIdentity | None) -> bool:
        """Whether it asks who is *meant* by now."""
        connection = self._connection
        return self.way.leads_to(None if connection is None else connection.met, meant)

    @property
    def is_idle(self) -> bool:
        return not self._open and self._connecting is None

    async def ask(
        self, kind: FrameKind, request: Received, timeout_s: float | None
    ) -> Frame | None:
        """Return the answer, None if there is none within *timeout_s*."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected()
                if connection is None:
                    return None
                return await self._answer(connection, kind, bytes(request))
        except TimeoutError:
            return None

    def retire(self) -> None:
        """Close when nothing is open any more: the bookie is elsewhere now."""
        self._retired = True
        self._rest()

    def rest(self) -> None:
        """Let an idle connection go; the next question makes another one."""
        if self.is_idle:
            self._drop()

    def close(self) -> None:
        """Let the connection go; what is open gets no answer."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop()

    async def gone(self) -> None:
        """Wait until the connections of a closed asker are freed."""
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        for connection in self._dropped:
            await connection.gone()

    async def _connected(self) -> ClientConnection | None:
        if self._connection is not None and self._connection.is_ready:
            return self._connection
        if self._closed:
            return None
        if self._connecting is None:
            if self._loop.time() < self._retry_at:
                return None
            self._connecting = self._loop.create_task(self._connect())
        await asyncio.wait([self._connecting])
        return self._connection

    async def _connect(self) -> None:
        connection = ClientConnection(
            self._hello,
            self._scratch,
            on_frame=self._answered,
            on_room=lambda: None,
            on_lost=lambda _reason: self._lost(connection),
            blocks=self._blocks,
        )
        self._generation = self.way.generation
        try:
            reason = await connect(
                connection, self._hello.bookie, self.way, self._connect_timeout_s
            )
            if reason is None and connection.is_ready and not self._closed:
                self._connection, self.made_at = connection, self._loop.time()
                self._backoff.reset()
            else:
                backoff_s = self._backoff.next()
                if connection.was_refused and backoff_s == _BACKOFF_S_MIN:  # then silence
                    _log.warning("bookie_refused", address=self.address, reason=reason)
                self._retry_at = self._loop.time() + backoff_s
        finally:
            if self._connection is not connection:
                self._let_go(connection)
            self._connecting = None

    async def _answer(
        self, connection: ClientConnection, kind: FrameKind, request: bytes
    ) -> Frame | None:
        self._number += 1
        number = self._number
        answer: asyncio.Future[Frame | None] = self._loop.create_future()
        self._open[number] = answer
        connection.send(kind, number, request)
        try:
            return await answer
        finally:
            self.used_at = self._loop.time()
            if self._open.pop(number, None) is not None:
                connection.send(FrameKind.CANCEL, number)
            self._rest()

    def _answered(self, frame: Frame) -> None:
        if frame.kind not in _ANSWERS:
            raise BadMessage("Frame", f"kind {frame.kind} answers no question")
        answer = self._open.pop(frame.number, None)
        if answer is not None and not answer.done():  # else it was cancelled meanwhile
            answer.set_result(frame)

    def _lost(self, connection: ClientConnection) -> None:
        if self._connection is connection:
            self._drop()

    def _rest(self) -> None:
        if self._retired and not self._open:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._let_go(connection)
        waiting, self._open = self._open, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_result(None)

    def _let_go(self, connection: ClientConnection) -> None:
        connection.abort()
        self._dropped = [each for each in (*self._dropped, connection) if each.is_there]
