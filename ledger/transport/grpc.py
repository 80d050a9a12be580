"""`BookieTransport` over gRPC: per bookie one stream for adds and one channel for the rest.

Decides nothing about ledgers: a bookie that refuses, hangs, breaks, answers nonsense or is
another one than was asked for is `Status.UNREACHABLE`, and nothing is repeated here. While a
bookie is down, adds fail at once except for one attempt to connect per back-off period.
Adds and reads have connections of their own, so a large read does not stand before an ack.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import grpc

from ledger.backoff import Backoff
from ledger.errors import BadMessage
from ledger.ids import BookieId
from ledger.log_events import get_logger
from ledger.requests import (
    AddRun,
    HeldAnswer,
    HeldQuery,
    InfoAnswer,
    LacAnswer,
    LacQuery,
    ReadAnswer,
    ReadQuery,
    Status,
)
from ledger.transport.channel import open_channel
from ledger.transport.messages import (
    BOOKIE_KEY,
    MESSAGE_BYTES_MAX,
    held_answer,
    held_request,
    info_answer,
    info_request,
    lac_answer,
    lac_request,
    read_answer,
    read_request,
    run_bytes,
)
from ledger.transport.session import BookieSession, SessionLimits
from ledger.transport.stub import BookieStub, UnaryCall
from ledger.transport.window import OnDone, WindowLimits

_BACKOFF_S_MIN: Final = 0.05
_BACKOFF_S_MAX: Final = 1.0
_CONNECT_S: Final = 2.0
_CONNECTING: Final = 0.4
"""The part of a longer time-out."""
_ARRIVE_S: Final = 1.0
"""How long closing waits for what was sent to arrive: an entry that is confirmed may still be on
its way to the slowest of its bookies, and nobody would send it again."""

_Answer = TypeVar("_Answer")
_log = get_logger(__name__)


def connecting_s(timeout_s: float) -> float:
    """Return within what time there has to be a connection if an answer may take *timeout_s*: who
    is not there is noticed sooner than who is slow."""
    return min(timeout_s, max(_CONNECT_S, _CONNECTING * timeout_s))


class GrpcTransport:
    """See the module's docstring. *resolve* gives a bookie's address, ``host:port``, now."""

    def __init__(
        self,
        resolve: Callable[[BookieId], str | None],
        *,
        timeout_s: float = 5.0,
        connect_timeout_s: float | None = None,
        batch_bytes_max: int = 512 * 1024,
        flight_bytes_max: int = 8 * 1024 * 1024,
        pending_bytes_max: int = 64 * 1024 * 1024,
    ) -> None:
        self._resolve = resolve
        self._limits = SessionLimits(
            timeout_s=timeout_s,
            connect_timeout_s=min(connect_timeout_s or connecting_s(timeout_s), timeout_s),
            window=WindowLimits(
                batch_bytes_max=batch_bytes_max,
                flight_bytes_max=flight_bytes_max,
                pending_bytes_max=pending_bytes_max,
            ),
        )
        self._links: dict[BookieId, _Link] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._closed = False

    def add(self, bookie: BookieId, run: AddRun, on_done: OnDone) -> None:
        loop = asyncio.get_running_loop()
        if run_bytes(run) > MESSAGE_BYTES_MAX:
            loop.call_soon(on_done, Status.BAD_REQUEST)
            return
        session = None if self._closed else self._session(bookie, loop.time())
        if session is None:
            loop.call_soon(on_done, Status.UNREACHABLE)
        else:
            session.add(run, on_done)

    async def read(self, bookie: BookieId, query: ReadQuery) -> ReadAnswer:
        request, timeout_s = read_request(query), self._limits.timeout_s + query.wait_ms / 1000
        answer = await self._ask(bookie, lambda stub: stub.read, request, read_answer, timeout_s)
        return ReadAnswer(Status.UNREACHABLE) if answer is None else answer

    async def read_lac(self, bookie: BookieId, query: LacQuery) -> LacAnswer:
        request, timeout_s = lac_request(query), self._limits.timeout_s
        answer = await self._ask(bookie, lambda stub: stub.read_lac, request, lac_answer, timeout_s)
        return LacAnswer(Status.UNREACHABLE) if answer is None else answer

    async def read_held(self, bookie: BookieId, query: HeldQuery) -> HeldAnswer:
        request, timeout_s = held_request(query), self._limits.timeout_s
        answer = await self._ask(
            bookie,
            lambda stub: stub.read_held,
            request,
            held_answer,
            timeout_s,
            unsupported=HeldAnswer(Status.UNREACHABLE, is_supported=False),
        )
        return HeldAnswer(Status.UNREACHABLE) if answer is None else answer

    async def info(self, bookie: BookieId) -> InfoAnswer | None:
        request, timeout_s = info_request(), self._limits.timeout_s
        return await self._ask(bookie, lambda stub: stub.info, request, info_answer, timeout_s)

    async def close(self) -> None:
        self._closed = True
        sessions = [link.session for link in self._links.values() if link.session is not None]
        try:
            async with asyncio.timeout(_ARRIVE_S):
                await asyncio.gather(*(session.answered() for session in sessions))
        except TimeoutError:
            late = [session.address for session in sessions if not session.is_idle]
            _log.warning("adds_given_up_at_close", bookies=late, within_s=_ARRIVE_S)
        for link in self._links.values():
            if link.session is not None:
                link.session.end("the transport was closed")
            if link.channel is not None:
                self._close_later(link.channel.close())
                link.channel = None
        while self._closing:
            await asyncio.wait(list(self._closing))
        await asyncio.sleep(0)  # the last answers are on their way to their callers

    def _session(self, bookie: BookieId, now: float) -> BookieSession | None:
        """Return a session that takes adds, a new one if need be; None while backing off."""
        link = self._links.setdefault(bookie, _Link())
        address = self._resolve(bookie)
        if link.session is not None and link.session.address != address:
            _log.info("bookie_moved", bookie=bookie, was=link.session.address, now=address)
            link.session.end("the bookie moved")
            link.retry_at = now
        if link.session is None and address is not None and now >= link.retry_at:
            link.session = BookieSession(bookie, address, self._limits, self._ended(bookie, link))
        return link.session

    def _ended(self, bookie: BookieId, link: "_Link") -> Callable[[BookieSession, bool, str], None]:
        def ended(session: BookieSession, connected: bool, reason: str) -> None:  # noqa: FBT001
            link.session = None
            if connected:
                link.backoff.reset()
            backoff_s = link.backoff.next()
            link.retry_at = asyncio.get_running_loop().time() + backoff_s
            self._close_later(session.gone())
            if not self._closed and backoff_s == _BACKOFF_S_MIN:  # then silence
                _log.info(
                    "bookie_session_ended", bookie=bookie, address=session.address, reason=reason
                )

        return ended

    async def _ask(
        self,
        bookie: BookieId,
        method: Callable[[BookieStub], UnaryCall],
        request: bytes,
        decode: Callable[[bytes, bytes], _Answer],
        timeout_s: float,
        *,
        unsupported: _Answer | None = None,
    ) -> _Answer | None:
        """Return what *decode* makes of the reply and *request*; None for no reply that counts, and
        *unsupported* if the bookie does not know the call."""
        stub = None if self._closed else self._stub(bookie)
        if stub is None:
            return None
        metadata = ((BOOKIE_KEY, bookie.encode()),)
        try:
            reply = await method(stub)(request, timeout=timeout_s, metadata=metadata)
            return decode(reply, request)
        except grpc.aio.AioRpcError as error:
            return unsupported if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
        except grpc.aio.UsageError:
            return None
        except BadMessage as error:
            _log.warning("bookie_sent_nonsense", bookie=bookie, reason=str(error))
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # not we were cancelled but the call: its channel was dropped

    def _stub(self, bookie: BookieId) -> BookieStub | None:
        link = self._links.setdefault(bookie, _Link())
        address = self._resolve(bookie)
        if link.channel is not None and link.channel_address != address:
            self._close_later(link.channel.close(grace=self._limits.timeout_s))
            link.channel = None
        if link.channel is None and address is not None:
            link.channel = open_channel(address, connect_timeout_s=self._limits.connect_timeout_s)
            link.channel_address = address
        return None if link.channel is None else BookieStub(link.channel)

    def _close_later(self, closing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(_finish(closing))
        self._closing[task] = None
        task.add_done_callback(lambda done: self._closing.pop(done, None))


class _Link:
    """What the transport keeps of one bookie."""

    def __init__(self) -> None:
        self.session: BookieSession | None = None
        self.backoff = Backoff(_BACKOFF_S_MIN, _BACKOFF_S_MAX)
        self.retry_at = 0.0
        self.channel: grpc.aio.Channel | None = None
        self.channel_address = ""


async def _finish(closing: Awaitable[None]) -> None:
    await closing
