"""What opens a handle is awaited, or entered, or made a task of."""

import asyncio

import pytest

from dlog.aio import Log, Standby
from dlog.aio.admin import watch_logs
from dlog.errors import LogClosed, NoSuchLog
from dlog.testing import cluster


async def test_every_handle_is_entered_without_being_awaited_first() -> None:
    async with cluster(3) as running:
        uri = running.uri
        async with Log.open("log", uri=uri) as log:
            await log.append(b"x")
        with pytest.raises(LogClosed):
            await log.append(b"y")
        async with Log.tail("log", uri=uri, follow=False) as reader:
            assert [record.value async for record in reader] == [b"x"]
        async with Log.tail_many(["log"], uri=uri, follow=False) as many:
            assert [record.value async for _, record in many] == [b"x"]
        async with Log.consumer("c", "log", uri=uri, follow=False) as consumer:
            assert [record.value async for record in consumer] == [b"x"]
        async with watch_logs(uri=uri) as watch:
            assert (await anext(watch)).log == "log"
        async with Standby.open("log", lambda _: None, uri=uri) as standby:
            assert not standby.is_leader


async def test_a_handle_is_awaited_and_made_a_task_of_as_a_coroutine_is() -> None:
    async with cluster(3) as running:
        log = await Log.open("log", uri=running.uri)
        reader = await asyncio.create_task(Log.tail("log", uri=running.uri))
        one, other = await asyncio.gather(*(Log.tail("log", uri=running.uri) for _ in range(2)))
        for each in (reader, one, other, log):
            await each.close()
        unopened = Log.open("log", uri=running.uri)
        assert asyncio.iscoroutine(unopened)
        unopened.close()


async def test_what_cannot_be_opened_is_not_entered() -> None:
    async with cluster(3) as running:
        with pytest.raises(NoSuchLog):
            async with Log.tail("nothing", uri=running.uri):
                raise AssertionError("it was entered")
