"""Barriers: reading all that was acknowledged when somebody asked."""

import asyncio
from itertools import count

import pytest

from dlog.aio import Log
from dlog.aio.admin import create_log, delete_log
from dlog.errors import BarrierNotReached, LogClosed, NoSuchLog
from dlog.settings import LogSettings
from ledger.errors import BookieUnavailable
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster
from tests.ledger.local_bookies import local_bookies
from tests.waiting import settled


@pytest.mark.slow
async def test_a_read_right_after_an_acknowledgement_finds_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DL #203: on real bookies, where LAC lags behind the acknowledgement."""
    monkeypatch.setattr("dlog.aio.read.tails.END_GRACE_S", 20.0)  # the machine may be busy
    async with local_bookies() as cluster:
        client = await cluster.client()
        settings = LogSettings(roll_records=7)
        async with await Log.open("log", client=await cluster.client(), settings=settings) as log:
            for i in range(30):
                appended = await log.append(b"%d" % i)
                assert appended.offset == i
                assert await Log.end_of("log", client=client) == i + 1
                async with await Log.tail("log", client=client, start=i, follow=False) as reader:
                    assert [record.offset async for record in reader] == [i]


async def test_a_barrier_waits_until_what_bookies_hold_is_confirmed() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    await log.append(b"0")
    cluster.hold()
    late = [log.append_async(b"%d" % i) for i in (1, 2)]
    await asyncio.sleep(0)
    reader = await Log.tail("log", client=cluster.client())
    barrier = asyncio.create_task(reader.barrier())
    await settled()
    assert not barrier.done()
    cluster.release()
    assert await barrier == 3
    assert [int(r.value) async for r in reader.read_until(await barrier)] == [0, 1, 2]
    await asyncio.gather(*late)
    await log.append(b"3")
    assert (await anext(reader)).offset == 3
    assert reader.position == 4
    assert [r async for r in reader.read_until(2)] == []
    await reader.close()
    with pytest.raises(LogClosed):
        await reader.barrier()
    await log.close()


async def test_a_read_to_the_end_sees_what_the_last_add_confirmed_does_not_tell_yet() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    ledger = cluster.ledgers[LedgerId(1)]
    ledger.silence()
    await log.append(b"0")

    async def tell(*_: object) -> None:  # as a writer does at its next entry or idle moment
        ledger.silent = False

    cluster.before("read", tell)
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert [int(record.value) async for record in reader] == [0]
    async with await Log.tail("log", client=client, start="end") as reader:
        assert reader.position == 1
    await log.close()


async def test_a_barrier_that_only_a_dead_writer_could_tell_is_an_error_until_a_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.aio.read.tails.END_GRACE_S", 0.01)
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"0")
    cluster.ledgers[LedgerId(1)].silence()
    await log.append(b"1")
    await log.abandon()
    with pytest.raises(BarrierNotReached, match="entry 1:1:0") as caught:
        await Log.end_of("log", client=client, timeout_s=0.01)
    assert caught.value.retryable
    async with await Log.tail("log", client=client, follow=False) as reader:
        assert [int(record.value) async for record in reader] == [0]
    waiting = asyncio.create_task(Log.end_of("log", client=client))
    other = await Log.open("log", client=client)
    assert await waiting == 2
    assert await Log.end_of("log", client=client) == 2
    await other.close()


@pytest.mark.parametrize("interruptions", [0, 1, 2])
async def test_a_reader_comes_to_its_barrier_although_bookies_forget_that_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, interruptions: int
) -> None:
    monkeypatch.setattr("dlog.aio.read.chunks.WAIT_S", 0.01)
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"0")
    ledger = cluster.ledgers[LedgerId(1)]
    ledger.silence()
    await log.append(b"1")
    async with await Log.tail("log", client=client) as reader:
        assert (await anext(reader)).offset == 0
        polling, barrier = asyncio.Event(), asyncio.Event()
        polls = count(-1)

        async def poll(*_: object) -> None:
            polling.set()
            await barrier.wait()
            number = next(polls)
            assert number < 20, "it waits below its barrier"
            if 0 <= number < interruptions:
                raise BookieUnavailable("b1", "silent")

        cluster.before("read", poll)
        await polling.wait()
        ledger.silent = False
        assert await reader.barrier() == 2
        ledger.silent = True
        await log.abandon()
        barrier.set()
        rest = await reader.read_batch()
        assert [record.offset for record in rest] == [1]


async def test_a_barrier_is_found_in_the_midst_of_a_roll() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    assert await Log.end_of("log", client=client) == 0
    await log.append(b"0")
    switched, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> None:
        switched.set()
        await go_on.wait()

    cluster.before("close", slow)
    rolling = asyncio.create_task(log.roll())
    await switched.wait()
    assert await Log.end_of("log", client=client) == 1
    await log.append(b"1")
    assert await Log.end_of("log", client=client) == 2
    go_on.set()
    await rolling
    assert await Log.end_of("log", client=client) == 2
    await log.close()
    assert await Log.end_of("log", client=client) == 2


async def test_a_barrier_outlives_trouble_that_passes_and_tells_what_does_not() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    with pytest.raises(NoSuchLog):
        await Log.end_of("log", client=client)
    async with await Log.open("log", client=client) as log:
        await log.append(b"0")
        cluster.fail_next("lac", BookieUnavailable("b1", "silent"))
        assert await Log.end_of("log", client=client) == 1
        cluster.fail_next("lac", *[BookieUnavailable("b1", "silent") for _ in range(99)])
        with pytest.raises(BookieUnavailable):
            await Log.end_of("log", client=client, timeout_s=0.01)
        cluster.hooks.clear()


async def test_a_barrier_whose_log_is_deleted_meanwhile_says_so_however_late_it_is() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"0")

    async def deleted_meanwhile(_ledger_id: LedgerId) -> None:
        del cluster.hooks["open"]
        await delete_log("log", client=client)

    cluster.hooks["open"] = deleted_meanwhile
    with pytest.raises(NoSuchLog):
        await Log.end_of("log", client=client, timeout_s=0.0)
    await log.abandon()


async def test_a_reader_of_a_deleted_log_gets_no_barrier_of_the_one_that_follows_it() -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client)
    await log.append(b"0")
    reader = await Log.tail("log", client=client)
    assert (await anext(reader)).offset == 0
    await delete_log("log", client=client)
    await create_log("log", client=client)
    with pytest.raises(NoSuchLog, match="another one has its name"):
        await reader.barrier()
    assert await Log.end_of("log", client=client) == 0
    await reader.close()
    await log.abandon()
