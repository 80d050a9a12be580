"""A bookie starts on its own data or not at all (rules 74-76)."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.cookie import PATH, Cookie, read_cookie
from bookie.directories import Directories
from bookie.disk import Disk, RealDisk
from bookie.errors import (
    CookieDamaged,
    CookieMissing,
    DataMissing,
    DirectoriesChanged,
    DirectoriesMixed,
    DirectoryInUse,
    DirectoryMisplaced,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
    StorageFailed,
)
from bookie.identity import Identity, identify, places
from bookie.ledger_directory import DIRECTORIES
from bookie.storage import BookieStorage
from ledger.errors import DamagedMetadata
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from ledger.registry import COOKIES
from tests.bookie.promises import SMALL, run_of
from tests.ledger.lagging_store import LaggingStore
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
    store: MetadataStore,
    where: Disk | Directories,
    *,
    bookie: str = "b:1",
    instance: str = "i",
    address: str = "",
) -> Identity:
    directories = where if isinstance(where, Directories) else Directories.single(where)
    address = address or bookie
    try:
        return await identify(store, directories, bookie=bookie, instance=instance, address=address)
    finally:
        directories.unlock()


class Several:
    """A main directory, two journal directories and three ledger directories."""

    def __init__(self, seed: int = 0) -> None:
        self.main = SimDisk(seed)
        self.journals = [SimDisk(seed + 1), SimDisk(seed + 2)]
        self.ledgers = [SimDisk(seed + 3), SimDisk(seed + 4), SimDisk(seed + 5)]

    @property
    def disks(self) -> list[SimDisk]:
        return [self.main, *self.journals, *self.ledgers]

    def directories(self) -> Directories:
        return Directories(self.main, tuple(self.journals), tuple(self.ledgers))

    def crash(self, loss: Loss) -> None:
        for disk in self.disks:
            disk.crash(loss)

    def copy(self) -> "Several":
        other = Several()
        other.main = self.main.copy()
        other.journals = [disk.copy() for disk in self.journals]
        other.ledgers = [disk.copy() for disk in self.ledgers]
        return other


def commit(storage: BookieStorage) -> int:
    return [storage.commit(journal) for journal in range(storage.journals)][-1]


def store_one_entry(where: SimDisk | Directories) -> None:
    storage = BookieStorage.open(where, SMALL)
    _, ticket = storage.add(run_of(1, 0))
    assert commit(storage) >= ticket
    storage.close()


def test_the_first_start_stamps_directory_and_store_alike() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        first = await start(store, disk)
        assert read_cookie(disk) == first.cookie
        assert first.cookie.place == "main, journal 0 of 1, ledger 0 of 1"
        assert Cookie.decode((await store.get(NODE)).value) == first.cookie.at("")
        store_one_entry(disk)
        second = await start(store, disk)
        assert second.cookie == first.cookie
        assert second.incarnation != first.incarnation

    with_store("memory://identity-first", test)


def test_a_bookie_whose_server_lags_behind_is_not_told_that_nobody_knows_it() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        lagging = LaggingStore(store)
        await lagging.fall_behind()  # it takes part in none of what follows
        first = await start(store, disk)
        store_one_entry(disk)
        again = await start(lagging, disk)
        assert again.cookie == first.cookie

    with_store("memory://identity-lagging", test)


def test_every_directory_is_stamped_with_the_identity_and_its_own_place() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        first = await start(store, several.directories())
        cookies = [read_cookie(disk) for disk in several.disks]
        assert [cookie.place for cookie in cookies if cookie is not None] == [
            "main", "journal 0 of 2", "journal 1 of 2",
            "ledger 0 of 3", "ledger 1 of 3", "ledger 2 of 3",
        ]  # fmt: skip
        stored = Cookie.decode((await store.get(NODE)).value)
        for cookie in cookies:
            assert cookie is not None
            assert cookie.at("") == stored == first.cookie.at("")
        store_one_entry(several.directories())
        assert (await start(store, several.directories())).cookie == first.cookie

    with_store("memory://identity-several", test)


def test_a_directory_may_have_several_places() -> None:
    main, other = SimDisk(0), SimDisk(1)
    assert places(Directories(main, (main, other), (other,))) == [
        "main, journal 0 of 2",
        "journal 1 of 2, ledger 0 of 1",
    ]


def test_a_new_address_is_told_everywhere_and_the_identity_stays() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        first = await start(store, several.directories())
        second = await start(store, several.directories(), address="other:2")
        assert second.cookie == replace(first.cookie, address="other:2")
        for disk in several.disks:
            cookie = read_cookie(disk)
            assert cookie is not None
            assert cookie.address == "other:2"
        assert Cookie.decode((await store.get(NODE)).value) == second.cookie.at("")

    with_store("memory://identity-address", test)


def test_a_full_disk_does_not_keep_a_bookie_from_starting_at_a_new_address() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        disk.capacity_bytes = disk.used_bytes()
        again = await start(store, disk, address="other:2")
        assert again.cookie.address == "other:2"
        cookie = read_cookie(disk)
        assert cookie is not None
        assert cookie.address == "b:1"

    with_store("memory://identity-full", test)


def test_a_disk_that_fails_refuses_the_start_and_says_so() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        disk.fail("sync", "cookie", errno.EIO)
        with pytest.raises(StorageFailed, match=r"identity of the data failed: .*Input/output"):
            await start(store, disk)
        await start(store, disk)
        disk.fail("open", PATH, errno.EIO)
        with pytest.raises(StorageFailed):
            await start(store, disk)

    with_store("memory://identity-eio", test)


def test_a_directory_of_another_cluster_or_bookie_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        with pytest.raises(ForeignCluster, match="cluster i, the namespace is cluster j"):
            await start(store, disk, instance="j")
        with pytest.raises(ForeignBookie, match="belongs to bookie b:1, this is bookie b:2"):
            await start(store, disk, bookie="b:2")

    with_store("memory://identity-foreign", test)


def test_one_directory_of_another_cluster_or_bookie_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several, other = Several(), Several()
        await start(store, several.directories())
        await start(store, other.directories(), bookie="b:2")
        for at in range(len(several.ledgers)):
            mixed = several.copy()
            mixed.ledgers[at] = other.ledgers[at]
            with pytest.raises(ForeignBookie):
                await start(store, mixed.directories())
        foreign = Several()
        elsewhere = await open_store("memory://identity-elsewhere")
        await start(elsewhere, foreign.directories(), instance="j")
        await elsewhere.close()
        for at in range(len(several.journals)):
            mixed = several.copy()
            mixed.journals[at] = foreign.journals[at]
            with pytest.raises(ForeignCluster):
                await start(store, mixed.directories())

    with_store("memory://identity-one-foreign", test)


def test_a_directory_of_an_earlier_life_of_the_same_bookie_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        earlier, several = Several(), Several()
        await start(store, earlier.directories())
        await store.delete(NODE)
        await start(store, several.directories())
        several.ledgers[2] = earlier.ledgers[2]
        with pytest.raises(DataMissing, match="its cookie is another one"):
            await start(store, several.directories())
        await store.delete(NODE)
        with pytest.raises(DirectoriesMixed, match="do not belong together"):
            await start(store, several.directories())

    with_store("memory://identity-earlier", test)


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

    with_store("memory://identity-amnesia", test)


def test_a_bookie_that_lost_one_of_its_directories_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        store_one_entry(several.directories())
        for role in ("main", "journals", "ledgers"):
            for at in range(1 if role == "main" else len(getattr(several, role))):
                broken = several.copy()
                if role == "main":
                    broken.main = SimDisk(0)
                else:
                    getattr(broken, role)[at] = SimDisk(0)
                with pytest.raises(DataMissing, match="it has no cookie"):
                    await start(store, broken.directories())
        await start(store, several.copy().directories())

    with_store("memory://identity-one-lost", test)


def test_directories_in_another_order_are_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        for role in ("journals", "ledgers"):
            swapped = several.copy()
            disks = getattr(swapped, role)
            disks[0], disks[1] = disks[1], disks[0]
            with pytest.raises(DirectoryMisplaced, match="give the directories in the order"):
                await start(store, swapped.directories())
        swapped = several.copy()
        swapped.journals[0], swapped.ledgers[0] = swapped.ledgers[0], swapped.journals[0]
        with pytest.raises(DirectoryMisplaced, match=r"ledger 0 of 3.*journal 0 of 2"):
            await start(store, swapped.directories())

    with_store("memory://identity-swapped", test)


def test_more_or_fewer_directories_than_at_the_first_start_are_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        for role in ("journals", "ledgers"):
            more, fewer = several.copy(), several.copy()
            getattr(more, role).append(SimDisk(0))
            getattr(fewer, role).pop()
            for changed in (more, fewer):
                with pytest.raises(DirectoriesChanged, match="same number of journal and ledger"):
                    await start(store, changed.directories())
        single = SimDisk(9)
        await start(store, single, bookie="b:2")
        with pytest.raises(DirectoriesChanged):
            await start(store, Directories(single, (single,), (SimDisk(0),)), bookie="b:2")

    with_store("memory://identity-counts", test)


def test_a_directory_of_two_places_cannot_become_two_directories() -> None:
    async def test(store: MetadataStore) -> None:
        both, main = SimDisk(0), SimDisk(1)
        await start(store, Directories(main, (both,), (both,)))
        with pytest.raises(DirectoriesChanged):
            await start(store, Directories(main, (both,), (SimDisk(2),)))

    with_store("memory://identity-two-places", test)


def test_a_bookie_that_lost_its_journal_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        for at in range(len(several.journals)):
            broken = several.copy()
            disk = broken.journals[at]
            for name in disk.list("journal"):
                disk.remove(f"journal/{name}")
            with pytest.raises(DataMissing, match="it has no journal"):
                await start(store, broken.directories())

    with_store("memory://identity-journal", test)


def test_a_ledger_directory_that_was_emptied_beside_its_cookie_is_refused(tmp_path: Path) -> None:
    async def test(store: MetadataStore) -> None:
        ledgers = RealDisk(tmp_path / "ledgers")
        main = RealDisk(tmp_path / "main")
        directories = Directories(main, (main,), (ledgers,))
        await start(store, directories)
        for name in DIRECTORIES:
            (tmp_path / "ledgers" / name).rmdir()
        with pytest.raises(DataMissing, match="it has no directory"):
            await start(store, directories)

    with_store("memory://identity-emptied", test)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_data_that_the_cluster_does_not_know_is_refused(checkpoint: bool) -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        storage = BookieStorage.open(several.directories(), SMALL)
        storage.fence(1, b"k")
        commit(storage)
        if checkpoint:
            storage.checkpoint()
        storage.close()
        await store.delete(NODE)
        with pytest.raises(CookieMissing, match="does not know"):
            await start(store, several.directories())
        for disk in several.disks:
            disk.remove(PATH)
            with pytest.raises(CookieMissing):
                await start(store, several.directories())

    with_store(f"memory://identity-unknown-{checkpoint}", test)


def test_a_first_start_that_was_interrupted_anywhere_is_repeated() -> None:
    async def test(store: MetadataStore) -> None:
        points = 0
        for at in range(6):
            operation, crashed = 0, True
            while crashed:
                operation += 1
                crashed = False
                for loss in Loss:
                    name = f"b:{at}-{operation}-{loss.value}"
                    several = Several(operation)
                    several.disks[at].crash_at = operation
                    try:
                        await start(store, several.directories(), bookie=name)
                    except PowerLost:
                        crashed = True
                    several.crash(loss)
                    identity = await start(store, several.directories(), bookie=name)
                    several.crash(Loss.LOST)
                    again = await start(store, several.directories(), bookie=name)
                    assert again.cookie == identity.cookie
                    store_one_entry(several.directories())
                    points += 1
        assert points > 100

    with_store("memory://identity-interrupted", test)


def test_a_first_start_that_met_a_full_disk_is_repeated() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        several.ledgers[1].capacity_bytes = 10
        with pytest.raises(StorageFailed, match="No space left"):
            await start(store, several.directories())
        several.ledgers[1].capacity_bytes = None
        await start(store, several.directories())
        store_one_entry(several.directories())

    with_store("memory://identity-first-full", test)


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

    with_store("memory://identity-reply", test)


def test_a_damaged_cookie_in_any_directory_refuses_the_start() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        for at in range(len(several.disks)):
            damaged = several.copy()
            damaged.disks[at].damage(PATH, 20, b"?")
            with pytest.raises(CookieDamaged):
                await start(store, damaged.directories())

    with_store("memory://identity-damaged", test)


def test_a_damaged_cookie_in_the_store_refuses_the_start() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        value = (await store.get(NODE)).value
        for damaged in (b"", value[:-1], b"\x08\x02" + value[2:]):
            await store.set(NODE, damaged)
            with pytest.raises(DamagedMetadata):
                await start(store, disk)

    with_store("memory://identity-store-damaged", test)


def test_a_name_that_cannot_be_a_node_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        for name in ("", "a/b", "a\nb"):
            with pytest.raises(InvalidBookieName):
                await start(store, SimDisk(0), bookie=name)

    with_store("memory://identity-name", test)


def test_a_directory_in_use_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    async def test(store: MetadataStore) -> None:
        holder = RealDisk(tmp_path / "ledgers")
        holder.lock()
        main = RealDisk(tmp_path / "main")
        directories = Directories(main, (main,), (RealDisk(tmp_path / "ledgers"),))
        with pytest.raises(DirectoryInUse, match=r"another bookie \(process \d+\) runs on"):
            await start(store, directories, instance="j")
        RealDisk(tmp_path / "main").lock()  # of several, none is kept
        holder.unlock()

    with_store("memory://identity-lock", test)
