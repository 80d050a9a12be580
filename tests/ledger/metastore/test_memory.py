"""The store in memory on the bad days that tests ask it for."""

import asyncio

import pytest

from ledger.errors import MetadataUnavailable
from ledger.metastore.memory import MemoryStore


def test_an_expired_session_takes_its_nodes_and_a_new_one_begins() -> None:
    async def scenario() -> None:
        store, other = MemoryStore("memory://m", "m"), MemoryStore("memory://m", "m")
        await store.create("/e", ephemeral=True)
        session = store.session
        store.expire()
        assert session.lost.is_set()
        assert store.session is not session
        assert not store.session.lost.is_set()
        assert await other.exists("/e") is None

    asyncio.run(scenario())


def test_a_store_cut_off_fails_every_call_until_healed_and_has_lost_its_session() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_names_are_shared_in_a_loop_and_not_beyond_it() -> None:
    async def scenario() -> None:
        store = MemoryStore("memory://m", "m")
        assert await store.children("/") == []
        await store.create("/a")
        assert await MemoryStore("memory://m", "m").exists("/a") == 0
        assert await MemoryStore("memory://n", "n").exists("/a") is None

    asyncio.run(scenario())
    asyncio.run(scenario())
