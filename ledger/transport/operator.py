"""What an operator asks of one bookie: how it is, and to do now what it does by itself later.

Values are the messages of bookie.proto as they are. An order is one field of `OrderRequest`, and
its answer the field of `OrderReply` with the same name. A program that does not know a field says
that it does not know the order.

Every call raises `BookieUnavailable` if there is no answer in time, `BookieRefused` if the bookie
says no, `AccessDenied` if it does not take orders from here. A call that is given up does not stop
what the bookie has begun.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import Message

from ledger.errors import (
    AccessDenied,
    BadMessage,
    BookieRefused,
    BookieUnavailable,
    WrongBookie,
)
from ledger.ids import BookieIdentity
from ledger.security.certificates import Security, own_name
from ledger.security.settings import Takes, TlsMode, is_secured
from ledger.transport.client_connection import ClientConnection, Way, connect
from ledger.transport.connection import new_scratch
from ledger.transport.envelope import Received, checked, verified
from ledger.transport.framing import Frame, FrameKind
from ledger.transport.handshake import Purpose, hello_to
from ledger.wire import bookie_pb2 as pb

ORDER_BYTES_MAX: Final = 4096
REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
_UNKNOWN: Final = ""
_CONNECT_S: Final = 2.0
_SCRATCH_BYTES: Final = 16 * 1024
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""A run may take long, and a bookie whose machine is gone says nothing."""


def order_message(name: str, order: Message) -> bytes:
    """Return the message of *order*; *name* is its field in `OrderRequest`."""
    message = pb.OrderRequest()
    getattr(message, name).CopyFrom(order)
    getattr(message, name).SetInParent()
    return checked(message)


def order_of(received: Received) -> tuple[str, Message]:
    """Return field and value of an order; an empty field for one that is not known here. Raises
    `BadMessage`."""
    message, _ = verified(pb.OrderRequest, received)
    name = message.WhichOneof("order")
    return (_UNKNOWN, message) if name is None else (name, getattr(message, name))


def order_reply(reply: pb.OrderReply, request: bytes) -> bytes:
    return checked(reply, request=request)


def order_answer(received: Received, request: bytes) -> pb.OrderReply:
    """Return the reply to *request*. Raises `BadMessage`."""
    if len(received) > REPLY_BYTES_MAX:
        raise BadMessage("OrderReply", f"it has {len(received)} bytes")
    message, _ = verified(pb.OrderReply, received, request=request)
    return message


class BookieOperator:
    """A connection to the bookie whose operators' port is *address*; an async context manager."""

    def __init__(
        self,
        address: str,
        *,
        bookie: str = "",
        meant: BookieIdentity | None = None,
        timeout_s: float = 10.0,
        run_timeout_s: float | None = None,
        security: Security | None = None,
        takes: Takes = Takes.PLAIN,
    ) -> None:
        """If *bookie* is given, another one at this address refuses, and one of the same name that
        is not who is *meant*: `WrongBookie`. *timeout_s* is for short
        answers; *run_timeout_s* for those that come when a run is done, None for any time.
        *security* is what this process has, *takes* what the bookie is registered with. Raises
        `TransportMismatch`."""
        mode = TlsMode.OFF if security is None else security.mode
        is_secured(mode, takes, name=bookie or address)
        self.address = address
        self._bookie = bookie
        self._identity = own_name(security)
        self._timeout_s = timeout_s
        self._run_timeout_s = run_timeout_s
        self._way = Way(address, security, takes, meant)
        self._connecting = asyncio.Lock()
        self._connection: ClientConnection | None = None
        self._number = 0
        self._open: dict[int, asyncio.Future[Frame]] = {}

    async def status(self) -> pb.StatusReply:
        return (await self._call("status", pb.StatusRequest(), self._timeout_s)).status

    async def collect(
        self, *, allow_deletions: int | None = None, allow_evictions: int | None = None
    ) -> pb.CollectorRun:
        """Remove what belongs to deleted ledgers now, look for copies that no fragment names any
        more, and evict those that were seen before; return what was done, and what prevented more.

        *allow_deletions*: how many ledgers may go although nothing shows that they were
        deleted; *allow_evictions*: how many may be evicted. Negative: all; None: as many as
        without an operator's word."""
        request = pb.CollectRequest(
            allow_deletions=allow_deletions, allow_evictions=allow_evictions
        )
        return (await self._call("collect", request, self._run_timeout_s)).collect.run

    async def compact(self, *, major: bool) -> pb.CollectorRun:
        """Rewrite entry logs with little live data now; return what was done."""
        request = pb.CompactRequest(major=major)
        return (await self._call("compact", request, self._run_timeout_s)).compact.run

    async def set_read_only(self, *, read_only: bool) -> pb.SetReadOnlyReply:
        """Keep normal adds out, or take them again; return what the bookie is now, and why."""
        request = pb.SetReadOnlyRequest(read_only=read_only)
        return (await self._call("set_read_only", request, self._timeout_s)).set_read_only

    async def trace(self, ledger_id: int, entry_id: int) -> pb.TraceReply:
        """Ask where an entry is on the bookie, and whether it is whole; reads files there."""
        request = pb.TraceRequest(ledger=ledger_id, entry=entry_id)
        return (await self._call("trace", request, self._timeout_s)).trace

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
            await connection.gone()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, name: str, order: Message, timeout_s: float | None) -> pb.OrderReply:
        request = order_message(name, order)
        try:
            async with asyncio.timeout(timeout_s):
                async with self._connecting:
                    connection = await self._connected()
                frame = await self._answer(connection, request)
            if frame.kind == FrameKind.NOT_KNOWN:
                raise BookieRefused(self._name, "it does not know orders; its program is older")
            reply = order_answer(frame.body, request)
        except TimeoutError as error:
            reason = f"no answer within {timeout_s or 0:g} s"
            raise BookieUnavailable(self._name, reason) from error
        except BadMessage as error:
            raise BookieUnavailable(self._name, str(error)) from error
        if reply.denied:
            raise AccessDenied(self._identity, "operator", f"give orders to {self._name}")
        if reply.refused:
            raise BookieRefused(self._name, reply.refused)
        return reply

    @property
    def _name(self) -> str:
        return self._bookie or self.address

    async def _connected(self) -> ClientConnection:
        if self._connection is not None and self._connection.is_ready:
            return self._connection
        connection = ClientConnection(
            hello_to(Purpose.ORDERS, self._bookie, self._way.meant),
            new_scratch(_SCRATCH_BYTES),
            on_frame=self._answered,
            on_room=lambda: None,
            on_lost=self._lost,
        )
        self._connection = connection
        timeout_s = min(self._timeout_s, _CONNECT_S)
        reason = await connect(connection, self._bookie, self._way, timeout_s)
        if reason is None and connection.is_ready:
            connection.reader.body_bytes_max = REPLY_BYTES_MAX
            connection.keep_alive(_KEEP_ALIVE)
            return connection
        connection.abort()
        if connection.is_another:
            raise WrongBookie(self._name, reason or "")
        if not connection.is_greeting:  # the bookie has said why
            raise BookieRefused(self._name, reason or "")
        raise BookieUnavailable(self._name, reason or "it ended the connection")

    async def _answer(self, connection: ClientConnection, request: bytes) -> Frame:
        self._number += 1
        number = self._number
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        connection.send(FrameKind.ORDER, number, request)
        try:
            return await answer
        finally:
            if self._open.pop(number, None) is not None and connection.is_ready:
                connection.send(FrameKind.CANCEL, number)

    def _answered(self, frame: Frame) -> None:
        answer = self._open.pop(frame.number, None)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _lost(self, reason: str) -> None:
        waiting, self._open = self._open, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(BookieUnavailable(self._name, reason))
