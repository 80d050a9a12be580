import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledger.cluster import make_namespace, open_namespace
from ledger.errors import DamagedMetadata, NamespaceMismatch, NoNamespace
from ledger.metastore.memory import MemoryStore


def in_store(scenario: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(MemoryStore("memory://n", "n"))

    asyncio.run(run())


def test_many_who_make_a_new_namespace_at_once_agree() -> None:
    async def scenario(store: MemoryStore) -> None:
        found = await asyncio.gather(*(make_namespace(store) for _ in range(10)))
        assert len(set(found)) == 1
        assert found[0].layout == "longhierarchical"
        assert await make_namespace(store) == found[0]
        assert await store.exists("/ledgers") == 0

    in_store(scenario)


def test_two_namespaces_have_different_instances() -> None:
    async def scenario(store: MemoryStore) -> None:
        other = await make_namespace(MemoryStore("memory://other", "other"))
        assert (await make_namespace(store)).instance != other.instance

    in_store(scenario)


def test_another_layout_than_the_recorded_one_is_refused() -> None:
    async def scenario(store: MemoryStore) -> None:
        made = await make_namespace(store, layout="flat")
        assert await make_namespace(store) == made
        with pytest.raises(NamespaceMismatch):
            await make_namespace(store, layout="hierarchical")
        with pytest.raises(NamespaceMismatch):
            await make_namespace(store, layout="unheard-of")

    in_store(scenario)


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("/layout", b"\xff", DamagedMetadata),
        ("/instance", b"\xff", DamagedMetadata),
        ("/layout", b"\x08\x01\x12\x04cube", NamespaceMismatch),
        ("/layout", b"\x08\x02\x12\x04flat", NamespaceMismatch),
        ("/instance", b"\x08\x03\x12\x04abcd", NamespaceMismatch),
    ],
)
def test_what_cannot_be_understood_is_refused(
    path: str, value: bytes, error: type[Exception]
) -> None:
    async def scenario(store: MemoryStore) -> None:
        await make_namespace(store)
        await store.set(path, value)
        with pytest.raises(error):
            await make_namespace(store)

    in_store(scenario)


def test_to_open_a_namespace_that_nobody_made_makes_nothing() -> None:
    async def scenario(store: MemoryStore) -> None:
        with pytest.raises(NoNamespace, match="dlog init 'memory://n'"):
            await open_namespace(store)
        assert await store.children("/") == []

    in_store(scenario)


def test_one_that_was_made_half_way_is_none_until_it_is_made_wholly() -> None:
    async def scenario(store: MemoryStore) -> None:
        await make_namespace(store, layout="flat")
        await store.delete("/instance")
        with pytest.raises(NoNamespace):
            await open_namespace(store)
        assert (await make_namespace(store)).layout == "flat"

    in_store(scenario)


def test_no_new_namespace_is_made_over_the_ledgers_of_one_that_lost_its_nodes() -> None:
    async def scenario(store: MemoryStore) -> None:
        await make_namespace(store)
        await store.create("/ledgers/000")
        await store.delete("/instance")
        with pytest.raises(DamagedMetadata, match="there are ledgers"):
            await make_namespace(store)

    in_store(scenario)


def test_what_the_command_names_holds_no_password() -> None:
    said = str(NoNamespace("zk://h:2181/r?auth=digest:me:secret"))
    assert "secret" not in said
    assert "dlog init 'zk://h:2181/r?...'" in said
