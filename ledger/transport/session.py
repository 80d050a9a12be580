"""One life of the Add stream between this process and one bookie.

Self-clocked: what has queued while the last write was taken leaves with the next one; no
timer delays anything. The first trouble of any kind ends the session: everything open is
answered with UNREACHABLE, in order, and the transport makes a new session for the next add.
Nothing is sent twice here: whether to repeat is the protocol's decision.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import grpc

from ledger.errors import BadMessage
from ledger.ids import BookieId
from ledger.requests import AddRun, Status
from ledger.transport.channel import open_channel
from ledger.transport.messages import BOOKIE_KEY, ack_values, batch_message
from ledger.transport.parts import parts
from ledger.transport.stub import AddCall, BookieStub
from ledger.transport.window import AddWindow, OnDone, WindowLimits

_BROKEN: Final = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.CancelledError,
    asyncio.InvalidStateError,  # a write after the call has ended
)
"""How the library reports that a call is over; the last one also if it was cancelled here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    timeout_s: float = 5.0
    """No answer to a run within this time ends the session."""
    connect_timeout_s: float = 2.0
    window: WindowLimits = field(default_factory=WindowLimits)


class BookieSession:
    """See the module's docstring. *on_end* is called once: whether it ever connected, and why
    it ended."""

    def __init__(
        self,
        bookie: BookieId,
        address: str,
        limits: SessionLimits,
        on_end: Callable[["BookieSession", bool, str], None],
    ) -> None:
        self.address = address
        self.ended = False
        self._bookie = bookie
        self._limits = limits
        self._on_end = on_end
        self._connected = False
        self._window = AddWindow(limits.window)
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._call: AddCall | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        """Set when all was answered; there is one once somebody waits for that."""
        self._task = self._loop.create_task(self._run(), name=f"adds to {bookie}")

    def add(self, run: AddRun, on_done: OnDone) -> None:
        """Queue *run*. Requires that the session has not ended."""
        assert not self.ended
        now = self._loop.time()
        if not self._window.offer(run, on_done, now=now):
            self._loop.call_soon(on_done, Status.TOO_MANY_REQUESTS)
            return
        self._wake.set()
        if self._watchdog is None:
            self._watch(now)

    def end(self, reason: str) -> None:
        """Answer everything open with UNREACHABLE and let the connection go; idempotent."""
        if self.ended:
            return
        self.ended = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        for on_done in self._window.drain():
            self._loop.call_soon(on_done, Status.UNREACHABLE)
        self._wake.set()
        if self._idle is not None:
            self._idle.set()
        if self._call is not None:
            self._call.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        self._on_end(self, self._connected, reason)

    @property
    def is_idle(self) -> bool:
        """Whether every add was answered."""
        return self._window.oldest_at() is None

    async def answered(self) -> None:
        """Wait until nothing is open. Requires that nothing is added meanwhile."""
        if not self.is_idle:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def gone(self) -> None:
        """Wait until the connection of an ended session is freed."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        if self.ended:
            return
        channel = open_channel(self.address, connect_timeout_s=self._limits.connect_timeout_s)
        call = self._call = BookieStub(channel).add(metadata=((BOOKIE_KEY, self._bookie.encode()),))
        sending: asyncio.Task[None] | None = None
        reason = "unexpected"
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                self._connecting = self._loop.create_task(call.wait_for_connection())
                await self._connecting
            self._connected = True
            sending = self._loop.create_task(self._send(call))
            await self._receive(call)
            reason = "the bookie ended it"
        except (*_BROKEN, TimeoutError, BadMessage) as error:
            reason = _told(error)
        finally:
            self.end(reason)
            # The library is asked to end, then left to finish what it had begun: operations that
            # outlive their event loop are reported to whichever loop runs next.
            if sending is not None:
                await asyncio.wait([sending])
            await call.code()
            await channel.close()

    async def _send(self, call: AddCall) -> None:
        with suppress(*_BROKEN):  # the receiver learns of it too
            while not self.ended:
                await self._wake.wait()
                self._wake.clear()
                while (batch := self._window.take()) is not None:
                    for part in parts(batch_message(*batch)):
                        await call.write(part)

    async def _receive(self, call: AddCall) -> None:
        while True:
            message = await call.read()
            if isinstance(message, bytes):
                for on_done, status in self._window.acked(*ack_values(message)):
                    # Not called from here: what it raises is not the session's trouble.
                    self._loop.call_soon(on_done, status)
                self._wake.set()
                if self._idle is not None and self.is_idle:
                    self._idle.set()
            else:
                return

    def _watch(self, now: float) -> None:
        """End the session if its oldest run is overdue, else look again when it would be."""
        oldest = self._window.oldest_at()
        if oldest is None:
            self._watchdog = None
        elif now >= (due := oldest + self._limits.timeout_s):
            self.end(f"no answer within {self._limits.timeout_s:g} s")
        else:
            self._watchdog = self._loop.call_at(due, lambda: self._watch(self._loop.time()))


def _told(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
