"""One thing with many items: so many at once, and nothing goes on behind."""

import asyncio

import pytest

from ledger.errors import NoSuchLedger
from ledger.tasks import for_each


async def test_each_item_is_worked_on_once_and_so_many_at_a_time() -> None:
    done: list[int] = []
    at_once = most = 0

    async def work(item: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        done.append(item)

    await for_each(range(20), work, at_once=3)
    assert sorted(done) == list(range(20))
    assert most == 3


async def test_an_error_is_raised_as_it_is_when_nothing_is_under_way_any_more() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            raise NoSuchLedger(7)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(item)

    with pytest.raises(NoSuchLedger):
        await for_each([0, 2, 1, 3], work, at_once=3)
    assert sorted(ended) == [0, 2]


async def test_a_cancellation_ends_when_nothing_is_under_way_any_more() -> None:
    ended: list[int] = []
    begun = asyncio.Event()

    async def work(item: int) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(item)

    running = asyncio.ensure_future(for_each([1, 2], work, at_once=2))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == [1, 2]
