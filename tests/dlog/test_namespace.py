import pytest

from dlog.aio import Log
from dlog.aio.manifests import ManifestNode
from dlog.errors import (
    AppendOutcomeUnknown,
    InvalidName,
    InvalidPosition,
    LogExists,
    LostOwnership,
    NoSuchLog,
)
from dlog.namespace import create_log, delete_log, list_logs, log_info, truncate_log
from dlog.protocol.edits import drop_log
from dlog.settings import LogSettings
from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from tests.dlog.asynchronous import asynchronous
from tests.dlog.fake_ledgers import FakeCluster
from tests.dlog.faulty_store import Fault, FaultyStore


@asynchronous
async def test_logs_are_created_listed_and_deleted() -> None:
    client = FakeCluster().client()
    assert await list_logs(client=client) == []
    for name in ("b/2", "a", "b/1"):
        await create_log(name, client=client)
    assert await list_logs(client=client) == ["a", "b/1", "b/2"]
    assert await list_logs(prefix="b/", client=client) == ["b/1", "b/2"]
    await delete_log("b/1", client=client)
    assert await list_logs(client=client) == ["a", "b/2"]
    with pytest.raises(NoSuchLog):
        await delete_log("b/1", client=client)


@asynchronous
async def test_a_log_is_created_once() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    with pytest.raises(LogExists):
        await create_log("a", client=client)


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
@asynchronous
async def test_a_creation_that_got_no_answer_recognises_its_own_log(fault: Fault) -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    await create_log("another", client=client)
    store.faults.append(fault)
    await create_log("a", client=client)


@asynchronous
async def test_bad_names_are_refused_everywhere() -> None:
    client = FakeCluster().client()
    for name in ("", "../a", "a\n", "x" * 256):
        for call in (create_log, delete_log, log_info):
            with pytest.raises(InvalidName):
                await call(name, client=client)
        with pytest.raises(InvalidName):
            await truncate_log(name, before=0, client=client)
        with pytest.raises(InvalidName):
            await Log.open(name, client=client)
        with pytest.raises(InvalidName):
            await Log.tail(name, client=client)


@asynchronous
async def test_info_tells_settings_segments_and_the_end() -> None:
    client = FakeCluster().client()
    settings = LogSettings(quorum=Quorum(5, 3, 2))
    async with await Log.open("a", client=client, settings=settings) as log:
        await log.append(b"x")
        await log.roll()
        await log.append(b"y")
        info = await log_info("a", client=client)
    assert info.records == 2
    assert info.manifest.settings == settings
    assert [segment.end_offset for segment in info.manifest.segments] == [1, None]


@asynchronous
async def test_truncating_beside_a_writer_disturbs_it_in_nothing() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
        await log.roll()
        await log.append(b"y")
        assert await truncate_log("a", before=2, client=cluster.client()) == 2
        await log.append(b"z")
        await log.roll()
        assert (await log.append(b"w")).offset == 3
        with pytest.raises(InvalidPosition):
            await truncate_log("a", before=5, client=client)
    assert (await log_info("a", client=client)).records == 2


@asynchronous
async def test_a_deleted_log_is_lost_to_its_writer_before_another_append_is_acknowledged() -> None:
    cluster = FakeCluster()
    log = await Log.open("a", client=cluster.client())
    await log.append(b"x")
    await delete_log("a", client=cluster.client())
    assert cluster.ledgers == {}
    with pytest.raises((LostOwnership, AppendOutcomeUnknown)):
        await log.append(b"y")
    assert log.lost.is_set()
    await log.abandon()


@asynchronous
async def test_a_deletion_that_was_cut_short_is_finished_and_the_log_is_gone_meanwhile() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("a", client=client)
    await log.append(b"x")
    await log.close()
    cluster.fail_next("delete", MetadataUnavailable("x", "delete", 1))
    with pytest.raises(MetadataUnavailable):
        await delete_log("a", client=client)
    with pytest.raises(NoSuchLog):
        await Log.open("a", client=client, create=False)
    with pytest.raises(NoSuchLog):
        await Log.tail("a", client=client)
    await create_log("a", client=client)
    assert cluster.ledgers == {}
    assert (await log_info("a", client=client)).records == 0


@asynchronous
async def test_opening_a_log_that_is_half_deleted_begins_a_new_one() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    before = (await log_info("a", client=client)).manifest.incarnation
    await ManifestNode(client.store, "a").edit(drop_log())
    async with await Log.open("a", client=client) as log:
        assert log.last_offset == -1
    assert (await log_info("a", client=client)).manifest.incarnation != before
