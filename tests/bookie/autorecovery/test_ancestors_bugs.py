"""Bugs of the ancestor's repair as stories; each test is named after the issue that reported it."""

import pytest

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.protocol.repair import RepairEnd, RepairOutcome
from bookie.autorecovery.worker import Worker
from ledger.ids import BookieId
from ledger.mark import MissingReplica, Reason
from ledger.metadata import LedgerState
from ledger.quorum import Quorum
from ledger.requests import Status
from tests.bookie.autorecovery.audit_rig import CHECK_S, DELAY_S, Cluster
from tests.bookie.autorecovery.repair_world import Running, World, ledger, names, repair
from tests.bookie.autorecovery.test_worker import (
    AT_ONCE,
    closed_ledger,
    copies,
    kill,
    mark_lost,
    mark_of,
    world,
)
from tests.bookie.promises import Promises, entries_of
from tests.simulation.disk import SimDisk

HOUR_MS = 3_600_000
[A, B, C, D] = names("abcd")


def test_4419_a_bookie_that_was_lost_before_there_was_an_auditor_is_audited() -> None:
    cluster = Cluster()
    cluster.away = "a"
    cluster.begin()
    cluster.run(DELAY_S)
    assert set(cluster.marked()) == {1, 4}


def test_946_the_loss_of_a_second_bookie_does_not_cancel_the_delay_of_the_first() -> None:
    cluster = Cluster("abcdef").begin()
    cluster.lose("a")
    cluster.run(DELAY_S / 2)
    cluster.lose("e")
    cluster.run(DELAY_S / 2)
    assert set(cluster.marked()) == {1, 4}


def test_745_a_rolling_restart_of_five_bookies_within_the_delay_marks_nothing() -> None:
    cluster = Cluster("abcde").begin()
    for bookie in "abcde":
        cluster.lose(bookie)
        cluster.run(DELAY_S * 0.9)
        cluster.bring_back(bookie)
    cluster.run(DELAY_S * 2)
    assert cluster.passes() == 0


def test_3817_a_periodic_check_heeds_the_delay_of_a_bookie_that_has_just_gone() -> None:
    cluster = Cluster().begin()
    cluster.run(CHECK_S - 10)
    cluster.lose("a")
    cluster.run(20)
    assert cluster.marked() == {}


def test_1197_overloaded_bookies_that_answer_nothing_lack_nothing() -> None:
    rig = World(ledger((0, "abc"), last=9), "abcd").lacks("b", Reason.DAMAGED)
    rig.silent = {A, B, C}
    assert repair(rig).outcome is RepairOutcome.DEFERRED
    assert rig.mark is not None
    assert (rig.copied, rig.version, rig.mark.lost) == (0, 0, ())


def test_2766_a_bookie_that_is_back_before_a_worker_comes_is_unmarked_only() -> None:
    rig = World(ledger((0, "abc"), (5, "acd"), last=9), "abcdef").lacks("a")
    assert repair(rig) == RepairEnd(RepairOutcome.DONE)
    assert rig.mark is None
    assert (rig.copied, rig.read, rig.version) == (0, 0, 0)


async def test_4012_a_ledger_on_all_bookies_waits_and_others_are_repaired() -> None:
    async with world(4) as (cluster, client):
        everywhere = await closed_ledger(client, quorum=Quorum(4, 3, 2))
        others = [await closed_ledger(client, entries=3) for _ in range(6)]
        lost = (await client.describe(others[0])).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        for ledger_id in (everywhere, *others):
            await mark_lost(client, ledger_id, lost)
        worker = Worker(client, AT_ONCE)
        await worker.run_once()
        for ledger_id in others:
            assert set((await copies(client, ledger_id)).values()) == {3}
        copied = worker.pace.entries
        mark = await mark_of(client, everywhere)
        assert mark is not None
        assert (mark.attempts, mark.wants_bookie) == (1, True)
        for _ in range(3):  # no busy loop, and no copy that nobody needs
            assert not (await worker.run_once()).outcomes
        assert worker.pace.entries == copied


@pytest.mark.parametrize("rounds", [1, 5])
def test_1908_a_ledger_with_an_entry_that_is_lost_everywhere_fills_no_disk(rounds: int) -> None:
    rig = World(ledger((0, "abc"), last=9), "bcde").lacks("a")
    for bookie in (B, C):
        rig.of(bookie).discard(5)
    for attempts in range(1, rounds + 1):
        assert repair(rig).outcome is RepairOutcome.DEFERRED
        assert rig.mark is not None
        assert (rig.mark.attempts, rig.mark.lost) == (attempts, ((5, 5),))
        rig.now_ms += HOUR_MS
    assert (rig.copied, rig.version) == (0, 0)


def test_3316_a_ledger_that_is_deleted_at_any_moment_of_its_repair_leaves_no_mark() -> None:
    def lost_member() -> World:
        return World(ledger((0, "abc"), last=9), "bcd").lacks("a")

    whole = lost_member()
    repair(whole)
    for steps in range(len(whole.written)):
        rig = lost_member()
        running = Running(rig).steps(steps)
        rig.metadata, rig.end = None, -1
        running.end()
        rig.now_ms += HOUR_MS
        if rig.mark is not None:
            assert repair(rig) == RepairEnd(RepairOutcome.DONE), steps
        assert rig.mark is None
        assert not rig.locked


def test_3692_an_open_ledger_without_entries_leaves_a_bookie_that_is_to_be_emptied() -> None:
    metadata = ledger((0, "abc"), last=None, state=LedgerState.OPEN)
    rig = World(metadata, "abcd", leaving="a").lacks("a", Reason.DECOMMISSIONING)
    assert repair(rig) == RepairEnd(RepairOutcome.DONE)
    assert rig.metadata is not None
    assert rig.metadata.fragments[0].bookies == (D, B, C)


def test_3917_entries_behind_the_end_of_a_closed_ledger_are_not_copied() -> None:
    rig = World(ledger((0, "abc"), last=4), "bcd").lacks("a")
    for bookie in (B, C):  # they were sent, and are not part of the ledger
        rig.of(bookie).update({5, 6})
    assert repair(rig) == RepairEnd(RepairOutcome.DONE)
    assert rig.of(D) == {0, 1, 2, 3, 4}


def test_596_two_members_that_are_lost_at_once_get_two_bookies_that_are_none() -> None:
    rig = World(ledger((0, "abc"), last=9), "cde").lacks("ab")
    assert repair(rig) == RepairEnd(RepairOutcome.DONE)
    assert rig.metadata is not None
    [fragment] = rig.metadata.fragments
    assert len(set(fragment.bookies)) == 3
    assert {A, B}.isdisjoint(fragment.bookies)
    assert rig.version == 1  # in one compare-and-swap


def test_596_with_one_bookie_for_two_places_one_is_filled_and_the_other_waits() -> None:
    rig = World(ledger((0, "abc"), last=9), "cd").lacks("ab")
    assert repair(rig).outcome is RepairOutcome.DEFERRED
    assert rig.metadata is not None
    assert D in rig.metadata.fragments[0].bookies
    assert rig.mark is not None
    assert rig.mark.wants_bookie
    rig.there = "cde"
    assert repair(rig, eager=True) == RepairEnd(RepairOutcome.DONE)
    assert rig.is_whole()


def test_4668_a_bookie_takes_back_what_it_has_evicted() -> None:
    """The ancestor kept the ledger in memory as fenced and deleted, and refused the copy."""
    promises = Promises(SimDisk(0))
    promises.open()
    promises.add(7, *range(10))
    promises.commit()
    promises.checkpoint()
    assert promises.evict(7)
    assert promises.add(7, *range(10), recovery=True) is Status.OK
    promises.commit()
    promises.check()
    promises.checkpoint()
    promises.collect()
    promises.storage.close()
    promises.open()
    promises.check()
    assert sorted(entries_of(promises.storage, 7)) == [*range(10)]


def evicting(first: int, second: int, third: int, bookie: BookieId) -> World:
    """Return what is left when a bookie does the steps of an eviction while a worker copies to it,
    each after so many of the worker's steps."""
    rig = World(ledger((0, "abc"), last=9), "bcd").lacks("a")
    rig.of(bookie).update(range(10))  # of an earlier move, or of a worker before
    worker = Running(rig).steps(first)
    rig.offer(bookie)
    worker.steps(second - first)
    rig.supersede(bookie)
    worker.steps(third - second)
    rig.evict(bookie)
    for _ in range(100):
        if worker.finish is not None:
            break
        worker.step()
    return rig


@pytest.mark.slow
def test_895_2119_2813_no_bookie_is_swapped_in_for_what_it_evicted_however_long_who_sleeps() -> (
    None
):
    """The ancestor's collection of over-replicated ledgers and its workers kept apart by a lock,
    which whoever sleeps loses without noticing; and it locked ledgers to find out about them."""
    evictions = 0
    steps = len(written_by_one_repair())
    for first in range(steps + 1):
        for second in range(first, steps + 1):
            for third in range(second, steps + 1):
                rig = evicting(first, second, third, D)
                rig.lose_lock()
                if rig.mark is not None:
                    rig.now_ms += HOUR_MS
                    assert repair(rig) == RepairEnd(RepairOutcome.DONE)
                assert rig.is_whole(), (first, second, third)
                evictions += rig.evictions
    assert evictions > steps, "it evicts if nobody wants the copy"


def written_by_one_repair() -> list[str]:
    rig = World(ledger((0, "abc"), last=9), "bcd").lacks("a")
    repair(rig)
    return rig.written


async def test_793_a_ledger_of_one_copy_that_is_lost_is_reported_once_and_put_off() -> None:
    async with world(3) as (cluster, client):
        ledger_id = await closed_ledger(client, quorum=Quorum(1, 1, 1), entries=4)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        await Marks(client.store).add(ledger_id, [MissingReplica(BookieId(lost), Reason.LOST, 1)])
        worker = Worker(client, AT_ONCE)
        assert (await worker.run_once()).outcomes == {RepairOutcome.DEFERRED: 1}
        mark = await mark_of(client, ledger_id)
        assert mark is not None
        assert mark.lost == ((0, 3),)
        assert (await worker.run_once()).deferred == 1
        assert worker.pace.entries == 0
