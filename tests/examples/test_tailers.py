"""The examples that only read: a materialised view, and a watcher of a namespace."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import consumer_info, create_log, delete_log
from dlog.local.cluster import LocalCluster
from tests.examples.programs import program
from tests.waiting import TEST_S

pytestmark = pytest.mark.integration

ORDERS = 3000


def on_a_cluster(tmp_path: Path, scenario: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(TEST_S),
            LocalCluster(tmp_path / "cluster") as cluster,
        ):
            await scenario(cluster.uri)

    asyncio.run(run())


def totals(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("select customer, amount from totals"))


def test_a_view_counts_every_order_once_although_its_process_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    view = tmp_path / "totals.sqlite"

    async def scenario(uri: str) -> None:
        async with await Log.open("orders", uri=uri) as log:
            for first in range(0, ORDERS, ORDERS // 10):
                orders = [b"customer %d 1" % (i % 7) for i in range(first, first + ORDERS // 10)]
                await asyncio.gather(*map(log.append_async, orders))
                await log.roll()  # small batches, so that a kill comes between them
            for _ in range(3):
                async with program("materialised_view", str(view), uri=uri) as viewer:
                    await viewer.hear("begins")
                    await viewer.hear("viewed")
                    viewer.kill()
            await log.append(b"customer 0 1000")
            async with program("materialised_view", str(view), "--once", uri=uri) as viewer:
                assert await viewer.process.wait() == 0
        expected = {f"customer {i}": len(range(i, ORDERS, 7)) for i in range(7)}
        expected["customer 0"] += 1000
        assert totals(view) == expected
        info = await consumer_info("totals", "orders", uri=uri)
        assert (info.position, info.lag) == (ORDERS + 1, 0)
        async with program("materialised_view", str(view), uri=uri) as viewer:
            await viewer.hear("begins")
            status, errors = await viewer.interrupt()
            assert status == 130
            assert "Traceback" not in errors

    on_a_cluster(tmp_path, scenario)


def test_a_watcher_follows_the_logs_that_are_there_and_those_that_come(tmp_path: Path) -> None:
    async def append(uri: str, name: str, value: bytes) -> None:
        async with await Log.open(name, uri=uri) as log:
            await log.append(value)

    async def scenario(uri: str) -> None:
        await append(uri, "eu/old", b"before")
        await create_log("us/other", uri=uri)
        async with program("namespace_watcher", "eu/", uri=uri) as watcher:
            await watcher.hear("watching")
            assert await watcher.hear() == "added eu/old"
            assert await watcher.hear() == "eu/old 0 before"
            await append(uri, "eu/new", b"first")
            assert await watcher.hear() == "added eu/new"
            assert await watcher.hear() == "eu/new 0 first"
            await append(uri, "eu/old", b"after")
            assert await watcher.hear() == "eu/old 1 after"
            await delete_log("eu/new", uri=uri)
            assert await watcher.hear() == "removed eu/new"
            status, errors = await watcher.interrupt()
            assert status == 130
            assert "Traceback" not in errors

    on_a_cluster(tmp_path, scenario)
