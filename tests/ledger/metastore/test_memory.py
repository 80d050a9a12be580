"""The store in memory on the bad days that tests ask it for."""

import asyncio
import threading

import pytest

from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryHub, MemoryStore
from tests.waiting import PATIENCE_S


async def test_an_expired_session_takes_its_nodes_and_a_new_one_begins() -> None:
    store, other = MemoryStore("memory://m", "m"), MemoryStore("memory://m", "m")
    await store.create("/e", ephemeral=True)
    session = store.session
    store.expire()
    assert session.lost.is_set()
    assert store.session is not session
    assert not store.session.lost.is_set()
    assert await other.exists("/e") is None


async def test_a_store_cut_off_fails_every_call_until_healed_and_has_lost_its_session() -> None:
    store, other = MemoryStore("memory://m", "m"), MemoryStore("memory://m", "m")
    session = store.session
    await store.create("/e", ephemeral=True)
    store.cut()
    assert session.lost.is_set()
    with pytest.raises(MetadataUnavailable):
        await store.get("/e")
    assert await other.exists("/e") == 0
    store.heal()
    assert await store.exists("/e") is None
    assert not store.session.lost.is_set()


def test_names_are_shared_in_a_loop_and_not_beyond_it() -> None:
    async def scenario() -> None:
        store = MemoryStore("memory://m", "m")
        assert await store.children("/") == []
        await store.create("/a")
        assert await MemoryStore("memory://m", "m").exists("/a") == 0
        assert await MemoryStore("memory://n", "n").exists("/a") is None

    asyncio.run(scenario())
    asyncio.run(scenario())


def test_a_shared_hub_is_one_tree_in_every_loop_and_tells_each_of_changes() -> None:
    hub = MemoryHub()
    looking, changed = threading.Event(), threading.Event()

    async def look() -> None:
        store = MemoryStore("memory://m", "m")
        watch = store.watch("/a")
        looking.set()
        async with asyncio.timeout(PATIENCE_S):
            while await store.exists("/a") is None:
                await watch.changed()
        changed.set()
        await store.close()

    async def change() -> None:
        assert await asyncio.to_thread(looking.wait, PATIENCE_S)
        store = MemoryStore("memory://m", "m")
        await store.create("/a")
        await store.close()

    with hub.shared("m"):
        other = threading.Thread(target=lambda: asyncio.run(look()))
        other.start()
        try:
            asyncio.run(change())
            assert changed.wait(PATIENCE_S)
        finally:
            other.join()

    async def afterwards() -> None:
        assert await MemoryStore("memory://m", "m").exists("/a") is None

    asyncio.run(afterwards())


async def test_a_hub_cuts_off_all_its_stores_those_too_that_are_opened_meanwhile() -> None:
    hub = MemoryHub()
    with hub.shared("m"):
        before = MemoryStore("memory://m", "m")
        hub.cut()
        stores = [before, MemoryStore("memory://m", "m")]
        for store in stores:
            assert store.session.lost.is_set()
            with pytest.raises(MetadataUnavailable):
                await store.exists("/a")
        hub.heal()
        for store in stores:
            assert not store.session.lost.is_set()
            assert await store.exists("/a") is None
