"""Resigning when the metadata store is silent, or when nobody waits for it any more."""

import asyncio

from leader.election import leaders_path
from leader.withdrawal import WITHDRAW_S
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from tests.leader.stores import TroubledStore
from tests.patience import patient_campaign
from tests.waiting import PATIENCE_S, eventually

LOG = "flights"


class SilentStore(TroubledStore):
    """Answers no `sync` while it is silent."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.answering = asyncio.Event()
        self.answering.set()

    async def sync(self, path: str = "/") -> None:
        await super().sync(path)
        await self.answering.wait()


async def memory() -> MemoryStore:
    store = await open_store("memory://election")
    assert isinstance(store, MemoryStore)
    return store


def test_resigning_takes_no_longer_although_a_proof_of_leadership_is_awaited() -> None:
    async def run() -> None:
        store = SilentStore(await memory())
        term = await patient_campaign(store, LOG, lease_s=1000 * PATIENCE_S)
        store.answering.clear()
        before = store.calls["sync"]
        (node,) = await store.children(leaders_path(LOG))
        await store.inner.set(f"{leaders_path(LOG)}/{node}", b"")

        async def asks() -> bool:
            return store.calls["sync"] > before

        await eventually(asks, "the term asks the store because its node has changed")
        async with asyncio.timeout(WITHDRAW_S + PATIENCE_S):
            await term.resign()
        assert await store.children(leaders_path(LOG)) == []

    asyncio.run(run())


def test_a_resignation_that_is_cancelled_clears_the_way_all_the_same() -> None:
    async def run() -> None:
        store = await memory()
        term = await patient_campaign(store, LOG)
        resigning = asyncio.create_task(term.resign())
        await asyncio.sleep(0)
        resigning.cancel()
        await asyncio.gather(resigning, return_exceptions=True)
        assert term.lost.is_set()

        async def gone() -> bool:
            return await store.children(leaders_path(LOG)) == []

        await eventually(gone, "its node is gone")

    asyncio.run(run())
