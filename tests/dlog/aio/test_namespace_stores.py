"""Renames, watches and the janitor on the metadata stores that people use."""

import asyncio
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    audit_namespace,
    create_log,
    delete_log,
    list_logs,
    rename_log,
    watch_logs,
)
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.read.segments import stamp
from dlog.errors import LogExists, NoSuchConsumer
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.errors import DamagedMetadata
from ledger.metastore import open_store
from ledger.quorum import Quorum
from tests.dlog.fake_ledgers import FakeCluster
from tests.ledger.metastore.sqlite_stores import DATABASE, VALUE, emptied, flip
from tests.waiting import SESSION_S
from tests.zookeeper import fresh_uri


@pytest.fixture(params=["file", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return tmp_path.as_uri()
    server: ManagedZooKeeper = request.getfixturevalue("zookeeper")
    return fresh_uri(server)


async def test_a_pass_over_a_damaged_store_deletes_nothing(tmp_path: Path) -> None:
    store = await open_store(tmp_path.as_uri(), session_timeout_s=SESSION_S)
    client = FakeCluster().client(store)
    await store.create("/unrelated", VALUE)
    await client.create(Quorum(), custom=stamp("deleted", "gone", 1, epoch=1, owner="me"))
    janitor = Janitor(client)
    await emptied(tmp_path)
    place = (tmp_path / DATABASE).read_bytes().index(VALUE)
    flip(tmp_path, place)
    with pytest.raises(DamagedMetadata, match="node /unrelated does not fit its checksum"):
        await janitor.run_once()
    with pytest.raises(DamagedMetadata):
        await audit_namespace(client=client, repair=True)
    flip(tmp_path, place)
    assert len((await janitor.run_once()).orphans) == 1
    await store.close()


async def test_a_log_is_renamed_under_its_writer_its_reader_and_its_consumers(uri: str) -> None:
    stores = [await open_store(uri, session_timeout_s=SESSION_S) for _ in range(2)]
    cluster = FakeCluster()
    first, second = (cluster.client(store) for store in stores)
    watch = await watch_logs(client=second)
    log = await Log.open("a", client=first)
    assert await anext(watch) == ("added", "a")
    await log.append(b"x")
    reader = await Log.tail("a", client=second)
    consumer = await Log.consumer("view", "a", client=second, exclusive=True)
    assert (await anext(reader)).value == (await anext(consumer)).value == b"x"
    await consumer.commit()
    await create_log("taken", client=second)
    assert await anext(watch) == ("added", "taken")
    with pytest.raises(LogExists):
        await rename_log("a", "taken", client=second)
    await rename_log("a", "b", client=second)
    assert {await anext(watch), await anext(watch)} == {("removed", "a"), ("added", "b")}
    await log.roll()
    await log.append(b"y")
    await log.roll()
    assert (await anext(reader)).value == (await anext(consumer)).value == b"y"
    with pytest.raises(NoSuchConsumer):
        await consumer.commit()
    heir = await Log.consumer("view", "b", client=first)
    assert heir.position == 1
    orphan = cluster.new_ledger(Quorum(), stamp("old", "0123", 1)).ledger_id
    done = await Janitor(second).run_once()
    assert [each.ledger_id for each in done.orphans] == [orphan]
    assert (await audit_namespace(client=first)).healthy
    for each in (reader, consumer, heir, log, watch):
        await each.close()
    await delete_log("b", client=first)
    assert await list_logs(client=second) == ["taken"]
    assert await stores[0].children("/renamed") == []
    for store in stores:
        await store.close()


async def test_of_two_renames_onto_one_name_one_wins(uri: str) -> None:
    stores = [await open_store(uri, session_timeout_s=SESSION_S) for _ in range(2)]
    cluster = FakeCluster()
    clients = [cluster.client(store) for store in stores]
    for name in ("a", "b"):
        await create_log(name, client=clients[0])
    outcomes = await asyncio.gather(
        rename_log("a", "c", client=clients[0]),
        rename_log("b", "c", client=clients[1]),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, LogExists) for outcome in outcomes) == 1
    names = await list_logs(client=clients[1])
    assert len(names) == 2
    assert "c" in names
    for store in stores:
        await store.close()
