"""A server between a client and a bookie that damages what passes through it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from ledger.transport.channel import open_channel, server_options
from ledger.transport.stub import SERVICE, BookieStub, UnaryCall
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[bytes, bytes]

Damage = Callable[[bytes], bytes]
Unary = Callable[[bytes, "Context"], Awaitable[bytes]]


def unharmed(message: bytes) -> bytes:
    return message


def flipped(at: int, bit: int = 0) -> Damage:
    """Flip one bit of the byte at *at*, which counts from the end if it is negative."""

    def flip(message: bytes) -> bytes:
        damaged = bytearray(message)
        damaged[at] ^= 1 << bit
        return bytes(damaged)

    return flip


def replaced(old: bytes, new: bytes) -> Damage:
    """Put *new* where *old* is; it must be there, once."""

    def replace(message: bytes) -> bytes:
        assert message.count(old) == 1
        return message.replace(old, new)

    return replace


class Middleman:
    """Passes every call on. Set `to_bookie` and `to_client` to what shall happen on the way."""

    def __init__(self, stub: BookieStub) -> None:
        self.to_bookie: Damage = unharmed
        self.to_client: Damage = unharmed
        self.address = ""
        self.trouble: list[AssertionError] = []
        """Of damages that did not find what they damage."""
        self._stub = stub

    def handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        return {
            "Add": grpc.stream_stream_rpc_method_handler(self._add),
            "Read": grpc.unary_unary_rpc_method_handler(self._unary(self._stub.read)),
            "ReadLac": grpc.unary_unary_rpc_method_handler(self._unary(self._stub.read_lac)),
            "Info": grpc.unary_unary_rpc_method_handler(self._unary(self._stub.info)),
        }

    def _up(self, message: bytes) -> bytes:
        return self._damaged(self.to_bookie, message)

    def _down(self, message: bytes) -> bytes:
        return self._damaged(self.to_client, message)

    def _damaged(self, damage: Damage, message: bytes) -> bytes:
        try:
            return damage(message)
        except AssertionError as error:
            self.trouble.append(error)
            raise

    def _unary(self, call: UnaryCall) -> Unary:
        async def pass_on(request: bytes, context: "Context") -> bytes:
            try:
                return self._down(await call(self._up(request)))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")

        return pass_on

    async def _add(self, _requests: object, context: "Context") -> None:
        call = self._stub.add()

        async def up() -> None:
            while isinstance(message := await context.read(), bytes):
                await call.write(self._up(message))

        await context.send_initial_metadata(())
        going_up = asyncio.ensure_future(up())
        try:
            while isinstance(message := await call.read(), bytes):
                await context.write(self._down(message))
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()
            going_up.cancel()
            await asyncio.gather(going_up, return_exceptions=True)


@asynccontextmanager
async def between(bookie_address: str) -> AsyncIterator[Middleman]:
    """Serve a `Middleman` in front of the bookie at *bookie_address*."""
    channel = open_channel(bookie_address, connect_timeout_s=PATIENCE_S)
    middleman = Middleman(BookieStub(channel))
    server = grpc.aio.server(options=server_options(100))
    middleman.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    handlers = grpc.method_handlers_generic_handler(SERVICE, middleman.handlers())
    server.add_generic_rpc_handlers((handlers,))
    await server.start()
    try:
        yield middleman
    finally:
        await server.stop(None)
        await channel.close()
    if middleman.trouble:
        raise middleman.trouble[0]
