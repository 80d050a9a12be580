"""Clients that take more than their share are ended, and others do not notice."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from bookie.server.answering import QUESTIONS_MAX
from bookie.server.limits import ClientLimits
from bookie.server.places import Why
from ledger.requests import ReadQuery, Status
from ledger.transport.framing import Kind, frame_header
from ledger.transport.handshake import Hello, Purpose, encode_hello
from ledger.transport.messages import read_answer, read_request
from tests.bookie.runs import KEY, run_of
from tests.ledger.by_hand import Peer, connected, greeted
from tests.ledger.serving import BOOKIE, Bookie, add, serving, transport_to, until


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
        assert bookie.server.shown_out == {Why.ADDRESS: 1}


async def test_strangers_of_one_address_leave_room_for_who_says_what_it_wants() -> None:
    limits = ClientLimits(strangers_max=8)
    async with serving(limits=limits) as bookie, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(greeted(bookie.address))
        for _ in range(2):
            await stack.enter_async_context(connected(bookie.address))
        await until(lambda: len(bookie.server.connections) == 4)
        async with connected(bookie.address) as third:
            assert await third.rest() == b""
        other = await peer_from(stack, "127.0.0.2", bookie)
        await until(lambda: bookie.server.places.strangers == 3)
        assert not other.reader.at_eof()


async def test_of_too_many_strangers_the_oldest_makes_room() -> None:
    limits = ClientLimits(strangers_max=4)
    async with serving(limits=limits) as bookie, AsyncExitStack() as stack:
        peers = [await peer_from(stack, f"127.0.0.{at}", bookie) for at in range(1, 6)]
        assert await peers[0].rest() == b""
        async with greeted(bookie.address):
            assert bookie.server.shown_out[Why.STRANGERS] >= 1


async def test_one_connection_cannot_take_all_questions() -> None:
    limits = ClientLimits(questions_per_client_max=2)
    async with (
        serving(limits=limits) as bookie,
        greeted(bookie.address, Purpose.ASKS) as greedy,
        transport_to(bookie.address) as other,
    ):
        waiting = read_request(ReadQuery(7, KEY, 0, 0, wait_ms=60_000))
        for number in range(1, 4):
            greedy.send(Kind.READ, number, waiting)
        frame = await greedy.frame()
        assert frame.number == 3
        assert read_answer(frame.body, waiting).status is Status.TOO_MANY_REQUESTS
        assert await add(other, run_of(0)) is Status.OK
        assert (await other.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


async def test_a_byte_now_and_then_does_not_keep_a_slow_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listening._LOOK_S", 0.01)
    async with serving(limits=ClientLimits(slow_s_max=0.2)) as bookie:
        async with transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie) as slow:

            def sips() -> bool:
                with suppress(BlockingIOError, ConnectionError):
                    slow.recv(1024)
                return bookie.server.shown_out[Why.SLOW] == 1

            await until(sips)
        await until(lambda: not bookie.server.connections)
        assert bookie.server.backlog.unsent_bytes == 0


async def test_when_too_much_is_due_to_all_the_slowest_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listening._LOOK_S", 0.01)
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        async with slow_reader(bookie), slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 30_000_000)
            monkeypatch.setattr("bookie.server.listening._BACKLOG_BYTES_MAX", 20_000_000)
            await until(lambda: bookie.server.backlog.unsent_bytes < 20_000_000)
            assert bookie.server.shown_out[Why.SLOW] >= 1
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


async def test_while_much_is_due_to_all_one_that_takes_its_answers_gets_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as bookie, transport_to(bookie.address) as quick:
        assert await add(quick, run_of(0, payload=bytes(8_000_000))) is Status.OK
        monkeypatch.setattr("bookie.server.answering.BACKLOG_BYTES_HIGH", 1_000_000)
        async with slow_reader(bookie):
            await until(lambda: bookie.server.backlog.unsent_bytes > 1_000_000)
            await until(lambda: bookie.server.room.left == QUESTIONS_MAX)
            assert bookie.server.backlog.unsent_bytes < 10_000_000, "one of four answers"
            assert (await quick.read(BOOKIE, ReadQuery(7, KEY, 0, 0))).status is Status.OK


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
        assert bookie.server.shown_out[Why.NONSENSE] == 50
    assert caplog.text.count("message_refused") < 10


@asynccontextmanager
async def slow_reader(bookie: Bookie) -> AsyncIterator[socket.socket]:
    """Yield a client that has asked four times for an entry of ledger 7, and takes nothing."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", bookie.port))
        await loop.sock_sendall(slow, encode_hello(Hello(Purpose.ASKS, BOOKIE)))
        assert await loop.sock_recv(slow, 1)
        body = read_request(ReadQuery(7, KEY, 0, 0))
        asked = [frame_header(Kind.READ, number, len(body)) + body for number in range(1, 5)]
        await loop.sock_sendall(slow, b"".join(asked))
        yield slow
