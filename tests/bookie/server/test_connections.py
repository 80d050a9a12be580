"""What a client's connection gets of a bookie, and what it does not."""

import asyncio
import errno
from contextlib import AsyncExitStack

import pytest

from bookie.server.limits import ClientLimits
from bookie.server.listener import _ClientConnection
from ledger.requests import HeldQuery, LacQuery, ReadQuery, Status
from ledger.transport.connection import Connection, new_scratch
from ledger.transport.framing import Budget, Frame, FrameKind
from ledger.transport.handshake import Purpose
from ledger.transport.messages import (
    ack_values,
    batch_message,
    held_request,
    info_answer,
    info_request,
    lac_request,
    read_answer,
    read_request,
)
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.by_hand import Peer, greeted
from tests.ledger.serving import BOOKIE, Bookie, add, serving, transport_to, until
from tests.waiting import PATIENCE_S


def only_connection(bookie: Bookie) -> _ClientConnection:
    (connection,) = bookie.server.connections
    return connection


async def acked(peer: Peer, last: int) -> None:
    """Wait for good answers, in order, up to batch *last*."""
    done = 0
    while done < last:
        frame = await peer.frame()
        _, done, statuses, _, _ = ack_values(frame.body)
        assert (frame.kind, frame.number, statuses) == (FrameKind.ADDED, done, [])


async def test_a_writer_with_too_many_open_batches_is_not_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.add_connection.STREAM_BATCHES_MAX", 4)
    async with serving() as bookie, greeted(bookie.address) as peer:
        bookie.storage.gate.clear()
        for batch in range(1, 21):
            peer.add(batch, run_of(batch))
        await until(lambda: not only_connection(bookie).is_reading)
        assert list(bookie.storage.ledgers[7]) == [1, 2, 3, 4]
        bookie.storage.gate.set()
        await acked(peer, 20)
        await until(lambda: only_connection(bookie).is_reading)
        peer.add(21, run_of(21))
        await peer.frame()


async def test_an_ack_says_whether_a_read_waits_or_has_lately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.core.WATCHED_BATCHES", 2)

    async with (
        serving() as bookie,
        greeted(bookie.address) as peer,
        transport_to(bookie.address) as reader,
    ):

        async def unwatched(batch: int, ledger_id: int = 7) -> bool:
            peer.add(batch, run_of(batch, ledger_id=ledger_id))
            return ack_values((await peer.frame()).body)[-1]

        assert await unwatched(1)
        query = ReadQuery(7, KEY, 2, 2, bytes_max=1, wait_ms=60_000)
        reading = asyncio.create_task(reader.read(BOOKIE, query))
        await until(lambda: bookie.service.core.waiting_reads == 1)
        assert await unwatched(2, ledger_id=8), "of another ledger"
        assert not await unwatched(3)
        reading.cancel()
        await until(lambda: bookie.service.core.waiting_reads == 0)
        assert [await unwatched(batch) for batch in (4, 5, 6)] == [False, True, True]


async def test_a_batch_does_not_pass_the_one_before_it_that_needs_the_disk() -> None:
    storage = MemoryStorage()
    async with serving(storage) as bookie, greeted(bookie.address) as peer:
        storage.cold = {7}
        for batch in range(1, 4):
            peer.add(batch, run_of(batch, ledger_id=7 if batch == 1 else 8))
        await acked(peer, 3)
        assert (list(storage.ledgers[7]), list(storage.ledgers[8])) == ([1], [2, 3])


async def test_no_acks_are_made_for_a_writer_that_does_not_take_them() -> None:
    async with serving() as bookie, greeted(bookie.address) as peer:
        peer.add(1, run_of(1))
        await acked(peer, 1)
        connection = only_connection(bookie)
        connection.is_blocked = True
        commits = bookie.storage.commits
        peer.add(2, run_of(2))
        await until(lambda: bookie.storage.commits > commits)
        await until(lambda: bookie.service._core.durable == 2)
        handler = connection._handler
        assert handler is not None
        assert not handler.is_done, "it counts among the open batches"
        connection.resume_writing()
        await acked(peer, 2)


async def test_what_a_writer_asks_out_of_place_ends_its_connection() -> None:
    async with serving() as bookie:
        for kind, number, body in (
            (FrameKind.READ, 1, read_request(ReadQuery(7, KEY, 0, 0))),
            (FrameKind.ADD, 2, batch_message([run_of(0)])),
            (FrameKind.ADD, 1, b"nonsense"),
        ):
            async with greeted(bookie.address) as peer:
                peer.send(kind, number, body)
                assert await peer.rest() == b""
        assert bookie.storage.ledgers == {}


async def test_what_was_taken_is_answered_before_a_writer_is_shown_out() -> None:
    async with serving() as bookie, greeted(bookie.address) as peer:
        bookie.storage.gate.clear()
        peer.add(1, run_of(1))
        peer.add(9, run_of(9))
        peer.add(2, run_of(2))
        await until(lambda: 1 in bookie.storage.ledgers.get(7, {}))
        bookie.storage.gate.set()
        await acked(peer, 1)
        assert await peer.rest() == b""
        assert list(bookie.storage.ledgers[7]) == [1]


async def asked(peer: Peer, kind: FrameKind, number: int, body: bytes) -> Frame:
    peer.send(kind, number, body)
    return await peer.frame()


async def test_questions_are_answered_in_any_order() -> None:
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as peer:
        poll = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        peer.send(FrameKind.READ, 1, poll)
        frame = await asked(peer, FrameKind.INFO, 2, info_request())
        assert (frame.kind, frame.number) == (FrameKind.ANSWER, 2)
        assert info_answer(frame.body, info_request()).bookie == BOOKIE
        async with transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0)) is Status.OK
            assert await add(transport, run_of(1, lac=0)) is Status.OK
        frame = await peer.frame()
        assert (frame.kind, frame.number) == (FrameKind.ANSWER, 1)
        assert list(read_answer(frame.body, poll).entries) == [0]


async def test_a_kind_of_question_that_is_not_known_is_answered_so() -> None:
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as peer:
        for number, kind in enumerate((FrameKind.ANSWER, FrameKind.NOT_KNOWN, FrameKind.ADD), 1):
            frame = await asked(peer, kind, number, b"")
            assert frame == Frame(FrameKind.NOT_KNOWN, number, b"")
        assert (await asked(peer, FrameKind.INFO, 9, info_request())).kind == FrameKind.ANSWER


@pytest.mark.parametrize(
    "body", [b"nonsense", bytes(5000), info_request()], ids=["nonsense", "too long", "another"]
)
async def test_a_question_that_cannot_be_used_ends_the_connection(body: bytes) -> None:
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as peer:
        peer.send(FrameKind.READ, 1, body)
        assert await peer.rest() == b""


async def test_the_number_of_a_question_is_never_used_again() -> None:
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as peer:
        assert (await asked(peer, FrameKind.INFO, 5, info_request())).number == 5
        peer.send(FrameKind.INFO, 5, info_request())
        assert await peer.rest() == b""


async def test_a_read_that_is_cancelled_ends_at_the_bookie_too() -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        poll = asyncio.ensure_future(
            transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        )
        await until(lambda: bool(bookie.service._until_changed))
        poll.cancel()
        await asyncio.wait([poll])
        await until(lambda: not bookie.service._until_changed)
        assert bookie.server.room.left == type(bookie.server.room)().left
        assert len(bookie.server.connections) == 1


async def test_a_read_that_took_too_long_ends_at_the_bookie_too() -> None:
    storage = MemoryStorage()
    async with (
        serving(storage) as bookie,
        transport_to(bookie.address, timeout_s=0.05) as transport,
    ):
        storage.gate.clear()
        answer = await transport.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))
        assert answer.status is Status.UNREACHABLE
        await until(lambda: not bookie.service._until_durable or _all_cancelled(bookie))
        storage.gate.set()


def _all_cancelled(bookie: Bookie) -> bool:
    return all(future.cancelled() for _, future in bookie.service._until_durable)


async def test_a_reader_that_takes_nothing_for_too_long_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving(limits=ClientLimits(slow_s_max=0.05)) as bookie:
        async with transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with greeted(bookie.address, Purpose.ASKS) as peer:
            for number in range(1, 5):
                peer.send(FrameKind.READ, number, read_request(ReadQuery(7, KEY, 0, 0)))
            await until(lambda: not bookie.server.connections)


async def test_who_asks_for_nothing_makes_room_and_who_waits_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._IDLE_S_MAX", 0.05)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as waiting:
        request = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        waiting.send(FrameKind.READ, 1, request)
        await until(lambda: bool(bookie.service._until_changed))
        async with AsyncExitStack() as stack:
            idle = [
                await stack.enter_async_context(greeted(bookie.address, purpose))
                for purpose in (Purpose.ADDS, Purpose.ASKS)
            ]
            assert [await peer.rest() for peer in idle] == [b"", b""]
        assert len(bookie.server.connections) == 1
        bookie.service.stop_taking()
        answer = read_answer((await waiting.frame()).body, request)
        assert answer.status is Status.NO_SUCH_LEDGER


async def test_more_questions_than_a_bookie_takes_are_to_be_asked_again_later() -> None:
    async with serving() as bookie, transport_to(bookie.address) as transport:
        bookie.server.room.left = 0
        read = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        lac = await transport.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))
        held = await transport.read_held(BOOKIE, HeldQuery(7, KEY, 0, 0))
        assert {read.status, lac.status, held.status} == {Status.TOO_MANY_REQUESTS}
        assert bookie.storage.fenced == set()
        assert await transport.info(BOOKIE) is not None
        bookie.server.room.left = 1
        read = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert read.status is Status.NO_SUCH_LEDGER


async def test_a_bookie_that_stops_ends_connections_and_takes_no_new_ones() -> None:
    bookie = Bookie(MemoryStorage())
    await bookie.start()
    async with greeted(bookie.address) as adds, greeted(bookie.address, Purpose.ASKS) as asks:
        adds.add(1, run_of(1))
        await acked(adds, 1)
        stopping = asyncio.ensure_future(bookie.server.stop())
        assert (await adds.rest(), await asks.rest()) == (b"", b"")
        adds.writer.close()
        asks.writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await stopping
        with pytest.raises(ConnectionError):
            async with greeted(bookie.address):
                pass
    await bookie.service.close()


async def test_held_ranges_are_asked_for_on_the_same_connection() -> None:
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as peer:
        frame = await asked(peer, FrameKind.READ_HELD, 1, held_request(HeldQuery(7, KEY, 0, 0)))
        assert frame.kind == FrameKind.ANSWER
        frame = await asked(peer, FrameKind.READ_LAC, 2, lac_request(LacQuery(7, KEY)))
        assert frame.kind == FrameKind.ANSWER


async def test_ending_a_connection_that_the_other_end_has_taken_down_is_no_error() -> None:
    class Gone(asyncio.Transport):
        aborted = False

        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "not connected")

        def abort(self) -> None:
            self.aborted = True

    connection, gone = Connection(new_scratch(), body_bytes_max=1, budget=Budget(1)), Gone()
    connection._transport = gone
    connection.end()
    assert gone.aborted
