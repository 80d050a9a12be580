"""Frames on a connection: pure, and between a peer made by hand and a served bookie."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.server.limits import RejectReason
from ledger.entry import ENTRY_BYTES_MAX
from ledger.errors import BadMessage
from ledger.requests import ReadQuery, Status
from ledger.transport import framing
from ledger.transport.framing import (
    HEADER_BYTES,
    PIECE_BYTES_MAX,
    Budget,
    Frame,
    FrameKind,
    FrameReader,
    frame_header,
)
from ledger.transport.messages import batch_message
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.by_hand import Peer, greeted
from tests.ledger.serving import BOOKIE, Bookie, add, serving, transport_to, until
from tests.waiting import PATIENCE_S

FRAMES = st.lists(
    st.builds(
        Frame, st.sampled_from(FrameKind), st.integers(0, 2**64 - 1), st.binary(max_size=100)
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(1, 60), max_size=60)


def reader_of(budget: Budget | None = None, body_bytes_max: int = 100) -> FrameReader:
    scratch = memoryview(bytearray(40))
    return FrameReader(scratch, body_bytes_max=body_bytes_max, budget=budget or Budget(100))


def sent(frame: Frame) -> bytes:
    return frame_header(FrameKind(frame.kind), frame.number, len(frame.body)) + frame.body


def received(reader: FrameReader, data: bytes, cuts: list[int] | None = None) -> list[Frame]:
    """Return the frames of *data*, which arrives cut into pieces of these sizes."""
    frames, sizes = list[Frame](), iter(cuts or ())
    while data:
        room = reader.room()
        count = min(len(room), len(data), next(sizes, len(data)))
        room[:count] = data[:count]
        frames += reader.take(count)
        data = data[count:]
    return frames


@given(frames=FRAMES, cuts=CUTS, piece_bytes=st.integers(40, 100))
def test_frames_are_put_together_however_their_bytes_arrive(
    frames: list[Frame], cuts: list[int], piece_bytes: int
) -> None:
    budget = Budget(100)
    reader = reader_of(budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "PIECE_BYTES_MAX", piece_bytes)
        assert received(reader, b"".join(map(sent, frames)), cuts) == frames
    assert not reader.is_under_way
    assert budget.left_bytes == 100


@given(frames=FRAMES.filter(bool), cuts=CUTS, data=st.data())
def test_what_is_cut_off_is_under_way_and_gives_its_room_back(
    frames: list[Frame], cuts: list[int], data: st.DataObject
) -> None:
    budget = Budget(100)
    reader = reader_of(budget)
    whole = b"".join(map(sent, frames))
    end = data.draw(st.integers(0, len(whole) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "PIECE_BYTES_MAX", 40)
        got = received(reader, whole[:end], cuts)
    assert got == frames[: len(got)]
    assert reader.is_under_way == (len(b"".join(map(sent, got))) < end)
    reader.drop()
    assert (reader.is_under_way, budget.left_bytes) == (False, 100)


@given(at=st.integers(0, HEADER_BYTES - 1), bit=st.integers(0, 7), cuts=CUTS)
def test_a_header_with_a_bit_changed_is_refused(at: int, bit: int, cuts: list[int]) -> None:
    damaged = bytearray(sent(Frame(FrameKind.ADD, 7, b"body")))
    damaged[at] ^= 1 << bit
    with pytest.raises(BadMessage, match="checksum of its header"):
        received(reader_of(), bytes(damaged), cuts)


def test_a_body_that_is_too_long_is_refused_by_its_header() -> None:
    reader = reader_of()
    with pytest.raises(BadMessage, match="it has 101 bytes, and may have 100"):
        received(reader, frame_header(FrameKind.ADD, 1, 101))
    assert not reader.is_under_way


def test_a_body_takes_memory_as_it_arrives_and_not_as_its_header_says() -> None:
    budget = Budget()
    scratch = memoryview(bytearray(1000))
    reader = FrameReader(scratch, body_bytes_max=1 << 31, budget=budget)
    received(reader, frame_header(FrameKind.ADD, 1, 1 << 31) + b"x")
    assert (reader.paid_bytes, budget.left_bytes) == (0, budget.bytes_max), "a few KiB at most"
    came_bytes = 1
    while came_bytes < 5 * PIECE_BYTES_MAX:
        received(reader, bytes(1000))
        came_bytes += 1000
        assert reader.paid_bytes <= came_bytes + min(came_bytes, PIECE_BYTES_MAX)
    assert budget.bytes_max - budget.left_bytes == reader.paid_bytes


def test_whose_body_came_whole_is_believed_as_much_again() -> None:
    reader = FrameReader(memoryview(bytearray(1000)), body_bytes_max=1 << 31, budget=Budget())
    assert received(reader, sent(Frame(FrameKind.ADD, 1, bytes(300_000))))
    received(reader, frame_header(FrameKind.ADD, 2, 1 << 30) + b"x")
    assert reader.paid_bytes == 300_000
    reader.drop()
    assert received(reader, sent(Frame(FrameKind.ADD, 3, bytes(3 * PIECE_BYTES_MAX))))
    received(reader, frame_header(FrameKind.ADD, 4, 1 << 30) + b"x")
    assert reader.paid_bytes == PIECE_BYTES_MAX


def test_all_connections_together_hold_no_more_than_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "PIECE_BYTES_MAX", 40)
    monkeypatch.setattr(framing, "BELIEVED_BYTES", 1)
    budget = Budget(100)
    one, other = reader_of(budget), reader_of(budget)
    begun = frame_header(FrameKind.ADD, 1, 100) + bytes(41)
    received(one, begun)
    assert budget.left_bytes == 20
    with pytest.raises(BadMessage, match="no room for large messages"):
        received(other, begun)
    other = reader_of(budget)
    assert received(other, sent(Frame(FrameKind.ADD, 1, bytes(20)))), "a small one needs none of it"
    one.drop()
    assert received(other, begun + bytes(59)) == [Frame(FrameKind.ADD, 1, bytes(100))]
    assert budget.left_bytes == 100


async def test_the_largest_entry_arrives() -> None:
    storage = MemoryStorage()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        run = run_of(0, payload=bytes(ENTRY_BYTES_MAX))
        assert await add(transport, run) is Status.OK
        assert await add(transport, run_of(1)) is Status.OK
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert answer.frames == run.frames
        assert bookie.server.budget.left_bytes == bookie.server.budget.bytes_max


@pytest.mark.parametrize("here", [0, 10, 3 * PIECE_BYTES_MAX // 2], ids=["head", "body", "pieces"])
async def test_a_message_that_is_never_completed_does_not_keep_its_room(
    here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.server.listener._PIECE_S_MAX", 0.05)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, asyncio.timeout(PATIENCE_S):
        async with greeted(bookie.address) as peer:
            header = frame_header(FrameKind.ADD, 1, 2 * PIECE_BYTES_MAX)
            peer.writer.write(header[: None if here else 7] + bytes(here))
            assert await peer.rest() == b""
        budget = bookie.server.budget
        assert budget.left_bytes == budget.bytes_max
        assert not bookie.server.connections


ROOM_BYTES = 256 * 1024


@asynccontextmanager
async def half_a_message(came_bytes: int) -> AsyncIterator[tuple[Bookie, Peer]]:
    """Yield a bookie with little room for messages that are not whole, and who has sent so much
    of a large one."""
    async with serving() as bookie, greeted(bookie.address) as peer, asyncio.timeout(PATIENCE_S):
        budget = bookie.server.budget
        budget.left_bytes = budget.bytes_max = ROOM_BYTES
        peer.send(FrameKind.ADD, 1, bytes(came_bytes), length=2 * PIECE_BYTES_MAX)
        await until(lambda: ROOM_BYTES - budget.left_bytes >= came_bytes)
        yield bookie, peer
        peer.writer.transport.abort()
        await until(lambda: budget.left_bytes == budget.bytes_max)


async def test_the_clients_of_a_bookie_share_its_room_and_the_largest_message_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._STALLED_S", PATIENCE_S)
    monkeypatch.setattr("bookie.server.listener._STIFLED_S", 0.01)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with half_a_message(100_000) as (bookie, first), greeted(bookie.address) as second:
        second.send(FrameKind.ADD, 1, bytes(250_000), length=2 * PIECE_BYTES_MAX)
        assert await second.rest() == b""
        assert not first.reader.at_eof()
        assert bookie.server.closed_connections == {RejectReason.STALLED: 1}
    async with half_a_message(200_000) as (bookie, first), greeted(bookie.address) as second:
        second.add(1, run_of(0, payload=bytes(150_000)))
        assert (await second.frame()).kind == FrameKind.ADDED
        assert await first.rest() == b""
        assert bookie.server.closed_connections == {RejectReason.STALLED: 1}


async def test_who_sends_no_more_of_a_message_makes_room_for_who_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._STALLED_S", 0.0)
    async with half_a_message(80_000) as (bookie, first), greeted(bookie.address) as second:
        second.add(1, run_of(0, payload=bytes(200_000)))
        assert (await second.frame()).kind == FrameKind.ADDED
        assert bookie.server.closed_connections == {RejectReason.STALLED: 1}
        assert not first.reader.at_eof(), "it would come again at once"
        stifled = [each for each in bookie.server.connections if not each.is_reading]
        assert [each.reader.is_under_way for each in stifled] == [False]


async def test_batches_arrive_however_slowly_their_bytes_do() -> None:
    async with serving() as bookie, greeted(bookie.address) as peer:
        message = batch_message([run_of(0)])
        for byte in frame_header(FrameKind.ADD, 1, len(message)) + message:
            peer.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        frame = await peer.frame()
        assert (frame.kind, frame.number) == (FrameKind.ADDED, 1)
        assert list(bookie.storage.ledgers[7]) == [0]
