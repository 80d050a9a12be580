"""One life of the connection for adds between this process and one bookie.

Self-clocked: what has queued while the last write was taken leaves with the next one; no
timer delays anything. A small run leaves at once if nothing else is open: most adds are of a writer
that waits for each. An ack reaches its callers in the turn of the loop in which it came. The
first trouble of any kind ends the session: everything open is answered with UNREACHABLE, in
order, and the transport makes a new session for the next add. Nothing is sent twice here:
whether to repeat is the protocol's decision.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.errors import BadMessage
from ledger.ids import BookieId, BookieIdentity
from ledger.requests import AddRun, Status
from ledger.transport.client_connection import ClientConnection, Way, connect
from ledger.transport.framing import Frame, FrameKind
from ledger.transport.handshake import Purpose, hello_to
from ledger.transport.messages import ack_values
from ledger.transport.window import AddWindow, OnDone, WindowLimits

AT_ONCE_BYTES_MAX: Final = 16 * 1024
"""A larger run leaves at the end of the turn, with what is added beside it."""
_HELD_S_MAX: Final = 60.0
"""So long a bookie may say that it reads nothing; it says so again then."""
EXCHANGED: Final = "another connection follows it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    timeout_s: float = 5.0
    """No answer to a run within this time ends the session."""
    connect_timeout_s: float = 2.0
    window: WindowLimits = field(default_factory=WindowLimits)


class BookieSession:
    """See the module's docstring. *on_end* is called once: whether it ever connected, and why
    it ended. *message* makes the message of a batch; *flush_soon* is asked to call `flush` in the
    next turn of the loop."""

    def __init__(
        self,
        bookie: BookieId,
        way: Way,
        limits: SessionLimits,
        scratch: memoryview,
        *,
        message: Callable[[Sequence[AddRun]], bytes],
        flush_soon: Callable[["BookieSession"], None],
        on_end: Callable[["BookieSession", bool, str], None],
    ) -> None:
        self.way = way
        self.address = way.address
        self.ended = False
        self.is_watched = True
        """Whether readers may wait at the bookie for news of what this process adds to."""
        self._generation = way.generation
        self._bookie = bookie
        self._before: BookieSession | None = None
        self._after: BookieSession | None = None
        self._limits = limits
        self._message = message
        self._flush_soon = flush_soon
        self._on_end = on_end
        self._window = AddWindow(limits.window)
        self._loop = asyncio.get_running_loop()
        self.used_at = self.made_at = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._held_until = 0.0
        """Until then the bookie reads nothing: a quota. It is not silent for that."""
        self._idle: asyncio.Event | None = None
        """Set when all was answered; there is one once somebody waits for that."""
        self._connection = ClientConnection(
            hello_to(Purpose.ADDS, bookie, way.meant),
            scratch,
            on_frame=self._acked,
            on_room=self._more,
            on_lost=self.end,
        )
        self._connecting = self._loop.create_task(self._connect(), name=f"adds to {bookie}")

    def add(self, run: AddRun, on_done: OnDone, size_bytes: int) -> None:
        """Send *run*, which takes *size_bytes* of a message, or queue it. Requires that the session
        has not ended."""
        assert not self.ended
        window, connection = self._window, self._connection
        now = self.used_at = self._loop.time()
        may_send = connection.was_ready and self._before is None and not connection.is_blocked
        if may_send and size_bytes <= AT_ONCE_BYTES_MAX and window.is_empty:
            batch = window.begin(run, on_done, size_bytes, now=now)
            connection.send(FrameKind.ADD, batch, self._message((run,)))
        elif window.offer(run, on_done, size_bytes, now=now):
            self._flush_soon(self)
        else:
            self._loop.call_soon(on_done, Status.TOO_MANY_REQUESTS)
            return
        if self._watchdog is None:
            self._watch(now)

    def flush(self) -> None:
        """Send what may leave now."""
        if self._before is not None and not self._before.is_idle:
            return  # it flushes this one at its end
        connection = self._connection
        while connection.is_ready and not connection.is_blocked:
            batch = self._window.take()
            if batch is None:
                return
            connection.send(FrameKind.ADD, batch[0], self._message(batch[1]))

    def end(self, reason: str) -> None:
        """Answer everything open with UNREACHABLE and let the connection go; idempotent."""
        if self.ended:
            return
        self.ended = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        for on_done in self._window.drain():
            self._loop.call_soon(on_done, Status.UNREACHABLE)
        if self._idle is not None:
            self._idle.set()
        self._connecting.cancel()
        self._connection.abort()
        before, self._before = self._before, None
        if before is not None:
            before.end(reason)
        after, self._after = self._after, None
        if after is not None:
            after.go_on()
        self._on_end(self, self._connection.was_ready, reason)

    def follow(self, before: "BookieSession") -> None:
        """Take over from *before*, which gets no more adds: send nothing until it has answered
        all that it was given, then let it go. So a connection is exchanged without a lost add, and
        adds stay in order."""
        self._before = before
        before.succeed_by(self)

    def succeed_by(self, after: "BookieSession") -> None:
        self._after = after
        self._look_for_end()

    def go_on(self) -> None:
        """Send: the session before this one has ended."""
        self._before = None
        self._more()
        if self._idle is not None and self.is_idle:
            self._idle.set()

    def leads_to(self, meant: BookieIdentity | None) -> bool:
        """Whether it adds to who is *meant* by now."""
        return self.way.leads_to(self._connection.met, meant)

    @property
    def is_secured(self) -> bool:
        return self._connection.is_secured

    @property
    def was_refused(self) -> bool:
        return self._connection.was_refused

    def is_outdated(self, now: float) -> bool:
        """Whether the files that it is secured with were renewed since, or it is too old."""
        security = self.way.security
        if security is None or not self.is_secured or self._after is not None:
            return False
        return self._generation != security.generation or now - self.made_at > security.age_s_max

    @property
    def is_idle(self) -> bool:
        """Whether every add was answered, those to the session before it among them."""
        before = self._before
        return self._window.oldest_at() is None and (before is None or before.is_idle)

    async def answered(self) -> None:
        """Wait until nothing is open. Requires that nothing is added meanwhile."""
        if not self.is_idle:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def gone(self) -> None:
        """Wait until the connection of an ended session is freed."""
        await asyncio.wait([self._connecting])
        await self._connection.gone()

    async def _connect(self) -> None:
        timeout_s = self._limits.connect_timeout_s
        reason = await connect(self._connection, self._bookie, self.way, timeout_s)
        if reason is None:
            self._more()
        else:
            self.end(reason)

    def _acked(self, frame: Frame) -> None:
        if frame.kind != FrameKind.ADDED:
            raise BadMessage("Frame", f"kind {frame.kind} answers no adds")
        first, last, statuses, held_ms, unwatched = ack_values(frame.body)
        self.is_watched = not unwatched
        if held_ms:
            self._held_until = self._loop.time() + min(held_ms / 1000, _HELD_S_MAX)
        window = self._window
        for on_done, status in window.acked(first, last, statuses):
            try:
                on_done(status)
            except Exception as error:  # noqa: BLE001 - not the session's trouble
                context = {"message": "an add's callback failed", "exception": error}
                self._loop.call_exception_handler(context)
        if not window.is_empty and window.has_queued:
            self._flush_soon(self)
        if self._idle is not None and self.is_idle:
            self._idle.set()
        if self._after is not None:
            self._look_for_end()

    def _look_for_end(self) -> None:
        """End if another session follows and all is answered."""
        if self._after is not None and self.is_idle and not self.ended:
            self.end(EXCHANGED)

    def _more(self) -> None:
        if self._window.has_queued:
            self._flush_soon(self)

    def _watch(self, now: float) -> None:
        """End the session if its oldest run is overdue, else look again when it would be."""
        oldest = self._window.oldest_at()
        if oldest is None:
            self._watchdog = None
        elif now >= (due := max(oldest, self._held_until) + self._limits.timeout_s):
            self.end(f"no answer within {self._limits.timeout_s:g} s")
        else:
            self._watchdog = self._loop.call_at(due, lambda: self._watch(self._loop.time()))
