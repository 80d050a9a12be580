"""Commands on their way from a replica that does not lead to the one that does.

Each replica listens where its lifeline does, and the mark of a leader names the place. Connections
are secured as all others are: where TLS is required both ends show certificates, and each takes the
other only with a grant to write the log. So nobody submits a command, or answers for the leader,
who could not append to the log.

Bounds: connections, commands and bytes in flight at both ends. What the leader has no room for it
refuses (`TooManyPending`); nothing is queued.

Invariants:
    a reply is given to the command with its number on the same connection, or to none
    what was sent on a connection that ended has no reply: whoever sent it repeats it
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from dlog.errors import RecordTooLarge, text_of
from dlog.protocol.forward_message import (
    Denied,
    Failed,
    ForwardedCommand,
    Reply,
    decode_answer,
    decode_command,
    decode_hello,
    decode_reply,
    encode_command,
    encode_hello,
    encode_refusal,
    encode_reply,
    encode_welcome,
)
from ledger.entry import ENTRY_BYTES_MAX
from ledger.errors import BadMessage, LogError, TooManyPending
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore
from ledger.security.access import Permission, Rules, allowed
from ledger.security.certificates import Security
from ledger.security.documents import read_rules
from ledger.security.settings import Takes, TlsMode, is_secured, why_failed
from ledger.security.tls_listener import TlsListener
from ledger.transport.connection import Connection, new_scratch
from ledger.transport.framing import Budget, Frame, FrameKind

CONNECTIONS_MAX: Final = 256
"""At a leader, from other replicas."""
COMMANDS_MAX: Final = 4096
COMMANDS_BYTES_MAX: Final = 64 * 1024 * 1024
"""In flight: at a leader of all connections, at a sender of its one."""
BODY_BYTES_MAX: Final = ENTRY_BYTES_MAX + 4096
CONNECT_S: Final = 2.0
LOOK_S: Final = 10.0
"""How often a leader looks at a connection: whether it says what it began to, and who it is."""
RULES_S: Final = 1.0
"""How long grants are used before they are read again."""
_SCRATCH_BYTES: Final = 64 * 1024
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

_log = get_logger(__name__)


class ForwardFailed(Exception):
    """No reply, or none that counts: the command may be repeated at whoever leads."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.reason, self.was_sent = reason, was_sent


class ForwardDenied(Exception):
    """The other end takes no commands from this process, or may not answer for the leader."""


@dataclass(frozen=True, slots=True)
class ForwardEndpoint:
    """Where a leader takes forwarded commands."""

    host: str
    port: int
    takes: Takes

    def __str__(self) -> str:
        return f"{self.takes.name.lower()}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what a leader's mark says; None: nothing that is understood here."""
        takes, _, place = text.partition(":")
        host, _, port = place.rpartition(":")
        if takes.upper() not in Takes.__members__ or not host or not port.isdecimal():
            return None
        return cls(host, int(port), Takes[takes.upper()])


class WriterRights:
    """Who may write a log, by the grants in the metadata store. They count where TLS is required,
    as only there each process has an identity."""

    def __init__(
        self, store: MetadataStore, security: Security | None, log: Callable[[], str]
    ) -> None:
        """*log*: its name, which may change."""
        self._store, self._log = store, log
        self._security = security
        self._rules: Rules | None = None
        self._read_s = 0.0
        self._reading = asyncio.Lock()

    @property
    def are_required(self) -> bool:
        return self._security is not None and self._security.mode is TlsMode.REQUIRED

    async def may_write(self, connection: Connection) -> bool:
        """Return whether the other end may write the log. Raises `MetadataError` if grants were
        never read."""
        if not self.are_required:
            return True
        assert self._security is not None
        identity = self._security.identity(connection.certificate)
        if identity is None or self.has_expired(connection):
            return False
        rules = await self._current()
        return bool(allowed(rules.of(str(identity)), self._log()) & Permission.ADD)

    def has_expired(self, connection: Connection) -> bool:
        """Return whether the certificate that the other end showed counts no more."""
        if not self.are_required or connection.certificate is None:
            return False
        return time.time() > connection.certificate.expires_at

    async def _current(self) -> Rules:
        if self._rules is not None and (self._reading.locked() or not self._are_old):
            return self._rules  # old ones too, while they are read again
        async with self._reading:
            if self._rules is None or self._are_old:
                try:
                    self._rules = await read_rules(self._store)
                except LogError:
                    if self._rules is None:
                        raise  # else the last that were read stay in force
                self._read_s = time.monotonic()
            return self._rules

    @property
    def _are_old(self) -> bool:
        return time.monotonic() - self._read_s > RULES_S


Handle = Callable[[ForwardedCommand], Awaitable[object]]


class ForwardListener:
    """Takes commands of other replicas; made by `open`, closed by `close`."""

    def __init__(
        self,
        listening: socket.socket,
        endpoint: ForwardEndpoint,
        incarnation: str,
        handle: Handle,
        rights: WriterRights,
        security: Security | None,
    ) -> None:
        self.endpoint = endpoint
        self.refused = 0
        """Connections and messages that were refused, since the start."""
        self.incarnation, self.rights = incarnation, rights
        self.budget = Budget(COMMANDS_BYTES_MAX)
        self.scratch = new_scratch(_SCRATCH_BYTES)
        self.connections: dict[_Sender, None] = {}
        self._handle, self._security = handle, security
        self._listening = listening
        self._commands = self._bytes = 0
        self._closed = False
        self._taker: TlsListener | None = None
        self._server: asyncio.Server | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        incarnation: str,
        handle: Handle,
        rights: WriterRights,
        security: Security | None,
    ) -> Self:
        """Listen on a free port of *host*. Raises `OSError`."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family)
        listening.setblocking(False)
        takes = Takes.PLAIN if security is None else security.takes
        endpoint = ForwardEndpoint(host, listening.getsockname()[1], takes)
        opened = cls(listening, endpoint, incarnation, handle, rights, security)
        await opened._start()
        return opened

    async def _start(self) -> None:
        if self._security is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Sender(self), sock=self._listening)
        else:
            self._taker = TlsListener(
                self._listening, lambda: _Sender(self), self._security, refused=self.refuse
            )
            self._taker.start()

    async def close(self) -> None:
        """Take nothing more; commands under way get no reply. Idempotent."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        if self._taker is not None:
            await self._taker.close()
        for connection in list(self.connections):
            connection.abort()

    def refuse(self, peer: str, reason: str) -> None:
        self.refused += 1
        _log.warning("forward_refused", peer=peer, reason=reason)

    def why_not(self, connection: "_Sender") -> str:
        """Return why *connection* cannot be served; empty: it can."""
        if self._closed:
            return "this replica was closed"
        if len(self.connections) > CONNECTIONS_MAX:
            return f"there are {CONNECTIONS_MAX} connections already"
        if self.rights.are_required and not connection.is_secured:
            return "TLS is required here"
        return ""

    async def reply(self, connection: "_Sender", command: ForwardedCommand) -> Reply:
        """Carry *command* out; return what becomes of it."""
        size_bytes = len(command.payload)
        if self._commands >= COMMANDS_MAX or self._bytes + size_bytes > COMMANDS_BYTES_MAX:
            return TooManyPending(self._bytes + size_bytes, COMMANDS_BYTES_MAX)
        self._commands += 1
        self._bytes += size_bytes
        try:
            if not await self.rights.may_write(connection):
                self.refuse(connection.peer, f"{connection.certificate} may not write the log")
                return Denied()
            return await self._handle(command)
        except LogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - what stopped the replica is told to the sender
            return Failed(text_of(error))
        finally:
            self._commands -= 1
            self._bytes -= size_bytes


class _Sender(Connection):
    """A connection from a replica that forwards commands, at the leader."""

    def __init__(self, listener: ForwardListener) -> None:
        super().__init__(listener.scratch, body_bytes_max=BODY_BYTES_MAX, budget=listener.budget)
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._look_at: asyncio.TimerHandle | None = None
        self._progress = -1
        """Of the message that was on its way when this was looked at."""
        self._replies: set[asyncio.Task[None]] = set()

    def made(self) -> None:
        self._listener.connections[self] = None
        self._look_at = self._loop.call_later(LOOK_S, self._look)
        self.keep_alive(_KEEP_ALIVE)
        if reason := self._listener.why_not(self):
            self._turn_away(reason)

    def greeted(self, received: bytes) -> bool:
        incarnation = decode_hello(received)
        if incarnation is None:
            return False
        if incarnation != self._listener.incarnation:
            self._turn_away("here is a replica of another log")
            return True
        self.say(encode_welcome())
        return True

    def took(self, frame: Frame) -> None:
        if frame.kind != FrameKind.COMMAND:
            raise BadMessage("Frame", f"there is no kind {frame.kind} here")
        command = decode_command(bytes(frame.body))
        task = self._loop.create_task(self._answer(frame.number, command))
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    def refused(self, error: BadMessage, _received: bytes) -> None:
        self._turn_away(str(error))

    def _turn_away(self, reason: str) -> None:
        self._listener.refuse(self.peer, reason)
        if self.is_greeting:
            self.say(encode_refusal(reason))
        self.is_deaf = True
        self.end()
        self._loop.call_later(CONNECT_S, self.abort)

    def blocked(self) -> None:
        self.pause()

    def unblocked(self) -> None:
        self.resume()

    def lost(self, _reason: str) -> None:
        self._listener.connections.pop(self, None)
        if self._look_at is not None:
            self._look_at.cancel()
        for reply in self._replies:
            reply.cancel()

    def _look(self) -> None:
        """End the connection if nothing of a greeting or a message came since the last look, or
        if its certificate has expired."""
        reader = self.reader
        is_stalled = reader.is_under_way and reader.progress == self._progress and self.is_reading
        self._progress = reader.progress if reader.is_under_way else -1
        if self.is_greeting or is_stalled:
            self.abort()
        elif self._listener.rights.has_expired(self) and not self.is_deaf:
            self._turn_away("its certificate has expired")
        else:
            self._look_at = self._loop.call_later(LOOK_S, self._look)

    async def _answer(self, number: int, command: ForwardedCommand) -> None:
        reply = await self._listener.reply(self, command)
        try:
            body = encode_reply(reply)
        except Exception as error:  # noqa: BLE001 - as a result that cannot be kept
            body = encode_reply(error if isinstance(error, LogError) else Failed(text_of(error)))
        self.send(FrameKind.ANSWER, number, body)


class ForwardClient:
    """Sends commands to the leader, over one connection at a time."""

    def __init__(
        self, log: str, incarnation: str, rights: WriterRights, security: Security | None
    ) -> None:
        self._log, self._incarnation = log, incarnation
        self._rights, self._security = rights, security
        self._scratch = new_scratch(_SCRATCH_BYTES)
        self._endpoint: ForwardEndpoint | None = None
        """Of the connection, and of the attempt to make one."""
        self._connection: _Leader | None = None
        self._attempt: asyncio.Task[_Leader] | None = None
        self._retired: list[_Leader] = []
        """Those that get no more commands, until they have replied."""
        self._drops = 0
        self._closed = False
        self._commands = self._bytes = 0

    async def send(self, endpoint: ForwardEndpoint, command: ForwardedCommand) -> Reply:
        """Return what became of *command* at *endpoint*, the leader's by now.

        Raises `ForwardFailed`, `ForwardDenied`, `RecordTooLarge`, `TooManyPending`,
        `TransportMismatch`."""
        size_bytes = len(command.payload)
        if size_bytes > ENTRY_BYTES_MAX:  # no log takes it, and no connection
            raise RecordTooLarge(self._log, size_bytes, ENTRY_BYTES_MAX)
        if self._commands >= COMMANDS_MAX or self._bytes + size_bytes > COMMANDS_BYTES_MAX:
            raise TooManyPending(self._bytes + size_bytes, COMMANDS_BYTES_MAX)
        self._commands += 1
        self._bytes += size_bytes
        connection, drops = self._connection, self._drops
        try:
            reply = await self._reply(endpoint, command)
            if isinstance(reply, Denied) and connection is not None and drops == self._drops:
                # It was not applied, and the certificate that connection showed may be an old one.
                self._retire(connection)
                reply = await self._reply(endpoint, command)
        finally:
            self._commands -= 1
            self._bytes -= size_bytes
        if isinstance(reply, Denied):
            raise ForwardDenied
        if isinstance(reply, Failed):
            raise ForwardFailed(reply.reason, was_sent=True)
        return reply

    async def _reply(self, endpoint: ForwardEndpoint, command: ForwardedCommand) -> Reply:
        within_s = command.timeout_ms / 1000
        body = await self._exchange(endpoint, encode_command(command), within_s)
        try:
            return decode_reply(body, log=self._log, request=command.request)
        except BadMessage as error:
            self.drop()
            raise ForwardFailed(str(error), was_sent=True) from error

    async def _exchange(self, endpoint: ForwardEndpoint, body: bytes, within_s: float) -> bytes:
        was_sent = False
        try:
            async with asyncio.timeout(within_s):
                connection = await self._connected(endpoint)
                was_sent = True
                return await connection.ask(body)
        except TimeoutError:
            raise ForwardFailed("no reply in time", was_sent=was_sent) from None

    def drop(self) -> None:
        """End the connection, also one that is being made: what is under way has no reply."""
        self._drops += 1
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        if self._connection is not None:
            self._retire(self._connection)
        for connection in self._retired:
            connection.abort()
        self._retired.clear()

    def _retire(self, connection: "_Leader") -> None:
        """Send the next command on another connection; commands on this one may get a reply."""
        if connection is self._connection:
            self._connection = None
            connection.retire()
            self._retired = [each for each in self._retired if not each.is_lost] + [connection]

    def close(self) -> None:
        """Send nothing more. Idempotent."""
        self._closed = True
        self.drop()

    async def _connected(self, endpoint: ForwardEndpoint) -> "_Leader":
        """Return a connection to *endpoint*. All that wait for one share an attempt to make it."""
        if self._closed:
            raise ForwardFailed("this replica was closed", was_sent=False)
        if endpoint != self._endpoint:
            self.drop()
            self._endpoint = endpoint
        if self._connection is not None and self._connection.is_usable:
            return self._connection
        attempt = self._attempt
        if attempt is None:
            attempt = asyncio.create_task(self._connect(endpoint), name=f"connecting to {endpoint}")
            attempt.add_done_callback(self._end_attempt)
            self._attempt = attempt
        await asyncio.wait({attempt})
        if attempt.cancelled():
            raise ForwardFailed("another replica leads by now", was_sent=False)
        return attempt.result()

    def _end_attempt(self, attempt: "asyncio.Task[_Leader]") -> None:
        if attempt is self._attempt:
            self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # all that waited for it may have given up

    async def _connect(self, endpoint: ForwardEndpoint) -> "_Leader":
        mode = TlsMode.OFF if self._security is None else self._security.mode
        context = None
        if is_secured(mode, endpoint.takes, name=f"{endpoint.host}:{endpoint.port}"):
            assert self._security is not None
            context = self._security.client()
        connection = _Leader(self._incarnation, self._scratch)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: connection, endpoint.host, endpoint.port, ssl=context
                )
                refusal = await connection.welcomed
                is_writer = bool(refusal) or await self._rights.may_write(connection)
        except (OSError, TimeoutError, LogError) as error:
            connection.abort()
            raise ForwardFailed(why_failed(error), was_sent=False) from error
        except BaseException:
            connection.abort()
            raise
        if refusal or not is_writer:
            connection.abort()
            raise ForwardFailed(refusal, was_sent=False) if refusal else ForwardDenied()
        connection.keep_alive(_KEEP_ALIVE)
        self._connection = connection
        return connection


class _Leader(Connection):
    """A connection to the leader's replica."""

    def __init__(self, incarnation: str, scratch: memoryview) -> None:
        super().__init__(scratch, body_bytes_max=BODY_BYTES_MAX, budget=Budget(BODY_BYTES_MAX))
        self.welcomed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it refuses; empty: it does not."""
        self._incarnation = incarnation
        self._number = 0
        self._open: dict[int, asyncio.Future[bytes]] = {}
        self._is_retired = False

    @property
    def is_usable(self) -> bool:
        return not self.is_lost and not self.is_deaf

    async def ask(self, body: bytes) -> bytes:
        """Return the reply to a command. Raises `ForwardFailed`."""
        if self.is_lost:
            raise ForwardFailed("the connection to the leader ended", was_sent=False)
        self._number += 1
        number = self._number
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = reply
        self.send(FrameKind.COMMAND, number, body)
        try:
            return await reply
        finally:
            self._open.pop(number, None)
            if self._is_retired and not self._open:
                self.abort()

    def retire(self) -> None:
        """End once all commands that were sent have a reply."""
        self._is_retired = True
        if not self._open:
            self.abort()

    def made(self) -> None:
        self.say(encode_hello(self._incarnation))

    def greeted(self, received: bytes) -> bool:
        refusal = decode_answer(received)
        if refusal is None:
            return False
        if not self.welcomed.done():
            self.welcomed.set_result(refusal)
        return True

    def took(self, frame: Frame) -> None:
        if frame.kind != FrameKind.ANSWER:
            raise BadMessage("Frame", f"there is no kind {frame.kind} here")
        reply = self._open.get(frame.number)  # a sender that gave up waits for none
        if reply is not None and not reply.done():
            reply.set_result(bytes(frame.body))

    def refused(self, error: BadMessage, _received: bytes) -> None:
        self._fail(str(error))
        self.is_deaf = True
        self.abort()

    def lost(self, reason: str) -> None:
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(f"no replica answers there: {reason}")
        for reply in self._open.values():
            if not reply.done():
                reply.set_exception(ForwardFailed(reason, was_sent=True))
                with suppress(Exception):
                    reply.exception()  # its sender may have given up
