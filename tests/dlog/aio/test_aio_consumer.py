"""Named consumers, on ledgers and metadata in memory."""

import asyncio
from collections.abc import Sequence

import pytest

from dlog.aio import Consumer, Log
from dlog.aio.admin import (
    consumer_info,
    create_log,
    delete_consumer,
    delete_log,
    list_consumers,
    list_logs,
    reset_consumer,
    slowest_consumer,
)
from dlog.aio.maintain.lifecycle import finish_drop
from dlog.aio.port import Ledgers
from dlog.aio.read.places import start_offset
from dlog.aio.store import ConsumerNode, ManifestNode
from dlog.errors import (
    ConsumerBusy,
    ConsumerFenced,
    InvalidName,
    InvalidPosition,
    LogClosed,
    LogExists,
    NoSuchConsumer,
    NoSuchLog,
    TooManyConsumers,
    Trimmed,
)
from dlog.position import BeyondEnd, Start
from dlog.protocol.consumer_steps import ConsumerState, consumers_path, encode
from ledger.errors import DamagedMetadata, HandleClosed, MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import CreateOp, Op
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore, OvertakenStore
from tests.waiting import PATIENCE_S, settled


async def written(client: FakeLedgers, count: int = 10) -> Log:
    log = await Log.open("log", client=client)
    for i in range(count):
        await log.append(b"%d" % i)
    return log


async def take(consumer: Consumer, count: int) -> list[int]:
    return [(await anext(consumer)).offset for _ in range(count)]


def sessions(cluster: FakeCluster, count: int) -> list[tuple[FakeLedgers, MemoryStore]]:
    """Return clients of one namespace, each with a session of its own."""
    stores = [MemoryStore("memory://sessions", "sessions") for _ in range(count)]
    return [(cluster.client(store), store) for store in stores]


async def test_a_consumer_goes_on_after_what_was_committed() -> None:
    client = FakeCluster().client()
    log = await written(client)
    async with await Log.consumer("view", "log", client=client) as consumer:
        assert (consumer.name, consumer.log, consumer.committed) == ("view", "log", 0)
        assert await take(consumer, 4) == [0, 1, 2, 3]
        assert await consumer.commit() == 4
        assert await take(consumer, 3) == [4, 5, 6]
        assert await consumer.commit(5) == 5
        assert await consumer.lag() == 5
    with pytest.raises(LogClosed):
        await consumer.commit()
    async with await Log.consumer("view", "log", start="end", client=client) as consumer:
        assert await take(consumer, 5) == [5, 6, 7, 8, 9]
    async with await Log.consumer("late", "log", start=8, client=client) as consumer:
        assert await take(consumer, 2) == [8, 9]
    async with await Log.consumer("late", "log", follow=False, client=client) as consumer:
        assert [record.offset async for record in consumer] == [8, 9]
        assert await consumer.commit() == 10  # also after the end
    await log.close()


async def test_a_position_never_moves_back_and_only_over_what_was_read() -> None:
    client = FakeCluster().client()
    log = await written(client)
    fast = await Log.consumer("view", "log", client=client)
    slow = await Log.consumer("view", "log", client=client)
    assert await take(fast, 7) == list(range(7))
    assert await take(slow, 2) == [0, 1]
    assert await fast.commit() == 7
    assert await slow.commit() == 7  # what the other one did stays
    assert await slow.commit() == 7
    for wrong in (-1, 3):
        with pytest.raises(InvalidPosition):
            await slow.commit(wrong)
    await fast.close()
    await slow.close()
    await log.close()


async def test_an_exclusive_consumer_has_one_process_at_a_time() -> None:
    cluster = FakeCluster()
    (first, _), (second, _) = sessions(cluster, 2)
    log = await written(first)
    one = await Log.consumer("view", "log", exclusive=True, client=first)
    assert (await consumer_info("view", "log", client=second)).in_use_by is not None
    for exclusive in (True, False):
        with pytest.raises(ConsumerBusy) as caught:
            await Log.consumer("view", "log", exclusive=exclusive, client=second)
        assert caught.value.retryable
    with pytest.raises(ConsumerBusy):
        await delete_consumer("view", "log", client=second)
    waiting = asyncio.create_task(
        Log.consumer("view", "log", exclusive=True, wait_s=PATIENCE_S, client=second)
    )
    await take(one, 3)
    await one.commit()
    await one.close()
    two = await waiting
    assert await take(two, 1) == [3]
    assert two.epoch == one.epoch + 1
    await two.close()
    async with await Log.consumer("view", "log", client=first) as shared:
        assert shared.epoch == two.epoch + 1
        assert await take(shared, 1) == [3]
    assert (await consumer_info("view", "log", client=second)).in_use_by is None
    await log.close()


async def test_whose_session_ended_unnoticed_cannot_commit_any_more() -> None:
    cluster = FakeCluster()
    (first, store), (second, _) = sessions(cluster, 2)
    log = await written(second)
    sleeper = await Log.consumer("view", "log", exclusive=True, client=first)
    await take(sleeper, 3)
    store.expire()
    successor = await Log.consumer("view", "log", exclusive=True, client=second)
    await take(successor, 1)
    await successor.commit()
    with pytest.raises(ConsumerFenced):
        await sleeper.commit()
    assert (await consumer_info("view", "log", client=second)).position == 1
    await sleeper.close()  # takes no lock away
    assert (await consumer_info("view", "log", client=second)).in_use_by is not None
    await successor.close()
    await log.close()


async def test_a_reset_moves_a_consumer_and_fences_who_has_it_open() -> None:
    client = FakeCluster().client()
    log = await written(client)
    consumer = await Log.consumer("view", "log", client=client)
    await take(consumer, 8)
    await consumer.commit()
    assert await reset_consumer("view", "log", 3, client=client) == 3
    await take(consumer, 1)
    with pytest.raises(ConsumerFenced):
        await consumer.commit()
    await consumer.close()
    async with await Log.consumer("view", "log", client=client) as again:
        assert await take(again, 1) == [3]
        assert await again.commit() == 4
    assert await reset_consumer("view", "log", "end", client=client) == 10
    with pytest.raises(NoSuchConsumer):
        await reset_consumer("other", "log", 0, client=client)
    await log.close()


async def test_consumers_are_listed_with_their_lag_and_the_slowest_is_known() -> None:
    client = FakeCluster().client()
    log = await written(client)
    assert await list_consumers("log", client=client) == []
    assert await slowest_consumer("log", client=client) is None
    for name, start in (("a/b c", 4), ("fast", 9), ("ü", 6)):
        await (await Log.consumer(name, "log", start=start, client=client)).close()
    found = await list_consumers("log", client=client)
    assert [(each.name, each.position, each.lag, each.trimmed) for each in found] == [
        ("a/b c", 4, 6, 0),
        ("fast", 9, 1, 0),
        ("ü", 6, 4, 0),
    ]
    assert await slowest_consumer("log", client=client) == ("a/b c", 4)
    await log.truncate(before=5)
    info = await consumer_info("a/b c", "log", client=client)
    assert (info.lag, info.trimmed) == (5, 1)
    await delete_consumer("a/b c", "log", client=client)
    assert await slowest_consumer("log", client=client) == ("ü", 6)
    for admin in (delete_consumer, consumer_info):
        with pytest.raises(NoSuchConsumer):
            await admin("a/b c", "log", client=client)
    assert await list_logs(client=client) == ["log"]
    await log.close()


async def test_what_was_trimmed_before_it_was_processed_is_told() -> None:
    client = FakeCluster().client()
    log = await written(client)
    await (await Log.consumer("view", "log", client=client)).close()
    await log.truncate(before=4)
    for exclusive in (True, False):
        with pytest.raises(Trimmed) as caught:
            await Log.consumer("view", "log", exclusive=exclusive, client=client)
        assert caught.value.first_offset == 4
    async with await Log.consumer("view", "log", on_trimmed="skip", client=client) as consumer:
        assert consumer.skipped == 4
        assert await take(consumer, 1) == [4]
        assert await consumer.commit() == 5
    await log.close()


async def test_an_exclusive_open_that_failed_lets_the_consumer_go() -> None:
    cluster = FakeCluster()
    (first, _), (second, _) = sessions(cluster, 2)
    log = await written(first)
    await (await Log.consumer("view", "log", client=first)).close()
    await log.truncate(before=3)
    with pytest.raises(Trimmed):
        await Log.consumer("view", "log", exclusive=True, client=first)
    opening = Log.consumer("view", "log", exclusive=True, on_trimmed="skip", client=second)
    async with await opening as consumer:
        assert consumer.skipped == 3
    await log.close()


async def test_consumers_go_with_their_log_and_do_not_bring_it_back() -> None:
    cluster = FakeCluster()
    (client, _), (other, _) = sessions(cluster, 2)
    log = await written(client)
    consumer = await Log.consumer("view", "log", client=client)
    alone = await Log.consumer("alone", "log", exclusive=True, client=other)
    await take(consumer, 3)
    await delete_log("log", client=client)
    assert await list_logs(client=client) == []
    with pytest.raises(NoSuchConsumer):
        await consumer.commit()
    for each in (consumer, alone):
        await each.close()
    await log.abandon()
    with pytest.raises(NoSuchLog):
        await Log.consumer("view", "log", client=client)
    await create_log("log", client=client)
    with pytest.raises(LogExists):
        await create_log("log", client=client)
    assert await list_consumers("log", client=client) == []
    async with await Log.consumer("view", "log", client=client) as consumer:
        assert consumer.committed == 0


async def test_a_node_that_an_earlier_log_left_behind_is_not_believed() -> None:
    client = FakeCluster().client()
    log = await written(client)
    node = ConsumerNode(client.store, "log", "view")
    left = ConsumerState(incarnation="i", log_incarnation="earlier", position=9, epoch=7)
    await client.store.create(node.path, encode(left))
    assert await list_consumers("log", client=client) == []
    async with await Log.consumer("view", "log", client=client) as consumer:
        assert await take(consumer, 1) == [0]
    await client.store.set(node.path, b"\xff")
    with pytest.raises(DamagedMetadata):
        await Log.consumer("view", "log", client=client)
    await log.close()


async def test_commits_survive_lost_replies_and_fail_clearly_in_an_outage() -> None:
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    log = await written(cluster.client())
    consumer = await Log.consumer("view", "log", client=cluster.client(store))
    await take(consumer, 3)
    store.faults.extend(["lost reply"])
    assert await consumer.commit() == 3
    await take(consumer, 1)
    store.faults.extend(["lost request", "lost request"])
    assert await consumer.commit() == 4
    await take(consumer, 1)
    store.down = True
    with pytest.raises(MetadataUnavailable) as caught:
        await consumer.commit()
    assert caught.value.retryable
    store.down = False
    assert await consumer.commit() == 5
    await consumer.close()
    await log.close()


async def test_a_name_is_checked_and_consumers_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    log = await written(client, 1)
    with pytest.raises(InvalidName):
        await Log.consumer("", "log", client=client)
    monkeypatch.setattr("dlog.protocol.consumer_steps.CONSUMERS_MAX", 1)
    await (await Log.consumer("one", "log", client=client)).close()
    with pytest.raises(TooManyConsumers):
        await Log.consumer("two", "log", client=client)
    await (await Log.consumer("one", "log", client=client)).close()
    await log.close()


async def test_a_deletion_that_slept_leaves_the_consumers_of_the_log_made_anew() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    slow = OvertakenStore(MemoryStore("memory://fake", "fake"))

    async def opened() -> None:
        await (await Log.open("log", client=client)).close()
        await (await Log.consumer("view", "log", client=client)).close()

    async def made_anew() -> None:
        await finish_drop(client, ManifestNode(client.store, "log"))
        await opened()

    await opened()
    slow.sleeps_after(consumers_path("log"), made_anew)
    await delete_log("log", client=cluster.client(slow))
    assert [info.name for info in await list_consumers("log", client=client)] == ["view"]


async def test_a_handle_of_a_deleted_consumer_never_moves_the_one_made_anew() -> None:
    """Their nodes are at the same version; only the count of deletions tells them apart."""
    client = FakeCluster().client()
    log = await written(client)
    handle = await Log.consumer("view", "log", client=client)
    await take(handle, 5)
    await delete_consumer("view", "log", client=client)
    anew = await Log.consumer("view", "log", client=client)
    with pytest.raises(ConsumerFenced):
        await handle.commit()
    assert (await consumer_info("view", "log", client=client)).position == 0
    await take(anew, 2)
    assert await anew.commit() == 2
    for each in (handle, anew, log):
        await each.close()


async def test_a_commit_outlives_the_deletion_of_another_consumer() -> None:
    client = FakeCluster().client()
    log = await written(client)
    handle = await Log.consumer("view", "log", client=client)
    await (await Log.consumer("other", "log", client=client)).close()
    await take(handle, 5)
    await delete_consumer("other", "log", client=client)
    assert await handle.commit() == 5
    await handle.close()
    await log.close()


async def test_a_reset_that_slept_does_not_move_the_consumer_of_the_log_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    await (await written(client)).close()
    await (await Log.consumer("view", "log", client=client)).close()

    async def sleeps(
        ledgers: Ledgers, node: ManifestNode, start: Start, **options: BeyondEnd
    ) -> int:
        offset = await start_offset(ledgers, node, start, **options)
        await delete_log("log", client=client)
        await (await written(client, 3)).close()
        await (await Log.consumer("view", "log", client=client)).close()
        return offset

    monkeypatch.setattr("dlog.aio.admin.start_offset", sleeps)
    with pytest.raises(NoSuchConsumer):
        await reset_consumer("view", "log", "end", client=client)
    assert (await consumer_info("view", "log", client=client)).position == 0


class _LosesTheReplyOfALock(FaultyStore):
    async def multi(self, ops: Sequence[Op]) -> None:
        if any(isinstance(op, CreateOp) and op.ephemeral for op in ops):
            self.faults.append("lost reply")
        await super().multi(ops)


async def test_a_shared_open_whose_lock_got_no_answer_leaves_none_behind() -> None:
    cluster = FakeCluster()
    troubled = cluster.client(_LosesTheReplyOfALock(MemoryStore("memory://fake", "fake")))
    other = cluster.client()
    log = await written(other)
    await (await Log.consumer("view", "log", client=other, exclusive=True)).close()
    with pytest.raises(MetadataUnavailable):
        await Log.consumer("view", "log", client=troubled)
    second = await Log.consumer("view", "log", client=other, exclusive=True, wait_s=PATIENCE_S)
    await second.close()
    await log.close()


@pytest.mark.slow
async def test_a_lock_that_could_not_be_let_go_at_once_is_let_go_later() -> None:
    """Its session lives on, and would keep everybody out of the consumer for ever."""
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    log = await written(client)
    first = await Log.consumer("view", "log", client=client, exclusive=True)
    store.down = True
    await first.close()
    store.down = False
    second = await Log.consumer("view", "log", client=client, exclusive=True, wait_s=PATIENCE_S)
    await second.close()
    await log.close()


async def test_who_waits_for_a_consumer_while_the_client_is_closed_is_told_so() -> None:
    cluster = FakeCluster()
    first = cluster.client(MemoryStore("memory://busy", "busy"))
    second = cluster.client(MemoryStore("memory://busy", "busy"))
    await create_log("log", client=first)
    holder = await Log.consumer("c", "log", client=first, exclusive=True)
    waiting = asyncio.ensure_future(
        Log.consumer("c", "log", client=second, exclusive=True, wait_s=PATIENCE_S)
    )
    await settled()
    await second.store.close()
    with pytest.raises(HandleClosed):
        await waiting
    await holder.close()
