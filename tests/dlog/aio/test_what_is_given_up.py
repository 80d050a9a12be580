"""What a truncation, retention and a deletion may take, and what has to be fenced before."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from traceback import extract_tb

import pytest

from dlog.aio import Log
from dlog.aio.admin import delete_log, truncate_log
from dlog.aio.maintain.lifecycle import begin_drop, finish_drop
from dlog.aio.store import ManifestNode, delete_listed
from dlog.errors import (
    AppendOutcomeUnknown,
    InvalidPosition,
    LogClosed,
    LostOwnership,
    NoSuchLog,
)
from dlog.settings import LogSettings
from ledger.errors import LedgerFenced
from ledger.ids import LedgerId
from tests.dlog.aio.test_ends_of_segments import next_segment_listed
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import settled, until


async def processed(client: FakeLedgers, name: str, end: int) -> None:
    """Let the consumer *name* process the records up to *end*."""
    async with await Log.consumer(name, "log", client=client) as consumer:
        async for _ in consumer.read_until(end):
            pass
        assert await consumer.commit() == end


async def test_a_writer_does_not_truncate_what_it_has_sent_and_is_not_confirmed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    future = log.append_async(b"b")
    await settled()
    with pytest.raises(InvalidPosition, match="ends at offset 1"):
        await log.truncate(before=2)
    assert (await ManifestNode(client.store, "log").read())[0].trim_offset == 0
    cluster.release()
    await future
    await log.truncate(before=2)
    await log.close()


async def test_nobody_truncates_what_bookies_hold_before_it_is_confirmed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    future = log.append_async(b"b")
    waiting = asyncio.Event()

    async def asks(_: LedgerId, first: int) -> None:
        if first == 1:
            waiting.set()

    cluster.before("read", asks)
    truncating = asyncio.create_task(truncate_log("log", before=2, client=client))
    await until(lambda: waiting.is_set() or truncating.done(), "it waits for the confirmation")
    assert not truncating.done()
    assert (await ManifestNode(client.store, "log").read())[0].trim_offset == 0
    cluster.release()
    await future
    assert await truncating == 2
    await log.close()


async def test_only_who_fences_the_ledgers_of_a_log_that_is_being_deleted_deletes_them() -> None:
    client = FakeCluster().client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    node = ManifestNode(client.store, "log")
    await begin_drop(node)  # and whoever did that is slow

    manifest, _ = await node.read()
    assert await delete_listed(client, node, manifest) == manifest, "by a roll or a janitor"
    await client.describe(manifest.deleting[-1])
    await finish_drop(client, node)

    with pytest.raises(AppendOutcomeUnknown, match="fenced"):
        await log.append(b"b")
    with pytest.raises(NoSuchLog):
        await node.read()
    await log.abandon()


async def test_a_roll_that_meets_the_deletion_of_its_log_leaves_the_ledgers_to_it() -> None:
    """They are not fenced yet: whoever has the last one would go on in it."""
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    node = ManifestNode(client.store, "log")

    async def begins(*_: object) -> None:
        await begin_drop(node)  # and sleeps

    cluster.before("close", begins)
    with suppress(LostOwnership, NoSuchLog):  # it may hear of the deletion before it is done
        await log.roll()
    await log.abandon()
    assert (await node.read())[0].dropped
    assert cluster.deleted == []


@pytest.mark.parametrize("first", ["slow", "fast"])
async def test_retention_waits_for_the_slowest_of_several_consumers(first: str) -> None:
    client = FakeCluster().client()
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    log = await Log.open("log", client=client, settings=settings)
    for name in sorted(("slow", "fast"), reverse=first == "slow"):
        await (await Log.consumer(name, "log", client=client)).close()
    for segment in range(3):
        for _ in range(5):
            await log.append(b"x" * 100)
        await processed(client, "fast", 5 * (segment + 1))
        if segment == 0:
            await processed(client, "slow", 5)
        await log.roll()
    await log.append(b"y")
    await log.roll()
    assert (await ManifestNode(client.store, "log").read())[0].trim_offset == 5
    await log.close()


async def test_a_deletion_in_the_middle_of_a_roll_fences_both_ledgers_of_the_writer() -> None:
    """Its writer may be before the switch or behind it; neither acknowledges any more."""
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    later = await next_segment_listed(client, log)
    await delete_log("log", client=client)
    assert sorted(cluster.deleted) == [LedgerId(1), LedgerId(2)]
    with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
        await log.append(b"b")
    with pytest.raises(LedgerFenced):
        await later.add(b"c")
    await log.abandon()


REFUSED: list[Callable[[Log], Awaitable[object]]] = [
    lambda log: log.append(b"never"),
    lambda log: asyncio.shield(log.append_async(b"never")),
    lambda log: log.append_many([b"never"]),
    lambda log: asyncio.shield(log.append_many_async([b"never"])),
    lambda log: log.flush(),
    lambda log: log.truncate(before=0),
]


@pytest.mark.parametrize(
    "refused", REFUSED, ids=["append", "future", "many", "future of many", "flush", "truncate"]
)
async def test_whoever_appends_again_and_again_to_a_log_that_is_over_costs_no_memory(
    refused: Callable[[Log], Awaitable[object]],
) -> None:
    """There is one error for all, which would hold the frames of all that it was raised to."""
    log = await Log.open("log", client=FakeCluster().client())
    await log.abandon()
    for _ in range(100):
        with pytest.raises(LogClosed) as caught:
            await refused(log)
        assert len(extract_tb(caught.value.__traceback__)) < 15
