"""Connections: what is bounded, what is refused, and that one client disturbs no other."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from dlog.kafka.gateway import OFFERED
from dlog.kafka.listener import (
    PRODUCES_MAX,
    ClientSession,
    KafkaListener,
    KafkaNotServed,
    ListenerLimits,
    RequestBudget,
)
from dlog.kafka.protocol.sasl import SaslConnection
from dlog.kafka.wire import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    Values,
    VersionRange,
    WireRequest,
)
from tests.dlog.kafka.test_wire import request_frame, response_in
from tests.waiting import settled, until


class StubBroker:
    """Answers Metadata at once, Fetch when told to, Produce in the order of `finish`."""

    def __init__(self) -> None:
        self.begun: list[WireRequest] = []
        self.producing: list[asyncio.Future[Values | None]] = []
        self.fetched = asyncio.Event()
        self.cancelled = 0
        self.error: Exception | None = None
        self.padding = ""

    @property
    def offered(self) -> dict[int, VersionRange]:
        return dict(OFFERED)

    def sasl(self, identity: str) -> SaslConnection | None:
        return None

    async def submit_produce(
        self, request: WireRequest, session: ClientSession
    ) -> "asyncio.Future[Values | None]":
        self.begun.append(request)
        future: asyncio.Future[Values | None] = asyncio.get_running_loop().create_future()
        self.producing.append(future)
        return future

    async def handle(self, request: WireRequest, session: ClientSession) -> Values | None:
        self.begun.append(request)
        if self.error is not None:
            raise self.error
        if request.api == FETCH:
            try:
                await self.fetched.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return {"cluster_id": session.client_id + self.padding}


class Caller:
    """A client that sends frames by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def request(self, api: int, version: int, correlation_id: int, **values: Any) -> None:
        self.send(request_frame(api, version, values, correlation_id))

    async def response(self, api: int, version: int) -> tuple[int, Any]:
        head = await self.reader.readexactly(4)
        body = await self.reader.readexactly(struct.unpack(">i", head)[0])
        return response_in(head + body, api, version)

    async def closed(self) -> bytes:
        """Return what came before the connection ended."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def listening(
    **limits: Any,
) -> AsyncIterator[tuple[StubBroker, KafkaListener, Callable[[], Any]]]:
    broker = StubBroker()
    listener = KafkaListener(broker, ListenerLimits(**limits), None)
    port = listener.bind("127.0.0.1", 0)
    await listener.start()
    callers: list[Caller] = []

    async def caller() -> Caller:
        callers.append(Caller(*await asyncio.open_connection("127.0.0.1", port)))
        return callers[-1]

    try:
        yield broker, listener, caller
    finally:
        for each in callers:
            each.writer.close()
        for future in broker.producing:
            future.cancel()
        await listener.stop()


async def test_requests_are_answered_with_their_correlation_id_in_their_order() -> None:
    async with listening() as (_, _, caller):
        client = await caller()
        client.request(API_VERSIONS, 3, 1)
        client.request(METADATA, 12, 2)
        client.request(METADATA, 1, 3)
        assert (await client.response(API_VERSIONS, 3))[0] == 1
        correlation_id, metadata = await client.response(METADATA, 12)
        assert (correlation_id, metadata.cluster_id) == (2, "tester")
        assert (await client.response(METADATA, 1))[0] == 3


async def test_produces_overlap_and_are_answered_in_their_order() -> None:
    async with listening() as (broker, _, caller):
        client = await caller()
        for number in range(3):
            client.request(PRODUCE, 9, number)
        await until(lambda: len(broker.producing) == 3)
        broker.producing[2].set_result({})
        broker.producing[0].set_result({})
        assert (await client.response(PRODUCE, 9))[0] == 0
        broker.producing[1].set_result({})
        assert [(await client.response(PRODUCE, 9))[0] for _ in range(2)] == [1, 2]


async def test_at_most_so_many_produces_of_a_connection_overlap() -> None:
    async with listening() as (broker, _, caller):
        client = await caller()
        for number in range(3 * PRODUCES_MAX):
            client.request(PRODUCE, 9, number)
        await until(lambda: len(broker.producing) > PRODUCES_MAX)
        await settled()
        assert len(broker.producing) <= PRODUCES_MAX + 2
        answered = 0
        while answered < 3 * PRODUCES_MAX:
            for future in broker.producing:
                if not future.done():
                    future.set_result({})
            assert (await client.response(PRODUCE, 9))[0] == answered
            answered += 1


async def test_a_request_behind_a_fetch_waits_for_it_and_other_connections_do_not() -> None:
    async with listening() as (broker, _, caller):
        first, second = await caller(), await caller()
        first.request(FETCH, 12, 1)
        first.request(METADATA, 12, 2)
        await until(lambda: len(broker.begun) == 1)
        second.request(METADATA, 12, 3)
        assert (await second.response(METADATA, 12))[0] == 3
        broker.fetched.set()
        assert (await first.response(FETCH, 12))[0] == 1
        assert (await first.response(METADATA, 12))[0] == 2


async def test_a_fetch_ends_with_its_client() -> None:
    async with listening() as (broker, listener, caller):
        client = await caller()
        client.request(FETCH, 12, 1)
        await until(lambda: len(broker.begun) == 1)
        client.writer.close()
        await until(lambda: broker.cancelled == 1)
        await until(lambda: not listener.connections)
        assert listener.budget.held_bytes == 0


async def test_a_producer_that_waits_for_nothing_is_not_answered() -> None:
    async with listening() as (broker, _, caller):
        client = await caller()
        client.request(PRODUCE, 9, 1)
        client.request(API_VERSIONS, 0, 2)
        await until(lambda: len(broker.producing) == 1)
        broker.producing[0].set_result(None)
        assert (await client.response(API_VERSIONS, 0))[0] == 2


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2_000_000_000),
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, METADATA, 99, 1),
        struct.pack(">i", 12) + struct.pack(">hhi", METADATA, 12, 1) + b"\xff" * 4,
    ],
)
async def test_what_is_no_request_ends_its_connection_and_no_other(sent: bytes) -> None:
    async with listening() as (_, listener, caller):
        bad, good = await caller(), await caller()
        bad.writer.write(sent)
        assert await bad.closed() == b""
        assert listener.refusals == 1
        good.request(METADATA, 12, 1)
        assert (await good.response(METADATA, 12))[0] == 1


async def test_versions_that_are_too_new_are_answered_and_the_connection_stays() -> None:
    async with listening() as (_, _, caller):
        client = await caller()
        client.send(struct.pack(">hhih", API_VERSIONS, 99, 5, -1) + b"\1\2\3")
        correlation_id, versions = await client.response(API_VERSIONS, 0)
        assert (correlation_id, versions.error_code) == (5, ErrorCode.unsupported_version)
        client.request(API_VERSIONS, 4, 6)
        assert (await client.response(API_VERSIONS, 4))[0] == 6


async def test_an_unexpected_error_ends_one_connection_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as (broker, _, caller):
        bad, good = await caller(), await caller()
        broker.error = RuntimeError("a bug")
        bad.request(METADATA, 12, 1)
        assert await bad.closed() == b""
        assert "kafka_request_failed" in caplog.text
        broker.error = None
        good.request(METADATA, 12, 1)
        assert (await good.response(METADATA, 12))[0] == 1


async def test_connections_are_bounded() -> None:
    async with listening(connections_max=2) as (_, listener, caller):
        first, _second = await caller(), await caller()
        await until(lambda: len(listener.connections) == 2)
        third = await caller()
        assert await third.closed() == b""
        first.request(METADATA, 12, 1)
        assert (await first.response(METADATA, 12))[0] == 1


async def test_connections_from_one_address_are_bounded() -> None:
    async with listening(from_one_max=1) as (_, listener, caller):
        await caller()
        await until(lambda: len(listener.connections) == 1)
        assert await (await caller()).closed() == b""


async def test_a_silent_connection_is_closed() -> None:
    async with listening(idle_s=0.01) as (_, listener, caller):
        assert await (await caller()).closed() == b""
        await until(lambda: not listener.connections)


async def test_a_client_that_does_not_take_its_response_is_disconnected() -> None:
    async with listening(taken_s=0.05) as (broker, listener, caller):
        client = await caller()
        broker.padding = "x" * 30_000_000
        client.request(METADATA, 12, 1)
        await until(lambda: listener.refusals == 1)
        await until(lambda: not listener.connections)
        assert listener.budget.held_bytes == 0


async def test_a_request_that_does_not_arrive_whole_is_given_up() -> None:
    async with listening(arrive_s=0.01) as (_, listener, caller):
        client = await caller()
        client.writer.write(struct.pack(">i", 1000) + b"half")
        assert await client.closed() == b""
        assert listener.budget.held_bytes == 0


def produce(size: int) -> bytes:
    topic = {"name": "t", "partition_data": [{"records": b"x" * size}]}
    return request_frame(PRODUCE, 9, {"topic_data": [topic]})


async def test_what_clients_announce_and_do_not_send_takes_no_room_from_others() -> None:
    async with listening(requests_bytes_max=100_000) as (_, listener, caller):
        for _ in range(20):
            silent = await caller()
            silent.writer.write(struct.pack(">i", 90_000_000))
        await until(lambda: len(listener.connections) == 20)
        client = await caller()
        client.request(METADATA, 12, 1)
        assert (await client.response(METADATA, 12))[0] == 1
        assert listener.budget.held_bytes == 0


async def test_who_sent_most_and_sends_no_more_makes_room_for_others() -> None:
    async with listening(requests_bytes_max=100_000) as (broker, listener, caller):
        small, large, client = await caller(), await caller(), await caller()
        for stalled, size in ((small, 30_000), (large, 60_000)):
            stalled.writer.write(struct.pack(">i", 90_000_000) + b"x" * size)
        await until(lambda: listener.budget.held_bytes == 90_000)
        client.send(produce(50_000))
        assert await large.closed() == b""
        await until(lambda: len(broker.producing) == 1)
        await until(lambda: len(listener.connections) == 2)
        assert listener.refusals == 1


async def test_of_requests_that_fill_all_room_and_none_of_which_is_whole_one_ends() -> None:
    async with listening(requests_bytes_max=100_000) as (broker, listener, caller):
        clients = [await caller() for _ in range(2)]
        for client in clients:
            client.send(produce(90_000))
        await until(lambda: len(broker.producing) >= 1)
        assert listener.refusals <= 1


async def test_requests_wait_while_those_before_them_are_served() -> None:
    async with listening(requests_bytes_max=100_000) as (broker, listener, caller):
        first, second = await caller(), await caller()
        first.send(produce(80_000))
        await until(lambda: len(broker.producing) == 1)
        second.send(produce(80_000))
        await until(lambda: len(listener.connections) == 2)
        await settled()
        assert len(broker.producing) == 1
        broker.producing[0].set_result({})
        await until(lambda: len(broker.producing) == 2)
        assert listener.refusals == 0


async def test_a_request_larger_than_all_room_comes_alone() -> None:
    budget = RequestBudget(10)
    assert budget.has_room(50)
    budget.hold(50)
    assert not budget.has_room(1)
    budget.give_back(50)
    assert budget.has_room(1)


async def test_a_gateway_that_stops_answers_what_it_took() -> None:
    async with listening() as (broker, listener, caller):
        client = await caller()
        client.request(PRODUCE, 9, 1)
        await until(lambda: len(broker.producing) == 1)
        stopping = asyncio.create_task(listener.stop())
        await settled()
        broker.producing[0].set_result({})
        assert (await client.response(PRODUCE, 9))[0] == 1
        assert await client.closed() == b""
        await stopping


async def test_a_port_in_use_is_said_with_what_to_do() -> None:
    async with listening() as (broker, listener, _):
        assert listener._socket is not None
        port = listener._socket.getsockname()[1]
        other = KafkaListener(broker, ListenerLimits(), None)
        with pytest.raises(KafkaNotServed, match="give another --listen"):
            other.bind("127.0.0.1", port)


@pytest.mark.timeout(60)
@settings(max_examples=30)
@given(st.lists(st.binary(max_size=60), max_size=4))
def test_no_bytes_stop_a_gateway(pieces: list[bytes]) -> None:
    async def run() -> None:
        async with listening() as (_, _, caller):
            bad = await caller()
            for piece in pieces:
                bad.send(piece)
            bad.writer.write_eof()
            await bad.closed()
            good = await caller()
            good.request(METADATA, 12, 1)
            assert (await good.response(METADATA, 12))[0] == 1

    asyncio.run(run())
