"""Ledgers on real bookie processes, real disks and both metadata stores, with real deaths."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dlog.local.cluster import LocalCluster
from ledger import LedgerClient, LedgerState
from ledger.errors import LedgerFenced, NotEnoughBookies
from ledger.writer import LedgerWriter
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, TEST_S, until

pytestmark = pytest.mark.integration

Scenario = Callable[[LocalCluster, LedgerClient], Awaitable[None]]


@asynccontextmanager
async def connected(cluster: LocalCluster) -> AsyncIterator[LedgerClient]:
    client = await LedgerClient.connect(cluster.uri, PATIENT)
    try:
        await client.bookies.wait_for(len(cluster.processes), PATIENCE_S)
        yield client
    finally:
        await client.close()


def run(directory: Path, metadata: str | None, scenario: Scenario, *, bookies: int = 3) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(TEST_S),
            LocalCluster(directory, bookies=bookies, zookeeper=metadata) as cluster,
            connected(cluster) as client,
        ):
            await scenario(cluster, client)

    asyncio.run(main())


async def add_all(writer: LedgerWriter, first: int, count: int) -> None:
    futures = [writer.add(f"entry {i}".encode()) for i in range(first, first + count)]
    await asyncio.gather(*futures)


async def assert_whole(client: LedgerClient, writer: LedgerWriter, count: int) -> None:
    reader = await client.open(writer.ledger_id)
    assert (reader.last_entry or 0) >= count - 1
    entries = await reader.read(0, count - 1)
    assert [bytes(e.payload) for e in entries] == [f"entry {i}".encode() for i in range(count)]


def test_a_bookie_killed_under_load_costs_nothing(tmp_path: Path, metadata: str | None) -> None:
    async def scenario(cluster: LocalCluster, client: LedgerClient) -> None:
        writer = await client.create()
        await add_all(writer, 0, 500)
        victim = writer.metadata.last_fragment.bookies[0]
        loading = asyncio.create_task(add_all(writer, 500, 5000))
        cluster.kill_bookie([p.bookie for p in cluster.processes].index(victim))
        await loading
        # Two others may have confirmed all of it before its connection was found to be broken.
        await until(lambda: victim not in writer.metadata.last_fragment.bookies)
        await assert_whole(client, writer, 5500)

    run(tmp_path, metadata, scenario, bookies=4)


def test_everything_acknowledged_survives_the_death_of_all_bookies(
    tmp_path: Path, metadata: str | None
) -> None:
    """kill -9 of every bookie at once: what was acknowledged was on disk."""

    async def scenario(cluster: LocalCluster, client: LedgerClient) -> None:
        writer = await client.create()
        await add_all(writer, 0, 2000)
        for index in range(3):
            cluster.kill_bookie(index)
        with pytest.raises(NotEnoughBookies):
            await writer.add(b"nobody is there")
        for index in range(3):
            await cluster.restart_bookie(index)
        await assert_whole(client, writer, 2000)

    run(tmp_path, metadata, scenario)


def test_a_fence_survives_the_death_of_the_bookies(tmp_path: Path, metadata: str | None) -> None:
    """BK-500: the old writer stays out although every bookie forgot its memory."""

    async def scenario(cluster: LocalCluster, client: LedgerClient) -> None:
        writer = await client.create()
        await add_all(writer, 0, 10)
        async with connected(cluster) as other:
            closed = await other.recover(writer.ledger_id)
        assert (closed.state, closed.last_entry) == (LedgerState.CLOSED, 9)
        for index in range(3):
            cluster.kill_bookie(index)
        for index in range(3):
            await cluster.restart_bookie(index)
        with pytest.raises((LedgerFenced, NotEnoughBookies)):
            await writer.add(b"a zombie's add")
        reader = await client.open(writer.ledger_id)
        assert reader.last_entry == 9

    run(tmp_path, metadata, scenario)


def test_a_cluster_that_was_stopped_in_order_starts_again_with_its_data(
    tmp_path: Path, metadata: str | None
) -> None:
    async def write(_: LocalCluster, client: LedgerClient) -> None:
        writer = await client.create()
        await add_all(writer, 0, 100)
        await writer.close()

    async def read(_: LocalCluster, client: LedgerClient) -> None:
        (ledger_id,) = [ledger_id async for ledger_id in client.list()]
        reader = await client.open_no_recovery(ledger_id)
        entries = await reader.read(0, 99)
        assert [bytes(e.payload) for e in entries] == [f"entry {i}".encode() for i in range(100)]

    run(tmp_path, metadata, write)
    run(tmp_path, metadata, read)
