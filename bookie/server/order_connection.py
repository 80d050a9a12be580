"""One operator's connection, at the bookie: orders in, answers out.

Operators have a port of their own, so that a firewall can keep it apart from that of clients. It
is served by the same listener (`listener`): with the same TLS, names, limits and ends.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from bookie.errors import CollectionUnderWay, OrderNotKept
from bookie.server.authorizer import Door
from bookie.server.limits import ClientLimits
from bookie.server.operator import OperatorService
from ledger.errors import BadMessage
from ledger.log_events import get_logger
from ledger.transport.connection import Connection
from ledger.transport.framing import Frame, Kind
from ledger.transport.orders import ORDER_BYTES_MAX, order_of, order_reply
from ledger.wire import bookie_pb2 as pb

OPERATOR_LIMITS: Final = ClientLimits(connections_max=256, connections_per_address_max=128)
ORDERS_MAX: Final = 8
"""Of one connection at a time; more are refused."""
_LOOKS: Final = frozenset({"status"})
"""Orders that change nothing."""

_log = get_logger(__name__)

Order = Callable[[Any], Awaitable[Message]]


class OrderConnection:
    """See the module's docstring."""

    body_bytes_max = ORDER_BYTES_MAX

    def __init__(
        self, operator: OperatorService, connection: Connection, door: Door | None = None
    ) -> None:
        """*door*: what knows who may give orders; None: everybody may."""
        self._connection = connection
        self._door = door
        self._orders: dict[str, Order] = {
            "status": operator.status,
            "collect": operator.collect,
            "compact": operator.compact,
            "set_read_only": operator.set_read_only,
            "trace": operator.trace,
        }
        self._open: dict[int, asyncio.Task[pb.OrderReply]] = {}
        self._last = 0
        self._shut = False

    @property
    def is_done(self) -> bool:
        """Whether every order is answered."""
        return not self._open

    def took(self, frame: Frame) -> None:
        """Begin to carry out an order. Raises `BadMessage`."""
        number, request = frame.number, bytes(frame.body)
        if frame.kind == Kind.CANCEL:
            if (task := self._open.get(number)) is not None:
                task.cancel()
            return
        if number <= self._last:
            raise BadMessage("Frame", f"order {number} came after {self._last}")
        self._last = number
        if frame.kind != Kind.ORDER:
            self._connection.send(Kind.NOT_KNOWN, number)
            return
        name, order = order_of(request)
        if reply := self._why_not(name):
            self._connection.send(Kind.ANSWER, number, order_reply(reply, request))
            return
        task = self._open[number] = asyncio.ensure_future(self._carry_out(name, order))
        task.add_done_callback(partial(self._answered, number, request))

    def blocked(self) -> None:
        self._connection.pause()

    def unblocked(self) -> None:
        self._connection.resume()

    def eased(self) -> None:
        """Nothing waits for that."""

    def look(self, _now: float) -> bool:
        """Nor for this."""
        return False

    def shut(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._shut = True

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()

    def _why_not(self, name: str) -> pb.OrderReply | None:
        """Return why the order *name* is not obeyed; None if it is. It is in the log then."""
        identity, peer = self._connection.identity, self._connection.peer
        if name not in self._orders:
            return pb.OrderReply(refused="it does not know this order; its program is older")
        if len(self._open) >= ORDERS_MAX:
            return pb.OrderReply(refused=f"{ORDERS_MAX} orders of the connection are under way")
        if identity is not None and time.time() > identity.expires_at:
            return pb.OrderReply(denied=True, refused=f"the certificate of {identity} has expired")
        if self._door is not None and not self._door.may_order():
            return pb.OrderReply(denied=True, refused=f"{identity or 'nobody'} is no operator here")
        if name not in _LOOKS:
            _log.info("order_taken", order=name, identity=str(identity or ""), peer=peer)
        return None

    async def _carry_out(self, name: str, order: Message) -> pb.OrderReply:
        try:
            answer = await self._orders[name](order)
        except (CollectionUnderWay, OrderNotKept) as error:
            return pb.OrderReply(refused=str(error))
        return pb.OrderReply(**{name: answer})  # type: ignore[arg-type] # a field for each order

    def _answered(self, number: int, request: bytes, answer: "asyncio.Task[pb.OrderReply]") -> None:
        del self._open[number]
        if answer.cancelled():
            pass
        elif (error := answer.exception()) is not None:
            _log.error("order_not_answered", peer=self._connection.peer, reason=repr(error))
            self._connection.abort()
        else:
            self._connection.send(Kind.ANSWER, number, order_reply(answer.result(), request))
        self._connection.settled()
