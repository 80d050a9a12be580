"""The gRPC edge of a bookie: messages in and out, nothing decided.

A request that names another bookie is refused: after a change of addresses a client must not
count this bookie's answer as that of the one it meant.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

import grpc

from bookie.errors import AddressUnusable, PortInUse
from bookie.server.descriptors import CONNECTIONS_MAX
from bookie.server.operator import OperatorService, check_meant
from bookie.server.service import AddStream, BookieService
from ledger.errors import BadMessage
from ledger.log_events import get_logger
from ledger.transport.channel import server_options
from ledger.transport.messages import (
    INCARNATION_KEY,
    MESSAGE_BYTES_MAX,
    ack_message,
    batch_runs,
    check_info_request,
    held_query,
    held_reply,
    info_reply,
    lac_query,
    lac_reply,
    read_query,
    read_reply,
)
from ledger.transport.parts import Assembly, Budget
from ledger.transport.stub import SERVICE

_DRAIN_S_MAX: Final = 2.0
_PART_S_MAX: Final = 10.0
"""So long the next part of a message may take."""
_ADD_STREAMS_MAX: Final = 1024
_CALLS_MAX: Final = 12_288
"""Of all kinds: the reads that may wait, and some."""

Context = grpc.aio.ServicerContext[bytes, bytes]

_Query = TypeVar("_Query")
_log = get_logger(__name__)


class BookieServer:
    """Listens from `bind` on, serves from `start` on."""

    def __init__(self, *, connections_max: int = CONNECTIONS_MAX) -> None:
        """One connection more than *connections_max* is closed as soon as it is made."""
        self._server = grpc.aio.server(
            options=server_options(connections_max), maximum_concurrent_rpcs=_CALLS_MAX
        )
        self._parts = Budget()
        self._add_streams = 0
        self._service: BookieService | None = None

    def bind(self, host: str, port: int) -> int:
        """Listen on *host*:*port*, 0 for any free port; return the port.

        Raises `PortInUse`, `AddressUnusable`."""
        try:
            bound = self._server.add_insecure_port(_join(host, port))
        except RuntimeError:
            bound = 0
        if not bound:
            is_free(host, port)  # raises if the reason is another one
            raise PortInUse(host, port)
        return bound

    async def start(self, service: BookieService, operator: OperatorService | None = None) -> None:
        """Serve; requires a storage that has replayed wholly (rule 64)."""
        self._service = service
        handlers = grpc.method_handlers_generic_handler(SERVICE, self._handlers())
        self._server.add_generic_rpc_handlers((handlers,))
        if operator is not None:
            self._server.add_generic_rpc_handlers((operator.handlers(),))
        await self._server.start()

    async def stop(self) -> None:
        """Take nothing more, answer what was taken, close all connections."""
        if self._service is not None:
            self._service.stop_taking()
        await self._server.stop(_DRAIN_S_MAX)

    async def kill(self) -> None:
        """Close all connections without an answer."""
        await self._server.stop(None)

    def _handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        return {
            "Add": grpc.stream_stream_rpc_method_handler(self._add),
            "Read": grpc.unary_unary_rpc_method_handler(self._read),
            "ReadLac": grpc.unary_unary_rpc_method_handler(self._read_lac),
            "Info": grpc.unary_unary_rpc_method_handler(self._info),
            "ReadHeld": grpc.unary_unary_rpc_method_handler(self._read_held),
        }

    async def _add(self, _requests: object, context: Context) -> None:
        service = await self._meant(context)
        if self._add_streams >= _ADD_STREAMS_MAX:
            reason = f"there are {_ADD_STREAMS_MAX} streams of adds already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._add_streams += 1
        try:
            await self._take(service, context)
        finally:
            self._add_streams -= 1

    async def _take(self, service: BookieService, context: Context) -> None:
        """Serve one stream of adds to its end."""
        incarnation = service.info.incarnation.encode()
        await context.send_initial_metadata(((INCARNATION_KEY, incarnation),))
        stream = service.stream()
        stopping = asyncio.ensure_future(service.stopping.wait())
        receiving = asyncio.ensure_future(_receive(stream, context, self._parts))
        acking = asyncio.ensure_future(_acknowledge(stream, context))
        tasks = (stopping, receiving, acking)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            stream.shut()
            if not acking.done():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_DRAIN_S_MAX):
                        await stream.answered()
            if receiving.done():
                receiving.result()
        except BadMessage as error:
            await _refuse(error, context)
        finally:
            stream.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, request: bytes, context: Context) -> bytes:
        service = await self._meant(context)
        query = await _decoded(read_query, request, context)
        return read_reply(await service.read(query), request)

    async def _read_lac(self, request: bytes, context: Context) -> bytes:
        service = await self._meant(context)
        query = await _decoded(lac_query, request, context)
        return lac_reply(await service.read_lac(query), request)

    async def _read_held(self, request: bytes, context: Context) -> bytes:
        service = await self._meant(context)
        query = await _decoded(held_query, request, context)
        return held_reply(await service.read_held(query), request)

    async def _info(self, request: bytes, context: Context) -> bytes:
        service = await self._meant(context)
        await _decoded(check_info_request, request, context)
        return info_reply(service.info, request)

    async def _meant(self, context: Context) -> BookieService:
        """Return the service, or abort the call if its client means another bookie."""
        assert self._service is not None
        await check_meant(context, self._service.info.bookie)
        return self._service


async def _receive(stream: AddStream, context: Context, budget: Budget) -> None:
    """Offer what the client sends until it ends the stream. Raises `BadMessage`."""
    assembly = Assembly(budget, message_bytes_max=MESSAGE_BYTES_MAX)
    try:
        while isinstance(part := await _next_part(context, assembly), bytes):
            message = assembly.add(part)
            if message is not None:
                batch, runs = batch_runs(message)
                stream.offer(batch, runs, await stream.prepare(runs))
                await stream.room()
    finally:
        assembly.drop()


async def _next_part(context: Context, assembly: Assembly) -> object:
    if not assembly.is_under_way:
        return await context.read()
    try:
        async with asyncio.timeout(_PART_S_MAX):
            return await context.read()
    except TimeoutError:
        raise BadMessage("AddBatch", f"no more of it came within {_PART_S_MAX:g} s") from None


async def _decoded(decode: Callable[[bytes], _Query], request: bytes, context: Context) -> _Query:
    """Return what *request* asks; abort its call if it cannot be used."""
    try:
        return decode(request)
    except BadMessage as error:
        return await _refuse(error, context)


async def _refuse(error: BadMessage, context: Context) -> NoReturn:
    """Abort the call. No answer is what its client hears: it does not know what happened."""
    _log.warning("message_refused", peer=context.peer(), reason=str(error))
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _acknowledge(stream: AddStream, context: Context) -> None:
    while True:
        for ack in await stream.acks():
            await context.write(ack_message(ack.first, ack.last, ack.statuses))
        stream.sent()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
