"""Watches of every store: level triggered, of one node's value, existence and children."""

import asyncio

import pytest

from ledger.metastore import CreateOp, DeleteOp, SetOp
from tests.ledger.metastore.backends import Backend, settled
from tests.waiting import PATIENCE_S, ended


@pytest.mark.slow
async def test_value_creation_deletion_and_children_wake_a_watch(backend: Backend) -> None:
    async with backend.two() as (a, b):
        watch = b.watch("/w")
        for change in (
            a.create("/w", b"created"),
            a.set("/w", b"set"),
            a.create("/w/child"),
            a.delete("/w/child"),
            a.delete("/w"),
            a.create("/w", b"again"),
            a.multi([SetOp("/w", b"by multi"), CreateOp("/w/child")]),
            a.multi([DeleteOp("/w/child"), DeleteOp("/w")]),
        ):
            await settled(watch)
            await change
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()
        watch.close()


@pytest.mark.slow
async def test_a_change_right_after_watch_is_not_missed(backend: Backend) -> None:
    async with backend.two() as (a, b):
        for n in range(20):
            watch = b.watch(f"/w{n}")
            await a.create(f"/w{n}")
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()
            watch.close()


async def test_a_store_sees_its_own_changes(backend: Backend) -> None:
    async with backend.one() as store:
        watch = store.watch("/w")
        await store.create("/w/a")
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


async def test_who_reads_after_each_wake_up_ends_with_the_last_value(backend: Backend) -> None:
    async with backend.two() as (a, b):
        await a.create("/w", b"0")
        watch = b.watch("/w")

        async def follow() -> None:
            while (await b.get("/w")).value != b"50":
                async with asyncio.timeout(PATIENCE_S):
                    await watch.changed()

        following = asyncio.create_task(follow())
        for n in range(1, 51):
            await a.set("/w", b"%d" % n)
        await following


@pytest.mark.slow
async def test_many_changes_become_few_wake_ups(backend: Backend) -> None:
    async with backend.two() as (a, b):
        await a.create("/w")
        watch = b.watch("/w")
        await settled(watch)
        for n in range(30):
            await a.set("/w", b"%d" % n)
        await b.sync()
        await ended(watch.changed())
        woken = 1
        while True:
            try:
                async with asyncio.timeout(0.3):
                    await watch.changed()
            except TimeoutError:
                break
            woken += 1
        assert woken < 30


@pytest.mark.slow
async def test_changes_elsewhere_do_not_wake_a_watch(backend: Backend) -> None:
    async with backend.two() as (a, b):
        await a.create("/w/child")
        watch = b.watch("/w")
        await settled(watch)
        await a.set("/w/child", b"below")
        await a.create("/w/child/below")
        await a.create("/w2")
        await a.set("/", b"above")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await watch.changed()


async def test_a_waiter_that_gives_up_leaves_the_change_for_the_next(backend: Backend) -> None:
    async with backend.two() as (a, b):
        watch = b.watch("/w")
        await settled(watch)
        await a.create("/w")
        waiter = asyncio.create_task(watch.changed())
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


@pytest.mark.slow
async def test_each_watch_of_a_path_is_woken_and_closing_one_leaves_the_others(
    backend: Backend,
) -> None:
    async with backend.two() as (a, b):
        watches = [b.watch("/w") for _ in range(3)]
        for watch in watches:
            await settled(watch)
        watches[0].close()
        watches[0].close()
        await a.create("/w")
        for watch in watches[1:]:
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()


async def test_closing_a_watch_or_its_store_cancels_who_waits(backend: Backend) -> None:
    store = await backend.open()
    for close in (lambda watch: watch.close(), None):
        watch = store.watch("/w")
        await settled(watch)
        waiter = asyncio.create_task(watch.changed())
        await asyncio.sleep(0)
        if close is None:
            await store.close()
        else:
            close(watch)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):
                await waiter


async def test_a_watch_made_and_closed_again_and_again_works_each_time(backend: Backend) -> None:
    async with backend.two() as (a, b):
        await a.create("/w")
        for n in range(10):
            watch = b.watch("/w")
            await a.set("/w", b"%d" % n)
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()
            watch.close()
