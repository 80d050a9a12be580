"""Marks, locks and switches, on every metadata store."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from bookie.autorecovery.checks import Audit
from bookie.autorecovery.marks import Ended, Marks
from ledger.cluster import make_namespace
from ledger.errors import DamagedMetadata, MetadataUnavailable
from ledger.ids import BookieId, LedgerId
from ledger.mark import LOST_RANGES_MAX, MissingReplica, Reason, UnderreplicatedLedger
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import Versioned
from ledger.process import this_process
from ledger.repair_marks import LOCKS, path_of_lock, path_of_mark, read_lock
from tests.ledger.metastore.backends import Backend

A = MissingReplica(BookieId("a"), Reason.LOST, 10)
B = MissingReplica(BookieId("b"), Reason.DAMAGED, 20)
C = MissingReplica(BookieId("c"), Reason.MISSING, 30)
SEVEN, FAR = LedgerId(7), LedgerId(2**40 + 7)


async def test_a_mark_gives_back_what_was_put_in(backend: Backend) -> None:
    async with backend.two() as (one, other):
        assert await Marks(one).add(SEVEN, [B, A])
        mark = UnderreplicatedLedger(
            (A, B),
            attempts=3,
            not_before_ms=5,
            lost=((1, 2),),
            thorough=True,
            urgent=True,
            differing=((3, 4),),
        )
        marks = Marks(one)
        assert await marks.lock(SEVEN)
        assert await marks.write(SEVEN, mark, 0)
        await other.sync()
        assert await Marks(other).read(SEVEN) == (mark, 1)


async def test_auditors_that_mark_at_once_lose_nothing_of_each_other(backend: Backend) -> None:
    async with backend.two() as (one, other):
        missing = [MissingReplica(BookieId(f"b{number}"), Reason.LOST, 1) for number in range(8)]
        await asyncio.gather(
            *(
                Marks(store).add(SEVEN, [replica])
                for store, replica in zip((one, other) * 4, missing, strict=True)
            )
        )
        await one.sync()
        found = await Marks(one).read(SEVEN)
        assert found is not None
        assert found[0].missing == tuple(missing)


async def test_what_is_marked_already_stays_and_gets_a_new_version(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert await marks.add(SEVEN, [A])
        assert not await marks.add(SEVEN, [MissingReplica(A.bookie, A.reason, 99)])
        assert await marks.read(SEVEN) == (UnderreplicatedLedger((A,)), 1)


async def test_a_mark_that_is_confirmed_while_a_worker_is_at_it_is_not_deleted(
    backend: Backend,
) -> None:
    """The second call may be about entries that the worker did not see."""
    async with backend.two() as (one, other):
        await Marks(one).add(SEVEN, [A])
        worker = Marks(other)
        assert await worker.lock(SEVEN)
        _, version = await worker.read(SEVEN) or (None, -1)
        await Marks(one).add(SEVEN, [A])
        assert await worker.end(SEVEN, version) is Ended.GREW
        assert await Marks(one).read(SEVEN) is not None


class _Pausing(MemoryStore):
    """Does *meanwhile* once, after the next read of a mark."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def get(self, path: str) -> Versioned:
        found = await super().get(path)
        if path == path_of_mark(SEVEN) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return found


async def test_who_slept_over_the_end_of_a_mark_adds_to_the_one_that_was_made_since() -> None:
    """Both have version 0: what the second says must not be written over."""
    store = _Pausing("memory://sleeping_marker", "sleeping_marker")
    await make_namespace(store)
    marks = Marks(store)
    await marks.add(SEVEN, [A])

    async def repaired_and_marked_again() -> None:
        assert await marks.lock(SEVEN)
        assert await marks.end(SEVEN, 0) is Ended.GONE
        assert await marks.add(SEVEN, [B])

    store.meanwhile = repaired_and_marked_again
    assert await marks.add(SEVEN, [C])
    mark, _ = await marks.read(SEVEN) or (UnderreplicatedLedger(()), -1)
    assert mark.missing == (B, C)
    await store.close()


async def test_a_worker_that_lost_its_lock_writes_over_no_mark(backend: Backend) -> None:
    async with backend.two() as (one, other):
        await Marks(one).add(SEVEN, [A])
        sleeper, worker = Marks(other), Marks(one)
        assert not await sleeper.write(SEVEN, UnderreplicatedLedger((A,), attempts=1), 0)
        assert await sleeper.lock(SEVEN)
        await one.delete(f"{LOCKS}/urL{SEVEN}")
        assert await worker.lock(SEVEN)
        assert await worker.end(SEVEN, 0) is Ended.GONE
        await Marks(one).add(SEVEN, [C])
        assert not await sleeper.write(SEVEN, UnderreplicatedLedger((A,), attempts=1), 0)
        assert await Marks(one).read(SEVEN) == (UnderreplicatedLedger((C,)), 0)


async def test_a_mark_that_grew_is_not_deleted(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        await marks.add(SEVEN, [A])
        await marks.add(SEVEN, [B])
        assert await marks.lock(SEVEN)
        assert await marks.end(SEVEN, 0) is Ended.GREW
        assert await marks.locked_ledgers() == {SEVEN}
        assert await marks.end(SEVEN, 1) is Ended.GONE
        assert await marks.read(SEVEN) is None
        assert await marks.locked_ledgers() == frozenset()


async def test_a_mark_that_is_gone_is_ended_and_its_lock_given_back(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert await marks.lock(SEVEN)
        assert await marks.end(SEVEN, 0) is Ended.GONE
        assert await marks.locked_ledgers() == frozenset()


async def test_no_mark_is_deleted_without_its_lock(backend: Backend) -> None:
    """A worker that slept knows a version that a later mark may have, too."""
    async with backend.two() as (one, other):
        await Marks(one).add(SEVEN, [A])
        sleeper = Marks(other)
        assert await sleeper.end(SEVEN, 0) is Ended.LOCK_LOST
        assert await sleeper.lock(SEVEN)
        await one.delete(f"{LOCKS}/urL{SEVEN}")
        assert await sleeper.end(SEVEN, 0) is Ended.LOCK_LOST
        assert await Marks(one).read(SEVEN) == (UnderreplicatedLedger((A,)), 0)


async def test_urgent_ledgers_are_listed_apart_until_they_are_not(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert await marks.urgent() == ()
        assert await marks.add(SEVEN, [A])
        assert await marks.add(SEVEN, [A], urgent=True)
        assert not await marks.add(SEVEN, [A], urgent=True)
        assert await marks.read(SEVEN) == (UnderreplicatedLedger((A,), urgent=True), 2)
        assert await marks.urgent() == (SEVEN,)
        for _ in range(2):
            await marks.no_longer_urgent(SEVEN)
        assert await marks.urgent() == ()


async def test_all_marks_are_listed_in_whatever_order(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert [each async for each in marks.list()] == []
        ids = [LedgerId(each) for each in (1, 2, 255, 256, FAR)]
        for each in ids:
            await marks.add(each, [A])
        assert sorted([each async for each in marks.list()]) == sorted(ids)
        orders = set()
        for seed in range(20):
            found = [each async for bucket in marks.buckets(Random(seed)) for each in bucket]
            assert sorted(found) == sorted(ids)
            orders.add(tuple(found))
        assert len(orders) > 5


async def test_one_worker_at_a_time_has_a_ledger(backend: Backend) -> None:
    async with backend.two() as (one, other):
        first, second = Marks(one), Marks(other)
        assert await first.lock(SEVEN)
        assert await first.lock(SEVEN)  # its own: a reply may have been lost
        assert not await second.lock(SEVEN)
        assert await second.locked() == {SEVEN: this_process()}
        await second.unlock(SEVEN)
        assert not await second.lock(SEVEN)
        await first.unlock(SEVEN)
        await other.sync()
        assert await second.lock(SEVEN)


async def test_a_lock_goes_with_its_session(backend: Backend) -> None:
    async with backend.one() as store:
        async with backend.one() as other:
            assert await Marks(other).lock(SEVEN)
        await store.sync()
        assert await Marks(store).lock(SEVEN)


async def test_a_lock_names_its_worker_and_whom_it_copies_to_as_long_as_it_is_its_own(
    backend: Backend,
) -> None:
    async with backend.two() as (one, other):
        marks = Marks(one, ("cn:worker",))
        assert not await marks.name_target(SEVEN, A.bookie), "there is no lock"
        assert await marks.lock(SEVEN)
        await other.sync()
        found = await read_lock(other, SEVEN)
        assert found is not None
        assert (found[0].identities, found[0].targets) == (("cn:worker",), ())
        for bookie in (A.bookie, B.bookie, A.bookie):
            assert await marks.name_target(SEVEN, bookie)
        await other.sync()
        found = await read_lock(other, SEVEN)
        assert found is not None
        assert found[0].targets == (A.bookie, B.bookie)
        await other.delete(path_of_lock(SEVEN))
        assert await Marks(other, ("cn:other",)).lock(SEVEN)
        await one.sync()
        assert not await marks.name_target(SEVEN, BookieId("c")), "it is another worker's"
        found = await read_lock(other, SEVEN)
        assert found is not None
        assert (found[0].identities, found[0].targets) == (("cn:other",), ())


async def test_switches_are_seen_by_all(backend: Backend) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert await marks.enabled()
        await marks.disable(now_ms=1)
        await marks.disable(now_ms=2)
        assert not await marks.enabled()
        await marks.enable()
        await marks.enable()
        assert await marks.enabled()
        assert await marks.delay_s() is None
        for delay_s in (1.5, 2.5):
            await marks.set_delay(delay_s)
            assert await marks.delay_s() == delay_s
        await marks.set_delay(None)
        assert await marks.delay_s() is None


async def test_the_last_audit_is_kept(backend: Backend) -> None:
    async with backend.one() as store:
        assert await Audit.last(store) is None
        for ledgers in (1, 2):
            audit = Audit(
                at_ms=1, ledgers=ledgers, marked=2, damaged=3, lost=(A.bookie,), alarm="so"
            )
            await audit.write(store)
            assert await Audit.last(store) == audit


async def test_a_worker_sees_when_it_is_rung_for(backend: Backend) -> None:
    async with backend.two() as (one, other):
        watch = Marks(other).watch()
        await Marks(one).notify_workers()
        await watch.changed()
        watch.close()


@pytest.mark.parametrize("value", [b"\xff", b"", b"\x08\x09"])
def test_a_damaged_mark_is_a_typed_error(value: bytes) -> None:
    with pytest.raises(DamagedMetadata, match="/marks/7"):
        UnderreplicatedLedger.decode(value, path="/marks/7")


def test_a_new_lack_is_tried_at_once_and_a_known_one_is_not() -> None:
    mark = UnderreplicatedLedger((A,)).deferred("no", now_ms=100)
    assert mark.merged((A,)) is mark
    grown = mark.merged((B,))
    assert (grown.attempts, grown.not_before_ms) == (0, 0)


def test_of_two_reasons_the_one_that_asks_for_more_counts() -> None:
    lost = MissingReplica(B.bookie, Reason.LOST, 99)
    assert UnderreplicatedLedger((B,)).merged((lost,)).missing == (
        MissingReplica(B.bookie, Reason.LOST, B.since_ms),
    )
    assert UnderreplicatedLedger((lost,)).merged((B,)).missing == (lost,)


def test_that_something_was_damaged_is_remembered_whatever_reason_comes_after() -> None:
    lost = MissingReplica(B.bookie, Reason.LOST, 99)
    assert UnderreplicatedLedger((lost,)).merged((B,)).thorough
    assert UnderreplicatedLedger(()).merged((B,)).merged((lost,)).thorough
    assert not UnderreplicatedLedger(()).merged((lost,)).thorough


def test_a_mark_names_a_bounded_number_of_lost_ranges_and_reaches_to_the_last() -> None:
    lost = tuple((2 * number, 2 * number) for number in range(1000))
    named = UnderreplicatedLedger((A,)).deferred("no", now_ms=0, lost=lost).lost
    assert len(named) == LOST_RANGES_MAX
    assert named[-1][1] == 1998


async def test_a_lock_that_the_store_could_not_take_back_keeps_nobody_waiting(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backend.one() as store:
        marks = Marks(store)
        assert await marks.lock(SEVEN)
        assert await marks.locked_ledgers() == {SEVEN}

        async def away(path: str, _version: int = -1) -> None:
            raise MetadataUnavailable(store.uri, path, 2.0)

        with monkeypatch.context() as patch:
            patch.setattr(store, "delete", away)
            with pytest.raises(MetadataUnavailable):
                await marks.unlock(SEVEN)
        assert await marks.locked_ledgers() == frozenset()
        assert await marks.lock(SEVEN)
        assert await marks.locked_ledgers() == {SEVEN}


async def test_a_lock_of_another_is_refused_also_if_the_session_ends_meanwhile() -> None:
    store, other = (MemoryStore("memory://locks-of-two", "locks-of-two") for _ in range(2))
    marks, create = Marks(store), store.create
    assert await Marks(other).lock(SEVEN)

    async def slow(path: str, *args: object, **options: object) -> str:
        try:
            return await create(path, *args, **options)  # type: ignore[arg-type]
        finally:
            if path == path_of_lock(SEVEN):
                store.expire()
                assert await marks.lock(FAR)

    store.create = slow  # type: ignore[method-assign]
    assert not await marks.lock(SEVEN)
