"""Clients that take more than their share are ended, and others do not notice."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from bookie.server.admission import QUESTIONS_MAX
from bookie.server.limits import ClientLimits, RejectReason
from bookie.server.read_connection import QUESTIONS_BYTES_MAX, ReadConnection
from ledger.requests import ReadQuery, Status
from ledger.security.certificates import Security
from ledger.transport.framing import FrameKind, frame_header
from ledger.transport.handshake import Hello, Purpose, encode_hello
from ledger.transport.messages import read_answer, read_request
from tests.bookie.runs import KEY, run_of
from tests.certificates import certificate, put
from tests.ledger.by_hand import Peer, connected, greeted
from tests.ledger.serving import (
    BOOKIE,
    Bookie,
    Secured,
    add,
    secured,
    serving,
    transport_to,
    until,
)
from tests.waiting import PATIENCE_S


async def peer_from(stack: AsyncExitStack, host: str, bookie: Bookie) -> Peer:
    """Return a peer at *host* that has said nothing."""
    streams = await asyncio.open_connection("127.0.0.1", bookie.port, local_addr=(host, 0))
    peer = Peer(*streams)
    stack.callback(peer.writer.transport.abort)
    return peer


async def test_one_address_cannot_take_all_connections() -> None:
    limits = ClientLimits(connections_per_address_max=2)
    async with serving(limits=limits) as bookie, AsyncExitStack() as stack:
        await stack.enter_async_context(greeted(bookie.address))
        async with greeted(bookie.address), connected(bookie.address) as third:
            assert await third.rest() == b""
        await until(lambda: len(bookie.server.connections) == 1)
        await stack.enter_async_context(greeted(bookie.address))
        other = await peer_from(stack, "127.0.0.2", bookie)
        await until(lambda: len(bookie.server.connections) == 3)
        assert not other.reader.at_eof()
        assert bookie.server.closed_connections == {RejectReason.ADDRESS: 1}


async def test_strangers_of_one_address_leave_room_for_who_says_what_it_wants() -> None:
    limits = ClientLimits(pending_handshakes_max=8)
    async with serving(limits=limits) as bookie, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(greeted(bookie.address))
        for _ in range(2):
            await stack.enter_async_context(connected(bookie.address))
        await until(lambda: len(bookie.server.connections) == 4)
        async with connected(bookie.address) as third:
            assert await third.rest() == b""
        other = await peer_from(stack, "127.0.0.2", bookie)
        await until(lambda: bookie.server.places.pending_handshakes == 3)
        assert not other.reader.at_eof()


async def test_of_too_many_strangers_the_oldest_makes_room() -> None:
    limits = ClientLimits(pending_handshakes_max=4)
    async with serving(limits=limits) as bookie, AsyncExitStack() as stack:
        peers = [await peer_from(stack, f"127.0.0.{at}", bookie) for at in range(1, 6)]
        assert await peers[0].rest() == b""
        async with greeted(bookie.address):
            assert bookie.server.closed_connections[RejectReason.PENDING] >= 1


@pytest.mark.parametrize("tls", [False, True])
async def test_of_many_who_come_at_once_a_few_are_taken_in_each_pass_of_the_loop(
    tmp_path: Path, *, tls: bool
) -> None:
    if tls:
        security = Security(put(tmp_path, certificate("bookie")), serves=True)
        secured.set(Secured(security, security))
    async with serving() as bookie:
        address = ("127.0.0.1", bookie.port)
        with ExitStack() as stack:
            for _ in range(50):  # more than a pass takes, fewer than the system lets wait
                stack.enter_context(socket.create_connection(address))
            found = [0]
            while found[-1] < 50:
                await asyncio.sleep(0)
                found.append(strangers_of(bookie))
            await asyncio.sleep(0)  # the last ones begin
            assert max(later - now for now, later in pairwise(found)) <= 3  # asyncio may add one


def strangers_of(bookie: Bookie) -> int:
    taker = bookie.server._taker
    return len(bookie.server.connections) if taker is None else len(taker._pending)


async def test_one_connection_cannot_take_all_questions() -> None:
    limits = ClientLimits(questions_per_client_max=2)
    async with (
        serving(limits=limits) as bookie,
        greeted(bookie.address, Purpose.ASKS) as greedy,
        transport_to(bookie.address) as other,
    ):
        waiting = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        for number in range(1, 4):
            greedy.send(FrameKind.READ, number, waiting)
        frame = await greedy.frame()
        assert frame.number == 3
        assert read_answer(frame.body, waiting).status is Status.TOO_MANY_REQUESTS
        assert await add(other, run_of(0)) is Status.OK
        assert (await other.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


async def test_a_byte_now_and_then_does_not_keep_a_slow_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving(limits=ClientLimits(slow_s_max=0.2)) as bookie:
        async with transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie) as slow:

            def sips() -> bool:
                with suppress(BlockingIOError, ConnectionError):
                    slow.recv(1024)
                return bookie.server.closed_connections[RejectReason.SLOW] == 1

            await until(sips)
        await until(lambda: not bookie.server.connections)
        assert bookie.server.backlog.unsent_bytes == 0


async def test_when_too_much_is_due_to_all_the_slowest_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie), slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 14_000_000)
            monkeypatch.setattr("bookie.server.listener._BACKLOG_BYTES_MAX", 10_000_000)
            await until(lambda: bookie.server.backlog.unsent_bytes < 10_000_000)
            assert bookie.server.closed_connections[RejectReason.SLOW] >= 1
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


async def test_while_much_is_due_to_all_one_that_takes_its_answers_gets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK
        async with slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 1_000_000)
            monkeypatch.setattr("bookie.server.admission.BACKLOG_BYTES_MAX", 1_000_000)
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


async def test_a_client_that_takes_nothing_is_read_for_once_however_much_it_asks() -> None:
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie, questions=100):
            await until(lambda: bookie.server.room.left == QUESTIONS_MAX - 99)
            assert [each for each in bookie.server.connections if not each.is_reading]
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK
            assert bookie.service.read_entries == 2
            handlers = [each._handler for each in bookie.server.connections]
            assert not [
                each for each in handlers if isinstance(each, ReadConnection) and each._open
            ]
        await until(lambda: bookie.server.room.left == QUESTIONS_MAX)


async def test_of_many_questions_that_come_at_once_some_are_taken_in_each_pass_of_the_loop() -> (
    None
):
    async with serving() as bookie, greeted(bookie.address, Purpose.ASKS) as greedy:
        one = ask_for_all(1)
        greedy.writer.write(b"".join(map(ask_for_all, range(1, 2_001))))
        left = [bookie.server.room.left]
        while left[-1] > QUESTIONS_MAX - 2_000:
            await asyncio.sleep(0)
            left.append(bookie.server.room.left)
        taken_max = max(now - later for now, later in pairwise(left))
        assert 1 < taken_max <= QUESTIONS_BYTES_MAX // len(one) + 1


async def test_who_is_told_to_ask_much_again_is_told_some_of_it_in_each_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.admission.SLICE_S", 0.0)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie, questions=100):
            await until(lambda: bookie.server.room.left == QUESTIONS_MAX - 99)
            monkeypatch.setattr("bookie.server.read_connection.TURN_S_MAX", 0.0)
            left = [bookie.server.room.left]
            async with asyncio.timeout(PATIENCE_S):
                while left[-1] < QUESTIONS_MAX:
                    await asyncio.sleep(0)
                    left.append(bookie.server.room.left)
                    if left[-1] > left[0]:  # this look, or the next, does all of it
                        monkeypatch.setattr("bookie.server.listener._LOOK_S", 3600.0)
            assert max(later - now for now, later in pairwise(left)) == 32


def ask_for_all(number: int) -> bytes:
    """Return a question that waits for an entry that nobody adds."""
    request = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
    return frame_header(FrameKind.READ, number, len(request)) + request


async def test_a_client_gets_what_it_asked_for_as_it_takes_what_it_got() -> None:
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        request = read_request(ReadQuery(7, KEY, 0, 0))
        async with greeted(bookie.address, Purpose.ASKS) as peer:
            for number in range(1, 9):
                peer.send(FrameKind.READ, number, request)
            for number in range(1, 9):
                frame = await peer.frame()
                assert frame.number == number
                assert read_answer(frame.body, request).status is Status.OK
            (connection,) = (each for each in bookie.server.connections if each.sent_bytes > 1e6)
            await until(lambda: connection.is_reading)


async def test_who_takes_too_little_is_told_to_ask_again_later_and_not_read_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        request = read_request(ReadQuery(7, KEY, 0, 0))
        async with greeted(bookie.address, Purpose.ASKS) as peer:
            sent = [frame_header(FrameKind.READ, at, len(request)) + request for at in range(1, 5)]
            peer.writer.write(b"".join(sent))
            await until(lambda: any(each.sent_bytes > 1e6 for each in bookie.server.connections))
            monkeypatch.setattr("bookie.server.read_connection.TURN_S_MAX", 0.0)
            await until(lambda: bookie.server.room.left == QUESTIONS_MAX)
            statuses = []
            for _ in range(4):
                frame = await peer.frame()
                statuses.append(read_answer(frame.body, request).status)
            assert statuses == [Status.OK] + 3 * [Status.TOO_MANY_REQUESTS]
            peer.send(FrameKind.READ, 5, request)
            assert read_answer((await peer.frame()).body, request).status is Status.OK


async def test_a_client_to_whom_nothing_is_due_gets_its_turn_when_slow_ones_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        monkeypatch.setattr("bookie.server.admission.BACKLOG_BYTES_MAX", 1_000_000)
        async with slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 1_000_000)
            reading = asyncio.ensure_future(quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0)))
            await until(lambda: bookie.server.room.is_crowded)
            assert not reading.done()
        assert (await reading).status is Status.OK
        assert not bookie.server.room.is_crowded


async def test_while_others_wait_for_it_a_slow_reader_has_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._CROWDED_S_MAX", 0.05)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 1_000_000)
            monkeypatch.setattr("bookie.server.admission.BACKLOG_BYTES_MAX", 1_000_000)
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK
            assert bookie.server.closed_connections == {RejectReason.SLOW: 1}


async def test_an_entry_wakes_readers_of_one_that_takes_nothing_without_reading_for_them() -> None:
    async with serving() as bookie, transport_to(bookie.address) as writer:
        assert await add(writer, run_of(0, payload=bytes(8_000_000))) is Status.OK
        waiting = read_request(ReadQuery(7, KEY, 1, 1, wait_ms=60_000))
        async with slow_reader(bookie, questions=1, before=[waiting] * 20):
            await until(lambda: bookie.service.read_entries == 1)
            await until(lambda: len(bookie.service._until_changed.get(7, ())) == 20)
            assert await add(writer, run_of(1)) is Status.OK
            assert await add(writer, run_of(2, lac=1)) is Status.OK
            await until(lambda: not bookie.service._until_changed)
            assert (await writer.read(BOOKIE, ReadQuery(7, KEY, 1, 1))).status is Status.OK
            assert bookie.service.read_entries == 2


async def test_many_who_ask_for_much_leave_questions_to_who_asks_for_little() -> None:
    async with serving() as bookie, AsyncExitStack() as stack:
        waiting = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        bookie.server.room.left = 100
        for _ in range(5):
            peer = await stack.enter_async_context(greeted(bookie.address, Purpose.ASKS))
            for number in range(1, 101):
                peer.send(FrameKind.READ, number, waiting)
            await peer.frame()
        modest = await stack.enter_async_context(greeted(bookie.address, Purpose.ASKS))
        modest.send(FrameKind.READ, 1, read_request(ReadQuery(7, KEY, 0, 0)))
        answer = read_answer((await modest.frame()).body, read_request(ReadQuery(7, KEY, 0, 0)))
        assert answer.status is Status.NO_SUCH_LEDGER


async def test_nonsense_ends_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving() as bookie, transport_to(bookie.address) as good:
        assert await add(good, run_of(0)) is Status.OK
        for entry_id in range(1, 51):
            async with greeted(bookie.address) as peer:
                peer.writer.write(b"\xff" * 1000)
                assert await peer.rest() == b""
            assert await add(good, run_of(entry_id)) is Status.OK
        assert bookie.server.closed_connections[RejectReason.INVALID] == 50
    assert caplog.text.count("message_refused") < 10


@asynccontextmanager
async def slow_reader(
    bookie: Bookie, questions: int = 4, before: Sequence[bytes] = ()
) -> AsyncIterator[socket.socket]:
    """Yield a client that has asked for *before*, then several times for an entry of ledger 7; and
    takes nothing."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", bookie.port))
        await loop.sock_sendall(slow, encode_hello(Hello(Purpose.ASKS, BOOKIE)))
        assert await loop.sock_recv(slow, 1)
        bodies = [*before, *[read_request(ReadQuery(7, KEY, 0, 0))] * questions]
        asked = [
            frame_header(FrameKind.READ, at, len(body)) + body for at, body in enumerate(bodies, 1)
        ]
        await loop.sock_sendall(slow, b"".join(asked))
        yield slow
