"""Closing a log: cut short, twice at once, in the middle of other work."""

import asyncio

import pytest

from dlog.aio import Log
from dlog.aio.admin import verify_log
from dlog.aio.store import ManifestNode
from dlog.errors import AppendFailed, AppendOutcomeUnknown, LogClosed
from dlog.names import path_of
from dlog.settings import LogSettings
from ledger.errors import MetadataUnavailable, NotEnoughBookies
from ledger.ids import LedgerId
from ledger.metastore.memory import MemoryStore
from tests.dlog.fake_ledgers import FakeCluster
from tests.dlog.faulty_store import OvertakenStore
from tests.waiting import PATIENCE_S, settled, until

TROUBLE = NotEnoughBookies(2, ["b1"])


async def test_every_append_resolves_if_closing_is_cancelled() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    await log.append(b"a")
    cluster.hold()
    sent = log.append_async(b"b")
    await asyncio.sleep(0)
    unsent = [log.append_async(b"c") for _ in range(100)]
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    flushing = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AppendOutcomeUnknown):
            await sent
        for future in unsent:
            with pytest.raises((AppendOutcomeUnknown, LogClosed)):
                await future
        with pytest.raises(LogClosed):
            await flushing


async def test_who_closes_a_log_that_is_being_closed_waits_for_that() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    cluster.hold()
    future = log.append_async(b"a")
    first = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    second = asyncio.create_task(log.close())
    await settled()
    assert not second.done()
    cluster.release()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(first, second)
    assert (await future).offset == 0


async def test_a_writer_that_heals_while_it_seals_its_log_seals_it() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client)
    await log.append(b"a")
    cluster.hold()
    log.append_async(b"b")
    await asyncio.sleep(0)
    sealing = asyncio.create_task(log.seal())
    await asyncio.sleep(0)
    cluster.held = False
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    async with asyncio.timeout(PATIENCE_S):
        await sealing
    manifest, _ = await ManifestNode(client.store, "log").read()
    assert manifest.sealed
    assert manifest.sealed_end == 2


async def test_a_roll_ends_with_the_log_that_is_let_go_while_it_heals() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    await log.append(b"a")

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    cluster.before("create", never)
    rolling = asyncio.create_task(log.roll())
    await settled()
    log.writer.lose(TROUBLE)
    await settled()
    assert not rolling.done()
    await log.abandon()
    await settled()
    assert rolling.done(), "and not only when its patience ends"
    with pytest.raises(LogClosed):
        await rolling


async def test_who_closes_a_log_in_the_middle_of_a_roll_seals_no_segment_of_who_took_it_over() -> (
    None
):
    cluster = FakeCluster()
    client = cluster.client()
    slow = OvertakenStore(MemoryStore("memory://fake", "fake"))
    log = await Log.open("log", client=cluster.client(slow))
    await log.append(b"a")
    asked, others = asyncio.Event(), list[Log]()

    async def sleep() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def take_over(ledger_id: LedgerId) -> None:
        if ledger_id == 2 and not others:  # that of the roll; the own segment is sealed by now
            others.append(await Log.open("log", client=client))

    async def made(_: object) -> None:
        if not asked.is_set():
            slow.sleeps_after(path_of("log"), sleep)

    cluster.before("create", made)
    cluster.before("close", take_over)
    rolling = asyncio.create_task(log.roll())  # it has its ledger, and looks where to list it
    await asked.wait()
    await log.close()
    with pytest.raises(LogClosed):
        await rolling
    manifest, _ = await ManifestNode(client.store, "log").read()
    assert [segment.sealed is not None for segment in manifest.segments] == [True, False]
    assert (await others[0].append(b"b")).offset == 1
    await others[0].close()


async def test_a_segment_sealed_at_closing_does_not_claim_the_txids_of_the_next() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("log", client=client, settings=LogSettings(roll_records=1))
    cluster.fail_next("close", MetadataUnavailable("memory://fake", "close", 0.1))
    await log.append(b"a")
    await until(lambda: log.writer.own_ledgers == {LedgerId(2)})
    await log.append(b"b", txid=7)
    await log.close()
    manifest, _ = await ManifestNode(client.store, "log").read()
    first, second = (segment.sealed for segment in manifest.segments)
    assert first is not None
    assert second is not None
    assert (first.records, second.records) == (1, 1)
    assert second.last_txid == 7
    assert first.last_txid < 0
    assert (await verify_log("log", client=client)).healthy


async def test_what_nobody_foresaw_in_healing_ends_the_writer() -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())
    cluster.hold()
    future = log.append_async(b"a")
    await asyncio.sleep(0)

    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    cluster.before("recover", broken)
    cluster.ledgers[LedgerId(1)].fail(TROUBLE)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AppendOutcomeUnknown, match="a bug"):
            await future
        assert log.lost.is_set()


async def test_what_nobody_foresaw_in_sending_ends_the_writer_and_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    log = await Log.open("log", client=cluster.client())

    def broken(*_: object, **__: object) -> bytes:
        raise RuntimeError("a bug")

    monkeypatch.setattr("dlog.protocol.pending_batch.encode_batch", broken)
    future = log.append_async(b"a")
    flushing = asyncio.create_task(log.flush())
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(AppendOutcomeUnknown, match="a bug"):
            await future
        with pytest.raises(AppendFailed, match="a bug"):
            await flushing
        with pytest.raises(AppendFailed, match="a bug"):
            await log.close()
    assert log.lost.is_set()
