"""A running bookie tells the store how far its data are, and ends when it lost its identity."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from bookie.disk.port import Directories
from bookie.errors import BookieSuperseded
from bookie.identity import lives
from bookie.identity.cookie import Cookie
from bookie.identity.lives import Claim, LifeKeeper, look, report, with_census
from bookie.identity.stamp import identify
from bookie.loss.census import Census
from bookie.storage.engine import BookieStorage
from ledger.cluster import encode_instance
from ledger.delays import Backoff
from ledger.errors import DamagedMetadata, MetadataUnavailable, NoSuchNode
from ledger.feature_level import ClusterLevel
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryHub, MemoryStore
from ledger.metastore.ops import INSTANCE
from ledger.metastore.port import MetadataStore, Watch
from ledger.registry import COOKIES
from tests.bookie.promises import SMALL
from tests.ledger.lagging_store import LaggingStore
from tests.simulation.disk import SimDisk
from tests.waiting import PATIENCE_S, eventually, settled, until

NODE = f"{COOKIES}/b"


async def claimed(store: MetadataStore, disk: SimDisk, address: str = "h:1") -> Claim:
    directories = Directories.single(disk)
    identity = await identify(store, directories, bookie="b", instance="i", address=address)
    return identity.claim


async def node(store: MetadataStore) -> Cookie:
    return Cookie.decode((await store.get(NODE)).value)


def with_life(
    test: Callable[[MetadataStore, LifeKeeper, "asyncio.Task[None]", MemoryHub], Awaitable[None]],
) -> None:
    """Run *test* beside the life of a bookie of which there is nothing else, which waits for
    nothing but what happens."""

    async def scenario() -> None:
        hub = MemoryHub()
        with hub.shared("lives"):
            store, other = await open_store("memory://lives"), await open_store("memory://lives")
            living = LifeKeeper(store, await claimed(store, SimDisk(0)))
            life = asyncio.create_task(living.run())
            try:
                await test(other, living, life, hub)
            finally:
                life.cancel()
                await asyncio.wait([life])
                await store.close()
                await other.close()

    with pytest.MonkeyPatch.context() as patch:
        for pause in ("_REPORT_S_MIN", "_RETRY_S_MIN", "_RETRY_S_MAX"):
            patch.setattr(lives, pause, 0.001)
        asyncio.run(scenario())


def census(number: int) -> Census:
    """Return one as a storage makes it."""
    storage = BookieStorage.open(SimDisk(0), SMALL)
    storage.close()
    return replace(storage.census, number=number)


async def until_told(store: MetadataStore, number: int) -> None:
    async def told() -> bool:
        return (await node(store)).checkpoint == number

    await eventually(told, f"the store knows of checkpoint {number}")


def test_the_newest_checkpoint_is_told_also_after_the_store_was_away() -> None:
    async def test(
        store: MetadataStore, living: LifeKeeper, life: "asyncio.Task[None]", hub: MemoryHub
    ) -> None:
        living.checkpointed(census(1))
        await until_told(store, 1)
        assert (await node(store)).census == census(1).encode()
        hub.cut()
        for number in (2, 3):
            living.checkpointed(census(number))
        with pytest.raises(MetadataUnavailable):
            await store.get(NODE)
        assert not life.done()
        hub.heal()
        await until_told(store, 3)

    with_life(test)


def test_a_bookie_ends_when_another_process_took_its_identity() -> None:
    async def test(
        store: MetadataStore, _living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        taken = replace(await node(store), token="another", address="elsewhere:1")
        await store.set(NODE, taken.encode())
        with pytest.raises(BookieSuperseded, match="under it at elsewhere:1"):
            async with asyncio.timeout(PATIENCE_S):
                await life
        assert await node(store) == taken, "it writes there no more"

    with_life(test)


def test_a_bookie_ends_when_its_name_is_retired() -> None:
    async def test(
        store: MetadataStore, _living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        retired = replace(await node(store), retired_ms=1, retired_why="wiped")
        await store.set(NODE, retired.encode())
        with pytest.raises(BookieSuperseded, match="retired: wiped"):
            async with asyncio.timeout(PATIENCE_S):
                await life

    with_life(test)


def test_a_bookie_ends_when_its_own_namespace_has_forgotten_it() -> None:
    async def test(
        store: MetadataStore, _living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        await store.create(INSTANCE, encode_instance("i", ClusterLevel()))
        await store.delete(NODE)
        with pytest.raises(BookieSuperseded, match=r"its cookie is gone\. .* under another --id"):
            async with asyncio.timeout(PATIENCE_S):
                await life

    with_life(test)


def test_a_bookie_reads_its_node_again_when_it_may_have_stood_still() -> None:
    """A watch may be late, or lost with the session; nothing else tells it."""

    async def test(
        store: MetadataStore, living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        living.checkpointed(census(1))
        await until_told(store, 1)  # it has read its node before
        retired = replace(await node(store), retired_ms=1, retired_why="it left")
        await store.set(NODE, retired.encode())
        living.look_soon()
        with pytest.raises(BookieSuperseded, match="retired: it left"):
            async with asyncio.timeout(PATIENCE_S):
                await life

    def deaf(_store: MemoryStore, path: str) -> Watch:
        return watch(_store, f"{path}/deaf")

    watch = MemoryStore.watch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "watch", deaf)
        with_life(test)


def test_a_bookie_goes_on_when_another_store_does_not_know_it_or_its_node_is_damaged() -> None:
    """Its data are not worse for it; the next start says what is wrong."""
    missed = asyncio.Event()

    async def looked(store: MetadataStore, claim: Claim) -> Claim:
        try:
            return await look(store, claim)
        except NoSuchNode:
            missed.set()
            raise

    async def test(
        store: MetadataStore, living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        living.checkpointed(census(1))
        await until_told(store, 1)
        whole = (await store.get(NODE)).value
        await store.set(NODE, b"damaged")
        living.checkpointed(census(2))
        await store.delete(NODE)
        living.look_soon()
        await until(lambda: missed.is_set() or life.done(), "it misses its node")
        assert not life.done()
        await store.create(NODE, whole)
        await until_told(store, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "look", looked)
        with_life(test)


def test_a_clean_end_is_told_with_its_last_checkpoint() -> None:
    async def test(
        store: MetadataStore, living: LifeKeeper, life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        life.cancel()
        await asyncio.wait([life])
        await living.stopped(census(7))
        assert (await node(store)).clean
        assert (await node(store)).checkpoint == 7

    with_life(test)


def test_limbo_is_shown_in_the_store_and_stays_over_restarts_until_it_is_over() -> None:
    async def test(
        store: MetadataStore, living: LifeKeeper, _life: "asyncio.Task[None]", _hub: MemoryHub
    ) -> None:
        for shown in ("a journal was lost", ""):
            living.set_limbo(shown)

            async def told(shown: str = shown) -> bool:
                return (await node(store)).limbo == shown

            await eventually(told, f"limbo is {shown!r}")

    with_life(test)


async def test_a_server_that_lags_does_not_end_a_bookie() -> None:
    """It tells of the life before."""
    store = await open_store("memory://lives-lag")
    lagging = LaggingStore(store)
    disk = SimDisk(0)
    await claimed(store, disk)
    await lagging.fall_behind()
    claim = await claimed(store, disk)
    assert await look(lagging, claim) == claim
    await store.close()


async def test_a_node_is_written_only_if_it_changes_and_once_if_the_reply_was_lost() -> None:
    store = await open_store("memory://lives-report")
    claim = await claimed(store, SimDisk(0))
    assert await report(store, claim, lambda cookie: cookie) is claim
    changed = await report(store, claim, lambda cookie: replace(cookie, limbo="why"))
    assert changed.version == claim.version + 1
    assert changed == await look(store, claim)
    again = await report(store, claim, lambda cookie: replace(cookie, limbo="why"))
    assert again == changed, "the write was its own, and nothing is left to change"
    assert with_census(claim.cookie, None) is claim.cookie
    counted = with_census(claim.cookie, census(7))
    for number in (6, 7):
        assert with_census(counted, census(number)) is counted
    await store.close()


async def test_what_another_namespace_lacks_or_a_damaged_node_says_ends_no_bookie() -> None:
    store = await open_store("memory://lives-look")
    claim = await claimed(store, SimDisk(0))
    await store.set(NODE, b"damaged")
    with pytest.raises(DamagedMetadata):
        await look(store, claim)
    await store.delete(NODE)
    with pytest.raises(NoSuchNode):
        await look(store, claim)
    await store.create(INSTANCE, encode_instance("another", ClusterLevel()))
    with pytest.raises(NoSuchNode):
        await look(store, claim)
    await store.close()


async def test_an_identity_that_was_taken_before_the_watch_was_there_is_missed() -> None:
    store = await open_store("memory://lives-taken")
    living = LifeKeeper(store, await claimed(store, SimDisk(0)))
    taken = replace(await node(store), token="another", address="elsewhere:1")
    await store.set(NODE, taken.encode())
    with pytest.raises(BookieSuperseded, match="under it at elsewhere:1"):
        async with asyncio.timeout(PATIENCE_S):
            await living.run()
    await store.close()


@asynccontextmanager
async def life_of(name: str) -> AsyncIterator[tuple[MetadataStore, LifeKeeper, list[int]]]:
    """Yield the life of a bookie that waits for its pauses to end, and the versions that it saw."""
    store = await open_store(f"memory://{name}")
    living = LifeKeeper(store, await claimed(store, SimDisk(0)))
    looks: list[int] = []

    async def looked(store: MetadataStore, claim: Claim) -> Claim:
        looks.append(claim.version)
        return await look(store, claim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "look", looked)
        for pause in ("_REPORT_S_MIN", "_RETRY_S_MIN", "_RETRY_S_MAX"):
            patch.setattr(lives, pause, 3600.0)
        life = asyncio.create_task(living.run())
        try:
            await settled()
            yield store, living, looks
        finally:
            life.cancel()
            await asyncio.wait([life])
            await store.close()


async def test_a_life_waits_without_a_turn_and_leaves_no_task_behind() -> None:
    async with life_of("lives-wait") as (_, living, looks):
        tasks = len(asyncio.all_tasks())
        for times in (1, 2, 3):
            assert len(looks) == times
            living.look_soon()
            await settled()
        assert len(asyncio.all_tasks()) == tasks


async def test_checkpoints_that_follow_each_other_are_reported_together() -> None:
    async with life_of("lives-together") as (store, living, looks):
        for number in (1, 2, 3):
            living.checkpointed(census(number))
            await settled()
            assert (await node(store)).checkpoint == 1
        assert len(looks) == 2


async def test_a_life_that_cannot_be_reported_is_logged_and_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with life_of("lives-later") as (store, living, looks):
        assert isinstance(store, MemoryStore)
        store.cut()
        for _ in range(3):
            living.look_soon()
            await settled()
        assert len(looks) == 2
        assert caplog.text.count("life_not_reported") == 1


async def test_each_success_lets_the_next_failure_be_a_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets: list[Backoff] = []

    def reset(backoff: Backoff) -> None:
        resets.append(backoff)

    monkeypatch.setattr(Backoff, "reset", reset)
    async with life_of("lives-backoff") as (store, living, _):
        assert len(resets) == 1
        await store.set(NODE, b"damaged")
        living.look_soon()
        await settled()
        assert len(resets) == 1


async def test_a_life_that_ends_stops_watching() -> None:
    store = await open_store("memory://lives-watch")
    living = LifeKeeper(store, await claimed(store, SimDisk(0)))
    watches: list[Watch] = []

    def watched(store: MemoryStore, path: str) -> Watch:
        watches.append(watch(store, path))
        return watches[-1]

    watch = MemoryStore.watch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "watch", watched)
        life = asyncio.create_task(living.run())
        await settled()
        change = asyncio.create_task(watches[0].changed())
        life.cancel()
        await asyncio.wait([life])
        await settled()
    assert change.cancelled()
    await store.close()


async def test_what_failed_is_tried_again_though_nothing_else_happens() -> None:
    store = await open_store("memory://lives-again")
    living = LifeKeeper(store, await claimed(store, SimDisk(0)))
    looks: list[int] = []

    async def fails(store: MetadataStore, claim: Claim) -> Claim:
        looks.append(claim.version)
        if len(looks) < 4:
            raise MetadataUnavailable(store.uri, "get", 1.0)
        return await look(store, claim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "look", fails)
        patch.setattr(lives, "_RETRY_S_MAX", 0.0)
        life = asyncio.create_task(living.run())
        await until(lambda: len(looks) == 4, "it is tried again")
        life.cancel()
        await asyncio.wait([life])
    await store.close()
