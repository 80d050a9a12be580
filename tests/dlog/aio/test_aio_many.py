"""Several logs as one stream, and the last records of one."""

import asyncio
from collections import defaultdict

import pytest

from dlog.aio import Log, ManyReader
from dlog.aio.admin import delete_log
from dlog.errors import InvalidPosition, LogClosed, NoSuchLog, TooManyLogs, Trimmed
from dlog.position import Start, Txid
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import ended, settled


async def opened(client: FakeLedgers, *names: str, records: int = 0) -> list[Log]:
    logs = [await Log.open(name, client=client) for name in names]
    for log in logs:
        for i in range(records):
            await log.append(b"%d" % i, txid=i)
    return logs


async def close(*logs: Log) -> None:
    for log in logs:
        await log.close()


async def by_log(many: ManyReader) -> dict[str, list[int]]:
    got: dict[str, list[int]] = defaultdict(list)
    async for log, record in many:
        got[log].append(int(record.value))
    return got


async def test_many_logs_are_one_stream_each_in_its_order() -> None:
    client = FakeCluster().client()
    logs = await opened(client, "a", "b", "c", records=20)
    starts: dict[str, Start] = {"b": 15, "c": Txid(18)}
    async with await Log.tail_many(list("abc"), start=starts, follow=False, client=client) as many:
        assert many.positions == {"a": 0, "b": 15, "c": 18}
        got = await by_log(many)
        assert got == {"a": list(range(20)), "b": list(range(15, 20)), "c": [18, 19]}
        assert many.at_end
        assert many.positions == {"a": 20, "b": 20, "c": 20}
        assert await many.read_batch() is None
    await close(*logs)


async def test_logs_take_turns_entry_by_entry() -> None:
    client = FakeCluster().client()
    logs = await opened(client, "busy", records=500)
    logs += await opened(client, "quiet", records=2)
    many = await Log.tail_many(["busy", "quiet"], client=client)
    await settled()  # let both read ahead
    first = [log for log, _ in [await anext(many) for _ in range(4)]]
    assert sorted(first) == ["busy", "busy", "quiet", "quiet"]
    await many.close()
    await close(*logs)


async def test_a_waiting_read_is_woken_by_any_log_and_a_cancelled_one_takes_nothing() -> None:
    client = FakeCluster().client()
    logs = await opened(client, "a", "b")
    many = await Log.tail_many(["a", "b"], client=client)
    for turn in range(6):
        cancelled = asyncio.ensure_future(many.read_batch())
        await settled()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await many.read_batch(timeout_s=0.001) is None
        waiting = asyncio.ensure_future(anext(many))
        log = logs[turn % 2]
        appended = await log.append(b"x")
        name, record = await ended(waiting, "it is woken")
        assert (name, record.offset) == (log.name, appended.offset)
    await many.close()
    with pytest.raises(LogClosed):
        await anext(many)
    await close(*logs)


async def test_logs_come_and_go_while_others_are_read() -> None:
    client = FakeCluster().client()
    a, b = await opened(client, "a", "b", records=3)
    many = await Log.tail_many(["a"], client=client)
    assert [(await anext(many))[1].offset for _ in range(3)] == [0, 1, 2]
    waiting = asyncio.ensure_future(anext(many))
    await settled()
    await many.add("b", start=1)
    await many.add("b")  # it is read already
    name, record = await waiting
    assert (name, record.offset) == ("b", 1)
    assert many.logs == ("a", "b")
    assert await many.remove("b") == 2
    assert await many.remove("b") is None
    await a.append(b"3")
    assert (await anext(many))[0] == "a"
    assert await many.remove("a") == 4
    with pytest.raises(StopAsyncIteration):
        await anext(many)
    await many.close()
    await close(a, b)


async def test_a_log_that_is_taken_out_gives_no_more_of_an_entry_that_was_begun() -> None:
    client = FakeCluster().client()
    a, b = await opened(client, "a", "b", records=1)
    await b.append_many([b"1", b"2"])
    many = await Log.tail_many(["b"], start=1, client=client)
    assert (await anext(many))[1].offset == 1
    assert await many.remove("b") == 2
    await many.add("a")
    assert (await anext(many))[0] == "a"
    assert many.positions == {"a": 1}
    await many.close()
    await close(a, b)


async def test_a_log_that_fails_says_so_until_it_is_taken_out() -> None:
    client = FakeCluster().client()
    a, b = await opened(client, "a", "b", records=1)
    many = await Log.tail_many(["a", "b"], client=client)
    assert sorted([(await anext(many))[0], (await anext(many))[0]]) == ["a", "b"]
    await delete_log("b", client=client)
    with pytest.raises(NoSuchLog, match="'b'"):
        await anext(many)
    await a.append(b"1")
    await settled()  # let it be read ahead
    for _ in range(2):
        with pytest.raises(NoSuchLog, match="'b'"):
            await anext(many)
    await many.remove("b")
    assert (await anext(many))[1].offset == 1
    await many.close()
    await a.close()
    await b.abandon()


async def test_a_log_that_cannot_be_opened_is_told_and_nothing_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    logs = await opened(client, "a", "b", records=2)
    with pytest.raises(NoSuchLog, match="'c'"):
        await Log.tail_many(["a", "b", "c"], client=client)
    await logs[0].truncate(before=1)
    with pytest.raises(Trimmed):
        await Log.tail_many(["a", "b"], start=0, client=client)
    monkeypatch.setattr("dlog.aio.read.many.LOGS_MAX", 1)
    with pytest.raises(TooManyLogs):
        await Log.tail_many(["a", "b"], client=client)
    await close(*logs)
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not any("Reader" in name for name in names)


async def test_many_logs_share_one_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.aio.read.many.SHARE_BYTES_MIN", 1)
    monkeypatch.setattr("dlog.aio.read.many.READ_AHEAD_BYTES", 40_000)
    cluster = FakeCluster()
    client = cluster.client()
    names = [f"log{i}" for i in range(10)]
    logs = await opened(client, *names)
    for log in logs:
        for _ in range(50):
            await log.append(bytes(1000))
    ahead: dict[LedgerId, int] = {}

    async def note(ledger_id: LedgerId, first: int) -> None:
        ahead[ledger_id] = first

    cluster.before("read", note)
    async with await Log.tail_many(names, follow=False, client=client) as many:
        await settled()
        assert len(ahead) == 10
        assert max(ahead.values()) <= 4  # entries of 1 KB, 4 KB for each log
        assert len([record async for record in many]) == 500
    await close(*logs)


async def test_the_last_records_are_read_without_those_before() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    (log,) = await opened(client, "log")
    assert await Log.last("log", 5, client=client) == []
    for i in range(10):
        await log.append(b"%d" % i)
        if i % 4 == 3:
            await log.roll()
    for count in (1, 2, 5, 10, 11, 1000):
        last = await Log.last("log", count, client=client)
        assert [record.offset for record in last] == list(range(max(0, 10 - count), 10))
    assert [r.offset for r in await Log.last("log", 9, bytes_max=3, client=client)] == [7, 8, 9]
    assert [r.offset for r in await Log.last("log", 9, bytes_max=0, client=client)] == [9]
    await log.truncate(before=8)
    assert [r.offset for r in await Log.last("log", 9, client=client)] == [8, 9]
    for wrong in (0, -1):
        with pytest.raises(InvalidPosition):
            await Log.last("log", wrong, client=client)
    with pytest.raises(NoSuchLog):
        await Log.last("other", client=client)
    await log.close()
