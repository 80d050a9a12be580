"""Watching a namespace, through trouble with the metadata store too."""

import asyncio

import pytest

from dlog.aio.admin import create_log, delete_log, rename_log, watch_logs
from dlog.aio.store import LogChange
from ledger.errors import HandleClosed
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import settled


async def test_logs_that_are_there_come_first_then_each_change() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    await create_log("b", client=client)
    async with await watch_logs(client=client) as watch:
        assert [await anext(watch) for _ in range(2)] == [("added", "a"), ("added", "b")]
        await create_log("c", client=client)
        assert await anext(watch) == LogChange("added", "c")
        await delete_log("a", client=client)
        assert await anext(watch) == LogChange("removed", "a")
        await rename_log("b", "d", client=client)
        assert {await anext(watch), await anext(watch)} == {("removed", "b"), ("added", "d")}
        assert watch.logs == ("c", "d")


async def test_a_watch_may_begin_with_what_comes_and_look_at_some_names_only() -> None:
    client = FakeCluster().client()
    await create_log("eu/a", client=client)
    async with await watch_logs(prefix="eu/", existing=False, client=client) as watch:
        await create_log("us/b", client=client)
        await create_log("eu/b", client=client)
        assert await anext(watch) == LogChange("added", "eu/b")


async def test_a_watch_of_a_namespace_that_never_had_a_log_sees_the_first() -> None:
    client = FakeCluster().client()
    async with await watch_logs(client=client) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await create_log("a", client=client)
        assert await waiting == LogChange("added", "a")


async def test_a_cancelled_read_loses_no_change() -> None:
    client = FakeCluster().client()
    async with await watch_logs(client=client) as watch:
        for _ in range(3):
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await create_log("a", client=client)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await anext(watch) == LogChange("added", "a")


async def test_a_watch_heals_after_an_outage_and_the_loss_of_its_session() -> None:
    store = MemoryStore("memory://watched", "watched")
    cluster = FakeCluster()
    watcher = cluster.client(store)
    admin = cluster.client(MemoryStore("memory://watched", "watched"))
    await create_log("a", client=admin)
    async with await watch_logs(client=watcher) as watch:
        assert await anext(watch) == LogChange("added", "a")
        store.expire()
        await create_log("b", client=admin)
        assert await anext(watch) == LogChange("added", "b")
        store.cut()
        waiting = asyncio.ensure_future(anext(watch))
        await create_log("c", client=admin)
        await delete_log("a", client=admin)
        store.heal()
        assert {await waiting, await anext(watch)} == {("removed", "a"), ("added", "c")}


async def test_a_watch_that_was_closed_says_so() -> None:
    client = FakeCluster().client()
    watch = await watch_logs(client=client)
    waiting = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    await watch.close()
    await watch.close()
    with pytest.raises(HandleClosed):
        await waiting
    with pytest.raises(HandleClosed):
        await anext(watch)


async def test_who_watches_with_a_client_that_is_closed_is_told_and_not_cancelled() -> None:
    client = FakeCluster().client()
    async with await watch_logs(client=client) as watch:
        waiting = asyncio.ensure_future(anext(watch))
        await settled()
        await client.store.close()
        with pytest.raises(HandleClosed):
            await waiting
