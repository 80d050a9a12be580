"""A namespace in another metadata store is the same namespace."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ledger.cluster import make_namespace, open_namespace
from ledger.errors import MetadataUnavailable, NoNamespace, SourceInUse, TargetNotEmpty
from ledger.manager import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import MetadataStore
from ledger.namespace_copy import copy_namespace
from tests.bookie.loss.test_limbo import ledger


@asynccontextmanager
async def two_stores(name: str) -> AsyncIterator[tuple[MetadataStore, MetadataStore]]:
    async with AsyncExitStack() as stack:
        found = []
        for part in ("old", "new"):
            store = MemoryStore(f"memory://{name}-{part}", f"{name}-{part}")
            stack.push_async_callback(store.close)
            found.append(store)
        yield found[0], found[1]


@pytest.mark.parametrize("layout", ["flat", "longhierarchical"])
async def test_ledgers_and_what_must_never_go_back_are_the_same(layout: str) -> None:
    async with two_stores(f"copy-{layout}") as (old, new):
        made = await make_namespace(old, layout=layout)
        ledgers = LedgerStore(old, layout)
        ids = [await ledgers.create(ledger("a", "b", "c")) for _ in range(5)]
        for ledger_id in ids[:3]:
            await ledgers.delete(ledger_id)
        await old.create("/logs/orders/consumers/first/lock", ephemeral=True)
        await old.create("/leaders/orders/token-", ephemeral=True, sequential=True)
        before = await ledgers.vitals()
        copied = await copy_namespace(old, new)
        assert copied.instance == made.instance
        assert copied.left_out == 2
        there = LedgerStore(new, layout)
        assert [one async for one in there.list()] == ids[3:]
        vitals = await there.vitals()
        assert not vitals.is_older(before)
        assert vitals.deletions == 3
        assert await there.create(ledger("a", "b", "c")) > max(ids)
        assert await new.exists("/logs/orders/consumers/first") is not None
        assert await new.exists("/logs/orders/consumers/first/lock") is None
        assert await new.children("/leaders/orders") == []


async def test_many_deletions_are_counted_one_by_one() -> None:
    async with two_stores("copy-many") as (old, new):
        await make_namespace(old, layout="longhierarchical")
        ledgers = LedgerStore(old, "longhierarchical")
        await ledgers.delete(await ledgers.create(ledger("a", "b", "c")))
        for _ in range(1200):
            await old.set("/deletions", b"")
        counted = (await ledgers.vitals()).deletions
        await copy_namespace(old, new)
        assert (await LedgerStore(new, "longhierarchical").vitals()).deletions == counted > 1200


async def test_a_copy_into_something_or_of_something_in_use_is_refused() -> None:
    async with two_stores("copy-refused") as (old, new):
        with pytest.raises(NoNamespace):
            await copy_namespace(old, new)
        await make_namespace(old)
        await old.create("/bookies/available/bookie-1", ephemeral=True)
        with pytest.raises(SourceInUse, match="bookie-1"):
            await copy_namespace(old, new)
        await old.delete("/bookies/available/bookie-1")
        await new.create("/somebody")
        with pytest.raises(TargetNotEmpty, match="somebody"):
            await copy_namespace(old, new)
        assert await new.children("/") == ["somebody"]


async def test_a_copy_that_was_interrupted_is_no_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_stores("copy-half") as (old, new):
        await make_namespace(old)
        await LedgerStore(old, "longhierarchical").create(ledger("a", "b", "c"))
        honest = new.create

        async def fails_late(path: str, value: bytes = b"") -> str:
            if path.startswith("/ledgers/"):
                raise MetadataUnavailable(new.uri, "create", 0.0)
            return await honest(path, value)

        monkeypatch.setattr(new, "create", fails_late)
        with pytest.raises(MetadataUnavailable):
            await copy_namespace(old, new)
        assert await new.children("/")
        with pytest.raises(NoNamespace):
            await open_namespace(new)
