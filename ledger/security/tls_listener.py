"""Takes connections on a listening socket that may be secured, or have to be.

The first byte of who comes says which it is: TLS begins with 22, nothing of ours does. It is looked
at and left where it is. Until TLS is agreed, a client costs a socket and a handshake, for a few
seconds; how many do at a time is bounded.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from ledger.security.certificates import Security
from ledger.security.names import source_of
from ledger.security.settings import why_failed

PENDING_HANDSHAKES_MAX: Final = 256
"""Connections of which it is not known yet whether they are secured. One more ends the oldest of
them, or is closed if its own address has a quarter of them."""
HANDSHAKE_S_MAX: Final = 5.0
"""For the first byte, and for the handshake."""
SHUTDOWN_S_MAX: Final = 2.0
_AT_ONCE_MAX: Final = 2
"""Taken in one pass of the loop, which has better to do; the system keeps the others waiting."""
_AGAIN_S: Final = 1.0
_TLS: Final = 22

Factory = Callable[[], asyncio.BaseProtocol]


class TlsListener:
    """`start`, then `close` or `stop`; all on the event loop that serves."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Factory,
        security: Security,
        *,
        refused: Callable[[str, str], None] = lambda _peer, _reason: None,
        open_to_all: bool = False,
        pending_handshakes_max: int = PENDING_HANDSHAKES_MAX,
        handshake_s_max: float = HANDSHAKE_S_MAX,
    ) -> None:
        """*refused* hears of who did not get in: address and reason. Who does not speak TLS gets in
        all the same: *factory*'s protocol tells it what it needs, as its words are known there.
        *open_to_all*: a client may come without a certificate."""
        self._listening, self._factory, self._security = listening, factory, security
        self._refused, self._open_to_all = refused, open_to_all
        self._loop = asyncio.get_running_loop()
        self._pending_max, self._handshake_s_max = pending_handshakes_max, handshake_s_max
        self._pending: dict[asyncio.Task[None], str] = {}
        """Each with where it comes from; the oldest first."""
        self._of_source = Counter[str]()
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)

    def stop(self) -> None:
        """Take nobody more; who was not let in yet is closed. Idempotent."""
        if self._again is not None:
            self._again.cancel()
        if self._listening.fileno() != -1:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for task in tuple(self._pending):
            task.cancel()

    async def close(self) -> None:
        """Do as `stop`, and return when that is done."""
        self.stop()
        await asyncio.gather(*self._pending, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE_MAX):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptors are left; it would be reported again at once, for ever
                self._loop.remove_reader(self._listening)
                self._again = self._loop.call_later(_AGAIN_S, self.start)
                return
            source, most = source_of(address), max(1, self._pending_max // 4)
            if self._of_source[source] >= most:
                accepted.close()
                self._refused(str(address), f"{most} handshakes from there are pending already")
                continue
            if len(self._pending) >= self._pending_max:
                oldest = next(iter(self._pending))
                self._gone(oldest)
                oldest.cancel()
                self._refused(str(address), f"{self._pending_max} handshakes are pending already")
            accepted.setblocking(False)
            arrival = _Arrival(accepted)
            task = self._loop.create_task(self._let_in(arrival, str(address)))
            self._pending[task] = source
            self._of_source[source] += 1
            # Not by the task itself: one that is cancelled before its first step runs no line.
            task.add_done_callback(arrival.let_go)
            task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        source = self._pending.pop(task, None)
        if source is not None:
            self._of_source[source] -= 1
            if not self._of_source[source]:
                del self._of_source[source]

    async def _let_in(self, arrival: "_Arrival", address: str) -> None:
        accepted = arrival.accepted
        try:
            async with asyncio.timeout(self._handshake_s_max):
                first = await self._first_byte(accepted)
            if not first:
                return
            arrival.is_ours = False
            if first[0] != _TLS:
                await self._loop.connect_accepted_socket(self._factory, accepted)
            else:
                security = self._security
                await self._loop.connect_accepted_socket(
                    self._factory,
                    accepted,
                    ssl=security.open_server() if self._open_to_all else security.server(),
                    ssl_handshake_timeout=self._handshake_s_max,
                    ssl_shutdown_timeout=SHUTDOWN_S_MAX,
                )
        except TimeoutError:
            self._refused(address, f"it said nothing within {self._handshake_s_max:g} s")
        except OSError as error:
            self._refused(address, why_failed(error))

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Return the first byte of *accepted*, b"" if it went; the byte is read again later."""
        while True:
            try:
                return accepted.recv(1, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                readable = self._loop.create_future()
                self._loop.add_reader(accepted, _wake, readable)
                try:
                    await readable
                finally:
                    self._loop.remove_reader(accepted)


class _Arrival:
    """A socket that was accepted, until a transport has it and closes it."""

    def __init__(self, accepted: socket.socket) -> None:
        self.accepted = accepted
        self.is_ours = True

    def let_go(self, _: object) -> None:
        if self.is_ours:
            self.accepted.close()


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
