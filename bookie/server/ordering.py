"""Where operators reach a bookie: gRPC, on a port of its own.

Apart from the clients' port, so that a firewall can keep the two apart: who can reach this one can
make the bookie read-only.
"""

from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from bookie.errors import AddressUnusable, CollectionUnderWay, OrderNotKept, PortInUse
from bookie.server.listening import is_free
from bookie.server.operator import OperatorService
from ledger.security.certificates import Security
from ledger.security.settings import TlsMode
from ledger.transport.orders import (
    BOOKIE_KEY,
    Context,
    operator_handlers,
    operator_server,
    server_credentials,
)

_DRAIN_S_MAX: Final = 2.0

_Reply = TypeVar("_Reply", bound=Message)


class OperatorServer:
    """Listens from `bind` on, serves from `start` on."""

    def __init__(self, security: Security | None = None) -> None:
        """With *security* that requires it, the port takes TLS only; else it is plain."""
        self._server = operator_server()
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
        self._server.add_generic_rpc_handlers((_Edge(operator).handlers(),))
        await self._server.start()

    async def stop(self) -> None:
        """Take no more orders, answer those that were taken, close all connections."""
        await self._server.stop(_DRAIN_S_MAX)

    async def kill(self) -> None:
        """Close all connections without an answer."""
        await self._server.stop(None)


class _Edge:
    def __init__(self, operator: OperatorService) -> None:
        self._operator = operator

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
            {name: self._carrying_out(order) for name, order in orders.items()}
        )

    def _carrying_out(self, order: Any) -> Any:
        async def carry_out(request: Message, context: Context) -> Message:
            await self._check_meant(context)
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
