"""The edge of a bookie towards its operators: service `dlog.bookie.v1.Operator`.

It is on the port of the bookie and as open as the rest of it: who can reach the port can make
the bookie read-only.
"""

import time
from importlib.metadata import version
from typing import Any, Final

import grpc

from bookie.errors import OrderNotKept
from bookie.read_only import Measured, ReadOnlyKeeper
from bookie.service import BookieService
from bookie.storage import BookieStorage
from ledger.transport.messages import BOOKIE_KEY
from ledger.transport.stub import OPERATOR_SERVICE
from ledger.wire import bookie_pb2 as pb

_PACKAGE: Final = "dlog"

Context = grpc.aio.ServicerContext[Any, Any]


class OperatorService:
    def __init__(
        self,
        service: BookieService,
        storage: BookieStorage,
        keeper: ReadOnlyKeeper,
        *,
        address: str,
    ) -> None:
        self._service = service
        self._storage = storage
        self._keeper = keeper
        self._address = address
        self._started_at = time.monotonic()

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            OPERATOR_SERVICE,
            {
                "Status": grpc.unary_unary_rpc_method_handler(
                    self._status, pb.StatusRequest.FromString, pb.StatusReply.SerializeToString
                ),
                "SetReadOnly": grpc.unary_unary_rpc_method_handler(
                    self._set_read_only,
                    pb.SetReadOnlyRequest.FromString,
                    pb.SetReadOnlyReply.SerializeToString,
                ),
            },
        )

    async def _status(self, _request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        await check_meant(context, self._service.info.bookie)
        info = self._service.info
        return pb.StatusReply(
            bookie=info.bookie,
            incarnation=info.incarnation,
            instance=info.instance,
            address=self._address,
            version=version(_PACKAGE),
            uptime_s=time.monotonic() - self._started_at,
            read_only=info.read_only,
            reasons=self._keeper.reasons,
            warnings=self._keeper.warnings,
            directories=[_directory(measured) for measured in self._keeper.measured],
        )

    async def _set_read_only(
        self, request: pb.SetReadOnlyRequest, context: Context
    ) -> pb.SetReadOnlyReply:
        await check_meant(context, self._service.info.bookie)
        try:
            await self._keeper.set_by_operator(read_only=request.read_only)
        except OrderNotKept as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return pb.SetReadOnlyReply(read_only=self._storage.read_only, reasons=self._keeper.reasons)


async def check_meant(context: Context, bookie: str) -> None:
    """Abort the call if its client means another bookie."""
    for key, value in context.invocation_metadata() or ():
        if key == BOOKIE_KEY and value != bookie.encode():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"here is bookie {bookie}")


def _directory(measured: Measured) -> pb.DirectoryUsage:
    message = pb.DirectoryUsage(path=measured.path, place=measured.place)
    if measured.usage is not None:
        message.total_bytes = measured.usage.total_bytes
        message.free_bytes = measured.usage.free_bytes
    return message
