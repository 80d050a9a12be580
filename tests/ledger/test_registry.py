"""Registrations of bookies, and the directory that follows them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ledger import registry
from ledger.cluster import encode_instance
from ledger.errors import BookieForgotten, MetadataUnavailable, NotEnoughBookies
from ledger.feature_level import IDENTITIES, LEVEL_MAX, ClusterLevel
from ledger.ids import NOBODY, BookieIdentity
from ledger.metastore.memory import MemoryStore
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore, create_node
from ledger.registry import (
    AVAILABLE,
    COOKIES,
    DECOMMISSIONING,
    BookieDirectory,
    BookieRegistration,
    register,
    unregister,
)
from ledger.wire import metadata_pb2 as pb
from tests.ledger.flaky_store import FlakyStore
from tests.waiting import PATIENCE_S, settled, until

B1 = BookieRegistration("b1", "host1:3181", "i1", "rack")
B2 = BookieRegistration("b2", "host2:3181", "i2")


def open_memory() -> MemoryStore:
    return MemoryStore("memory://registry", "registry")


async def come(store: MetadataStore, registration: BookieRegistration) -> None:
    """Register a bookie that is known."""
    await create_node(store, f"{COOKIES}/{registration.bookie}")
    await register(store, registration)


@asynccontextmanager
async def following(store: MemoryStore) -> AsyncIterator[BookieDirectory]:
    directory = BookieDirectory(store)
    await directory.start()
    yield directory
    await directory.close()


async def test_the_directory_follows_registrations_in_order_of_names() -> None:
    store = open_memory()
    async with following(open_memory()) as directory:
        assert directory.available() == ()
        await come(store, B2)
        await come(store, B1)
        assert await directory.wait_for(2, PATIENCE_S) == (B1, B2)
        await unregister(store, B2)
        await unregister(store, B2)
        await until(lambda: directory.available() == (B1,))
        assert directory.address("b1") == "host1:3181"
        assert directory.address("b2") == "host2:3181"  # it may still answer
        assert directory.address("b3") is None


async def test_a_directory_starts_with_who_is_there() -> None:
    await come(open_memory(), B1)
    async with following(open_memory()) as directory:
        assert directory.available() == (B1,)


async def test_a_registration_goes_with_the_session_of_its_bookie() -> None:
    bookie = open_memory()
    await come(bookie, B1)
    async with following(open_memory()) as directory:
        bookie.expire()
        await until(lambda: directory.available() == ())
        await come(bookie, B1)
        await until(lambda: directory.available() == (B1,))


async def test_a_node_of_an_earlier_session_is_replaced_so_that_it_cannot_take_us_along() -> None:
    earlier, now = open_memory(), open_memory()
    await come(earlier, B1)
    started_again = replace(B1, incarnation="i9", address="host1:9")
    await come(now, started_again)
    await earlier.close()
    async with following(open_memory()) as directory:
        assert directory.available() == (started_again,)
        assert directory.address("b1") == "host1:9"


async def test_a_bookie_goes_read_only_and_back_in_one_place_at_a_time() -> None:
    store = open_memory()
    async with following(open_memory()) as directory:
        await come(store, B1)
        read_only = replace(B1, read_only=True)
        await come(store, read_only)
        await until(lambda: directory.available() == (read_only,))
        assert directory.writable() == ()
        with pytest.raises(NotEnoughBookies, match="available: none"):
            await directory.wait_for(1, 0.01)
        await come(store, B1)
        await until(lambda: directory.available() == (B1,))
        assert await store.children("/bookies/readonly") == []


async def test_waiting_for_more_bookies_than_come_names_who_is_there() -> None:
    await come(open_memory(), B1)
    async with following(open_memory()) as directory:
        with pytest.raises(NotEnoughBookies) as caught:
            await directory.wait_for(3, 0.01)
        assert caught.value.available == ("b1",)


async def test_addresses_of_absent_bookies_come_from_their_cookies() -> None:
    store = open_memory()
    cookie = pb.CookieNode(version=1, bookie="b7", address="host7:3181")
    await store.create("/cookies/b7", cookie.SerializeToString())
    await store.create("/cookies/damaged", b"\xff")
    async with following(open_memory()) as directory:
        assert directory.address("b7") == "host7:3181"
        assert directory.address("damaged") is None
        assert directory.available() == ()


@pytest.mark.parametrize("root", ["/bookies/available", "/bookies/readonly"])
@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        b"",
        pb.BookieNode(version=9, address="host:1").SerializeToString(),
        pb.BookieNode(version=1, address="nowhere").SerializeToString(),
        pb.BookieNode(version=1, address="host:65536").SerializeToString(),
    ],
)
async def test_a_damaged_registration_is_told_and_hides_no_other(root: str, value: bytes) -> None:
    store = open_memory()
    await store.create(f"{root}/odd", value)
    await come(store, B1)
    async with following(open_memory()) as directory:  # it was there before
        assert directory.available() == (B1,)
        assert [error.path for error in directory.damaged()] == [f"{root}/odd"]
        await come(store, B2)
        await until(lambda: directory.available() == (B1, B2))
        await store.delete(f"{root}/odd")
        await until(lambda: directory.damaged() == ())


async def test_a_registration_that_is_damaged_while_it_is_followed_is_left_out() -> None:
    store = open_memory()
    await come(store, B1)
    await come(store, B2)
    async with following(open_memory()) as directory:
        await store.set(B2.path, b"\xff")
        await store.create("/bookies/available/b3", b"\xff")  # a change that wakes it
        await until(lambda: directory.available() == (B1,))
        assert directory.address("b2") == B2.address  # it may still answer


@pytest.mark.slow
async def test_a_store_out_of_reach_leaves_the_last_list_and_fails_a_start() -> None:
    follower = open_memory()
    store = open_memory()
    await come(store, B1)
    async with following(follower) as directory:
        follower.cut()
        await come(store, B2)
        await settled()
        assert directory.available() == (B1,)
        follower.heal()
        await until(lambda: directory.available() == (B1, B2))
    follower.cut()
    with pytest.raises(MetadataUnavailable):
        await BookieDirectory(follower).start()


async def test_a_registration_whose_reply_was_lost_can_be_made_again() -> None:
    store = open_memory()
    flaky = FlakyStore(store)
    flaky.lose_replies = ["create"]
    with pytest.raises(MetadataUnavailable):
        await come(flaky, B1)
    await come(flaky, B1)
    async with following(open_memory()) as directory:
        assert directory.available() == (B1,)


async def test_who_has_a_cookie_and_takes_no_entries_is_away_unless_it_leaves() -> None:
    store = open_memory()
    for name in ("b1", "b2", "b3", "b4"):
        retired_ms = 1 if name == "b3" else 0
        cookie = pb.CookieNode(version=2, bookie=name, address="x:1", retired_ms=retired_ms)
        await store.create(f"{COOKIES}/{name}", cookie.SerializeToString())
    await come(store, B1)
    await store.create(f"{DECOMMISSIONING}/b4")
    async with following(open_memory()) as directory:
        assert directory.away() == ("b2",)
        await store.delete(f"{DECOMMISSIONING}/b4")
        await until(lambda: directory.away() == ("b2", "b4"))
        await unregister(store, B1)
        await until(lambda: directory.away() == ("b1", "b2", "b4"))
        await come(store, replace(B2, read_only=True))
        await until(lambda: directory.available() == (replace(B2, read_only=True),))
        assert directory.away() == ("b1", "b2", "b4")


async def namespace(store: MetadataStore, level: int) -> None:
    await store.create(INSTANCE, encode_instance("x", ClusterLevel(level)))


async def test_who_is_meant_stands_in_the_registration_and_else_in_the_cookie() -> None:
    store = open_memory()
    await namespace(store, IDENTITIES)
    for name in ("b1", "b2", "b3", "b4"):
        node = pb.CookieNode(
            version=2,
            bookie=name,
            instance="x",
            cookie=f"data {name}",
            address=f"{name}:1",
            life=2,
            retired_ms=1 if name == "b4" else 0,
        )
        await store.create(f"{COOKIES}/{name}", node.SerializeToString())
    await register(store, replace(B1, identity="data b1", life=3, instance="x"))
    await register(store, B2)
    async with following(open_memory()) as directory:
        assert directory.identity("b1") == BookieIdentity("x", "data b1", 3)
        assert directory.identity("b2") == NOBODY, "every bookie says who it is"
        assert directory.identity("b3") == BookieIdentity("x", "data b3", 2)
        assert directory.identity("b4") == directory.identity("b5") == NOBODY
        assert directory.address("b3") == "b3:1"
        assert directory.address("b4") is None


async def test_below_the_level_a_bookie_that_does_not_say_who_it_is_is_meant_by_its_name() -> None:
    store = open_memory()
    await namespace(store, IDENTITIES - 1)
    await come(store, B1)
    async with following(open_memory()) as directory:
        assert directory.identity("b1") is None


async def test_the_directory_follows_the_level_of_the_cluster() -> None:
    """So a program that is running may write what a level brings as soon as the cluster rises."""
    store = open_memory()
    await namespace(store, IDENTITIES - 1)
    async with following(open_memory()) as directory:
        assert directory.level == IDENTITIES - 1
        node = await store.get(INSTANCE)
        raised = encode_instance("instance", ClusterLevel(LEVEL_MAX))
        await store.set(INSTANCE, raised, node.version)
        await until(lambda: directory.level == LEVEL_MAX)


async def test_an_instance_of_a_format_to_come_does_not_end_the_list_of_bookies() -> None:
    store = open_memory()
    await namespace(store, IDENTITIES - 1)
    await come(store, B1)
    async with following(open_memory()) as directory:
        node = await store.get(INSTANCE)
        later = pb.InstanceNode(version=99, instance="instance").SerializeToString()
        await store.set(INSTANCE, later, node.version)
        await unregister(store, B1)
        await until(lambda: directory.available() == ())
        assert directory.level == IDENTITIES - 1


async def test_who_listens_hears_of_each_reading_until_it_has_enough() -> None:
    async with following(open_memory()) as directory:
        heard: list[int] = []
        end = directory.on_change(lambda: heard.append(directory.revision))
        await directory.look_again()
        assert heard == [directory.revision]
        end()
        end()
        await directory.look_again()
        assert len(heard) == 1


def cookie(identity: str = "", *, retired_ms: int = 0) -> bytes:
    node = pb.CookieNode(version=2, bookie="b1", cookie=identity, retired_ms=retired_ms)
    return node.SerializeToString()


async def test_a_name_that_is_retired_is_not_registered() -> None:
    store = open_memory()
    await store.create(f"{COOKIES}/b1", cookie(retired_ms=1))
    with pytest.raises(BookieForgotten, match="its name is retired"):
        await register(store, B1)
    assert await store.exists(B1.path) is None


async def test_a_bookie_whose_name_is_another_ones_is_not_registered() -> None:
    store = open_memory()
    await store.create(f"{COOKIES}/b1", cookie("one"))
    with pytest.raises(BookieForgotten):
        await register(store, replace(B1, identity="another"))
    await register(store, replace(B1, identity="one"))
    assert await store.exists(B1.path) == 0


async def test_a_name_that_is_retired_while_its_bookie_registers_is_not_registered() -> None:
    store = open_memory()
    await store.create(f"{COOKIES}/b1", cookie())
    await store.create(AVAILABLE)
    gate = registry._gate

    async def retired_meanwhile(*given: Any) -> Any:
        await store.set(f"{COOKIES}/b1", cookie(retired_ms=1))
        return await gate(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_gate", retired_meanwhile)
        with pytest.raises(BookieForgotten):
            await register(store, B1)
    assert await store.exists(B1.path) is None


async def test_nobody_is_registered_under_a_name_that_is_not_known_any_more() -> None:
    store = open_memory()
    await come(store, B1)
    await unregister(store, B1)
    await store.delete(f"{COOKIES}/b1")
    with pytest.raises(BookieForgotten, match="b1"):
        await register(store, B1)
    async with following(open_memory()) as directory:
        assert directory.available() == ()
