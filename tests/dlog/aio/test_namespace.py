import asyncio
from dataclasses import replace

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    create_log,
    delete_log,
    list_logs,
    log_exists,
    log_info,
    log_settings,
    truncate_log,
    update_settings,
)
from dlog.aio.maintain.lifecycle import begin_drop, finish_drop
from dlog.aio.store import ManifestNode
from dlog.errors import (
    AppendOutcomeUnknown,
    InvalidName,
    InvalidPosition,
    InvalidSettings,
    LogExists,
    LostOwnership,
    NoSuchLog,
)
from dlog.recordbatch import Codec
from dlog.settings import LogSettings
from ledger.errors import InvalidQuorum, MetadataUnavailable
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from tests.dlog.fake_ledgers import FakeCluster
from tests.dlog.faulty_store import Fault, FaultyStore, OvertakenStore


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


async def test_a_log_is_created_once() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    with pytest.raises(LogExists):
        await create_log("a", client=client)


@pytest.mark.parametrize("fault", ["lost request", "lost reply"])
async def test_a_creation_that_got_no_answer_recognises_its_own_log(fault: Fault) -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    await create_log("another", client=client)
    store.faults.append(fault)
    await create_log("a", client=client)


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


@pytest.mark.parametrize("began", ["another one", "this one"])
async def test_a_deletion_that_slept_leaves_the_log_made_anew_alone(began: str) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    store = OvertakenStore(MemoryStore("memory://fake", "fake"))
    node = ManifestNode(client.store, "a")
    async with await Log.open("a", client=client) as log:
        await log.append(b"old")

    async def made_anew() -> None:
        await finish_drop(client, node)
        async with await Log.open("a", client=client) as log:
            await log.append(b"acknowledged")

    if began == "another one":
        await begin_drop(node)
        store.sleeps_after(node.path, made_anew)
    else:
        store.faults.append("lost reply")
        store.sleeps_after("multi", made_anew)
    with pytest.raises(NoSuchLog):
        await delete_log("a", client=cluster.client(store))
    async with await Log.tail("a", client=client, follow=False) as reader:
        assert [record.value async for record in reader] == [b"acknowledged"]


async def test_opening_a_log_that_is_half_deleted_begins_a_new_one() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    before = (await log_info("a", client=client)).manifest.incarnation
    await begin_drop(ManifestNode(client.store, "a"))
    async with await Log.open("a", client=client) as log:
        assert log.last_offset == -1
    assert (await log_info("a", client=client)).manifest.incarnation != before


async def test_a_list_can_be_of_one_level() -> None:
    client = FakeCluster().client()
    for name in ("top", "eu/a", "eu/west/b", "eu/west/c", "eu-x"):
        await create_log(name, client=client)
    assert await list_logs(recursive=False, client=client) == ["eu-x", "eu/", "top"]
    one = await list_logs(prefix="eu/", recursive=False, client=client)
    assert one == ["eu/a", "eu/west/"]
    assert await list_logs(prefix="eu", client=client) == ["eu-x", "eu/a", "eu/west/b", "eu/west/c"]


async def test_a_log_exists_from_its_creation_until_its_deletion_begins() -> None:
    client = FakeCluster().client()
    assert not await log_exists("a", client=client)
    await create_log("a", client=client)
    assert await log_exists("a", client=client)
    await begin_drop(ManifestNode(client.store, "a"))
    assert not await log_exists("a", client=client)


async def test_settings_are_changed_one_by_one_and_checked() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client, settings=LogSettings(roll_bytes=7))
    changed = await update_settings("a", {"retention_bytes": 99, "codec": "zstd"}, client=client)
    expected = LogSettings(roll_bytes=7, retention_bytes=99, codec=Codec.ZSTD)
    assert changed == expected == await log_settings("a", client=client)
    more = await update_settings("a", lambda s: replace(s, roll_records=5), client=client)
    assert more == replace(expected, roll_records=5)
    for wrong in ({"retention_bytes": -1}, {"no_such": 1}, {"roll_bytes": "many"}):
        with pytest.raises(InvalidSettings):
            await update_settings("a", wrong, client=client)
    with pytest.raises(InvalidQuorum):
        await update_settings("a", {"ensemble": 1}, client=client)
    assert await log_settings("a", client=client) == more
    with pytest.raises(NoSuchLog):
        await update_settings("b", {"roll_bytes": 1}, client=client)


async def test_settings_that_two_change_at_once_are_both_changed() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    await asyncio.gather(
        *(
            update_settings("a", {name: 17}, client=client)
            for name in ("roll_bytes", "roll_records")
        )
    )
    settings = await log_settings("a", client=client)
    assert (settings.roll_bytes, settings.roll_records) == (17, 17)


async def test_settings_count_for_the_retention_of_a_writer_that_has_the_log_open() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    for _ in range(3):
        await log.append(b"x" * 100)
        await log.roll()
    assert (await log_info("a", client=client)).records == 3
    await update_settings("a", {"retention_bytes": 1}, client=client)
    await log.append(b"y")
    await log.roll()
    assert (await log_info("a", client=client)).records == 1
    await log.close()


async def test_namespaces_on_one_machine_do_not_see_each_other() -> None:
    cluster = FakeCluster()
    one = cluster.client(MemoryStore("memory://one", "one"))
    two = cluster.client(MemoryStore("memory://two", "two"))
    await create_log("a", client=one)
    assert await list_logs(client=two) == []
    await create_log("a", client=two)
    await delete_log("a", client=one)
    assert await list_logs(client=two) == ["a"]
