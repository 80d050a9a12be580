"""What is written to a connection whose other end takes little at a time."""

import asyncio
from typing import Final

import pytest

from ledger.transport.connection import (
    _UNSENT_BYTES_HIGH,
    _UNSENT_BYTES_LOW,
    _WRITTEN_BYTES_MAX,
    Connection,
    new_scratch,
)
from ledger.transport.framing import HEADER_BYTES, Budget, FrameKind, frame_header

LARGE: Final = bytes(range(256)) * (8 * 1024)


class Narrow(asyncio.Transport):
    """Takes *room* bytes, and then no more until `drain` makes room."""

    def __init__(self, protocol: asyncio.BaseProtocol, room: int) -> None:
        super().__init__()
        self.protocol, self.room = protocol, room
        self.taken, self.kept = bytearray(), bytearray()
        self.written: list[object] = []
        self.closing = self.ended = self.lost = False
        self.high = -1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert low is None
        self.high = high or 0

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        assert not self.kept, "it would be cut off here"
        self.ended = True

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        assert not self.lost, "it has no event loop any more"
        self.closing = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        assert not self.ended
        assert len(data) <= _WRITTEN_BYTES_MAX
        self.written.append(data.obj if isinstance(data, memoryview) else data)
        now = 0 if self.kept else min(self.room, len(data))
        self.room -= now
        self.taken += data[:now]
        self.kept += data[now:]
        if len(self.kept) > self.high:
            self.protocol.pause_writing()

    def drain(self, room: int) -> None:
        now = min(room, len(self.kept))
        self.taken += self.kept[:now]
        del self.kept[:now]
        self.room = room - now
        if not self.kept:
            self.protocol.resume_writing()


class Told(Connection):
    """Notes when it is blocked, and when it is not any more."""

    def __init__(self) -> None:
        super().__init__(new_scratch(), body_bytes_max=1, budget=Budget(1))
        self.told: list[str] = []

    def blocked(self) -> None:
        self.told.append("blocked")

    def unblocked(self) -> None:
        self.told.append("unblocked")

    def lost(self, reason: str, /) -> None:
        self.told.append("lost")


def connected(room: int) -> tuple[Told, Narrow]:
    connection = Told()
    transport = Narrow(connection, room)
    connection.connection_made(transport)
    return connection, transport


@pytest.mark.parametrize("room", [1, HEADER_BYTES, 100_000, 1 << 20, 1 << 30])
def test_frames_arrive_whole_and_in_order_however_little_is_taken_at_once(room: int) -> None:
    connection, transport = connected(room)
    connection.send(FrameKind.ANSWER, 1, LARGE, b"tail")
    connection.send(FrameKind.ANSWER, 2, b"small")
    connection.send(FrameKind.ANSWER, 3, LARGE[1:])
    for _ in range(2000):
        transport.drain(max(room, 10_000))
    expected = frame_header(FrameKind.ANSWER, 1, len(LARGE) + 4) + LARGE + b"tail"
    expected += frame_header(FrameKind.ANSWER, 2, 5) + b"small"
    expected += frame_header(FrameKind.ANSWER, 3, len(LARGE) - 1) + LARGE[1:]
    assert transport.taken == expected
    assert connection.unsent_bytes == 0


def test_what_is_large_waits_where_it_is_and_not_as_a_copy() -> None:
    connection, transport = connected(0)
    connection.send(FrameKind.ANSWER, 1, LARGE)
    assert len(transport.kept) <= HEADER_BYTES + _WRITTEN_BYTES_MAX
    assert connection.unsent_bytes == HEADER_BYTES + len(LARGE)
    transport.drain(1 << 30)
    assert any(each is LARGE for each in transport.written)


def test_who_takes_too_little_is_told_of_once_and_again_when_there_is_room() -> None:
    connection, transport = connected(0)
    connection.send(FrameKind.ANSWER, 1, bytes(_UNSENT_BYTES_HIGH - HEADER_BYTES))
    assert (connection.is_blocked, connection.told) == (False, [])
    connection.send(FrameKind.ANSWER, 2)
    connection.send(FrameKind.ANSWER, 3)
    assert (connection.is_blocked, connection.told) == (True, ["blocked"])
    while connection.unsent_bytes > _UNSENT_BYTES_LOW:
        assert connection.told == ["blocked"]
        transport.drain(50_000)
    assert (connection.is_blocked, connection.told) == (False, ["blocked", "unblocked"])


async def test_the_end_follows_everything_that_was_written() -> None:
    connection, transport = connected(1000)
    connection.send(FrameKind.ANSWER, 1, LARGE)
    connection.end()
    connection.send(FrameKind.ANSWER, 2, b"too late")
    while connection.unsent_bytes:
        assert not transport.ended
        transport.drain(100_000)
        await asyncio.sleep(0)
    assert transport.ended
    assert transport.taken == frame_header(FrameKind.ANSWER, 1, len(LARGE)) + LARGE


def test_a_connection_that_breaks_lets_go_what_waits_and_is_given_no_more() -> None:
    connection, transport = connected(1000)
    connection.send(FrameKind.ANSWER, 1, LARGE)
    transport.abort()
    connection.resume_writing()  # else `Narrow` says so
    connection.connection_lost(None)
    transport.lost = True
    connection.abort()
    connection.send(FrameKind.ANSWER, 2, LARGE)
    assert connection.told[-1] == "lost"
    assert not connection._waiting
