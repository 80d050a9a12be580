"""Forwarded commands between simulated processes: stands for connections of `dlog.aio.forward`.

Bytes are those that production encodes. A process that died ends its connections, a machine without
power says nothing, and what was sent on a connection that was dropped may still arrive.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from dlog.aio.forward import (
    ForwardClient,
    ForwardEndpoint,
    ForwardFailed,
    ForwardListener,
    Handle,
)
from dlog.protocol.forward_message import Failed, Reply, decode_command, encode_reply
from ledger.errors import LogError
from ledger.security.settings import Takes
from tests.simulation.kernel.scheduler import Action
from tests.simulation.kernel.sockets import Sockets

REFUSES: Final = ForwardFailed("it refuses", was_sent=False)
LOST: Final = ForwardFailed("the connection ended", was_sent=True)


class SimulatedListener:
    def __init__(self, sockets: Sockets, handle: Handle) -> None:
        self.sockets, self.handle = sockets, handle
        self.endpoint = ForwardEndpoint(
            sockets.process.name, sockets.machine.next_port(), Takes.PLAIN
        )
        _listeners[str(self.endpoint)] = self

    async def close(self) -> None:
        _listeners.pop(str(self.endpoint), None)
        for each in [each for each in self.sockets.open if isinstance(each, _Arrived)]:
            each.close()


class _Arrived:
    """A command at the process that leads."""

    def __init__(self, listener: SimulatedListener, source: Sockets, settle: Any) -> None:
        self._sockets, self._source, self._settle = listener.sockets, source, settle
        self._handle = listener.handle
        self._sockets.open[self] = None  # type: ignore[index]

    def begin(self, body: bytes) -> None:
        self._working = asyncio.ensure_future(self._work(body))

    async def _work(self, body: bytes) -> None:
        reply: Reply
        try:
            reply = await self._handle(decode_command(body))
        except LogError as error:
            reply = error
        except Exception as error:  # noqa: BLE001 - as production does
            reply = Failed(str(error))
        self._end(encode_reply(reply))

    def close(self) -> None:
        """The process died, or closed its replica: the other end learns of that."""
        self._end(LOST)

    def _end(self, outcome: bytes | ForwardFailed) -> None:
        if self._sockets.open.pop(self, self) is None:  # type: ignore[call-overload]
            self._sockets.carry(self._source, partial(self._settle, outcome))


_listeners: Final[dict[str, SimulatedListener]] = {}


def _here() -> Sockets:
    sockets = asyncio.get_running_loop().sockets  # type: ignore[attr-defined]
    assert isinstance(sockets, Sockets), "runs in a simulated process"
    return sockets


async def _open(_host: str, _incarnation: str, handle: Handle, *_: object) -> SimulatedListener:
    return SimulatedListener(_here(), handle)


async def _exchange(
    self: ForwardClient, endpoint: ForwardEndpoint, body: bytes, within_s: float
) -> bytes:
    try:
        async with asyncio.timeout(within_s):
            return await _exchanged(self, endpoint, body)
    except TimeoutError:
        raise ForwardFailed("no reply in time", was_sent=True) from None


async def _exchanged(self: ForwardClient, endpoint: ForwardEndpoint, body: bytes) -> bytes:
    here, loop = _here(), asyncio.get_running_loop()
    answer: asyncio.Future[bytes | ForwardFailed] = loop.create_future()
    pending: dict[asyncio.Future[Any], None] = vars(self).setdefault("pending", {})

    def settle(outcome: bytes | ForwardFailed) -> None:
        loop.call_soon(_resolve, answer, outcome)

    def arrive() -> None:
        listener = _listeners.get(str(endpoint))
        if listener is None or not listener.sockets.process.host.up:
            here.carry(here, partial(settle, REFUSES))
            return
        arrived = _Arrived(listener, here, settle)
        begin: Action = partial(arrived.begin, body)
        process = listener.sockets.process
        process.host.arrive(partial(process.loop.call_soon, begin))

    target = _listeners.get(str(endpoint))
    if target is not None and not target.sockets.machine.has_power:
        await answer  # nobody says anything, ever
    here.process.mark("command_forwarded")
    here._send(here.process.host, _host_of(target, here), arrive, in_order=True)
    pending[answer] = None
    try:
        outcome = await answer
    finally:
        del pending[answer]
    if isinstance(outcome, ForwardFailed):
        here.process.mark("forward_failed")
        raise ForwardFailed(outcome.reason, was_sent=outcome.was_sent)
    return outcome


def _host_of(target: SimulatedListener | None, here: Sockets) -> Any:
    return here.process.host if target is None else target.sockets.process.host


def _drop(self: ForwardClient) -> None:
    for answer in vars(self).get("pending", {}):
        _resolve(answer, LOST)


def _resolve(answer: "asyncio.Future[Any]", outcome: bytes | ForwardFailed) -> None:
    if not answer.done():
        answer.set_result(outcome)


@contextmanager
def forwarding() -> Iterator[None]:
    """Let replicas of simulated processes forward commands within the block."""
    honest = ForwardListener.__dict__["open"], ForwardClient._exchange, ForwardClient.drop
    ForwardListener.open = staticmethod(_open)  # type: ignore[assignment]
    ForwardClient._exchange = _exchange  # type: ignore[method-assign]
    ForwardClient.drop = _drop  # type: ignore[method-assign]
    try:
        yield
    finally:
        ForwardListener.open, ForwardClient._exchange, ForwardClient.drop = honest  # type: ignore[method-assign]
        _listeners.clear()
