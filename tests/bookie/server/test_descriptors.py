"""What strangers can take of a bookie: descriptors, and memory."""

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import TooFewDescriptors
from bookie.server.limits import CONNECTIONS_MIN, FILES_MIN, ClientLimits, ServiceConfig, share_out
from bookie.server.listener import BookieServer
from bookie.server.service import BookieService
from ledger.ids import BookieId
from ledger.requests import InfoAnswer, Status
from ledger.transport.framing import FrameKind
from ledger.transport.sockets import SocketTransport
from tests.bookie.memory_storage import MemoryStorage
from tests.bookie.processes import bookie, open_descriptors, peak_rss_bytes
from tests.bookie.runs import run_of
from tests.ledger.by_hand import greeted
from tests.ledger.serving import add, transport_to
from tests.waiting import eventually, until

LIMIT = 320


@given(
    limit=st.integers(0, 100_000), directories=st.integers(2, 20), files=st.integers(FILES_MIN, 500)
)
def test_the_shares_never_add_up_to_more_than_there_are(
    limit: int, directories: int, files: int
) -> None:
    try:
        shares = share_out(limit, directories=directories, files_open_max=files)
    except TooFewDescriptors:
        assert limit < 160 + 8 * directories + CONNECTIONS_MIN + 4 * FILES_MIN
        return
    assert shares.connections_max >= CONNECTIONS_MIN
    assert FILES_MIN <= shares.files_open_max <= files
    assert shares.connections_max + 2 * shares.files_open_max + 160 <= limit


def test_the_usual_limit_leaves_room_for_clients_and_files() -> None:
    shares = share_out(1024, directories=2, files_open_max=400)
    assert shares.connections_max > 400
    assert shares.files_open_max > 200


@pytest.mark.integration
def test_a_bookie_that_may_open_too_little_says_so(tmp_path: Path) -> None:
    with bookie(f"file://{tmp_path}/m", tmp_path / "b", descriptors=100) as process:
        assert "may open 100 files and connections, but a bookie needs 272" in process.refused()


async def test_one_connection_too_many_is_not_served() -> None:
    info = InfoAnswer("b", "start 1", "instance", read_only=False)
    service = BookieService(MemoryStorage(), info, ServiceConfig())
    server = BookieServer(ClientLimits(connections_max=2))
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start(service)
    name = BookieId("b")
    try:
        async with AsyncExitStack() as clients:
            one, other, third = [
                await clients.enter_async_context(transport_to(address)) for _ in range(3)
            ]
            assert await _serves(one, name)
            assert await _serves(other, name)
            assert not await _serves(third, name)
            assert await _serves(one, name)
    finally:
        await server.kill()
        await service.close()


@pytest.mark.integration
def test_connections_of_strangers_never_reach_a_checkpoint(tmp_path: Path) -> None:
    async def scenario(name: BookieId, address: str, pid: int) -> None:
        async with transport_to(address) as early, transport_to(address) as late:
            assert await add(early, run_of(0, ledger_id=0), name) is Status.OK
            with ExitStack() as strangers:
                host, _, port = address.rpartition(":")
                for _ in range(2 * LIMIT):
                    stranger = socket.create_connection((host, int(port)))
                    strangers.enter_context(stranger)
                # Each gets an index file, and all are written down meanwhile.
                for ledger_id in range(1, LIMIT):
                    assert await add(early, run_of(0, ledger_id=ledger_id), name) is Status.OK
                files = tmp_path / "b"
                await until(
                    lambda: sum(1 for _ in files.rglob("*.index")) == LIMIT, "a checkpoint ended"
                )
                assert open_descriptors(pid) < LIMIT
                # Who says nothing is shown out, so that others find room.
                await eventually(lambda: _serves(late, name), "there is room again")

    with bookie(f"file://{tmp_path}/m", tmp_path / "b", descriptors=LIMIT) as process:
        name, address = process.ready()
        asyncio.run(scenario(BookieId(name), address, process.popen.pid))
        assert process.stop() == 0


@pytest.mark.integration
def test_messages_of_strangers_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Some find no room, and those that do are not given time for ever."""

    async def scenario(name: str, address: str) -> None:
        async with AsyncExitStack() as peers:
            each = [
                await peers.enter_async_context(greeted(address, bookie=name)) for _ in range(8)
            ]
            for peer in each:
                peer.send(FrameKind.ADD, 1, bytes(30_000_000), length=60_000_000)
            assert await asyncio.gather(*(peer.rest() for peer in each)) == [b""] * 8

    with bookie(f"file://{tmp_path}/m", tmp_path / "b") as process:
        name, address = process.ready()
        before = peak_rss_bytes(process.popen.pid)
        asyncio.run(scenario(name, address))
        assert peak_rss_bytes(process.popen.pid) - before < 170_000_000
        assert process.stop() == 0


async def _serves(transport: SocketTransport, name: BookieId) -> bool:
    return await transport.info(name) is not None
