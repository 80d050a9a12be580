import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledger.cluster import open_namespace
from ledger.errors import DamagedMetadata, NamespaceMismatch
from ledger.metastore.memory import MemoryStore


def in_store(scenario: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(MemoryStore("memory://n", "n"))

    asyncio.run(run())


def test_many_who_open_a_new_namespace_at_once_agree() -> None:
    async def scenario(store: MemoryStore) -> None:
        found = await asyncio.gather(*(open_namespace(store) for _ in range(10)))
        assert len(set(found)) == 1
        assert found[0].layout == "longhierarchical"
        assert await open_namespace(store) == found[0]
        assert await store.exists("/ledgers") == 0

    in_store(scenario)


def test_two_namespaces_have_different_instances() -> None:
    async def scenario(store: MemoryStore) -> None:
        other = await open_namespace(MemoryStore("memory://other", "other"))
        assert (await open_namespace(store)).instance != other.instance

    in_store(scenario)


def test_another_layout_than_the_recorded_one_is_refused() -> None:
    async def scenario(store: MemoryStore) -> None:
        made = await open_namespace(store, layout="flat")
        assert await open_namespace(store) == made
        with pytest.raises(NamespaceMismatch):
            await open_namespace(store, layout="hierarchical")
        with pytest.raises(NamespaceMismatch):
            await open_namespace(store, layout="unheard-of")

    in_store(scenario)


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("/layout", b"\xff", DamagedMetadata),
        ("/instance", b"\xff", DamagedMetadata),
        ("/layout", b"\x08\x01\x12\x04cube", NamespaceMismatch),
        ("/layout", b"\x08\x02\x12\x04flat", NamespaceMismatch),
        ("/instance", b"\x08\x02\x12\x04abcd", NamespaceMismatch),
    ],
)
def test_what_cannot_be_understood_is_refused(
    path: str, value: bytes, error: type[Exception]
) -> None:
    async def scenario(store: MemoryStore) -> None:
        await open_namespace(store)
        await store.set(path, value)
        with pytest.raises(error):
            await open_namespace(store)

    in_store(scenario)
