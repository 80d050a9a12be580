"""Warm standbys: what they applied when they serve, and when they stop serving."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import pytest

import dlog.testing
from dlog import (
    AlreadyPromoted,
    LogClosed,
    LogSealed,
    LostOwnership,
    NoSuchLog,
    NotPromoted,
    Record,
)
from dlog.aio import Log, Standby
from dlog.aio.admin import delete_log
from dlog.testing import AsyncCluster
from leader import NotElected, current_leader
from leader.election import leaders_path
from ledger.client import LedgerClient
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from tests.patience import PATIENT
from tests.waiting import PATIENCE_S, ended, eventually, until

LOG = "orders"


class State:
    """Applies records; can be made to wait, or to fail."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.offsets: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def apply(self, batch: Sequence[Record]) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.values += [record.value for record in batch]
        self.offsets += [record.offset for record in batch]


class Node(State):
    """One process of an application, as it were."""

    standby: Standby

    @classmethod
    @asynccontextmanager
    async def running(cls, cluster: AsyncCluster, name: str = "") -> AsyncIterator[Self]:
        node = cls()
        async with await Standby.open(LOG, node.apply, uri=cluster.uri, candidate=name) as standby:
            node.standby = standby
            yield node


async def append(log: Log, *values: bytes) -> None:
    await asyncio.gather(*(log.append_async(value) for value in values))


def numbered(first: int, end: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, end)]


async def test_state_of_a_log_that_was_deleted_never_serves_the_one_made_anew() -> None:
    """The standby is at work on its last batch while all of that happens."""
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await append(log, *numbered(0, 10))
            await until(lambda: len(node.values) == 10)
            node.gate.clear()
            await log.append(b"late")
        await delete_log(LOG, uri=cluster.uri)
        async with await Log.open(LOG, uri=cluster.uri) as another:
            await another.append(b"new")
        with pytest.raises(NoSuchLog):
            await node.standby.promote()
        node.gate.set()
        assert b"new" not in node.values


async def test_a_standby_is_warm_before_it_is_promoted() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as node,
        await Log.open(LOG, uri=cluster.uri) as log,
    ):
        await append(log, *numbered(0, 100))
        await until(lambda: len(node.values) == 100)
        assert not node.standby.is_leader
        assert (await log.append(b"undisturbed")).offset == 100


async def test_a_promoted_standby_has_applied_everything_before_it_gets_the_log() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as standby:
        standby.gate.clear()
        log = await Log.open(LOG, uri=cluster.uri)
        await append(log, *numbered(0, 1000))
        await log.abandon()
        promoting = asyncio.create_task(standby.standby.promote())
        store = await open_store(cluster.uri)
        await until(lambda: log.writer.error is not None)
        standby.gate.set()
        mine = await promoting
        assert standby.values == numbered(0, 1000)
        assert standby.offsets == list(range(1000))
        assert standby.standby.is_leader
        assert standby.standby.position == 1000
        assert mine.epoch == standby.standby.epoch
        assert (await mine.append(b"mine")).offset == 1000
        await store.close()


async def test_a_leader_that_lives_is_fenced_by_the_promotion_of_another() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as standby:
        old = await Log.open(LOG, uri=cluster.uri)  # it never stood for election
        await old.append(b"before")
        await standby.standby.promote()
        with pytest.raises(dlog.LogError) as caught:
            await old.append(b"zombie")
        assert caught.value.outcome_unknown or isinstance(caught.value, LostOwnership)
        assert standby.values == [b"before"]
        await old.abandon()


async def test_leadership_goes_round_and_no_state_misses_or_doubles_a_record() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
    ):
        sent = 0
        leading, following = a, b
        for _ in range(6):
            log = await leading.standby.promote()
            for value in numbered(sent, sent + 10):
                await log.append(value)
                leading.values.append(value)
            sent += 10
            promoting = asyncio.create_task(following.standby.promote())
            await leading.standby.resign()
            assert not leading.standby.is_leader
            await promoting
            await following.standby.resign()
            leading, following = following, leading
        await until(lambda: len(a.values) == len(b.values) == sent)
        assert a.values == b.values == numbered(0, sent)
        assert not a.standby.lost.is_set()


async def standing(store: MetadataStore, count: int) -> None:
    """Return once so many stand for election."""

    async def stand() -> bool:
        return len(await store.children(leaders_path(LOG))) == count

    await eventually(stand, f"{count} candidates")


async def test_only_the_next_in_line_stands_up_when_a_leader_resigns() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
        Node.running(cluster) as c,
    ):
        await a.standby.promote()
        store = await open_store(cluster.uri)

        second = asyncio.create_task(b.standby.promote())
        await standing(store, 2)
        third = asyncio.create_task(c.standby.promote())
        await standing(store, 3)
        await a.standby.resign()
        await ended(second, "the next in line leads")
        assert not third.done()
        await b.standby.close()
        await ended(third, "the last one leads")
        assert c.standby.is_leader
        await store.close()


async def test_a_leader_without_metadata_stops_by_itself() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        log = await node.standby.promote()
        await log.append(b"one")
        async with cluster.metadata_cut():
            await node.standby.lost.wait()
            assert not node.standby.is_leader
            with pytest.raises(LostOwnership, match="term is over"):
                await log.append(b"two")
        assert "term is over" in node.standby.lost_reason


async def test_a_term_that_ends_by_the_clock_alone_ends_leadership() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        await node.standby.promote()
        term = node.standby._term
        assert term is not None
        now = term._clock()
        term._clock = lambda: now + 3600.0  # the process was stopped for longer than its lease
        assert not node.standby.is_leader
        with pytest.raises(LostOwnership, match="term is over"):
            await node.standby.promote()
        assert node.standby.lost.is_set(), "whoever asks is told one thing"
        assert "term is over" in node.standby.lost_reason


@pytest.mark.parametrize("session_timeout_s", [2.0, 60.0])
async def test_who_configures_longer_sessions_bears_longer_pauses(
    monkeypatch: pytest.MonkeyPatch, session_timeout_s: float
) -> None:
    monkeypatch.setenv("DLOG_SESSION_TIMEOUT_S", str(session_timeout_s))

    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        assert node.standby._lease_s == session_timeout_s / 2


async def test_a_leader_whose_log_was_taken_by_force_lets_others_lead() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
    ):
        mine = await a.standby.promote()
        promoting = asyncio.create_task(b.standby.promote())
        thief = await Log.open(LOG, uri=cluster.uri)
        with pytest.raises(dlog.LogError):
            await mine.append(b"lost")
        await a.standby.lost.wait()
        log = await ended(promoting, "another one leads")
        await log.append(b"kept")
        assert b.standby.is_leader
        await a.standby.close()
        await thief.abandon()


async def test_a_promotion_that_is_not_elected_in_time_can_be_tried_again() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster, "a") as a,
        Node.running(cluster, "b") as b,
    ):
        log = await a.standby.promote()
        with pytest.raises(NotElected, match="another candidate leads"):
            await b.standby.promote(timeout_s=0.05)
        await log.append(b"x")
        await until(lambda: b.values == [b"x"])
        await a.standby.resign()
        await b.standby.promote(timeout_s=PATIENCE_S)
        assert b.standby.is_leader


async def test_a_promotion_that_is_cancelled_leaves_no_candidate_and_can_be_tried_again() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
    ):
        await a.standby.promote()
        store = await open_store(cluster.uri)
        promoting = asyncio.create_task(b.standby.promote())
        await standing(store, 2)
        promoting.cancel()
        await asyncio.wait({promoting})
        assert promoting.cancelled()
        assert len(await store.children(leaders_path(LOG))) == 1
        await a.standby.resign()
        await b.standby.promote()
        await store.close()


async def test_leadership_lost_while_catching_up_is_won_again_and_nothing_applied_twice() -> None:
    async with dlog.testing.cluster() as cluster:
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await append(log, *numbered(0, 100))
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        node = Node()
        node.gate.clear()
        standby = await Standby.open(LOG, node.apply, client=client, lease_s=PATIENCE_S)
        promoting = asyncio.create_task(standby.promote())
        await until(lambda: standby._following.end == 100)
        store = client.store
        nodes = await store.children(leaders_path(LOG))
        await store.delete(f"{leaders_path(LOG)}/{nodes[0]}")
        await until(lambda: standby._following.end is None)
        node.gate.set()
        await promoting
        assert node.values == numbered(0, 100)
        assert standby.is_leader
        await standby.close()
        await client.close()


async def test_what_apply_raises_ends_the_standby_and_is_raised_by_its_promotion() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        node.error = KeyError("poison")
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await log.append(b"poison")
        await until(node.standby._following.task.done)
        node.error = None  # but who knows what of the batch was applied
        for _ in range(2):
            with pytest.raises(KeyError, match="poison"):
                await node.standby.promote()
        assert node.values == []
        store = await open_store(cluster.uri)
        assert await current_leader(store, LOG) is None
        await store.close()


async def test_a_promotion_that_fails_after_its_election_lets_others_lead() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
    ):
        a.gate.clear()
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await log.append(b"poison")
        promoting = asyncio.create_task(a.standby.promote())
        await until(lambda: a.standby._following.end == 1)
        a.error = KeyError("poison")
        a.gate.set()
        with pytest.raises(KeyError, match="poison"):
            await promoting
        await b.standby.promote(timeout_s=PATIENCE_S)
        assert b.values == [b"poison"]
        with pytest.raises(KeyError, match="poison"):
            await a.standby.promote()


async def test_a_sealed_log_has_no_leader_and_its_standbys_read_it_to_the_end() -> None:
    async with dlog.testing.cluster() as cluster, Node.running(cluster) as node:
        log = await Log.open(LOG, uri=cluster.uri)
        await log.append(b"last")
        await log.seal()
        await until(lambda: node.values == [b"last"])
        with pytest.raises(LogSealed):
            await node.standby.promote(timeout_s=PATIENCE_S)
        store = await open_store(cluster.uri)
        assert await current_leader(store, LOG) is None
        await store.close()


async def test_a_standby_starts_where_a_snapshot_of_its_state_ends() -> None:
    async with dlog.testing.cluster() as cluster:
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await append(log, *numbered(0, 10))
        node = State()
        async with await Standby.open(LOG, node.apply, uri=cluster.uri, start=7) as standby:
            await standby.promote()
        assert node.values == numbered(7, 10)


async def test_a_plain_function_applies_too() -> None:
    seen: list[Record] = []
    async with dlog.testing.cluster() as cluster:
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await log.append(b"one")
        async with await Standby.open(LOG, seen.extend, uri=cluster.uri) as standby:
            await standby.promote()
            assert [record.value for record in seen] == [b"one"]


async def test_calls_out_of_order_are_refused() -> None:
    async with dlog.testing.cluster() as cluster:
        with pytest.raises(NoSuchLog):
            await Standby.open(LOG, print, uri=cluster.uri, create=False)
        standby = await Standby.open(LOG, print, uri=cluster.uri)
        with pytest.raises(NotPromoted):
            await standby.resign()
        await standby.promote()
        with pytest.raises(AlreadyPromoted):
            await standby.promote()
        await standby.close()
        await standby.close()
        with pytest.raises(LogClosed):
            await standby.promote()


async def test_closing_ends_a_promotion_that_waits() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        Node.running(cluster) as a,
        Node.running(cluster) as b,
    ):
        await a.standby.promote()
        store = await open_store(cluster.uri)
        promoting = asyncio.create_task(b.standby.promote())
        await standing(store, 2)
        await b.standby.close()
        with pytest.raises(LogClosed):
            await promoting
        await store.close()


def test_threads_have_the_same_standby() -> None:
    seen: list[bytes] = []
    with dlog.testing.cluster() as cluster:
        with dlog.Log.open(LOG, uri=cluster.uri) as log:
            log.append(b"one")
        with dlog.Standby.open(
            LOG, lambda batch: seen.extend(record.value for record in batch), uri=cluster.uri
        ) as standby:
            mine = standby.promote(timeout_s=PATIENCE_S)
            assert seen == [b"one"]
            assert standby.is_leader
            assert standby.epoch == mine.epoch
            assert mine.append(b"two").offset == 1
            standby.resign()
            assert not standby.is_leader
            again = standby.promote()
            again.append(b"three")
            assert not standby.wait_lost(timeout_s=0)
            with cluster.metadata_cut():
                assert standby.wait_lost(timeout_s=PATIENCE_S)
                assert standby.is_lost
        assert seen == [b"one"], "own appends are the application's to apply"
