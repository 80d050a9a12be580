"""The collector's driver: whatever goes wrong in the metadata store, nothing live is deleted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence

import pytest

from bookie.collector import store_memory
from bookie.collector.collector import Collector, Run
from bookie.collector.garbage import AlarmKind
from bookie.collector.plan import CollectorConfig, RunKind
from bookie.errors import CollectionUnderWay
from ledger.cluster import make_namespace
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager import LAYOUTS, LedgerStore
from ledger.manager.ledger_store import DELETIONS
from ledger.metadata import Fragment, LedgerMetadata
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from ledger.wire import metadata_pb2 as pb
from tests.bookie.collector.collecting import Collecting
from tests.ledger.flaky_store import FlakyStore
from tests.simulation.disk import SimDisk
from tests.waiting import until

METADATA = LedgerMetadata(
    quorum=Quorum(1, 1, 1),
    fragments=(Fragment(EntryId(0), (BookieId("b"),)),),
    creation_token=b"token",
)
CONFIG = CollectorConfig(
    gc_interval_s=0, minor_interval_s=0, major_interval_s=0, bytes_per_s=0, reserve_bytes=0
)


class WatchedStore(FlakyStore):
    """Calls *before_each* with the number and the name of each operation, which may raise."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.memory = store
        self.operations = 0
        self.before_each: Callable[[int, str], None] = lambda _number, _operation: None

    def _before(self, operation: str) -> None:
        self.operations += 1
        self.before_each(self.operations, operation)


class Cluster:
    """A metadata store and a bookie with ledgers 0 to 5, stored in a directory or two."""

    metadata = METADATA
    """Of each ledger, when it is made."""

    def __init__(
        self, store: MemoryStore, instance: str, config: CollectorConfig, directories: int
    ) -> None:
        self.main = SimDisk(99)
        self.wall_clock_s = 1_700_000_000.0
        self.store = WatchedStore(store)
        self.ledgers = LedgerStore(self.store, "longhierarchical")
        self.worlds = [Collecting(SimDisk(n)) for n in range(directories)]
        self.deletions: list[tuple[int, ...]] = []
        self.on_delete: Callable[[], None] = lambda: None
        self.evictions: list[tuple[int, ...]] = []
        self.wanted: dict[int, None] = {}
        """Ledgers of which something is promised between the offer and the eviction."""
        self.later_s = 0.0
        """How far the collector's clock is ahead."""
        self.config = config
        self.instance = instance
        self.start_again()

    def ledger_ids(self) -> list[int]:
        return sorted(one for world in self.worlds for one in world.headers)

    async def delete(self, ledger_ids: Sequence[int]) -> None:
        self.on_delete()
        self.deletions.append(tuple(ledger_ids))
        for world in self.worlds:
            world.delete(*(one for one in ledger_ids if one in world.headers))

    def offer(self, ledger_ids: Sequence[int]) -> int:
        self.offered, self.offered_at = dict.fromkeys(ledger_ids), self.store.operations
        return 1

    async def evict(self, ledger_ids: Sequence[int], offer: int) -> None:
        assert offer == 1
        assert dict.fromkeys(ledger_ids).keys() <= self.offered.keys(), "it was offered"
        chosen = [one for one in ledger_ids if one not in self.wanted]
        self.evictions.append(tuple(chosen))
        for world in self.worlds:
            world.evict(*(one for one in chosen if one in world.headers))

    async def fill(self) -> None:
        ids = [await self.ledgers.create(self.metadata) for _ in range(6)]
        for turn in range(4):
            for at, world in enumerate(self.worlds):
                own = [one for one in ids if one % len(self.worlds) == at]
                world.flush({one: range(5 * turn, 5 * turn + 3) for one in own})

    def start_again(self) -> None:
        """Begin anew on the same disks."""
        self.collector = Collector(
            [world.directory for world in self.worlds],
            self.ledgers,
            self.config,
            main=self.main,
            bookie="b",
            instance=self.instance,
            ledger_ids=self.ledger_ids,
            storage=self,
            clock=lambda: time.monotonic() + self.later_s,
            wall_clock=lambda: self.wall_clock_s,
        )

    async def lose(self, *ledger_ids: int) -> None:
        """Take ledgers out of the metadata store as no program of ours does."""
        for ledger_id in ledger_ids:
            await self.store.memory.delete(LAYOUTS["longhierarchical"].path(ledger_id))

    async def drop(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self.ledgers.delete(LedgerId(ledger_id))

    def check(self) -> None:
        for world in self.worlds:
            world.check()


def on_cluster(
    scenario: Callable[[Cluster], Coroutine[None, None, None]],
    *,
    config: CollectorConfig = CONFIG,
    directories: int = 1,
    made: type[Cluster] = Cluster,
) -> None:
    async def run() -> None:
        store = MemoryStore("memory://collector", "collector")
        namespace = await make_namespace(store, layout="longhierarchical")
        cluster = made(store, namespace.instance, config, directories)
        await cluster.collector.begin()
        await cluster.fill()
        try:
            await scenario(cluster)
            cluster.check()
        finally:
            await cluster.collector.close()
            await store.close()

    asyncio.run(run())


def test_a_ledger_that_the_cluster_deleted_goes_and_so_does_what_it_took() -> None:
    async def scenario(cluster: Cluster) -> None:
        before = cluster.worlds[0].log_bytes()
        await cluster.drop(1, 2, 3, 4, 5)
        run = await cluster.collector.collect()
        assert cluster.ledger_ids() == [0]
        assert (run.ledgers, run.failure, run.moved_bytes) == (5, "", 0)
        assert run.logs > 0
        compaction = await cluster.collector.compact(major=True)
        assert compaction.moved_bytes > 0
        assert run.freed_bytes + compaction.freed_bytes > before / 2
        assert cluster.worlds[0].log_bytes() < before / 2

    on_cluster(scenario)


@pytest.mark.parametrize("trouble", ["no answer", "another session"])
def test_no_trouble_with_the_metadata_store_wherever_it_comes_deletes_anything(
    trouble: str,
) -> None:
    """#870, #865, BK-955, BK-956, #4731: at each single operation of a collection."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1, 2)
        at = 0

        def before_each(number: int, operation: str) -> None:
            if number == at and trouble == "no answer":
                raise MetadataUnavailable("memory://collector", operation, 0)
            if number == at:
                cluster.store.memory.expire()

        cluster.store.before_each = before_each
        while True:
            at += 1
            cluster.store.operations = 0
            run = await cluster.collector._run(RunKind.GC)  # without a look for surplus copies
            if not run.failure:
                break
            assert "metadata store" in run.failure
            assert cluster.deletions == []
            assert run.ledgers == 0
        assert at > cluster.store.operations >= 8, "every operation was tried"
        assert cluster.deletions == [(1, 2)]

    on_cluster(scenario)


def test_a_ledger_that_the_listing_leaves_out_is_read_before_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing that silently ends early takes nothing but what really is gone."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(4)

        async def cut_short(self: LedgerStore) -> AsyncIterator[LedgerId]:
            yield LedgerId(0)

        monkeypatch.setattr(LedgerStore, "list", cut_short)
        run = await cluster.collector.collect()
        assert cluster.deletions == [(4,)]
        assert run.ledgers == 1

    on_cluster(scenario)


def test_a_ledger_that_appears_while_the_listing_runs_is_not_touched() -> None:
    """It is in no listing that began before, and in no snapshot either."""

    async def scenario(cluster: Cluster) -> None:
        async def create() -> None:
            world = cluster.worlds[0]
            world.flush({77: [0]})

        tasks: list[asyncio.Task[None]] = []

        def before_each(_number: int, operation: str) -> None:
            if operation == "children" and not tasks:
                tasks.append(asyncio.ensure_future(create()))

        cluster.store.before_each = before_each
        await cluster.collector.collect()
        assert tasks
        assert 77 in cluster.ledger_ids()
        assert cluster.deletions == []

    on_cluster(scenario)


def test_ledgers_are_deleted_in_portions_and_an_error_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.collector.collector._DELETE_AT_ONCE", 2)

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(0, 1, 2, 3, 4)

        def full() -> None:
            if cluster.deletions:
                raise OSError(28, "No space left on device")

        cluster.on_delete = full
        run = await cluster.collector.collect()
        assert "No space" in run.failure
        assert cluster.deletions == [(0, 1)]
        cluster.on_delete = lambda: None
        await cluster.collector.collect()
        assert cluster.deletions == [(0, 1), (2, 3), (4,)]

    on_cluster(scenario)


def test_ledgers_that_are_gone_without_a_trace_wait_for_an_operator() -> None:
    """However often it is tried, and whatever was deleted beside them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.lose(1, 2, 3, 4)
        run = await cluster.collector.collect()
        assert (run.ledgers, run.waiting, run.failure) == (1, 3, "")
        assert run.alarm is not None
        assert run.alarm.kind is AlarmKind.UNTRACED_DELETIONS
        assert "--allow-deletions 3" in run.alarm.reason
        assert cluster.ledger_ids() == [0, 2, 3, 4, 5]
        for _ in range(3):
            assert (await cluster.collector.collect()).ledgers == 0
        await cluster.collector.close()
        cluster.start_again()
        assert (await cluster.collector.collect()).ledgers == 0
        await cluster.drop(5)
        run = await cluster.collector.collect()
        assert cluster.ledger_ids() == [0, 2, 3, 4], (
            "what was deleted as it should goes beside them"
        )
        assert cluster.collector.status().alarm == run.alarm
        assert cluster.collector.status().waiting == 3
        assert (await cluster.collector.collect(allowed=2)).waiting == 1
        assert (await cluster.collector.collect(allowed=-1)).waiting == 0
        assert cluster.ledger_ids() == [0]
        assert cluster.collector.status().alarm is None

    on_cluster(scenario)


def test_a_share_of_the_ledgers_may_go_without_a_trace_each_day() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.lose(1, 2, 3)
        for day in range(1, 4):
            for _ in range(3):
                await cluster.collector.collect()
            assert len(cluster.ledger_ids()) == 6 - day
            cluster.wall_clock_s += 86_400
        assert cluster.ledger_ids() == [0, 4, 5]

    on_cluster(scenario)


def test_ledgers_that_a_restored_store_has_forgotten_are_kept_until_an_operators_word() -> None:
    """No share of them goes, and what was deleted as it should goes beside them, also after a
    restart, which forgets who waits."""

    async def scenario(cluster: Cluster) -> None:
        def begin() -> None:
            cluster.collector.heed(
                in_doubt=lambda: "",
                may_be_lost=lambda _ledger_id: False,
                is_orphan=lambda ledger_id: ledger_id in (1, 2, 3),
            )

        begin()
        await cluster.lose(1, 2, 3)
        for _ in range(3):
            run = await cluster.collector.collect()
            assert (run.ledgers, run.waiting) == (0, 3)
            assert run.alarm is not None
            assert run.alarm.kind is AlarmKind.UNTRACED_DELETIONS
            cluster.wall_clock_s += 86_400
        await cluster.collector.close()
        cluster.start_again()
        begin()
        await cluster.drop(4)
        await cluster.collector.collect()
        assert cluster.ledger_ids() == [0, 1, 2, 3, 5]
        assert (await cluster.collector.collect(allowed=-1)).ledgers == 3
        assert cluster.ledger_ids() == [0, 5]

    on_cluster(scenario)


def test_ledgers_that_come_back_while_they_wait_are_kept() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.lose(0, 1, 2, 3, 4)
        assert (await cluster.collector.collect()).waiting == 4
        for ledger_id in (1, 2, 3, 4):
            path = LAYOUTS["longhierarchical"].path(ledger_id)
            await cluster.store.memory.create(path, METADATA.encode())
        run = await cluster.collector.collect(allowed=-1)
        assert (run.ledgers, run.waiting, run.alarm) == (0, 0, None)
        assert cluster.ledger_ids() == [1, 2, 3, 4, 5]

    on_cluster(scenario)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("instance", [None, "made anew"])
def test_a_namespace_that_is_not_the_bookies_own_deletes_nothing(
    instance: str | None, moment: str
) -> None:
    """Made anew, or emptied, while the bookie runs; also while a collection runs."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1)

        async def replace() -> None:
            store = cluster.store.memory
            await store.delete("/instance")
            if instance is not None:
                node = pb.InstanceNode(version=1, instance=instance)
                await store.create("/instance", node.SerializeToString())

        tasks: list[asyncio.Task[None]] = []

        def before_each(number: int, operation: str) -> None:
            wanted = {"during": "children", "after": "exists"}.get(moment)
            if operation == wanted and not tasks and number > 5:
                tasks.append(asyncio.ensure_future(replace()))

        if moment == "before":
            await replace()
        cluster.store.before_each = before_each
        for allowed in (None, -1):
            run = await cluster.collector.collect(allowed=allowed)
            assert run.alarm is not None
            assert run.alarm.kind is AlarmKind.OTHER_NAMESPACE
            assert cluster.deletions == []

    on_cluster(scenario)


@pytest.mark.parametrize("forgotten", ["ids", "deletions"])
def test_a_store_restored_from_a_backup_deletes_nothing_until_an_operator_says_so(
    forgotten: str,
) -> None:
    """The ledgers that were made since the backup are not in it, but were never deleted."""

    async def scenario(cluster: Cluster) -> None:
        store = cluster.store.memory
        await cluster.collector.collect()
        await cluster.drop(0)
        await cluster.collector.collect()
        assert cluster.ledger_ids() == [1, 2, 3, 4, 5]
        await cluster.lose(4, 5)
        if forgotten == "ids":
            await store.set("/idgen", pb.IdBlockNode(version=1, next=4).SerializeToString())
        else:
            await store.delete(DELETIONS)
        for turn in range(3):
            run = await cluster.collector.collect()
            assert run.alarm is not None
            assert run.alarm.kind is AlarmKind.OLDER_NAMESPACE
            assert cluster.ledger_ids() == [1, 2, 3, 4, 5]
            if turn == 1:
                await cluster.collector.close()
                cluster.start_again()
            # It grows on, but what it forgot is not in it for that.
            await store.set("/idgen", pb.IdBlockNode(version=1, next=900).SerializeToString())
            if await store.exists(DELETIONS) is None:
                await store.create(DELETIONS)
            for _ in range(5):
                await store.set(DELETIONS, b"")
        assert (await cluster.collector.collect(allowed=-1)).ledgers == 2
        run = await cluster.collector.collect()
        assert (run.alarm, run.waiting) == (None, 0)
        assert cluster.ledger_ids() == [1, 2, 3]

    on_cluster(scenario)


def test_a_deletion_between_the_listing_and_the_count_is_still_explained_to_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = LedgerStore.absent

    async def scenario(cluster: Cluster) -> None:
        async def late(self: LedgerStore, ids: Iterable[LedgerId]) -> tuple[LedgerId, ...]:
            monkeypatch.setattr(LedgerStore, "absent", honest)
            await cluster.drop(1, 2, 3, 4)
            return await honest(self, ids)

        monkeypatch.setattr(LedgerStore, "absent", late)
        assert (await cluster.collector.collect()).ledgers == 0
        run = await cluster.collector.collect()
        assert (run.ledgers, run.waiting) == (4, 0)

    on_cluster(scenario)


def test_without_its_memory_a_bookie_takes_what_is_gone_for_lost() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(0, 1, 2)
        await cluster.collector.close()
        cluster.main.damage(store_memory.PATH, 20, b"\x5a")
        cluster.start_again()
        await cluster.collector.begin()
        assert (await cluster.collector.collect()).waiting == 2
        await cluster.drop(5)
        assert (await cluster.collector.collect()).ledgers == 1

    on_cluster(scenario)


def test_what_waits_does_not_keep_others_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.collector.garbage.CANDIDATES_MAX", 2)
    monkeypatch.setattr("bookie.collector.collector.CANDIDATES_MAX", 2)

    async def scenario(cluster: Cluster) -> None:
        await cluster.lose(0, 1, 2)
        for _ in range(3):
            await cluster.collector.collect()
        assert cluster.collector.status().waiting == 2
        await cluster.drop(3, 4, 5)
        for _ in range(2):
            await cluster.collector.collect()
        assert len(cluster.ledger_ids()) == 2
        assert cluster.collector.status().waiting == 2

    on_cluster(scenario)


def test_what_a_storage_with_a_failed_directory_did_not_delete_is_not_told_as_deleted() -> None:
    class Frozen(Cluster):
        async def delete(self, ledger_ids: Sequence[int]) -> None:
            self.deletions.append(tuple(ledger_ids))

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1, 4)
        run = await cluster.collector.collect()
        assert cluster.deletions == [(1, 4)]
        assert run.ledgers == 0

    on_cluster(scenario, made=Frozen)


def test_what_is_due_is_done_without_being_asked() -> None:
    config = CollectorConfig(
        gc_interval_s=0.02, minor_interval_s=0.05, major_interval_s=0.08, bytes_per_s=0,
        reserve_bytes=0,
    )  # fmt: skip

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1, 2)
        task = asyncio.create_task(cluster.collector.run())
        await until(lambda: len(cluster.collector.status().last) == len(RunKind))
        await until(lambda: cluster.ledger_ids() == [0, 3, 4, 5])
        task.cancel()
        await asyncio.wait((task,))
        status = cluster.collector.status()
        assert [run.kind for run in status.last] == list(RunKind)
        assert [due.kind for due in status.due] == list(RunKind)
        assert [due.share for due in status.due] == [0.0, 0.2, 0.8]

    on_cluster(scenario, config=config)


def test_with_everything_switched_off_it_waits_to_be_asked() -> None:
    async def scenario(cluster: Cluster) -> None:
        task = asyncio.create_task(cluster.collector.run())
        await asyncio.sleep(0)
        assert cluster.collector.status().due == ()
        assert (await cluster.collector.compact()).kind is RunKind.MINOR
        assert not task.done()
        task.cancel()
        await asyncio.wait((task,))

    on_cluster(scenario)


def test_one_run_at_a_time_and_the_status_says_which() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1, 2)
        first = asyncio.create_task(cluster.collector.collect())
        await asyncio.sleep(0)
        running = cluster.collector.status().running
        assert running is not None
        assert running.kind is RunKind.GC
        with pytest.raises(CollectionUnderWay, match="gc"):
            await cluster.collector.compact()
        run: Run = await first
        status = cluster.collector.status()
        assert status.running is None
        assert status.last == (run,)
        assert run.ended_at >= run.began_at
        (logs,) = status.logs
        assert [log.log_id for log in logs] == sorted(log.log_id for log in logs)
        assert any(log.live_bytes < log.size_bytes / 2 for log in logs)

    on_cluster(scenario)


def test_a_directory_that_failed_is_left_alone_and_the_other_is_collected() -> None:
    async def scenario(cluster: Cluster) -> None:
        failed, fine = cluster.worlds
        await cluster.drop(3, 5)
        await cluster.collector.collect()
        failed.directory.failure = OSError(5, "Input/output error")
        logs = failed.logs()
        before = fine.log_bytes()
        run = await cluster.collector.compact(major=True)
        assert run.failure == ""
        assert failed.logs() == logs
        assert fine.log_bytes() < before

    on_cluster(scenario, directories=2)


def test_a_directory_that_fails_in_a_run_is_told_and_the_next_one_is_collected() -> None:
    async def scenario(cluster: Cluster) -> None:
        bad, fine = cluster.worlds
        await cluster.drop(2, 3)
        await cluster.collector.collect()
        bad.disk.fail("rename", "entrylog")
        before = fine.log_bytes()
        assert bad.directory.failure is None
        run = await cluster.collector.compact(major=True)
        assert "Input/output error" in run.failure
        assert bad.directory.failure is not None
        assert fine.log_bytes() < before

    on_cluster(scenario, directories=2)


def test_a_run_that_is_cancelled_between_two_steps_leaves_nothing_half_done() -> None:
    config = CollectorConfig(bytes_per_s=1, reserve_bytes=0)  # it would wait for minutes

    async def scenario(cluster: Cluster) -> None:
        await cluster.drop(1, 2)
        await cluster.collector.collect()
        task = asyncio.create_task(cluster.collector.compact(major=True))
        (world,) = cluster.worlds
        await until(lambda: any(name.endswith(".compacting") for name in world.logs()))
        task.cancel()
        await asyncio.wait((task,))
        assert cluster.collector.status().running is None
        await until(lambda: not any(name.endswith(".compacting") for name in world.logs()))

    on_cluster(scenario, config=config)
