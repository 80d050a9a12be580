"""Copies that no fragment names are evicted, once it is certain that nobody counts on them."""

from dataclasses import replace
from typing import Final

import pytest

from bookie.collector.collector import Run
from bookie.collector.garbage import EVICTED_MAX, AlarmKind, Surplus, is_surplus
from bookie.collector.plan import CollectorConfig, RunKind
from ledger.errors import MetadataUnavailable
from ledger.ids import BookieId, EntryId, LedgerId
from ledger.manager.layout import INSTANCE, LAYOUTS
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.quorum import Quorum
from ledger.repair_marks import path_of_lock, path_of_mark
from ledger.wire import metadata_pb2 as pb
from tests.bookie.collector.test_collector import CONFIG, Cluster, on_cluster

DAY_S: Final = 86_400.0
HOUR_S: Final = 3600.0
ALL: Final = replace(CONFIG, gc_interval_s=900, eviction_interval_s=DAY_S, evicted_share=1)


def metadata(*ensembles: str, state: LedgerState = LedgerState.CLOSED) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        quorum=Quorum(len(ensembles[0]), len(ensembles[0]), 1),
        fragments=tuple(
            Fragment(EntryId(5 * at), tuple(map(BookieId, names)))
            for at, names in enumerate(ensembles)
        ),
        state=state,
        last_entry=EntryId(20) if closed else None,
        length=0 if closed else None,
        creation_token=b"token",
    )


class Moved(Cluster):
    """All ledgers were moved from bookie b to others."""

    metadata = metadata("cd", "ed")

    async def name(self, ledger_id: int, changed: LedgerMetadata) -> None:
        _, version = await self.ledgers.read(LedgerId(ledger_id))
        await self.ledgers.write(LedgerId(ledger_id), changed, version)

    async def versions(self) -> list[int]:
        return [(await self.ledgers.read(LedgerId(one)))[1] for one in range(6)]

    async def collect_later(self, *, evictions: int | None = None) -> Run:
        self.later_s += HOUR_S
        return await self.collector.collect(evictions_allowed=evictions)


# Which.


def test_what_no_fragment_of_a_closed_ledger_names_is_surplus() -> None:
    assert is_surplus(metadata("cd", "ed"), "b")
    assert not is_surplus(metadata("cd", "be"), "b")
    assert not is_surplus(metadata("bd", "ce"), "b")


@pytest.mark.parametrize(
    "state", [LedgerState.OPEN, LedgerState.IN_RECOVERY], ids=lambda state: str(state.name)
)
def test_of_a_ledger_that_is_not_closed_nothing_is_surplus(state: LedgerState) -> None:
    assert not is_surplus(metadata("cd", state=state), "b")


def test_a_ledger_whose_metadata_cannot_be_read_is_not_surplus() -> None:
    assert not is_surplus(None, "b")


# When, and how many.


def test_what_was_seen_once_is_chosen_an_hour_later_and_not_before() -> None:
    surplus = Surplus(ALL, now=0)
    surplus.looked([1, 2], 100)
    assert surplus.choose(10, 100 + HOUR_S - 1).ledger_ids == ()
    assert surplus.choose(10, 100 + HOUR_S).ledger_ids == (1, 2)


def test_what_a_look_does_not_see_any_more_has_to_be_seen_anew() -> None:
    surplus = Surplus(ALL, now=0)
    surplus.looked([1, 2], 0)
    surplus.looked([2], HOUR_S)
    surplus.looked([1, 2], HOUR_S + 1)
    assert surplus.choose(10, HOUR_S + 1).ledger_ids == (2,)


def test_a_look_at_all_is_due_an_hour_after_the_start_and_then_once_a_day_or_never() -> None:
    surplus = Surplus(ALL, now=0)
    assert not surplus.is_due(HOUR_S - 1)
    assert surplus.is_due(HOUR_S)
    surplus.looked([], HOUR_S)
    assert not surplus.is_due(HOUR_S + DAY_S - 1)
    assert surplus.is_due(HOUR_S + DAY_S)
    assert not Surplus(replace(ALL, eviction_interval_s=0), now=0).is_due(10 * DAY_S)


def test_a_share_of_the_ledgers_goes_in_a_day_and_an_operator_may_allow_more() -> None:
    surplus = Surplus(replace(ALL, evicted_share=0.25), now=0)
    surplus.looked(range(50), 0)
    chosen = surplus.choose(100, HOUR_S)
    assert chosen.ledger_ids == tuple(range(25))
    assert chosen.waiting == 25
    surplus.settled(chosen.ledger_ids, 25, HOUR_S)
    assert surplus.choose(75, HOUR_S).ledger_ids == ()
    assert surplus.choose(75, HOUR_S, allowed=7).ledger_ids == tuple(range(25, 32))
    assert len(surplus.choose(75, HOUR_S, allowed=-1).ledger_ids) == 25
    assert len(surplus.choose(75, HOUR_S + DAY_S).ledger_ids) == 18


def test_of_few_ledgers_one_goes_in_a_day_whatever_the_share() -> None:
    surplus = Surplus(replace(ALL, evicted_share=0.25), now=0)
    surplus.looked([1, 2], 0)
    assert surplus.choose(3, HOUR_S).ledger_ids == (1,)
    none = Surplus(replace(ALL, evicted_share=0), now=0)
    none.looked([1, 2], 0)
    assert none.choose(3, HOUR_S).ledger_ids == ()


def test_one_run_takes_a_bounded_number_and_the_next_one_goes_on() -> None:
    surplus = Surplus(ALL, now=0)
    surplus.looked(range(EVICTED_MAX + 5), 0)
    chosen = surplus.choose(EVICTED_MAX + 5, HOUR_S)
    assert len(chosen.ledger_ids) == EVICTED_MAX
    assert chosen.waiting == 0
    surplus.settled(chosen.ledger_ids, EVICTED_MAX, HOUR_S)
    assert len(surplus.choose(5, HOUR_S).ledger_ids) == 5


# The run.


def test_what_was_moved_away_is_evicted_an_hour_after_it_was_seen_and_its_space_is_free() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.name(0, metadata("cd", "eb"))
        before = cluster.worlds[0].log_bytes()
        first = await cluster.collector.collect()
        assert (first.evicted, cluster.evictions) == (0, [])
        assert cluster.collector.status().surplus == 5
        run = await cluster.collect_later()
        assert (run.evicted, run.ledgers, run.failure, run.alarm) == (5, 0, "", None)
        assert cluster.ledger_ids() == [0]
        assert cluster.collector.status().evicted == 5
        assert cluster.collector.status().surplus == 0
        await cluster.collector.compact(major=True)
        assert cluster.worlds[0].log_bytes() < before / 3  # the newest log stays
        assert cluster.deletions == [], "no tombstones"

    on_cluster(scenario, config=ALL, made=Moved)


def test_ledgers_that_are_not_closed_or_name_the_bookie_stay_and_are_not_written() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.name(1, metadata("cd", "eb"))
        await cluster.collector.collect()
        await cluster.name(2, metadata("cd", "eb"))  # since it was seen
        versions = await cluster.versions()
        await cluster.collect_later()
        assert cluster.ledger_ids() == [1, 2]
        after = await cluster.versions()
        assert after == [v + (at not in (1, 2)) for at, v in enumerate(versions)]

    on_cluster(scenario, config=ALL, made=Moved)


def test_ledgers_that_lack_copies_or_are_being_repaired_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        await cluster.store.memory.create(path_of_mark(LedgerId(2)), b"?")
        await cluster.store.memory.create(path_of_lock(LedgerId(3)), b"?")
        await cluster.collect_later()
        assert cluster.ledger_ids() == [2, 3]
        await cluster.store.memory.delete(path_of_mark(LedgerId(2)))
        await cluster.store.memory.delete(path_of_lock(LedgerId(3)))
        await cluster.collect_later()
        await cluster.collect_later()
        assert cluster.ledger_ids() == []

    on_cluster(scenario, config=ALL, made=Moved)


def test_a_ledger_that_was_changed_since_it_was_read_stays() -> None:
    """By a worker that has just made the bookie its member, with what it had copied before."""

    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        path = LAYOUTS["longhierarchical"].path(0)
        named = metadata("cd", "eb").encode()

        def swap(_number: int, operation: str) -> None:
            if operation == "set":
                cluster.store.before_each = lambda _number, _operation: None
                with cluster.store.memory._hub.tree() as tree:
                    tree.set(path, named, tree.get(path).version)

        cluster.store.before_each = swap
        await cluster.collect_later()
        assert cluster.ledger_ids() == [0]

    on_cluster(scenario, config=ALL, made=Moved)


def test_ledgers_of_which_something_was_promised_since_the_offer_stay() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        cluster.wanted[3] = None
        run = await cluster.collect_later()
        assert (run.evicted, cluster.ledger_ids()) == (5, [3])

    on_cluster(scenario, config=ALL, made=Moved)


def test_ledgers_are_offered_before_their_metadata_are_read_the_last_time() -> None:
    """What a worker copied in between was copied after the offer."""

    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        read_before: list[int] = []

        def read(_number: int, operation: str) -> None:
            if operation == "set" and not read_before:
                read_before.append(cluster.store.operations)

        cluster.store.before_each = read
        await cluster.collect_later()
        marks_and_locks = 2 * 6
        assert read_before[0] - cluster.offered_at >= 1 + marks_and_locks + 1
        assert len(cluster.offered) == 6

    on_cluster(scenario, config=ALL, made=Moved)


def test_what_is_seen_now_stays_until_the_next_run_however_short_the_pause() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert (await cluster.collector.collect()).evicted == 0
        assert (await cluster.collector.collect()).evicted == 6

    on_cluster(scenario, config=replace(ALL, eviction_pause_s=0), made=Moved)


def test_what_may_have_lost_something_keeps_what_was_there_before() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        doubt = ["in limbo"]
        cluster.collector.heed(in_doubt=lambda: doubt[0], may_be_lost=lambda one: one in (1, 2))
        await cluster.collector.collect()
        await cluster.collect_later()
        assert len(cluster.ledger_ids()) == 6
        doubt[0] = ""
        await cluster.collector.collect()
        await cluster.collect_later()
        assert cluster.ledger_ids() == [1, 2]

    on_cluster(scenario, config=ALL, made=Moved)


def test_more_than_a_share_wait_for_an_operators_word_with_an_alarm() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        run = await cluster.collect_later()
        assert run.evicted == 3
        assert run.alarm is not None
        assert run.alarm.kind is AlarmKind.MANY_SURPLUS
        assert cluster.collector.status().alarm == run.alarm
        assert (await cluster.collect_later(evictions=2)).evicted == 2
        assert (await cluster.collect_later()).evicted == 0
        run = await cluster.collect_later(evictions=-1)
        assert (run.evicted, run.alarm) == (1, None)

    on_cluster(scenario, config=replace(ALL, evicted_share=0.5), made=Moved)


def test_another_or_an_older_metadata_store_evicts_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        node = pb.InstanceNode(instance="another")

        def swap(_number: int, operation: str) -> None:
            if operation == "set":
                with cluster.store.memory._hub.tree() as tree:
                    tree.set(INSTANCE, node.SerializeToString())

        cluster.store.before_each = swap
        run = await cluster.collect_later()
        assert run.alarm is not None
        assert run.alarm.kind is AlarmKind.OTHER_NAMESPACE
        assert cluster.evictions == []
        versions = await cluster.versions()
        cluster.store.before_each = lambda _number, _operation: None
        await cluster.collect_later()
        assert await cluster.versions() == versions, "nor does it write to that"

    on_cluster(scenario, config=ALL, made=Moved)


def test_whatever_operation_of_the_store_fails_nothing_is_evicted_that_was_not_settled() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        await cluster.collector.collect()
        total = cluster.store.operations
        cluster.later_s += HOUR_S

        def fail(number: int, operation: str) -> None:
            if number == failing:
                raise MetadataUnavailable("memory://", operation, 0.0)

        for operation in range(1, 60):
            failing = cluster.store.operations + operation
            cluster.store.before_each = fail
            run = await cluster.collector.collect()
            if run.evicted or not cluster.ledger_ids():
                break
            assert run.failure
            assert cluster.evictions == []
        else:
            raise AssertionError("it never ends")
        assert cluster.ledger_ids() == []
        assert cluster.store.operations > total

    on_cluster(scenario, config=ALL, made=Moved)


def test_a_collector_evicts_by_itself() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert isinstance(cluster, Moved)
        run = cluster.collector._run
        await run(RunKind.GC)
        assert cluster.collector.status().surplus == 0, "it is not time"
        cluster.later_s += HOUR_S
        await run(RunKind.GC)
        assert cluster.collector.status().surplus == 6
        cluster.later_s += HOUR_S
        await run(RunKind.GC)
        assert cluster.ledger_ids() == []

    on_cluster(scenario, config=ALL, made=Moved)


def test_a_share_of_evictions_is_set_and_checked_like_others() -> None:
    assert CollectorConfig().evicted_share == 0.25
    assert CollectorConfig().eviction_interval_s == DAY_S
    assert CollectorConfig().eviction_pause_s == HOUR_S
