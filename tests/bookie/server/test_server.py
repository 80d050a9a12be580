"""A served bookie: what it waits for, how it stops, how it fails."""

import asyncio
import socket
import time
from typing import Never

import pytest

from bookie.errors import AddressUnusable, PortInUse
from bookie.server.limits import RejectReason, ServiceConfig
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from bookie.storage.add_lookup import Prepared
from ledger.requests import AddRun, InfoAnswer, LacQuery, ReadQuery, Status
from ledger.transport.envelope import checked
from ledger.transport.framing import FrameKind
from ledger.transport.handshake import Hello, Purpose, encode_hello
from ledger.wire import bookie_pb2 as pb
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.runs import KEY, run_of
from tests.ledger.by_hand import connected, greeted, refusal
from tests.ledger.serving import (
    BOOKIE,
    Answers,
    Bookie,
    add,
    serving,
    transport_to,
    until,
)
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("ledger_id", [7, 8])
async def test_no_fencing_request_is_answered_while_the_fence_is_not_durable(
    ledger_id: int,
) -> None:
    """Rules 32, 33; ledger 8 gets a negative answer."""
    storage = MemoryStorage()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        storage.gate.clear()
        read = asyncio.ensure_future(
            transport.read(BOOKIE, ReadQuery(ledger_id, KEY, 5, 5, fence=True))
        )
        lac = asyncio.ensure_future(
            transport.read_lac(BOOKIE, LacQuery(ledger_id, KEY, fence=True))
        )
        await until(lambda: ledger_id in storage.fenced)
        # Another request on the same connection comes and goes meanwhile.
        assert await transport.info(BOOKIE) is not None
        assert not read.done()
        assert not lac.done()
        storage.gate.set()
        assert (await read).fenced
        assert (await lac).fenced


async def test_adds_of_several_clients_share_one_commit() -> None:
    storage = MemoryStorage()
    answers = Answers()
    async with (
        serving(storage) as bookie,
        transport_to(bookie.address) as first,
        transport_to(bookie.address) as second,
    ):
        storage.gate.clear()
        first.add(BOOKIE, run_of(0, ledger_id=1), answers.expect("opens the group"))
        await until(lambda: storage.commits_begun == 1)
        first.add(BOOKIE, run_of(0, ledger_id=2), answers.expect("one"))
        second.add(BOOKIE, run_of(0, ledger_id=3), answers.expect("two"))
        await until(lambda: {2, 3} <= set(storage.ledgers))
        storage.gate.set()
        await answers.wait(3)
        assert storage.commits == 2


async def test_a_waiting_read_wakes_on_a_fence_by_another_client() -> None:
    async with (
        serving() as bookie,
        transport_to(bookie.address) as reader,
        transport_to(bookie.address) as recoverer,
    ):
        await add(recoverer, run_of(0))
        poll = asyncio.ensure_future(reader.read(BOOKIE, ReadQuery(7, KEY, 0, 9, wait_ms=30_000)))
        await until(lambda: bool(bookie.service._until_changed))
        await recoverer.read_lac(BOOKIE, LacQuery(7, KEY, fence=True))
        async with asyncio.timeout(PATIENCE_S):
            answer = await poll
        assert answer.fenced
        assert list(answer.entries) == []


async def test_a_reader_that_went_away_is_forgotten() -> None:
    async with serving() as bookie:
        async with transport_to(bookie.address) as reader:
            poll = asyncio.ensure_future(
                reader.read(BOOKIE, ReadQuery(7, KEY, 0, 9, wait_ms=30_000))
            )
            await until(lambda: bool(bookie.service._until_changed))
        await until(lambda: not bookie.service._until_changed)
        assert (await poll).status is Status.UNREACHABLE


async def test_a_read_waits_no_longer_than_the_bookie_lets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.service._WAIT_MS_MAX", 20)
    async with serving() as bookie, asyncio.timeout(PATIENCE_S):
        query = ReadQuery(7, KEY, 0, 9, wait_ms=86_400_000)
        assert list((await bookie.service.read(query)).entries) == []


async def test_writers_are_bounded_and_those_that_are_gone_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._ADDERS_MAX", 2)
    monkeypatch.setattr("bookie.server.listener._STIFLED_S", 0.0)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    async with serving() as bookie, greeted(bookie.address), asyncio.timeout(PATIENCE_S):
        async with greeted(bookie.address):
            reason = await refusal(bookie.address, Hello(Purpose.ADDS, BOOKIE))
            assert reason == "bookie b1 has 2 writers already"
            async with greeted(bookie.address, Purpose.ASKS):
                pass
        await until(lambda: bookie.server.adders == 1)
        async with greeted(bookie.address):
            pass


async def test_who_finds_no_room_among_writers_is_left_waiting_and_then_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.server.listener._ADDERS_MAX", 1)
    monkeypatch.setattr("bookie.server.listener._LOOK_S", 0.01)
    hello = encode_hello(Hello(Purpose.ADDS, BOOKIE))
    async with serving() as bookie, greeted(bookie.address), connected(bookie.address) as second:
        second.writer.write(hello)
        await until(lambda: bookie.server.closed_connections == {RejectReason.WRITERS: 1})
        assert [each.is_reading for each in bookie.server.connections] == [True, False]
        assert bookie.server.places.pending_handshakes == 0
        monkeypatch.setattr("bookie.server.listener._STIFLED_S", 0.0)
        async with connected(bookie.address) as third:
            third.writer.write(hello)
            await until(lambda: bookie.server.closed_connections == {RejectReason.WRITERS: 2})
            await until(lambda: len(bookie.server.connections) == 2)


async def test_reads_that_miss_the_memory_come_from_disk() -> None:
    storage = MemoryStorage()
    storage.from_disk = True
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        await add(transport, run_of(0))
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert list(answer.entries) == [0]


async def test_a_damaged_disk_is_an_io_error_and_never_a_no() -> None:
    """Rule 58."""

    class Damaged(MemoryStorage):
        def read(self, query: ReadQuery) -> Never:
            raise OSError("input/output error")

    storage = Damaged()
    storage.from_disk = True
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        answer = await transport.read(BOOKIE, ReadQuery(7, KEY, 0, 0))
        assert answer.status is Status.IO_ERROR


async def test_stopping_answers_what_was_taken_and_writes_it_down() -> None:
    storage = MemoryStorage()
    bookie = Bookie(storage)
    await bookie.start()
    answers = Answers()
    async with transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        storage.gate.clear()
        transport.add(BOOKIE, run_of(1), answers.expect("taken before the stop"))
        poll = asyncio.ensure_future(
            transport.read(BOOKIE, ReadQuery(7, KEY, 1, 9, wait_ms=60_000))
        )
        await until(lambda: 1 in storage.ledgers[7])
        await until(lambda: bool(bookie.service._until_changed))
        stopping = asyncio.ensure_future(bookie.server.stop())
        await bookie.service.stopping.wait()
        storage.gate.set()
        await stopping
        await bookie.service.close()
        assert await answers.wait(1) == [("taken before the stop", Status.OK)]
        assert (await poll).status is Status.OK
    assert not storage.has_pending()
    assert storage.checkpoints == 1
    assert storage.closed


async def test_a_failed_commit_is_told_and_nothing_is_acknowledged_after_it() -> None:
    """Rule 60."""
    storage = MemoryStorage()
    bookie = Bookie(storage)
    await bookie.start()
    answers = Answers()
    async with transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        storage.commit_error = OSError("no space left on device")
        transport.add(BOOKIE, run_of(1), answers.expect("lost"))
        async with asyncio.timeout(PATIENCE_S):
            error = await bookie.service.failure
        assert "no space left" in str(error)
        await bookie.kill()
        assert await answers.wait(1) == [("lost", Status.UNREACHABLE)]
    assert storage.checkpoints == 0
    assert not storage.closed


async def test_what_needs_the_disk_first_is_looked_up_off_the_event_loop() -> None:
    """`MemoryStorage` looks nothing up on the event loop, and refuses what needs it there."""
    storage = MemoryStorage()
    async with serving(storage) as bookie, transport_to(bookie.address) as transport:
        assert await add(transport, run_of(0)) is Status.OK
        run = run_of(1)
        storage.cold = {run.ledger_id}
        assert await add(transport, run) is Status.OK
        assert not storage.cold
        storage.cold = {run.ledger_id}
        query = ReadQuery(run.ledger_id, KEY, 0, 1, fence=True)
        answer = await transport.read(BOOKIE, query)
        assert list(answer.entries) == [0, 1]
        storage.cold = {run.ledger_id}
        assert (await transport.read_lac(BOOKIE, LacQuery(run.ledger_id, KEY))).fenced


async def test_a_storage_that_raises_on_add_is_not_used_again() -> None:
    class Broken(MemoryStorage):
        def add(self, run: AddRun, prepared: Prepared = None) -> Never:
            raise RuntimeError("cannot happen")

    bookie = Bookie(Broken())
    await bookie.start()
    try:
        async with transport_to(bookie.address) as transport, asyncio.timeout(PATIENCE_S):
            assert await add(transport, run_of(0)) is Status.UNREACHABLE
            assert "cannot happen" in str(await bookie.service.failure)
    finally:
        await bookie.kill()


@pytest.mark.parametrize(
    "config",
    [
        ServiceConfig(checkpoint_bytes=1000, checkpoint_interval_s=3600.0),
        ServiceConfig(checkpoint_interval_s=0.05),
    ],
    ids=["bytes", "time"],
)
async def test_checkpoints_come_by_bytes_and_by_time(config: ServiceConfig) -> None:
    """Each of the two alone: the other never becomes due."""
    storage = MemoryStorage()
    info = InfoAnswer(BOOKIE, "start 1", "instance 1", read_only=False)
    service = BookieService(storage, info, config)
    stream = service.stream(lambda: None)
    stream.offer(1, [run_of(0, payload=b"x" * 1000)])
    stream.commit(time.perf_counter())
    try:
        await until(lambda: storage.checkpoints >= 1)
    finally:
        stream.close()
        await service.close()


async def test_a_batch_that_does_not_add_up_ends_the_stream_only() -> None:
    async with serving() as bookie:
        async with greeted(bookie.address) as peer:
            peer.send(FrameKind.ADD, 1, checked(pb.AddBatch(ledgers=[1])))
            assert await peer.rest() == b""
        async with transport_to(bookie.address) as transport:
            assert await add(transport, run_of(0)) is Status.OK


async def test_a_port_in_use_is_told_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}"):
            BookieServer().bind("127.0.0.1", port)


async def test_two_servers_do_not_share_a_port() -> None:
    first = BookieServer()
    port = first.bind("127.0.0.1", 0)
    with pytest.raises(PortInUse):
        BookieServer().bind("127.0.0.1", port)
    await first.stop()


async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(AddressUnusable):
        BookieServer().bind("192.0.2.1", 4000)
