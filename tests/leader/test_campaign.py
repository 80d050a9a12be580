"""Campaigns and terms on the store in memory, where bad days can be made to order."""

import asyncio

import pytest

from leader import Candidate, InvalidCampaign, NotElected, Term, current_leader
from leader.election import leaders_path
from leader.record import FORMAT_VERSION, UNREADABLE, candidates
from leader.wire import leader_pb2 as pb
from leader.withdrawal import PAUSE_MIN_S
from ledger.errors import HandleClosed, InvalidValue, MetadataUnavailable
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import Versioned
from tests.leader.stores import TroubledStore
from tests.ledger.lagging_store import LaggingStore
from tests.patience import patient_campaign
from tests.waiting import PATIENCE_S, eventually, until

LOG = "eu/flights"


async def memory() -> MemoryStore:
    store = await open_store("memory://election")
    assert isinstance(store, MemoryStore)
    return store


async def nodes(store: MemoryStore) -> list[str]:
    return await store.children(leaders_path(LOG))


async def standing_count(store: MemoryStore, count: int) -> None:
    async def reached() -> bool:
        return (
            await store.exists(leaders_path(LOG)) is not None and len(await nodes(store)) == count
        )

    await eventually(reached, f"{count} candidates stand")


async def follower(store: MemoryStore | TroubledStore, name: str) -> asyncio.Task[Term]:
    """Start a campaign that stands behind all that stand now."""
    look = await memory()
    before = len(await nodes(look))
    task = asyncio.create_task(patient_campaign(store, LOG, candidate=name))
    await standing_count(look, before + 1)
    await look.close()
    return task


async def test_the_first_candidate_is_elected_at_once() -> None:
    store = await memory()
    term = await patient_campaign(store, LOG, candidate="a", timeout_s=PATIENCE_S)
    assert (term.log, term.candidate, term.lost.is_set()) == (LOG, "a", False)
    assert term.is_current()
    assert await term.verify()
    leader = await current_leader(store, LOG)
    assert leader is not None
    assert (leader.candidate, leader.epoch, leader.log) == ("a", term.epoch, LOG)
    await term.resign()


async def test_nobody_leads_a_log_that_nobody_stands_for() -> None:
    store = await memory()
    assert await current_leader(store, LOG) is None
    await (await patient_campaign(store, LOG)).resign()
    assert await current_leader(store, LOG) is None


async def test_a_candidate_says_where_its_clients_reach_it() -> None:
    store = await memory()
    stands = Candidate("app-1", "https://app-1:8000")
    term = await patient_campaign(store, LOG, candidate=stands, timeout_s=PATIENCE_S)
    leader = await current_leader(store, LOG)
    assert leader is not None
    assert (leader.candidate, leader.address) == ("app-1", "https://app-1:8000")
    await term.resign()
    await store.close()


@pytest.mark.parametrize("text", ["two\nlines", "x" * 501])
def test_what_cannot_be_shown_of_a_candidate_is_refused(text: str) -> None:
    for unfit in ({"name": text}, {"address": text}):
        with pytest.raises(InvalidCampaign, match="cannot be used"):
            Candidate(**unfit)


async def test_a_candidate_whose_record_is_damaged_is_shown_as_such_and_hides_nobody() -> None:
    store, other = await memory(), await memory()
    term = await patient_campaign(store, LOG, candidate="a", timeout_s=PATIENCE_S)
    waiting = await follower(other, "b")
    (first, *_) = sorted(await nodes(store), key=lambda name: name[-10:])
    await store.set(f"{leaders_path(LOG)}/{first}", b"\xff")
    shown = [(each.candidate, each.epoch) for each in await candidates(store, LOG)]
    assert shown == [(UNREADABLE, term.epoch), ("b", term.epoch + 1)]
    await term.resign()
    assert (await waiting).candidate == "b"  # nor does it keep others from standing
    await (await waiting).resign()


async def test_after_a_resignation_the_next_leads_with_a_larger_epoch() -> None:
    first, second = await memory(), await memory()
    # Without a lifeline nobody clears away what it leaves behind.
    term = await patient_campaign(first, LOG, candidate="first", lifeline_host=None)
    waiting = await follower(second, "second")
    assert not waiting.done()
    await term.resign()
    assert term.lost.is_set()
    assert not term.is_current()
    assert not await term.verify()
    async with asyncio.timeout(PATIENCE_S):
        following = await waiting
    assert following.epoch > term.epoch
    await following.resign()
    third = await patient_campaign(first, LOG)
    assert third.epoch > following.epoch, "also when nobody stood in between"
    await third.resign()


async def test_logs_have_leaders_of_their_own() -> None:
    store = await memory()
    async with (
        asyncio.timeout(PATIENCE_S),
        await patient_campaign(store, "a"),
        await patient_campaign(store, "a/b"),
    ):
        pass


async def test_a_term_that_is_left_is_resigned() -> None:
    store = await memory()
    with pytest.raises(RuntimeError, match="trouble"):
        async with await patient_campaign(store, LOG):
            raise RuntimeError("trouble")
    assert await nodes(store) == []


async def test_the_end_of_the_session_ends_the_term_and_elects_the_next() -> None:
    first, second = await memory(), await memory()
    term = await patient_campaign(first, LOG)
    waiting = await follower(second, "second")
    first.expire()
    assert not term.is_current(), "known before any task ran"
    async with asyncio.timeout(PATIENCE_S):
        await term.lost.wait()
        following = await waiting
    assert not await term.verify()
    assert following.is_current()
    await following.resign()


async def test_a_node_deleted_by_somebody_ends_the_term() -> None:
    store, other = await memory(), await memory()
    term = await patient_campaign(store, LOG)
    [name] = await nodes(other)
    await other.delete(f"{leaders_path(LOG)}/{name}")
    async with asyncio.timeout(PATIENCE_S):
        await term.lost.wait()
    assert term.lost_reason == "node_gone"


async def test_verify_notices_what_the_watch_has_not_told_yet() -> None:
    store, other = await memory(), await memory()
    term = await patient_campaign(store, LOG)
    [name] = await nodes(other)
    path = f"{leaders_path(LOG)}/{name}"
    await asyncio.gather(other.delete(path), term.verify())
    assert not await term.verify()
    assert term.lost.is_set()


async def test_verify_raises_when_the_store_says_nothing() -> None:
    store = TroubledStore(await memory())
    term = await patient_campaign(store, LOG)
    store.refuse["children"] = 1
    with pytest.raises(MetadataUnavailable):
        await term.verify()
    assert term.is_current(), "silence decides nothing"
    assert await term.verify()
    await term.resign()


@pytest.fixture
def proofs_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that outlasts a machine that stands still is proven a hundred times, not four."""
    monkeypatch.setattr("leader.term.PROOFS_PER_LEASE", 100)


@pytest.mark.usefixtures("proofs_often")
async def test_a_leader_without_proof_gives_up_by_its_own_clock_and_clears_the_way() -> None:
    store, other = TroubledStore(await memory()), await memory()
    term = await patient_campaign(store, LOG, lease_s=PATIENCE_S / 3, lifeline_host=None)
    waiting = await follower(other, "other")
    store.refuse["sync"] = 1_000_000
    term._lease_s = 0.2  # only now: before, a busy machine might end it
    async with asyncio.timeout(PATIENCE_S):
        await term.lost.wait()
        assert term.lost_reason == "lease_expired"
        following = await waiting
    assert following.is_current()
    await following.resign()


@pytest.mark.usefixtures("proofs_often")
async def test_a_leader_outlives_a_store_that_is_silent_for_less_than_the_lease() -> None:
    store = TroubledStore(await memory())
    term = await patient_campaign(store, LOG, lease_s=PATIENCE_S / 3)
    store.refuse["exists"] = 1
    seen = store.calls["exists"]
    await until(lambda: store.calls["exists"] >= seen + 3, "the term was proven again")
    assert term.is_current()
    await term.resign()


async def test_a_campaign_gives_up_in_time_and_takes_its_node_away() -> None:
    first, second = await memory(), await memory()
    async with await patient_campaign(first, LOG):
        with pytest.raises(NotElected, match=r"within 0\.1 s") as caught:
            await patient_campaign(second, LOG, timeout_s=0.1)
        assert caught.value.retryable
        assert len(await nodes(first)) == 1


async def test_a_cancelled_campaign_takes_its_node_away_and_the_one_behind_it_waits_on() -> None:
    stores = [await memory() for _ in range(3)]
    term = await patient_campaign(stores[0], LOG)
    second, third = await follower(stores[1], "second"), await follower(stores[2], "third")
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert len(await nodes(stores[0])) == 2
    assert not third.done()
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        await (await third).resign()


async def test_a_node_whose_withdrawal_failed_is_taken_away_later() -> None:
    first, second = await memory(), TroubledStore(await memory())
    async with await patient_campaign(first, LOG):
        waiting = await follower(second, "second")
        second.refuse["delete"] = 3
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await standing_count(first, 1)


@pytest.mark.parametrize("lost", [1, 3])
async def test_lost_replies_of_create_leave_one_node(lost: int) -> None:
    store = TroubledStore(await memory())
    store.lose_replies["create"] = lost
    term = await patient_campaign(store, LOG, timeout_s=PATIENCE_S)
    assert len(await nodes(await memory())) == 1
    assert store.calls["create"] == 1, "the node was found by its token"
    await term.resign()
    assert await nodes(await memory()) == []


class GoesAsItIsRead(TroubledStore):
    """Deletes the first node that it is asked for, before it looks."""

    first = True

    async def get(self, path: str) -> Versioned:
        if self.first:
            self.first = False
            await self.inner.delete(path)
        return await super().get(path)


async def test_a_leader_that_goes_while_it_is_asked_for_gives_way_to_the_next() -> None:
    first, second = await memory(), await memory()
    term = await patient_campaign(first, LOG, candidate="first")
    waiting = await follower(second, "second")
    leader = await current_leader(GoesAsItIsRead(first), LOG)
    assert leader is not None
    assert leader.candidate == "second"
    await (await waiting).resign()
    await term.resign()


async def test_who_leads_is_asked_of_a_server_that_has_caught_up() -> None:
    store, lagging = await memory(), LaggingStore(await memory())
    await (await patient_campaign(store, LOG)).resign()
    await lagging.fall_behind()
    term = await patient_campaign(store, LOG, candidate="new")
    leader = await current_leader(lagging, LOG)
    assert leader is not None
    assert leader.candidate == "new"
    await term.resign()


async def test_a_candidate_of_a_later_version_is_shown_as_unreadable() -> None:
    store = await memory()
    term = await patient_campaign(store, LOG)
    [name] = await nodes(store)
    node = pb.CandidateNode(version=FORMAT_VERSION + 1, candidate="x").SerializeToString()
    await store.set(f"{leaders_path(LOG)}/{name}", node)
    leader = await current_leader(store, LOG)
    assert leader is not None
    assert leader.candidate == UNREADABLE
    await term.resign()


async def test_a_create_that_lands_late_is_given_up() -> None:
    """A create without reply is made again, and then both turn out to have been done."""
    store, other = TroubledStore(await memory()), await memory()
    term = await patient_campaign(other, LOG)
    waiting = await follower(store, "second")
    own = max(await nodes(other), key=lambda name: name[-10:])
    token = own.rpartition("-")[0]
    await store.inner.create(f"{leaders_path(LOG)}/{token}-", ephemeral=True, sequential=True)
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        following = await waiting
    assert await nodes(other) == [own]
    await following.resign()


async def test_a_campaign_outlives_the_loss_of_its_session() -> None:
    first, second = await memory(), await memory()
    term = await patient_campaign(first, LOG)
    waiting = await follower(second, "second")
    [_, before] = sorted(await nodes(first), key=lambda name: name[-10:])
    second.expire()
    await standing_count(first, 2)
    assert before not in await nodes(first)
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        await (await waiting).resign()


class ReplacesItsSession(TroubledStore):
    """Has a new session once, before it does *operation*; then one deletion is refused."""

    def __init__(self, store: MemoryStore, operation: str) -> None:
        super().__init__(store)
        self._memory, self._operation = store, operation

    def _before(self, operation: str) -> None:
        if operation == self._operation and not self.calls[operation]:
            self._memory.expire()
            self.refuse["delete"] = 1
        super()._before(operation)


async def test_a_node_whose_session_ends_as_it_is_looked_at_elects_nobody() -> None:
    class Expiring(TroubledStore):
        async def children(self, path: str) -> list[str]:
            found = await super().children(path)
            if found and self.calls["create"] == 1:
                inner.expire()
            return found

    inner = await memory()
    store = Expiring(inner)
    term = await patient_campaign(store, LOG, timeout_s=PATIENCE_S)
    assert term.is_current()
    assert store.calls["create"] == 2
    await term.resign()


@pytest.mark.parametrize("operation", ["children", "create"])
async def test_a_session_lost_between_look_and_create_leaves_no_node_behind(operation: str) -> None:
    """It would be in a session that lives on, and hold its own candidate back for ever."""
    store, other = ReplacesItsSession(await memory(), operation), await memory()
    term = await patient_campaign(store, LOG, timeout_s=PATIENCE_S)
    assert len(await nodes(other)) == 1
    await term.resign()
    assert await nodes(other) == []


@pytest.mark.slow
@pytest.mark.parametrize("away", ["cut off", "refusing"])
async def test_a_campaign_waits_for_a_store_that_is_away_and_asks_it_rarely(away: str) -> None:
    inner = await memory()
    store = TroubledStore(inner)
    if away == "cut off":
        inner.cut()
    else:
        store.refuse["sync"] = 1_000_000
    with pytest.raises(NotElected, match="did not answer"):
        await patient_campaign(store, LOG, timeout_s=0.1)
    store.calls.clear()
    started = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(patient_campaign(store, LOG))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.shield(waiting)
    elapsed_s = asyncio.get_running_loop().time() - started
    assert store.calls.total() <= 2 * elapsed_s / PAUSE_MIN_S
    store.refuse.clear()
    inner.heal()
    async with asyncio.timeout(PATIENCE_S):
        await (await waiting).resign()


async def test_a_change_of_leader_wakes_one_candidate_and_not_the_herd() -> None:
    stores = [TroubledStore(await memory()) for _ in range(12)]
    term = await patient_campaign(stores[0], LOG)
    waiting = [await follower(store, f"c{index}") for index, store in enumerate(stores[1:])]
    before = [store.calls.total() for store in stores]
    await term.resign()
    async with asyncio.timeout(PATIENCE_S):
        following = await waiting[0]
    woken = [
        index
        for index, store in enumerate(stores)
        if index > 0 and store.calls.total() != before[index]
    ]
    assert woken == [1]
    await following.resign()
    for task in waiting[1:]:
        task.cancel()
    await asyncio.gather(*waiting[1:], return_exceptions=True)


async def test_two_never_both_verify_whatever_happens_to_the_sessions() -> None:
    stores = [await memory() for _ in range(4)]
    held: list[Term] = []
    epochs: list[int] = []

    async def candidate(store: MemoryStore, rounds: int) -> None:
        for round_number in range(rounds):
            term = await patient_campaign(store, LOG)
            held.append(term)
            epochs.append(term.epoch)
            if round_number % 2:
                store.expire()
                await term.lost.wait()
            else:
                await term.verify()
                await term.resign()

    async def both() -> None:
        # One verify follows the other without a turn of another task in between that
        # could change the leader: the sums below are about one moment of the store.
        while len(epochs) < 4 * 6:
            answers = [await term.verify() for term in held[-3:]]
            again = [term.is_current() for term in held[-3:]]
            assert sum(1 for a, b in zip(answers, again, strict=True) if a and b) <= 1
            await asyncio.sleep(0)

    async with asyncio.timeout(2 * PATIENCE_S), asyncio.TaskGroup() as group:
        for store in stores:
            group.create_task(candidate(store, 6))
        group.create_task(both())
    assert epochs == sorted(set(epochs)), "each term has a larger epoch than those before"


async def test_closing_the_store_ends_the_term() -> None:
    store = await memory()
    term = await patient_campaign(store, LOG)
    await store.close()
    async with asyncio.timeout(PATIENCE_S):
        await term.lost.wait()
        await term.resign()


async def test_a_campaign_on_a_closed_store_is_refused() -> None:
    store = await memory()
    await store.close()
    with pytest.raises(HandleClosed):
        await patient_campaign(TroubledStore(store), LOG, timeout_s=PATIENCE_S)


async def test_senseless_campaigns_are_refused() -> None:
    store = await memory()
    with pytest.raises(InvalidCampaign):
        await patient_campaign(store, "")
    with pytest.raises(InvalidValue, match="timeout_s=-1: use seconds"):
        await patient_campaign(store, LOG, timeout_s=-1)
    with pytest.raises(InvalidValue, match="lease_s=0: use seconds"):
        await patient_campaign(store, LOG, lease_s=0)
