"""Named consumers on the metadata stores that people use."""

import asyncio
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import consumer_info, delete_consumer, delete_log, list_consumers, list_logs
from dlog.errors import ConsumerBusy, ConsumerFenced
from dlog.local.zookeeper import ManagedZooKeeper
from ledger.metastore import open_store
from tests.dlog.fake_ledgers import FakeCluster
from tests.waiting import PATIENCE_S, SESSION_S
from tests.zookeeper import fresh_uri


@pytest.fixture(params=["file", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return tmp_path.as_uri()
    server: ManagedZooKeeper = request.getfixturevalue("zookeeper")
    return fresh_uri(server)


async def test_consumers_on_a_real_store(uri: str) -> None:
    stores = [await open_store(uri, session_timeout_s=SESSION_S) for _ in range(2)]
    cluster = FakeCluster()
    first, second = (cluster.client(store) for store in stores)
    log = await Log.open("log", client=first)
    for _ in range(5):
        await log.append(b"x")
    shared = await Log.consumer("view", "log", client=first)
    assert (await anext(shared)).offset == 0
    assert await shared.commit() == 1
    alone = await Log.consumer("view", "log", exclusive=True, client=second)
    assert (await anext(shared)).offset == 1
    with pytest.raises(ConsumerFenced):
        await shared.commit()
    with pytest.raises(ConsumerBusy):
        await Log.consumer("view", "log", exclusive=True, client=first)
    with pytest.raises(ConsumerBusy):
        await delete_consumer("view", "log", client=first)
    waiting = asyncio.create_task(
        Log.consumer("view", "log", exclusive=True, wait_s=PATIENCE_S, client=first)
    )
    assert (await anext(alone)).offset == 1
    assert await alone.commit() == 2
    await alone.close()
    heir = await waiting
    assert heir.position == 2
    assert (await consumer_info("view", "log", client=second)).lag == 3
    assert [each.name for each in await list_consumers("log", client=second)] == ["view"]
    await log.close()
    await delete_log("log", client=second)
    assert await list_logs(client=first) == []
    for each in (shared, heir):
        await each.close()
    for store in stores:
        await store.close()
