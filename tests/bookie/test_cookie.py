"""A bookie starts on its own data or not at all (rules 74-76)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cookie import PATH, Cookie, Identity, identify, read_cookie
from bookie.disk import Disk, RealDisk
from bookie.errors import (
    CookieDamaged,
    CookieMissing,
    DataMissing,
    DirectoryInUse,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
)
from bookie.storage import BookieStorage
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from ledger.registry import COOKIES
from tests.bookie.promises import SMALL, run_of
from tests.simulation.disk import Loss, PowerLost, SimDisk

NODE = f"{COOKIES}/b:1"


def with_store(uri: str, test: Callable[[MetadataStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await open_store(uri)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(run())


async def start(
    store: MetadataStore, disk: Disk, *, bookie: str = "b:1", instance: str = "i", address: str = ""
) -> Identity:
    address = address or bookie
    return await identify(store, disk, bookie=bookie, instance=instance, address=address)


def store_one_entry(disk: SimDisk) -> None:
    storage = BookieStorage.open(disk, SMALL)
    storage.add(run_of(1, 0))
    storage.commit()
    storage.close()


def test_the_first_start_stamps_directory_and_store_alike() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        first = await start(store, disk)
        assert read_cookie(disk) == first.cookie
        assert Cookie.decode((await store.get(NODE)).value) == first.cookie
        store_one_entry(disk)
        second = await start(store, disk)
        assert second.cookie == first.cookie
        assert second.incarnation != first.incarnation

    with_store("memory://cookie-first", test)


def test_a_new_address_is_told_and_the_identity_stays() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        first = await start(store, disk)
        second = await start(store, disk, address="other:2")
        assert second.cookie == replace(first.cookie, address="other:2")
        assert read_cookie(disk) == second.cookie
        assert Cookie.decode((await store.get(NODE)).value) == second.cookie

    with_store("memory://cookie-address", test)


def test_a_directory_of_another_cluster_or_bookie_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        with pytest.raises(ForeignCluster, match="cluster i, the namespace is cluster j"):
            await start(store, disk, instance="j")
        with pytest.raises(ForeignBookie, match="belongs to bookie b:1, this is bookie b:2"):
            await start(store, disk, bookie="b:2")

    with_store("memory://cookie-foreign", test)


def test_a_bookie_that_lost_its_directory_is_refused() -> None:
    """The cluster still counts on what it acknowledged."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        with pytest.raises(DataMissing, match="it has no cookie"):
            await start(store, SimDisk(0))
        await store.delete(NODE)
        await start(store, SimDisk(0))
        with pytest.raises(DataMissing, match="its cookie is another one"):
            await start(store, disk)

    with_store("memory://cookie-amnesia", test)


def test_a_bookie_that_lost_its_journal_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        for name in disk.list("journal"):
            disk.remove(f"journal/{name}")
        with pytest.raises(DataMissing, match="it has no journal"):
            await start(store, disk)

    with_store("memory://cookie-journal", test)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_data_that_the_cluster_does_not_know_is_refused(checkpoint: bool) -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        storage = BookieStorage.open(disk, SMALL)
        storage.fence(1, b"k")
        storage.commit()
        if checkpoint:
            storage.checkpoint()
        storage.close()
        await store.delete(NODE)
        with pytest.raises(CookieMissing, match="does not know"):
            await start(store, disk)
        disk.remove(PATH)
        with pytest.raises(CookieMissing):
            await start(store, disk)

    with_store(f"memory://cookie-unknown-{checkpoint}", test)


def test_a_first_start_that_was_interrupted_anywhere_is_repeated() -> None:
    async def test(store: MetadataStore) -> None:
        operation = 0
        crashed = True
        while crashed:
            operation += 1
            for loss in Loss:
                name = f"b:{operation}-{loss.value}"
                disk = SimDisk(operation)
                disk.crash_at = operation
                try:
                    await start(store, disk, bookie=name)
                    crashed = False
                except PowerLost:
                    pass
                disk.crash(loss)
                await start(store, disk, bookie=name)
        assert operation > 10

    with_store("memory://cookie-interrupted", test)


def test_a_stamp_whose_reply_was_lost_is_recognised() -> None:
    """The node is there already when it is created: made by this very start, or a crashed one."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        first = await start(store, disk)

        class LostReply:
            """Says that the node is not there, the first time it is asked."""

            def __init__(self) -> None:
                self.asked = 0

            async def get(self, path: str) -> object:
                self.asked += 1
                return await store.get(path if self.asked > 1 else f"{path}-not-there")

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        again = await start(LostReply(), disk)  # type: ignore[arg-type]
        assert again.cookie == first.cookie
        with pytest.raises(DataMissing, match="its cookie is another one"):
            await start(LostReply(), SimDisk(0))  # type: ignore[arg-type]

    with_store("memory://cookie-reply", test)


def test_every_damaged_byte_of_a_cookie_is_told() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        content = disk.content(PATH)
        for at in range(len(content)):
            flipped, cut = disk.copy(), disk.copy()
            flipped.damage(PATH, at, bytes([content[at] ^ 1]))
            cut.cut(PATH, at)
            for damaged in (flipped, cut):
                with pytest.raises(CookieDamaged, match="cookie is damaged"):
                    await start(store, damaged)

    with_store("memory://cookie-damaged", test)


def test_a_name_that_cannot_be_a_node_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        for name in ("", "a/b", "a\nb"):
            with pytest.raises(InvalidBookieName):
                await start(store, SimDisk(0), bookie=name)

    with_store("memory://cookie-name", test)


def test_a_directory_in_use_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async def test(store: MetadataStore) -> None:
        await start(store, RealDisk(tmp_path))
        with pytest.raises(DirectoryInUse, match=r"another bookie \(process \d+\) runs on"):
            await start(store, RealDisk(tmp_path), instance="j")

    with_store("memory://cookie-lock", test)
