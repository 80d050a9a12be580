"""Ending a log for good: readers end, nobody writes, nothing acknowledged is lost."""

import asyncio

import pytest

from dlog.aio import Log, Reader
from dlog.aio.admin import create_log, delete_log, log_info, seal_log, truncate_log
from dlog.aio.store import ManifestNode
from dlog.errors import (
    AppendOutcomeUnknown,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    TakeoverFailed,
)
from dlog.protocol import lifecycle
from dlog.settings import LogSettings
from ledger.errors import MetadataUnavailable
from ledger.ids import LedgerId
from tests.dlog.fake_ledgers import FakeCluster


async def test_a_sealed_log_is_read_to_its_end_and_never_written_again() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    reader = await Log.tail("a", client=client)
    following = asyncio.ensure_future(_read(reader))
    for value in (b"x", b"y", b"z"):
        await log.append(value)
    await log.seal()
    assert await following == [b"x", b"y", b"z"]
    with pytest.raises(LogClosed):
        await log.append(b"w")
    with pytest.raises(LogSealed):
        await Log.open("a", client=client)
    assert await _read(await Log.tail("a", client=client)) == [b"x", b"y", b"z"]
    assert (await log_info("a", client=client)).manifest.sealed


async def test_sealing_beside_a_living_writer_keeps_what_it_acknowledged() -> None:
    cluster = FakeCluster()
    log = await Log.open("a", client=cluster.client())
    await log.append(b"x")
    await log.roll()
    await log.append(b"y")
    assert await seal_log("a", client=cluster.client()) == 2
    assert await seal_log("a", client=cluster.client()) == 2
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await log.append(b"z")
    assert await _read(await Log.tail("a", client=cluster.client())) == [b"x", b"y"]
    await log.abandon()


async def test_a_writer_that_was_taken_over_does_not_seal_the_log_of_another() -> None:
    cluster = FakeCluster()
    old = await Log.open("a", client=cluster.client())
    await old.append(b"x")
    new = await Log.open("a", client=cluster.client())
    with pytest.raises(LostOwnership):
        await old.seal()
    await new.append(b"y")
    await new.seal()
    assert await _read(await Log.tail("a", client=cluster.client())) == [b"x", b"y"]


async def test_who_takes_the_log_over_while_it_is_sealed_is_fenced_too() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    old = await Log.open("a", client=client)
    await old.append(b"x")
    rivals: list[Log] = []

    async def take_over(_: LedgerId) -> None:
        if not rivals:
            cluster.hooks.clear()
            rivals.append(await Log.open("a", client=client))
            await rivals[0].append(b"y")

    cluster.before("recover", take_over)
    assert await seal_log("a", client=client) == 2
    assert await _read(await Log.tail("a", client=client)) == [b"x", b"y"]
    with pytest.raises((AppendOutcomeUnknown, LostOwnership)):
        await rivals[0].append(b"z")
    await old.abandon()
    await rivals[0].abandon()


async def test_sealing_gives_up_if_others_are_faster_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "BACKOFF_S", 0.001)
    cluster = FakeCluster()
    client = cluster.client()
    await (await Log.open("a", client=client)).abandon()

    async def take_over(_: LedgerId) -> None:
        hook = cluster.hooks.pop("recover")
        await (await Log.open("a", client=client)).abandon()
        cluster.before("recover", hook)

    cluster.before("recover", take_over)
    with pytest.raises(TakeoverFailed):
        await seal_log("a", client=client)


async def test_a_seal_that_failed_half_way_leaves_a_log_that_can_be_opened_or_sealed() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("a", client=client)
    await log.append(b"x")
    cluster.fail_next("recover", MetadataUnavailable("x", "read", 1))
    with pytest.raises(MetadataUnavailable):
        await seal_log("a", client=client)
    assert await seal_log("a", client=client) == 1
    await log.abandon()


async def test_a_log_without_a_record_can_be_sealed_and_one_that_is_gone_cannot() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    assert await seal_log("a", client=client) == 0
    assert await _read(await Log.tail("a", client=client)) == []
    with pytest.raises(NoSuchLog):
        await seal_log("b", client=client)
    await delete_log("a", client=client)
    with pytest.raises(NoSuchLog):
        await seal_log("a", client=client)


async def test_a_sealed_log_is_still_truncated() -> None:
    client = FakeCluster().client()
    async with await Log.open("a", client=client, settings=LogSettings(roll_records=1)) as log:
        for value in (b"x", b"y", b"z"):
            await log.append(value)
            await log.roll()
    await seal_log("a", client=client)
    assert await truncate_log("a", before=2, client=client) == 2
    assert await _read(await Log.tail("a", client=client)) == [b"z"]
    assert (await ManifestNode(client.store, "a").read())[0].deleting == ()


async def _read(reader: Reader) -> list[bytes]:
    async with reader:
        return [record.value async for record in reader]
