"""Logs on real bookie processes and both metadata stores, with real deaths."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlog.aio import Log, read_range
from dlog.aio.admin import delete_log, list_logs, log_info
from dlog.errors import AppendOutcomeUnknown, LostOwnership
from dlog.local.cluster import LocalCluster
from dlog.local.zookeeper import ManagedZooKeeper
from dlog.settings import LogSettings
from tests.patience import PATIENT
from tests.waiting import TEST_S
from tests.zookeeper import fresh_uri

pytestmark = pytest.mark.integration

Scenario = Callable[[LocalCluster], Awaitable[None]]

WRITER = """
import asyncio, sys
from dlog.aio import Log
from dlog import LogSettings

async def main() -> None:
    settings = LogSettings(roll_records=2000)
    log = await Log.open("flights", uri=sys.argv[1], settings=settings)
    txid = -1 if log.last_txid is None else log.last_txid
    while True:
        futures = [log.append_async(b"%d" % (txid + i), txid=txid + i) for i in range(1, 101)]
        txid += 100
        await asyncio.gather(*futures)
        print(txid, flush=True)

asyncio.run(main())
"""
"""Appends for ever, value = txid = offset; prints the last txid that was acknowledged."""


@pytest.fixture(params=["file", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def metadata(request: pytest.FixtureRequest) -> str | None:
    """The metadata store to use: None for the embedded one, or the URI of a real ZooKeeper."""
    if request.param == "file":
        return None
    server: ManagedZooKeeper = request.getfixturevalue("zookeeper")
    return fresh_uri(server)


def run(directory: Path, metadata: str | None, scenario: Scenario) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(TEST_S),
            LocalCluster(directory, bookies=3, zookeeper=metadata) as cluster,
        ):
            await scenario(cluster)

    asyncio.run(main())


async def kill_after(uri: str, records: int) -> int:
    """Run a writer until it acknowledged *records* more, kill it; return its last word."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, uri, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        first = last = int(await process.stdout.readline())
        while last < first + records:
            last = int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
    return max([last, *map(int, (await process.stdout.read()).split())])


async def values(uri: str) -> list[int]:
    async with await Log.tail("flights", uri=uri, follow=False) as reader:
        return [int(record.value) async for record in reader]


def test_writers_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, metadata: str | None
) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        for _ in range(3):
            acknowledged = await kill_after(cluster.uri, 5000)
            async with await Log.open("flights", uri=cluster.uri) as log:
                assert log.last_txid is not None
                assert log.last_txid >= acknowledged
                assert log.last_offset == log.last_txid
        found = await values(cluster.uri)
        assert found == list(range(len(found)))
        assert len(found) > 15_000
        info = await log_info("flights", uri=cluster.uri)
        assert info.tail.next_offset == len(found)
        assert len(info.manifest.segments) > 6

    run(tmp_path, metadata, scenario)


def test_a_standby_takes_over_and_the_zombie_acknowledges_nothing_more(
    tmp_path: Path, metadata: str | None
) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        old = await Log.open("flights", uri=cluster.uri)
        for i in range(100):
            await old.append(b"%d" % i)
        reader = await Log.tail("flights", uri=cluster.uri)
        new = await Log.open("flights", uri=cluster.uri)
        with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
            await old.append(b"zombie")
        for i in range(100, 200):
            await new.append(b"%d" % i)
        assert [int((await anext(reader)).value) for _ in range(200)] == list(range(200))
        await reader.close()
        await new.close()
        await old.abandon()
        await delete_log("flights", uri=cluster.uri)
        assert await list_logs(uri=cluster.uri) == []

    run(tmp_path, metadata, scenario)


def test_a_tail_outlives_the_restart_of_every_bookie(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        settings = LogSettings(roll_records=50)
        log = await Log.open("flights", uri=cluster.uri, settings=settings)
        for i in range(100):
            await log.append(b"%d" % i)
        reader = await Log.tail("flights", uri=cluster.uri)
        assert int((await anext(reader)).value) == 0
        await log.close()
        for index in range(3):
            cluster.kill_bookie(index)
        for index in range(3):
            await cluster.restart_bookie(index)
        async with await Log.open("flights", uri=cluster.uri) as log:
            for i in range(100, 150):
                await log.append(b"%d" % i)
            assert [int((await anext(reader)).value) for _ in range(149)] == list(range(1, 150))
        await reader.close()

    run(tmp_path, None, scenario)


def test_a_range_read_by_another_process_is_exact(tmp_path: Path) -> None:
    async def scenario(cluster: LocalCluster) -> None:
        from ledger import LedgerClient

        async with await Log.open("flights", uri=cluster.uri) as log:
            futures = [log.append_async(b"%d" % i) for i in range(20_000)]
            await asyncio.gather(*futures)
            client = await LedgerClient.connect(cluster.uri, PATIENT)
            got = [
                int(record.value)
                async for chunk in read_range(client, "flights", 7, 19_999)
                for record in chunk.records()
            ]
            assert got == list(range(7, 19_999))
            await client.close()

    run(tmp_path, None, scenario)
