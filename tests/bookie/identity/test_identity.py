"""A bookie starts on its own data or not at all (rules 74-76)."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookie.disk.port import Directories, Disk, RealDisk
from bookie.errors import (
    BookieRetired,
    CookieDamaged,
    CookieMissing,
    DataCopied,
    DataMissing,
    DataOutdated,
    DirectoriesChanged,
    DirectoriesMixed,
    DirectoryInUse,
    DirectoryMisplaced,
    ForeignBookie,
    ForeignCluster,
    InvalidBookieName,
    StorageFailed,
    StoreOutdated,
)
from bookie.identity.cookie import PATH, Cookie, read_cookie, write_cookie
from bookie.identity.lives import report, with_census
from bookie.identity.stamp import (
    _TRIES_MAX,
    Identity,
    accept_loss,
    identify,
    mark_clean,
    places,
    settle_doubt,
)
from bookie.loss.census import PATH as CENSUS
from bookie.storage.engine import BookieStorage
from bookie.storage.ledger_directory import DIRECTORIES
from ledger.errors import BookieForgotten, DamagedMetadata, MetadataUnavailable, NoSuchNode
from ledger.metastore import ANY_VERSION, open_store
from ledger.metastore.port import MetadataStore, Versioned
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
    store: Any,
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


class Unreliable:
    """A store that knows nothing when it is first asked, or loses a request or a reply."""

    def __init__(self, store: MetadataStore, trouble: str) -> None:
        self._store = store
        self._trouble = trouble
        self.late: list[Callable[[], Awaitable[int]]] = []
        """Requests that were given up, and may still arrive."""

    async def sync(self, path: str) -> None:
        await self._store.sync(path)

    async def get(self, path: str) -> Versioned:
        if self._trouble == "get":
            self._trouble = ""
            raise NoSuchNode(path)
        return await self._store.get(path)

    async def set(self, path: str, value: bytes, version: int) -> int:
        if self._trouble == "set":
            self.late.append(partial(self._store.set, path, value, version))
            raise MetadataUnavailable("test", "set", 1.0)
        done = await self._store.set(path, value, version)
        if self._trouble == "twice":
            await self._store.set(path, value, version)
        if self._trouble == "reply":
            raise MetadataUnavailable("test", "set", 1.0)
        return done

    async def create(self, path: str, value: bytes) -> str:
        created = await self._store.create(path, value)
        if self._trouble == "create":
            raise MetadataUnavailable("test", "create", 1.0)
        return created


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

    def copy(self, *, by_files: bool = False) -> "Several":
        other = Several()
        other.main = self.main.copy(by_files=by_files)
        other.journals = [disk.copy(by_files=by_files) for disk in self.journals]
        other.ledgers = [disk.copy(by_files=by_files) for disk in self.ledgers]
        return other

    def replace(self, at: int, disk: SimDisk) -> None:
        """Let *disk* be number *at* of `disks`."""
        disks = [*self.disks[:at], disk, *self.disks[at + 1 :]]
        self.main, self.journals, self.ledgers = disks[0], disks[1:3], disks[3:]


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
        assert Cookie.decode((await store.get(NODE)).value) == first.claim.cookie
        assert first.claim.cookie.is_same(first.cookie)
        assert (first.cookie.life, first.cookie.token) == (1, first.claim.cookie.token)
        store_one_entry(disk)
        second = await start(store, disk)
        assert second.cookie.is_same(first.cookie)
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
        assert again.cookie.is_same(first.cookie)

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
            assert cookie.is_same(stored)
            assert (cookie.life, cookie.token, cookie.tries) == (1, stored.token, ())
        store_one_entry(several.directories())
        assert (await start(store, several.directories())).cookie.is_same(first.cookie)

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
        assert second.cookie.is_same(first.cookie)
        assert second.cookie.address == "other:2"
        for disk in several.disks:
            cookie = read_cookie(disk)
            assert cookie is not None
            assert cookie.address == "other:2"
        assert Cookie.decode((await store.get(NODE)).value) == second.claim.cookie
        assert second.claim.cookie.address == "other:2"

    with_store("memory://identity-address", test)


def test_a_full_disk_refuses_a_start_which_is_repeated_when_there_is_space() -> None:
    """Each start is written down."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        disk.capacity_bytes = disk.used_bytes()
        with pytest.raises(StorageFailed, match="No space left"):
            await start(store, disk)
        disk.capacity_bytes = None
        assert (await start(store, disk)).cookie.life == 2

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


@pytest.mark.slow
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
                    assert again.cookie.is_same(identity.cookie)
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
        with pytest.raises(MetadataUnavailable):
            await start(Unreliable(store, "set"), disk)
        first = read_cookie(disk)
        assert first is not None
        assert not first.token, "it was not counted"
        again = await start(Unreliable(store, "get"), disk)
        assert again.cookie.is_same(first)
        with pytest.raises(DataMissing, match="its cookie is another one"):
            await start(Unreliable(store, "get"), SimDisk(0))

    with_store("memory://identity-reply", test)


def test_what_the_first_start_made_survives_a_power_failure_once_the_store_knows_of_it() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        with pytest.raises(MetadataUnavailable):
            await start(Unreliable(store, "create"), several.directories())
        several.crash(Loss.LOST)
        await start(store, several.directories())

    with_store("memory://identity-durable", test)


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
        for damaged in (b"", value[:-1], b"\x08\x03" + value[2:]):
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


# Lives: only the newest data start, and only once.


def test_every_start_is_counted_in_all_directories_and_in_the_store() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        tokens = set()
        for life in (1, 2, 3):
            identity = await start(store, several.directories())
            node = Cookie.decode((await store.get(NODE)).value)
            assert (node.life, node.token) == (life, identity.cookie.token)
            assert identity.doubt is None
            for disk in several.disks:
                cookie = read_cookie(disk)
                assert cookie is not None
                assert (cookie.life, cookie.token, cookie.tries) == (life, node.token, ())
            tokens.add(node.token)
        assert len(tokens) == 3

    with_store("memory://identity-lives", test)


@pytest.mark.slow
def test_a_start_that_was_interrupted_anywhere_is_repeated() -> None:
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
                    await start(store, several.directories(), bookie=name)
                    disk = several.disks[at]
                    disk.crash_at = disk.operations + operation
                    try:
                        await start(store, several.directories(), bookie=name)
                    except PowerLost:
                        crashed = True
                    several.crash(loss)
                    for _ in range(2):
                        identity = await start(store, several.directories(), bookie=name)
                        assert identity.doubt is None
                    points += 1
        assert points > 100

    with_store("memory://identity-again-interrupted", test)


@pytest.mark.parametrize("lost", ["set", "reply"])
@pytest.mark.parametrize("first", [False, True])
def test_a_start_that_does_not_know_whether_it_was_counted_is_repeated(
    lost: str, first: bool
) -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        if not first:
            await start(store, several.directories())
        for _ in range(3):
            with pytest.raises(MetadataUnavailable):
                await start(store=Unreliable(store, lost), where=several.directories())
        assert (await start(store, several.directories())).doubt is None
        assert (await start(store, several.directories())).doubt is None

    with_store(f"memory://identity-unknown-{lost}-{first}", test)


def test_however_many_starts_end_before_they_count_the_one_that_did_is_remembered() -> None:
    """It was counted, ended before its directories knew, and the store takes no writes since."""

    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        with pytest.raises(MetadataUnavailable):
            await start(store=Unreliable(store, "reply"), where=several.directories())
        for _ in range(3 * _TRIES_MAX):
            with pytest.raises(MetadataUnavailable):
                await start(store=Unreliable(store, "set"), where=several.directories())
        assert (await start(store, several.directories())).doubt is None

    with_store("memory://identity-many-tries", test)


def test_a_request_that_was_sent_twice_counts_once() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        identity = await start(Unreliable(store, "twice"), disk)
        assert identity.claim.cookie.life == 1
        told = await report(store, identity.claim, lambda cookie: replace(cookie, limbo="x"))
        assert told.cookie.limbo == "x"
        assert (await start(store, disk)).cookie.life == 2

    with_store("memory://identity-twice", test)


def test_the_late_request_of_an_earlier_start_does_not_refuse_the_next_one() -> None:
    """The earlier process is dead; what it had sent arrives while the next one starts."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        unreliable = Unreliable(store, "set")
        with pytest.raises(MetadataUnavailable):
            await start(unreliable, disk)

        class Overtaken(Unreliable):
            async def set(self, path: str, value: bytes, version: int) -> int:
                for late in unreliable.late:
                    await late()
                unreliable.late.clear()
                return await store.set(path, value, version)

        identity = await start(Overtaken(store, ""), disk)
        node = Cookie.decode((await store.get(NODE)).value)
        assert node.token == identity.cookie.token
        await start(store, disk)

    with_store("memory://identity-late", test)


def test_an_older_directory_is_refused() -> None:
    """A backup of an earlier life: what was promised since is not in it."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        backup = disk.copy()
        await start(store, disk)
        with pytest.raises(DataOutdated, match=r"of its start 1, and the cluster has seen start 2"):
            await start(store, backup)
        await start(store, disk)

    with_store("memory://identity-older", test)


def test_one_older_directory_of_several_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        backup = several.copy()
        await start(store, several.directories())
        for at in range(2):
            mixed = several.copy()
            mixed.journals[at] = backup.journals[at]
            with pytest.raises(DataOutdated):
                await start(store, mixed.directories())

    with_store("memory://identity-one-older", test)


def test_a_directory_from_before_the_last_checkpoint_is_refused() -> None:
    """Within one life, a snapshot of the device shows in nothing else."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        identity = await start(store, disk)
        storage = BookieStorage.open(disk, SMALL)
        before, number = disk.copy(), storage.census.number
        storage.add(run_of(1, 0))
        commit(storage)
        storage.checkpoint()
        after = disk.copy()
        claim = await report(store, identity.claim, partial(with_census, census=storage.census))
        assert claim.cookie.checkpoint == storage.census.number > number
        storage.close()
        told = f"checkpoint {number}, and the cluster has seen {claim.cookie.checkpoint}"
        with pytest.raises(DataOutdated, match=told):
            await start(store, before)
        await start(store, after)

    with_store("memory://identity-checkpoint", test)


def test_a_copy_of_the_files_is_refused_unless_the_bookie_was_stopped_cleanly() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        identity = await start(store, several.directories())
        for at in range(len(several.disks)):
            copied = several.copy()
            copied.replace(at, several.disks[at].copy(by_files=True))
            with pytest.raises(DataCopied, match="not stopped cleanly"):
                await start(store, copied.directories())
        assert mark_clean(several.directories(), identity.claim)
        half_told = several.copy(by_files=True)
        with pytest.raises(DataCopied):
            await start(store, half_told.directories())
        await report(store, identity.claim, lambda cookie: replace(cookie, clean=True))
        moved = several.copy(by_files=True)
        assert (await start(store, moved.directories())).doubt is None
        assert (await start(store, moved.directories())).doubt is None
        with pytest.raises(DataOutdated):
            await start(store, several.directories())

    with_store("memory://identity-copy", test)


def test_of_two_copies_of_a_cleanly_stopped_bookie_one_starts() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        identity = await start(store, disk)
        assert mark_clean(Directories.single(disk), identity.claim)
        await report(store, identity.claim, lambda cookie: replace(cookie, clean=True))
        one, other = disk.copy(by_files=True), disk.copy(by_files=True)

        class First(Unreliable):
            """Another one is counted after this one looked, and before it is."""

            async def set(self, path: str, value: bytes, version: int) -> int:
                await start(store, other)
                return await store.set(path, value, version)

        with pytest.raises(DataOutdated, match="just been used"):
            await start(First(store, ""), one)
        await start(store, other)

    with_store("memory://identity-two-copies", test)


def test_a_life_that_was_followed_by_another_is_not_marked_clean() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        first = await start(store, disk)
        await start(store, disk)
        assert not mark_clean(Directories.single(disk), first.claim)

    with_store("memory://identity-not-clean", test)


def test_a_metadata_store_that_is_older_than_the_data_is_refused() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        older = (await store.get(NODE)).value
        await start(store, disk)
        await store.set(NODE, older)
        with pytest.raises(StoreOutdated, match=r"of its start 2, but .* knows of start 1 only"):
            await start(store, disk)
        await store.delete(NODE)
        with pytest.raises(CookieMissing):
            await start(store, disk)

    with_store("memory://identity-older-store", test)


def test_a_retired_name_never_serves_again() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        node = Cookie.decode((await store.get(NODE)).value)
        await store.set(NODE, replace(node, retired_ms=1, retired_why="wiped").encode())
        for where in (disk, SimDisk(0)):
            with pytest.raises(BookieRetired, match="b:1 is retired: wiped"):
                await start(store, where)

    with_store("memory://identity-retired", test)


def test_a_name_that_is_retired_just_before_its_cookie_is_created_never_serves() -> None:
    async def test(store: MetadataStore) -> None:
        await start(store, SimDisk(0))
        node = Cookie.decode((await store.get(NODE)).value)
        await store.set(NODE, replace(node, retired_ms=1, retired_why="wiped").encode())

        class Unheard(Unreliable):
            async def get(self, path: str) -> Versioned:
                if path != NODE:
                    raise NoSuchNode(path)  # no restore
                return await super().get(path)

        with pytest.raises(BookieRetired, match="b:1 is retired: wiped"):
            await start(Unheard(store, "get"), SimDisk(0))

    with_store("memory://identity-retired-first", test)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"retired_ms": 1, "retired_why": "wiped"}, BookieRetired),
        ({"token": "a copy's", "address": "elsewhere:1"}, DataOutdated),
    ],
)
def test_who_retires_a_name_or_takes_it_while_it_starts_is_heard(
    change: dict[str, Any], error: type[Exception]
) -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        node = Cookie.decode((await store.get(NODE)).value)
        changed, honest = replace(node, **change).encode(), store.set

        async def late(path: str, value: bytes, version: int = ANY_VERSION) -> int:
            if (await store.get(NODE)).value != changed:
                await honest(NODE, changed)
            return await honest(path, value, version)

        store.set = late  # type: ignore[method-assign]
        with pytest.raises(error, match=r"wiped|just been used at elsewhere:1"):
            await start(store, disk)
        assert (await store.get(NODE)).value == changed

    with_store("memory://identity-meanwhile", test)


def test_a_loss_is_accepted_of_whole_data_alone() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        doubted = accept_loss(several.directories(), "why")
        assert doubted == read_cookie(several.main)
        assert doubted.doubt == "why"
        several.ledgers[1] = SimDisk(9)
        with pytest.raises(DataMissing, match=r"b:1.*it has no cookie"):
            accept_loss(several.directories(), "another reason")
        assert read_cookie(several.main) == doubted

    with_store("memory://identity-doubt", test)


def test_a_bookie_that_is_forgotten_while_it_starts_says_so() -> None:
    """It was emptied, and stopped; an operator's command forgets it just then."""

    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        honest = store.set

        async def forgotten(*args: Any, **options: Any) -> int:
            await store.delete(NODE)
            return await honest(*args, **options)

        store.set = forgotten  # type: ignore[method-assign]
        with pytest.raises(BookieForgotten, match="b:1"):
            await start(store, disk)

    with_store("memory://cookies-forgotten", test)


def test_a_damaged_census_is_refused_until_an_operator_accepts_the_loss() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        identity = await start(store, disk)
        storage = BookieStorage.open(disk, SMALL)
        storage.add(run_of(1, 0))
        commit(storage)
        storage.checkpoint()
        await report(store, identity.claim, partial(with_census, census=storage.census))
        storage.close()
        disk.damage(CENSUS, 20, b"rot")
        with pytest.raises(DataOutdated, match="accept-loss"):
            await start(store, disk)
        accept_loss(Directories.single(disk), "its census is damaged")
        doubted = await start(store, disk)
        storage = BookieStorage.open(disk, SMALL, doubt=doubted.doubt or "")
        assert storage.limbo is not None
        storage.close()

    with_store("memory://identity-census", test)


def test_an_operator_may_accept_a_loss_and_the_data_are_doubted_until_that_is_settled() -> None:
    async def test(store: MetadataStore) -> None:
        several = Several()
        await start(store, several.directories())
        backup = several.copy(by_files=True)
        identity = await start(store, several.directories())
        storage = BookieStorage.open(several.directories(), SMALL)
        storage.add(run_of(1, 0))
        commit(storage)
        storage.checkpoint()
        await report(store, identity.claim, partial(with_census, census=storage.census))
        storage.close()
        accept_loss(backup.directories(), "the newer disk died")
        for _ in range(2):
            doubted = await start(store, backup.directories())
            assert doubted.doubt == "the newer disk died"
            with pytest.raises(DataOutdated):
                await start(store, several.directories())
        settle_doubt(backup.directories())
        assert (await start(store, backup.directories())).doubt is None

    with_store("memory://identity-accepted", test)


def test_where_the_locks_prove_nothing_a_start_waits_until_nobody_has_the_name() -> None:
    async def test(store: MetadataStore) -> None:
        waited = []

        async def until_alone() -> None:
            waited.append(1)

        class Moved(SimDisk):
            where_now = "here"

            def where(self) -> str:
                return self.where_now

        async def begin(disk: SimDisk) -> int:
            waited.clear()
            await identify(
                store, Directories.single(disk), bookie="b", instance="i", address="b:1",
                until_alone=until_alone,
            )  # fmt: skip
            return len(waited)

        disk = Moved(0)
        assert await begin(disk) == 0
        assert await begin(disk) == 0
        disk.where_now = "after a boot of the machine, or on another one"
        assert await begin(disk) == 1
        assert await begin(disk) == 0
        accept_loss(Directories.single(disk), "why")
        assert await begin(disk) == 1

    with_store("memory://identity-alone", test)


def test_data_of_the_first_version_are_taken_over_once() -> None:
    async def test(store: MetadataStore) -> None:
        disk = SimDisk(0)
        await start(store, disk)
        node = replace(first_version(read_cookie(disk)), place="")
        as_it_was = disk.copy()
        write_cookie(as_it_was, first_version(read_cookie(disk)))
        await store.set(NODE, node.encode())
        older = as_it_was.copy()
        assert (await start(store, as_it_was)).cookie.life == 1
        with pytest.raises(DataOutdated):
            await start(store, older)

    with_store("memory://identity-version-1", test)


def first_version(cookie: Cookie | None) -> Cookie:
    assert cookie is not None
    return Cookie(
        cookie.bookie, cookie.instance, cookie.cookie, cookie.address, cookie.directories,
        cookie.place,
    )  # fmt: skip
