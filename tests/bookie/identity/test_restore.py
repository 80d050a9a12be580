"""A metadata store that is older than its bookies is refused until an operator accepts it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from bookie.collector.garbage import StoreMemory
from bookie.collector.store_memory import keep, recall
from bookie.disk.port import Directories
from bookie.errors import (
    BookiesThere,
    BookieSuperseded,
    DataCopied,
    DataMissing,
    DataOutdated,
    StoreOutdated,
)
from bookie.identity.cookie import Cookie, read_cookie
from bookie.identity.lives import look
from bookie.identity.restore import accept_restore, honour, read_restore, registered_bookies
from bookie.identity.stamp import Identity, accept_loss, identify
from bookie.loss.limbo import Limbo, LimboPhase
from bookie.server.loss_resolver import doubtful_of
from bookie.server.loss_resolver import look as look_at_store
from bookie.storage.engine import BookieStorage
from ledger.cluster import make_namespace
from ledger.errors import DamagedMetadata
from ledger.ids import LedgerId
from ledger.manager import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import MetadataStore
from ledger.registry import COOKIES, BookieRegistration, register, unregister
from ledger.requests import HeldQuery, LacAnswer, ReadQuery, Status
from tests.bookie.loss.test_limbo import ledger
from tests.bookie.promises import KEY, SMALL, run_of
from tests.ledger.lagging_store import LaggingStore
from tests.simulation.disk import SimDisk

NAME = "a"
WHY = "back to the backup"


@dataclass(slots=True)
class World:
    """A namespace that can be restored, and one bookie of it."""

    store: MetadataStore
    ledgers: LedgerStore
    instance: str
    disk: SimDisk

    async def backup(self, path: str = "/") -> dict[str, bytes]:
        found = {} if path == "/" else {path: (await self.store.get(path)).value}
        for name in await self.store.children(path):
            found |= await self.backup(f"{path.rstrip('/')}/{name}")
        return found

    async def put_back(self, backup: dict[str, bytes]) -> None:
        for path in sorted(await self.backup(), reverse=True):
            if path not in backup:
                await self.store.delete(path)
        for path in sorted(backup):
            if await self.store.exists(path) is None:
                await self.store.create(path, backup[path])
            else:
                await self.store.set(path, backup[path])

    async def identify(self, disk: SimDisk | None = None) -> Identity:
        directories = Directories.single(disk or self.disk)
        try:
            return await identify(
                self.store, directories, bookie=NAME, instance=self.instance, address="a:1"
            )
        finally:
            directories.unlock()

    async def start(self) -> BookieStorage:
        """Start it as `bookie.process` does, until it would serve."""
        identity = await self.identify()
        restored = identity.restored
        why = "" if restored is None else restored.reason
        storage = BookieStorage.open(self.disk, SMALL, restored=why)
        if restored is not None:
            await honour(self.ledgers, storage, Directories.single(self.disk), restored)
        return storage

    async def settle(self, storage: BookieStorage) -> Limbo | None:
        """Let it look at the store once, as `bookie.server.loss_resolver` does."""
        limbo = storage.limbo
        assert limbo is not None

        async def doubtful(ledger_ids: object) -> list[LedgerId]:
            return await doubtful_of(self.ledgers, NAME, ledger_ids, floor=limbo.floor)  # type: ignore[arg-type]

        storage.judged(await look_at_store(limbo, self.ledgers, doubtful))
        return storage.limbo


@asynccontextmanager
async def world(name: str) -> AsyncIterator[World]:
    store = MemoryStore(f"memory://{name}", name)
    made = await make_namespace(store, layout="longhierarchical")
    yield World(store, LedgerStore(store, "longhierarchical"), made.instance, SimDisk(0))
    await store.close()


def use(storage: BookieStorage, ledger_id: int, *entries: int) -> None:
    assert storage.add(run_of(ledger_id, *entries))[0] is Status.OK
    storage.commit()


async def older_store(made: World, *, starts: int = 1) -> LedgerId:
    """Let the bookie be used, and the store be restored to a moment before: the ledger returned was
    open then."""
    storage = await made.start()
    mine = await made.ledgers.create(ledger(NAME, "b", "c"))
    use(storage, mine, 0, 1)
    storage.close()
    backup = await made.backup()
    for _ in range(starts):
        storage = await made.start()
        use(storage, 70, 0)
        storage.close()
    await made.put_back(backup)
    return mine


async def test_a_store_that_is_older_is_refused_without_a_word_and_believed_with_one() -> None:
    async with world("restore-word") as made:
        mine = await older_store(made)
        with pytest.raises(StoreOutdated, match="accept-restore"):
            await made.start()
        restore = await accept_restore(made.ledgers, WHY)
        assert await read_restore(made.store) == restore
        storage = await made.start()
        assert storage.limbo == Limbo(WHY, floor=71, lost=False)
        assert storage.read_only, "it knows of no ledger yet whether it may take adds"
        limbo = await made.settle(storage)
        assert limbo is not None
        assert (limbo.phase, limbo.doubtful) == (LimboPhase.SETTLING, frozenset({int(mine)}))
        assert not storage.read_only
        storage.close()
        cookie = read_cookie(made.disk)
        assert cookie is not None
        assert cookie.restore == restore.token
        storage = await made.start()
        assert storage.limbo == limbo, "it is honoured once"


async def test_new_ledgers_get_ids_above_all_that_any_bookie_ever_saw() -> None:
    async with world("restore-ids") as made:
        await older_store(made)
        keep(made.disk, StoreMemory(next_id=500, deletions=9, older=True))
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        assert storage.limbo is not None
        assert storage.limbo.floor == 500
        ledgers = LedgerStore(made.store, "longhierarchical")
        assert await ledgers.create(ledger(NAME, "b", "c")) >= 500
        seen = recall(made.disk)
        assert seen is not None
        vitals = await made.ledgers.vitals()
        assert not seen.older
        assert not vitals.is_older(seen), "it collects again"


@pytest.mark.parametrize("layout", ["flat", "longhierarchical"])
async def test_ids_are_left_out_in_each_layout(layout: str) -> None:
    name = f"restore-layout-{layout}"
    store = MemoryStore(f"memory://{name}", name)
    await make_namespace(store, layout=layout)
    ledgers = LedgerStore(store, layout)
    assert await ledgers.leave_ids_below(150) >= 150
    assert await ledgers.create(ledger(NAME, "b", "c")) >= 150
    assert await ledgers.leave_ids_below(3) > 150, "they are never given out again"
    await store.close()


async def test_no_ledger_from_before_takes_a_writers_add_also_if_the_store_forgot_it() -> None:
    async with world("restore-adds") as made:
        mine = await older_store(made)
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        await made.settle(storage)
        for ledger_id in (mine, 70, 69):
            assert storage.add(run_of(ledger_id, 9)) == (Status.READ_ONLY, 0)
        assert storage.add(run_of(mine, 9, recovery=True))[0] is Status.OK
        assert storage.add(run_of(71, 0))[0] is Status.OK
        assert storage.is_orphan(70)
        assert not storage.is_orphan(mine)
        assert not storage.is_orphan(71)


async def test_a_true_denial_is_no_evidence_of_the_end_and_a_list_is_complete() -> None:
    async with world("restore-denial") as made:
        mine = await older_store(made)
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        await made.settle(storage)
        answer = storage.read(ReadQuery(mine, KEY, 0, 9))
        assert (answer.status, list(answer.entries), answer.considered) == (Status.OK, [0, 1], 1)
        assert storage.read(ReadQuery(mine, KEY, 2, 9)).status is Status.UNKNOWN
        assert storage.lac(mine, KEY).status is Status.UNKNOWN
        held = storage.held(HeldQuery(mine, KEY, 0, 9))
        assert (held.status, list(held.ranges()), held.considered) == (Status.OK, [(0, 1)], 9)


@pytest.mark.parametrize("way", ["evicted", "deleted"])
async def test_what_was_let_go_of_since_is_not_denied_in_a_list_either(way: str) -> None:
    async with world(f"restore-{way}") as made:
        mine = await older_store(made)
        storage = BookieStorage.open(made.disk, SMALL)
        storage.checkpoint()
        if way == "deleted":
            storage.delete([mine])
        else:
            storage.evict([mine], storage.offer([mine]))
        assert mine not in storage.ledger_ids()
        storage.close()
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        await made.settle(storage)
        assert storage.held(HeldQuery(mine, KEY, 0, 9)).status is Status.UNKNOWN
        fenced, _ = storage.fence(mine, KEY)
        assert fenced is (Status.NO_SUCH_LEDGER if way == "deleted" else Status.OK)
        assert storage.held(HeldQuery(mine, KEY, 0, 9)).status is Status.UNKNOWN
        assert storage.read(ReadQuery(mine, KEY, 0, 9)).status is Status.UNKNOWN


async def test_a_loss_of_its_own_stays_one_when_the_store_is_restored() -> None:
    async with world("restore-loss") as made:
        mine = await older_store(made)
        accept_loss(Directories.single(made.disk), "the newer disk died")
        await accept_restore(made.ledgers, WHY)
        identity = await made.identify()
        assert identity.restored is not None
        assert identity.doubt == "the newer disk died"
        storage = BookieStorage.open(
            made.disk, SMALL, doubt=identity.doubt, restored=identity.restored.reason
        )
        await honour(made.ledgers, storage, Directories.single(made.disk), identity.restored)
        limbo = await made.settle(storage)
        assert limbo is not None
        assert limbo.lost
        assert storage.held(HeldQuery(mine, KEY, 5, 9)).status is Status.UNKNOWN
        assert storage.lac(9, KEY) == LacAnswer(Status.NO_SUCH_LEDGER)


async def test_a_bookie_that_joined_after_the_backup_is_let_in_with_its_data() -> None:
    async with world("restore-joined") as made:
        backup = await made.backup()
        storage = await made.start()
        use(storage, 3, 0, 1)
        storage.close()
        await made.put_back(backup)
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        assert storage.limbo == Limbo(WHY, floor=4, lost=False)
        assert list(storage.read(ReadQuery(3, KEY, 0, 1)).entries) == [0, 1]


async def test_a_bookie_that_is_new_after_the_restore_has_nothing_to_honour() -> None:
    async with world("restore-new") as made:
        await accept_restore(made.ledgers, WHY)
        for _ in range(2):
            storage = await made.start()
            assert storage.limbo is None
            storage.close()


async def test_one_directory_less_is_noticed_also_if_it_joined_after_the_backup() -> None:
    async with world("restore-joined-less") as made:
        backup = await made.backup()

        async def start(*ledgers: SimDisk) -> Identity:
            directories = Directories(made.disk, (made.disk,), ledgers)
            try:
                return await identify(
                    made.store, directories, bookie=NAME, instance=made.instance, address="a:1"
                )
            finally:
                directories.unlock()

        first, second = SimDisk(1), SimDisk(2)
        await start(first, second)
        await made.put_back(backup)
        await accept_restore(made.ledgers, WHY)
        with pytest.raises(DataMissing, match="it has no cookie"):
            await start(first, SimDisk(3))
        assert (await start(first, second)).restored is not None


async def test_a_server_that_lags_hides_neither_a_restore_nor_who_is_registered() -> None:
    async with world("restore-lag") as made:
        lagging = LaggingStore(made.store)
        await lagging.fall_behind()
        accepted = await accept_restore(made.ledgers, WHY)
        assert await read_restore(lagging) == accepted
        await lagging.fall_behind()
        await made.start()
        await register(made.store, BookieRegistration(NAME, "a:1", "x"))
        assert await registered_bookies(lagging) == [NAME]


async def test_a_word_ends_every_life_but_those_of_retired_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world("restore-lives") as made:
        cookie = (await made.identify()).claim.cookie
        other, retired = f"{COOKIES}/b", replace(cookie, bookie="b", retired_ms=1, retired_why="x")
        await made.store.create(other, retired.encode())
        children = made.store.children

        async def with_one_that_goes(path: str) -> list[str]:
            return [*await children(path), *(["c"] if path == COOKIES else [])]

        made.store.children = with_one_that_goes  # type: ignore[method-assign]
        accepted = await accept_restore(made.ledgers, WHY)
        assert Cookie.decode((await made.store.get(other)).value) == retired
        ended = Cookie.decode((await made.store.get(f"{COOKIES}/{NAME}")).value)
        assert (ended.token, ended.tries) == (accepted.token, (cookie.token,))
        made.store.children = children  # type: ignore[method-assign]
        await made.start()
        assert "restore_honoured" in caplog.text
        await made.store.set(other, b"damaged")
        with pytest.raises(DamagedMetadata, match=other):
            await accept_restore(made.ledgers, WHY)


async def test_data_from_before_a_restore_that_was_honoured_are_refused() -> None:
    """Their start is a later one than the restored store knew, but not than it knows now."""
    async with world("restore-honoured") as made:
        older: list[SimDisk] = []
        storage = await made.start()
        backup = await made.backup()
        for _ in range(3):
            storage.close()
            storage = await made.start()
            older.append(made.disk.copy())
        storage.close()
        await made.put_back(backup)
        await accept_restore(made.ledgers, WHY)
        storage = await made.start()
        assert storage.add(run_of(99, 0, recovery=True))[0] is Status.OK
        storage.commit()
        storage.close()
        for disk in older:
            with pytest.raises(DataOutdated, match="the cluster has seen start 5"):
                await made.identify(disk)
        again = await made.start()
        assert list(again.read(ReadQuery(99, KEY, 0, 0)).entries) == [0]


async def test_data_that_are_older_than_the_restored_store_are_refused() -> None:
    async with world("restore-older") as made:
        storage = await made.start()
        storage.close()
        older = made.disk.copy()
        (await made.start()).close()
        await older_store(made)
        await accept_restore(made.ledgers, WHY)
        with pytest.raises(DataOutdated):
            await made.identify(older)
        with pytest.raises(DataCopied):
            await made.identify(made.disk.copy(by_files=True))
        assert (await made.start()).limbo is not None


async def test_directories_of_different_starts_are_refused_beside_a_restored_store() -> None:
    async with world("restore-mixed") as made:
        directories = Directories(made.disk, (SimDisk(1),), (SimDisk(2),))

        async def start() -> Identity:
            try:
                return await identify(
                    made.store, directories, bookie=NAME, instance=made.instance, address="a:1"
                )
            finally:
                directories.unlock()

        await start()
        backup = await made.backup()
        await start()
        older = directories.ledgers[0].copy()  # type: ignore[attr-defined]
        await start()
        await made.put_back(backup)
        await accept_restore(made.ledgers, WHY)
        whole, directories = directories, Directories(made.disk, directories.journals, (older,))
        with pytest.raises(DataOutdated, match="and others of its start"):
            await start()
        directories = whole
        assert (await start()).restored is not None


async def test_a_word_is_taken_only_while_no_bookie_runs() -> None:
    async with world("restore-running") as made:
        await made.start()
        registration = BookieRegistration(NAME, "a:1", "x")
        await register(made.store, registration)
        with pytest.raises(BookiesThere, match=NAME):
            await accept_restore(made.ledgers, WHY)
        assert await read_restore(made.store) is None
        await unregister(made.store, registration)
        await accept_restore(made.ledgers, WHY)


async def test_a_process_that_slept_through_the_restore_ends() -> None:
    """Its life is the one that the backup has: nothing but the word ends it."""
    async with world("restore-slept") as made:
        identity = await made.identify()
        backup = await made.backup()
        await made.put_back(backup)
        await accept_restore(made.ledgers, WHY)
        with pytest.raises(BookieSuperseded):
            await look(made.store, identity.claim)


async def test_a_second_restore_needs_a_word_of_its_own() -> None:
    async with world("restore-twice") as made:
        await older_store(made)
        await accept_restore(made.ledgers, WHY)
        (await made.start()).close()
        backup = await made.backup()
        (await made.start()).close()
        await made.put_back(backup)
        with pytest.raises(StoreOutdated):
            await made.start()
        again = await accept_restore(made.ledgers, "once more")
        storage = await made.start()
        assert storage.limbo is not None
        assert storage.limbo.reason == "once more"
        cookie = read_cookie(made.disk)
        assert cookie is not None
        assert cookie.restore == again.token


async def test_what_honours_a_restore_and_dies_before_the_end_does_it_again() -> None:
    async with world("restore-crash") as made:
        await older_store(made)
        await accept_restore(made.ledgers, WHY)
        identity = await made.identify()
        assert identity.restored is not None
        BookieStorage.open(made.disk, SMALL, restored=WHY).close()
        storage = await made.start()
        assert storage.limbo == Limbo(WHY, floor=71, lost=False)
        node = await made.store.get(f"{COOKIES}/{NAME}")
        assert node.version > 0


def test_a_limbo_of_the_first_version_is_one_of_a_loss() -> None:
    limbo = Limbo(WHY, floor=9, lost=False).known([5, 1], [5])
    assert Limbo.decode(limbo.encode()) == limbo
    old = bytes.fromhex(
        "444c4f474c494d42010000000200000001000000010000000000000001000000000000007805000000000000"
        "000500000000000000"
    )
    from google_crc32c import value as crc32c

    decoded = Limbo.decode(old + crc32c(old).to_bytes(4, "little"))
    assert decoded == Limbo("x").known([5], [5])
    assert decoded.lost
    assert not decoded.floor
