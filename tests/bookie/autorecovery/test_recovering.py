"""A recovery by hand: what it refuses, when it goes on, when it ends; and with real bookies."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from bookie.autorecovery.marks import Marks
from bookie.autorecovery.move_job import Progress, RecoveryResult, recover_bookies, replace_bookie
from bookie.autorecovery.protocol.move_job import (
    IDLE_S_MAX,
    NOBODY,
    BookiesSeen,
    MoveEnd,
    MoveOutcome,
    MoveRequest,
    PassEnded,
    ReadBookies,
    RepairAll,
    Survey,
    Surveyed,
    UntilCopied,
    move,
)
from bookie.autorecovery.protocol.rebalance import Weight
from bookie.autorecovery.protocol.repair import RepairConfig
from dlog.testing.cluster import AsyncCluster
from ledger.client import LedgerClient
from ledger.errors import LogError, MetadataUnavailable
from ledger.ids import BookieId, LedgerId
from ledger.protocol.procedure import Action, Now, Wait
from ledger.registry import Retirement, retirement_of
from tests.bookie.autorecovery.repair_world import names
from tests.bookie.autorecovery.test_worker import closed_ledger, copies, kill, world
from tests.procedures import Raised, Returned, Script
from tests.waiting import eventually

STEPS_MAX: Final = 600
UNAVAILABLE: Final = MetadataUnavailable("memory", "get", 1.0)
AT_ONCE: Final = RepairConfig(open_fragment_grace_ms=0)


@dataclass
class Namespace:
    """Ledgers name bookie b; each pass repairs those that can be."""

    easy: int = 3
    stuck: int = 0
    waiting: int = 0
    """Ledgers that have to wait."""
    waits: int = 10**6
    """In how many passes."""
    fails: int = 0
    """So many effects fail."""
    unreadable: int = 0
    known: str = "abcd"
    there: str = "acd"
    writable: str = "acd"
    back_after: int = -1
    """Bookie b comes back after so many passes."""
    stubborn: bool = False
    """What is repaired is named again in the next pass."""
    passes: int = 0
    done: list[Action[Any]] = field(default_factory=list)

    def do(self, action: Action[Any]) -> object:
        self.done.append(action)
        if self.fails:
            self.fails -= 1
            raise UNAVAILABLE
        match action:
            case ReadBookies():
                there = self.there + ("b" if self.passes == self.back_after else "")
                return BookiesSeen(
                    *(frozenset(names(each)) for each in (self.known, there, self.writable))
                )
            case Survey():
                number = self.easy + self.stuck + self.waiting
                return Surveyed(held=Weight(number, number, 10 * number, 100 * number))
            case RepairAll():
                self.passes += 1
                return self.a_pass()
            case _:
                raise AssertionError(f"no action of a recovery: {action}")

    def a_pass(self) -> PassEnded:
        repaired, named = self.easy, self.easy + self.stuck + self.waiting
        if self.passes >= self.waits:
            repaired += self.waiting
            self.waiting = 0
        if not self.stubborn:
            self.easy = 0
        return PassEnded(
            named=named,
            repaired=repaired,
            stuck=self.stuck,
            lost=tuple(LedgerId(number) for number in range(self.stuck)),
            unreadable=self.unreadable,
            why="nobody has it" if named > repaired else "",
        )


def ended(namespace: Namespace, bookies: str = "b", into: str = "", **more: bool) -> MoveEnd:
    request = MoveRequest(frozenset(names(bookies)), frozenset(names(into)), **more)
    script = Script(move(UntilCopied(request)))
    following, now = script.begin(), 0.0
    for _ in range(STEPS_MAX):
        match following:
            case Returned(finish):
                return finish
            case Raised(error):
                raise error
            case Now():
                following = script.answer(now)
            case Wait(seconds):
                now += seconds
                following = script.answer(None)
            case action:
                try:
                    answer = namespace.do(action)
                except LogError as error:
                    following = script.fail(error)
                else:
                    following = script.answer(answer)
    raise AssertionError("it never ends")


def test_it_is_complete_after_a_pass_that_met_no_ledger() -> None:
    namespace = Namespace()
    assert ended(namespace) == MoveEnd(MoveOutcome.COMPLETE)
    assert [type(action) for action in namespace.done] == [
        ReadBookies,
        Survey,
        RepairAll,
        ReadBookies,
        RepairAll,
    ]


def test_where_a_copy_goes_is_for_each_pass() -> None:
    namespace = Namespace()
    ended(namespace, into="d")
    passes = [action for action in namespace.done if isinstance(action, RepairAll)]
    assert passes == [RepairAll(frozenset(names("b")), frozenset(names("d")))] * 2


def test_a_dry_run_surveys_and_changes_nothing() -> None:
    namespace = Namespace()
    finish = ended(namespace, survey_only=True)
    assert (finish.outcome, finish.left) == (MoveOutcome.SURVEYED, 3)
    assert namespace.passes == 0


def test_a_bookie_that_serves_is_not_recovered() -> None:
    namespace = Namespace(there="abcd")
    finish = ended(namespace, "bx")
    assert finish.outcome is MoveOutcome.SERVES
    assert "'dlog bookie decommission' empties it" in finish.why
    assert [type(action) for action in namespace.done] == [ReadBookies]


def test_one_that_comes_back_ends_it() -> None:
    finish = ended(Namespace(waiting=1, back_after=1))
    assert (finish.outcome, finish.left) == (MoveOutcome.SERVES, 4)


def test_copies_go_only_to_bookies_that_are_there_writable_and_not_recovered() -> None:
    for into, writable in (("x", "acd"), ("c", "ad"), ("b", "abcd")):
        namespace = Namespace(writable=writable)
        finish = ended(namespace, into=into)
        assert finish.outcome is MoveOutcome.NO_TARGET
        assert f"bookie {into}" in finish.why
        assert namespace.passes == 0


def test_a_name_that_nothing_knows_is_refused_and_one_with_a_cookie_has_nothing_left() -> None:
    assert ended(Namespace(easy=0), "xy").outcome is MoveOutcome.UNKNOWN
    assert ended(Namespace(easy=0), "b").outcome is MoveOutcome.COMPLETE


def test_a_name_that_was_forgotten_too_early_is_recovered_all_the_same() -> None:
    assert ended(Namespace(known="acd")).outcome is MoveOutcome.COMPLETE


def test_what_waits_is_taken_again_and_again() -> None:
    namespace = Namespace(waiting=2, waits=5)
    assert ended(namespace).outcome is MoveOutcome.COMPLETE
    assert namespace.passes == 6


def test_it_ends_when_all_that_is_left_can_do_nothing_but_wait_for_a_person() -> None:
    namespace = Namespace(stuck=2)
    finish = ended(namespace)
    assert finish == MoveEnd(MoveOutcome.INCOMPLETE, "nobody has it", 2, (LedgerId(0), LedgerId(1)))
    assert namespace.passes == 1


def test_it_ends_when_nothing_is_repaired_for_a_while() -> None:
    namespace = Namespace(waiting=1)
    finish = ended(namespace)
    assert (finish.outcome, finish.left) == (MoveOutcome.INCOMPLETE, 1)
    assert 2 < namespace.passes <= IDLE_S_MAX


def test_it_ends_though_ledgers_are_repaired_that_name_the_bookie_all_the_same() -> None:
    finish = ended(Namespace(stubborn=True))
    assert finish.outcome is MoveOutcome.INCOMPLETE


def test_it_goes_on_as_long_as_passes_leave_less_and_does_not_wait_when_nothing_is_left() -> None:
    request = MoveRequest(frozenset(names("b")))
    script, now, named = Script(move(UntilCopied(request))), 0.0, 100
    assert script.begin() == Now()
    assert script.answer(now) == ReadBookies()
    seen = BookiesSeen(*(frozenset(names(each)) for each in ("abc", "ac", "ac")))
    assert isinstance(script.answer(seen), Survey)
    assert script.answer(Surveyed(held=Weight(named, named, named, named))) == Now()
    assert isinstance(script.answer(now), RepairAll)
    while named > 1:
        assert script.answer(PassEnded(named=named, repaired=1)) == Now()
        waits = script.answer(now)
        assert isinstance(waits, Wait)
        now, named = now + waits.seconds, named - 1
        assert script.answer(None) == ReadBookies()
        assert isinstance(script.answer(seen), RepairAll)
    assert now > 2 * IDLE_S_MAX
    assert script.answer(PassEnded(named=1, repaired=1)) == Now()
    assert script.answer(now) == ReadBookies()


def test_metadata_that_cannot_be_read_may_name_it() -> None:
    finish = ended(Namespace(unreadable=1))
    assert (finish.outcome, finish.left) == (MoveOutcome.INCOMPLETE, 0)
    assert "1 ledger cannot be read" in finish.why


def test_a_store_that_fails_for_a_moment_is_asked_again_and_for_long_ends_it() -> None:
    assert ended(Namespace(fails=3)).outcome is MoveOutcome.COMPLETE
    finish = ended(Namespace(fails=10**6))
    assert (finish.outcome, finish.why) == (MoveOutcome.INCOMPLETE, str(UNAVAILABLE))


# With real bookies.


async def recovered(
    client: LedgerClient, *bookies: str, into: str = "", **more: bool
) -> RecoveryResult:
    request = MoveRequest(
        frozenset(map(BookieId, bookies)),
        frozenset({BookieId(into)}) if into else NOBODY,
        **more,
    )
    return await recover_bookies(
        client, request, bytes_per_s=0, config=AT_ONCE, pause_s=0.01, idle_s_max=0.1
    )


async def lose(cluster: AsyncCluster, client: LedgerClient, *bookies: str) -> None:
    for bookie in bookies:
        await kill(cluster, client, bookie)


async def writable(client: LedgerClient, count: int) -> bool:
    return len(client.bookies.writable()) == count


async def members(client: LedgerClient, ledger_id: LedgerId) -> set[BookieId]:
    metadata = await client.describe(ledger_id)
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


@pytest.mark.slow
async def test_what_a_lost_bookie_held_goes_to_the_one_that_is_named() -> None:
    async with world(bookies=5) as (cluster, client):
        await cluster.set_read_only(4)
        await eventually(lambda: writable(client, 4), "the spare one is read-only")
        ledgers = [await closed_ledger(client) for _ in range(5)]
        await cluster.set_read_only(4, read_only=False)
        await eventually(lambda: writable(client, 5), "it takes entries")
        lost = min(await members(client, ledgers[0]))
        concerned = [each for each in ledgers if lost in await members(client, each)]
        await lose(cluster, client, lost)
        done = await recovered(client, lost, into="bookie-4")
        assert done.finish == MoveEnd(MoveOutcome.COMPLETE)
        for ledger_id in ledgers:
            assert lost not in await members(client, ledger_id)
            assert ("bookie-4" in await members(client, ledger_id)) == (ledger_id in concerned)
            assert set((await copies(client, ledger_id)).values()) == {3}
        assert [each async for each in Marks(client.store).list()] == []
        assert await Marks(client.store).locked() == {}


@pytest.mark.slow
async def test_all_that_several_bookies_held_is_copied_and_counted() -> None:
    async with world(bookies=5) as (cluster, client):
        ledgers = [await closed_ledger(client) for _ in range(4)]
        lost = sorted(await members(client, ledgers[0]))[:2]
        seen: list[Progress] = []
        await lose(cluster, client, *lost)
        surveyed = (await recovered(client, *lost, survey_only=True)).surveyed
        assert surveyed.held.entries >= 2 * 50
        done = await recover_bookies(
            client,
            MoveRequest(frozenset(lost)),
            bytes_per_s=0,
            config=AT_ONCE,
            on_progress=seen.append,
        )
        assert done.finish == MoveEnd(MoveOutcome.COMPLETE)
        assert done.entries == surveyed.held.entries
        assert done.repaired == surveyed.held.ledgers
        assert seen[-1].repaired == done.repaired
        for ledger_id in ledgers:
            assert (await members(client, ledger_id)).isdisjoint(lost)
            assert set((await copies(client, ledger_id)).values()) == {3}


@pytest.mark.slow
async def test_what_nobody_has_is_reported_and_the_rest_recovered() -> None:
    async with world(bookies=7) as (cluster, client):
        ledgers = [await closed_ledger(client) for _ in range(6)]
        lost = sorted(await members(client, ledgers[0]))
        await lose(cluster, client, *lost)
        bare = [each for each in ledgers if await members(client, each) <= set(lost)]
        done = await recovered(client, *lost)
        assert done.finish.outcome is MoveOutcome.INCOMPLETE
        assert done.finish.lost == tuple(sorted(bare)) == done.surveyed.without_source
        assert done.finish.left == len(bare)
        for ledger_id in set(ledgers) - set(bare):
            assert (await members(client, ledger_id)).isdisjoint(lost)


async def test_without_a_bookie_to_copy_to_it_ends_and_says_so() -> None:
    async with world(bookies=3) as (cluster, client):
        ledger_id = await closed_ledger(client)
        lost = next(iter(await members(client, ledger_id)))
        await lose(cluster, client, lost)
        done = await recovered(client, lost)
        assert (done.finish.outcome, done.finish.left) == (MoveOutcome.INCOMPLETE, 1)
        assert "no bookie to copy to" in done.finish.why


@pytest.mark.slow
async def test_one_that_is_interrupted_leaves_no_lock_and_the_next_one_goes_on() -> None:
    async with world(bookies=4) as (cluster, client):
        ledgers = [await closed_ledger(client, entries=10) for _ in range(6)]
        lost = min(await members(client, ledgers[0]))
        concerned = [each for each in ledgers if lost in await members(client, each)]
        await lose(cluster, client, lost)
        some_done = asyncio.Event()

        def on_progress(progress: Progress) -> None:
            if progress.repaired == 1:
                some_done.set()

        first = asyncio.ensure_future(
            recover_bookies(
                client,
                MoveRequest(frozenset({lost})),
                bytes_per_s=0,
                ledgers_max=1,
                config=AT_ONCE,
                on_progress=on_progress,
            )
        )
        await some_done.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await Marks(client.store).locked() == {}
        left = [each for each in concerned if lost in await members(client, each)]
        assert len(left) < len(concerned)
        done = await recovered(client, lost)
        assert (done.finish.outcome, done.repaired) == (MoveOutcome.COMPLETE, len(left))


@pytest.mark.slow
@pytest.mark.parametrize("has_copies", [True, False])
async def test_a_bookie_is_replaced_also_where_the_new_one_has_copies(*, has_copies: bool) -> None:
    async with world(bookies=4) as (cluster, client):
        ledger_id = await closed_ledger(client)
        named = sorted(await members(client, ledger_id))
        (spare,) = set(map(BookieId, client.bookies.writable())) - set(named)
        old, new = named[0], named[1] if has_copies else spare
        await lose(cluster, client, old)
        done = await replace_bookie(client, old, new, bytes_per_s=0, config=AT_ONCE)
        assert done.recovery.finish == MoveEnd(MoveOutcome.COMPLETE)
        assert done.departure == MoveEnd(MoveOutcome.RETIRED)
        assert await members(client, ledger_id) == {*named[1:], spare}
        assert set((await copies(client, ledger_id)).values()) == {3}
        assert await retirement_of(client.store, old) is Retirement.EMPTIED


async def test_a_bookie_that_cannot_be_copied_keeps_its_name() -> None:
    async with world(bookies=3) as (cluster, client):
        ledger_id = await closed_ledger(client)
        old, new, _ = sorted(await members(client, ledger_id))
        await lose(cluster, client, old)
        done = await replace_bookie(client, old, new, bytes_per_s=0, config=AT_ONCE)
        assert done.recovery.finish.outcome is MoveOutcome.INCOMPLETE
        assert done.departure is None
        assert await retirement_of(client.store, old) is Retirement.NONE
