"""Sessions of every store: ephemeral nodes, and what an owner is told."""

import asyncio
import signal

import pytest

from ledger.errors import InvalidPath
from ledger.metastore import Versioned
from tests.ledger.metastore.backends import Backend, gone, holder
from tests.waiting import PATIENCE_S, SESSION_S
from tests.zookeeper import paused


async def test_ephemeral_nodes_go_when_their_store_closes_and_no_others(backend: Backend) -> None:
    async with backend.one() as watcher:
        owner = await backend.open()
        watch = watcher.watch("/e/mine")
        await owner.create("/e/mine", b"v", ephemeral=True)
        await owner.create("/e/kept")
        await watcher.create("/e/other", ephemeral=True)
        await watcher.sync()
        assert await watcher.get("/e/mine") == Versioned(b"v", 0)
        assert not owner.session.lost.is_set()
        session = owner.session
        await owner.close()
        assert session.lost.is_set()
        await gone(watcher, "/e/mine")
        assert await watcher.children("/e") == ["kept", "other"]
        async with asyncio.timeout(PATIENCE_S):
            await watch.changed()


async def test_an_ephemeral_node_is_changed_and_deleted_like_any_other(backend: Backend) -> None:
    async with backend.two() as (a, b):
        await a.create("/e", ephemeral=True)
        assert await b.set("/e", b"by another", 0) == 1
        await b.delete("/e", 1)
        await a.sync()
        await a.create("/e")
        await a.close()
        await b.sync()
        assert await b.exists("/e") == 0


async def test_nothing_is_made_below_an_ephemeral_node(backend: Backend) -> None:
    async with backend.one() as store:
        await store.create("/e", ephemeral=True)
        for path in ("/e/child", "/e/deep/child"):
            with pytest.raises(InvalidPath):
                await store.create(path)
        assert await store.children("/e") == []


async def test_each_store_has_a_session_of_its_own(backend: Backend) -> None:
    async with backend.two() as (a, b):
        assert a.session.session_id != b.session.session_id
        assert a.session is a.session


@pytest.mark.integration
async def test_a_killed_process_loses_its_ephemeral_nodes(backend: Backend) -> None:
    if backend.kind == "memory":
        pytest.skip("lives in one process")
    # The embedded store sees the death itself; ZooKeeper waits for the end of the session.
    session_timeout_s = SESSION_S if backend.kind == "sqlite" else 6.0

    async with backend.one() as store:
        with holder(backend.uri, "/e", session_timeout_s=session_timeout_s) as process:
            watch = store.watch("/e")
            await store.sync()
            assert await store.get("/e") == Versioned(b"held", 0)
            process.send_signal(signal.SIGKILL)
            await gone(store, "/e")
            async with asyncio.timeout(PATIENCE_S):
                await watch.changed()


@pytest.mark.integration
async def test_a_stopped_process_loses_its_session_and_is_told_when_it_wakes(
    backend: Backend,
) -> None:
    if backend.kind == "memory":
        pytest.skip("lives in one process")

    async with backend.one() as store:
        with holder(backend.uri, "/e", session_timeout_s=3.0) as process:
            with paused(process.pid):
                await gone(store, "/e")
            assert process.stdout is not None
            said = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]
            assert said == ["lost\n", "renewed True None\n"]
