"""One connection between client and bookie, at either end: moves bytes, decides nothing.

Driven by the event loop directly: no task, no stream, no queue between a socket and the code
that handles a frame. Bytes are received where they stay (`ledger.transport.framing`).
"""

import asyncio
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, cast

from google_crc32c import value as crc32c

from ledger.errors import BadMessage
from ledger.log_events import get_logger
from ledger.security.certificates import certificate_of_peer
from ledger.security.names import Certificate, Identity, source_of
from ledger.security.settings import why_failed
from ledger.transport.envelope import Buffer
from ledger.transport.framing import (
    HEADER,
    HEADER_BYTES,
    HEADER_CRC,
    SCRATCH_BYTES,
    Blocks,
    Budget,
    Frame,
    FrameKind,
    FrameReader,
    frame_header,
)
from ledger.transport.handshake import HANDSHAKE_BYTES_MAX

_JOINED_BYTES_MAX: Final = 16 * 1024
"""A body up to here is copied behind its header: cheaper than another call of the system."""
_WRITTEN_BYTES_MAX: Final = 256 * 1024
"""Given to the system at once: what it does not take of that, Python's loop copies."""
_UNSENT_BYTES_HIGH: Final = 1024 * 1024
"""From so much that was written and not taken by the system on, `Connection.is_blocked`."""
_UNSENT_BYTES_LOW: Final = 256 * 1024
"""And no more once it is down to this."""
_log = get_logger(__name__)


def new_scratch(size_bytes: int = SCRATCH_BYTES) -> memoryview:
    """Return memory to receive to, for all connections of one event loop."""
    return memoryview(bytearray(size_bytes))


class Backlog:
    """What several connections have written and the system has not taken, in bytes."""

    def __init__(self) -> None:
        self.unsent_bytes = 0


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. A subclass says what is done with what comes."""

    def __init__(
        self,
        scratch: memoryview,
        *,
        body_bytes_max: int,
        budget: Budget,
        piece_bytes_max: int | None = None,
        blocks: Blocks | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        """See `FrameReader`. *backlog*: where what is unsent is counted."""
        self.is_blocked = False
        """Whether the other end takes less than is written; `unblocked` says that it is over."""
        self.is_lost = False
        self.is_deaf = False
        """Whether what comes is thrown away."""
        self.is_secured = False
        self.certificate: Certificate | None = None
        """Of the other end, verified; None without TLS."""
        self.identity: Identity | None = None
        """Who the other end is by its certificate, at a bookie; None without TLS."""
        self.reader = FrameReader(
            scratch,
            body_bytes_max=body_bytes_max,
            budget=budget,
            piece_bytes_max=piece_bytes_max,
            blocks=blocks,
        )
        self._scratch = scratch
        self._greeting: bytearray | None = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._waiting: deque[memoryview] = deque()
        """What was written and not given to the system yet, by reference."""
        self._waiting_bytes = 0
        self._is_full = False
        """Whether the system has to take something before it is given more."""
        self.sent_bytes = 0
        """Of frames, taken by the system or not."""
        self._backlog = Backlog() if backlog is None else backlog
        self._noted_bytes = 0
        """How much of the backlog is this connection's."""

    # What a subclass does.

    def made(self) -> None:
        """The connection is there."""

    def greeted(self, received: bytes) -> bool:
        """Return whether *received* is all that the other end says before frames.

        Raises `BadMessage`."""
        raise NotImplementedError

    def took(self, frame: Frame) -> None:
        """Handle *frame*. Raises `BadMessage`."""
        raise NotImplementedError

    def took_all(self, frames: Sequence[Frame]) -> None:
        """Handle *frames*, which became whole together. Raises `BadMessage`."""
        for frame in frames:
            if self.is_deaf:
                return
            self.took(frame)

    def refused(self, error: BadMessage, received: bytes, /) -> None:
        """What came cannot be used; *received*: if it is all that came, what it was."""
        raise NotImplementedError

    def blocked(self) -> None:
        """Nothing should be written that can wait."""

    def unblocked(self) -> None:
        """More may be written."""

    def eased(self) -> None:
        """The other end has taken something that had to wait."""

    def settled(self) -> None:
        """Something was answered."""

    def lost(self, reason: str, /) -> None:
        """The connection is gone. Called once, if it was ever made."""
        raise NotImplementedError

    # What a subclass uses.

    @property
    def is_greeting(self) -> bool:
        return self._greeting is not None

    @property
    def unsent_bytes(self) -> int:
        if self._transport is None:
            return 0
        return self._waiting_bytes + self._transport.get_write_buffer_size()

    @property
    def source(self) -> str:
        """Where it comes from, as limits count it."""
        return "" if self._transport is None else source_of(self._peername)

    @property
    def peer(self) -> str:
        return "" if self._transport is None else str(self._peername)

    def send(self, kind: FrameKind, number: int, *body: Buffer) -> None:
        """Write a frame with the parts of *body*, which nobody changes any more. What is written
        is never waited for: see `is_blocked`."""
        transport = self._transport
        if transport is None or self._ended or self.is_lost:
            return
        body_bytes = sum(map(len, body))
        may_write = not (self._waiting or self._is_full or self._noted_bytes)
        if body_bytes <= _JOINED_BYTES_MAX and may_write and not transport.is_closing():
            self.sent_bytes += HEADER_BYTES + body_bytes
            head = HEADER.pack(body_bytes, kind, number)
            transport.write(b"".join((head, HEADER_CRC.pack(crc32c(head)), *body)))
            if not self._is_full:
                return  # the system has taken all of it
            self._note(self.unsent_bytes)
            return
        parts: Iterable[Buffer] = (frame_header(kind, number, body_bytes), *body)
        if body_bytes <= _JOINED_BYTES_MAX:
            parts = (b"".join(parts),)
        for part in parts:
            self._waiting.append(memoryview(part))
            self._waiting_bytes += len(part)
        self.sent_bytes += HEADER_BYTES + body_bytes
        self._write_waiting()
        if (unsent_bytes := self.unsent_bytes) != self._noted_bytes:
            self._note(unsent_bytes)
        if not self.is_blocked and unsent_bytes > _UNSENT_BYTES_HIGH:
            self.is_blocked = True
            self.blocked()

    @property
    def _peername(self) -> object:
        assert self._transport is not None
        return self._transport.get_extra_info("peername")

    def keep_alive(self, options: "Iterable[tuple[str, int]]") -> None:
        """Let the system find out when the other end's machine is gone. *options* are those of
        TCP, by name; systems that do not have one do without."""
        if self._transport is None or (sock := self._transport.get_extra_info("socket")) is None:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options:
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def keep_unsent(self, size_bytes: int) -> None:
        """Let the system keep about so much, 0: as it likes, of what it cannot send yet."""
        if self._transport is None or (sock := self._transport.get_extra_info("socket")) is None:
            return
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size_bytes)

    @property
    def is_reading(self) -> bool:
        return self._transport is not None and self._transport.is_reading()

    def say(self, data: bytes) -> None:
        """Write what is said before frames."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Read nothing until `resume`. Idempotent."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._transport.is_reading():
            self._transport.resume_reading()

    def end(self) -> None:
        """Say no more: what was written still arrives, then the other end learns that it is
        over. It is read from until then: to close before would take back what was written."""
        if self._transport is None or self._ended:
            return
        self._ended = True
        if not self._waiting:
            self._write_end(self._transport)

    def abort(self) -> None:
        """End it at once. Idempotent."""
        # A transport that ended after all was sent has no loop any more, and would raise.
        if self._transport is not None and not self.is_lost:
            self._transport.abort()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: the transports of other event loops are none by name.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=1)  # 0 would be always, with TLS
        ssl_object = transport.get_extra_info("ssl_object")
        self.is_secured = ssl_object is not None
        self.certificate = certificate_of_peer(ssl_object)
        self.made()

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self.is_deaf:
            return self._scratch
        if self._greeting is None:
            reader = self.reader
            return reader.room() if reader.pieces else reader.scratch
        return self._scratch[: HANDSHAKE_BYTES_MAX + 1 - len(self._greeting)]

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_deaf:
            return
        received = b""
        try:
            if self._greeting is not None:
                received = bytes(self._greeting + self._scratch[:nbytes])
                self._greeting += self._scratch[:nbytes]
                if self.greeted(received):
                    self._greeting = None
                return
            self.took_all(self.reader.take(nbytes))
        except BadMessage as error:
            self.refused(error, received)
        except Exception:  # noqa: BLE001 - it is told, and the loop goes on
            _log.exception("connection_broken_by_a_fault", peer=self.peer)
            self.abort()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._write_waiting()
        if self._ended and not self._waiting and self._transport is not None:
            # Not from here: the loop is about to do so too, if it is told now.
            asyncio.get_running_loop().call_soon(self._write_end, self._transport)
        self._note(self.unsent_bytes)
        if self.is_blocked and self.unsent_bytes <= _UNSENT_BYTES_LOW:
            self.is_blocked = False
            self.unblocked()
        self.eased()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.reader.drop()
        self._waiting.clear()
        self._waiting_bytes = 0
        self._note(0)
        self.lost("the other end closed it" if exc is None else why_failed(exc))

    def _note(self, unsent_bytes: int) -> None:
        self._backlog.unsent_bytes += unsent_bytes - self._noted_bytes
        self._noted_bytes = unsent_bytes

    def _write_waiting(self) -> None:
        """Give the system what it takes now; it says by `pause_writing` that it is enough."""
        transport, waiting = self._transport, self._waiting
        assert transport is not None
        while waiting and not self._is_full and not transport.is_closing():
            part = waiting.popleft()
            if len(part) > _WRITTEN_BYTES_MAX:
                waiting.appendleft(part[_WRITTEN_BYTES_MAX:])
                part = part[:_WRITTEN_BYTES_MAX]
            self._waiting_bytes -= len(part)
            transport.write(part)

    def _write_end(self, transport: asyncio.Transport) -> None:
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # the other end took it down, and the loop has not come to that yet
                transport.abort()
        else:
            transport.close()
