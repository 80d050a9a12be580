"""Where operators reach a bookie: gRPC, on a port of its own.

Apart from the clients' port, so that a firewall can keep the two apart: who can reach this one can
make the bookie read-only.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from bookie.errors import AddressUnusable, CollectionUnderWay, OrderNotKept, PortInUse
from bookie.server.guarding import Guard
from bookie.server.listening import is_free
from bookie.server.operator import OperatorService
from ledger.log_events import get_logger
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode
from ledger.transport.orders import (
    BOOKIE_KEY,
    Context,
    certificate_of_caller,
    operator_handlers,
    operator_server,
    server_credentials,
)

_DRAIN_S_MAX: Final = 2.0
_LOOKS: Final = frozenset({"Status"})
"""Orders that change nothing."""

_log = get_logger(__name__)

_Reply = TypeVar("_Reply", bound=Message)


class OperatorServer:
    """Listens from `bind` on, serves from `start` on."""

    def __init__(self, security: Security | None = None) -> None:
        """With *security* that requires it, the port takes TLS only; else it is plain."""
        self._server = operator_server()
        self.guard: Guard | None = None
        """Who lets in what was granted; None: whoever is known may do everything."""
        self._security = security
        required = security is not None and security.mode is TlsMode.REQUIRED
        self._credentials = server_credentials(security) if security and required else None

    def bind(self, host: str, port: int) -> int:
        """Listen on *host*:*port*, 0 for any free port; return the port.

        Raises `PortInUse`, `AddressUnusable`."""
        try:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if self._credentials is None:
                bound = self._server.add_insecure_port(place)
            else:
                bound = self._server.add_secure_port(place, self._credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            if is_free(host, port):
                raise AddressUnusable(host, port, "gRPC cannot listen there")
            raise PortInUse(host, port)
        return bound

    async def start(self, operator: OperatorService) -> None:
        self._server.add_generic_rpc_handlers((_Edge(operator, self._why_not).handlers(),))
        await self._server.start()

    async def stop(self) -> None:
        """Take no more orders, answer those that were taken, close all connections."""
        await self._server.stop(_DRAIN_S_MAX)

    async def kill(self) -> None:
        """Close all connections without an answer."""
        await self._server.stop(None)

    def _why_not(self, order: str, context: Context) -> str:
        """Return why *order* is not obeyed; empty if it is. It is in the log then."""
        identity = None
        if self._security is not None:
            identity = self._security.identity(certificate_of_caller(context))
        guard, peer = self.guard, context.peer()
        if guard is not None and not guard.door(identity, peer).may_order():
            return f"{identity or 'nobody'} is no operator here"
        if order not in _LOOKS:
            _log.info("order_taken", order=order, identity=str(identity or ""), peer=peer)
        return ""


class _Edge:
    def __init__(self, operator: OperatorService, why_not: Callable[[str, Context], str]) -> None:
        self._operator, self._why_not = operator, why_not

    def handlers(self) -> grpc.GenericRpcHandler:
        operator = self._operator
        orders = {
            "Status": operator.status,
            "Collect": operator.collect,
            "Compact": operator.compact,
            "SetReadOnly": operator.set_read_only,
            "Trace": operator.trace,
        }
        return operator_handlers(
            {name: self._carrying_out(name, order) for name, order in orders.items()}
        )

    def _carrying_out(self, name: str, order: Any) -> Any:
        async def carry_out(request: Message, context: Context) -> Message:
            await self._check_meant(context)
            if reason := self._why_not(name, context):
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
            try:
                reply: Message = await order(request)
            except CollectionUnderWay as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except OrderNotKept as error:
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
            return reply

        return carry_out

    async def _check_meant(self, context: Context) -> None:
        """Abort the call if its client means another bookie."""
        bookie = self._operator.bookie
        for key, value in context.invocation_metadata() or ():
            if key == BOOKIE_KEY and value != bookie.encode():
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"here is bookie {bookie}")
