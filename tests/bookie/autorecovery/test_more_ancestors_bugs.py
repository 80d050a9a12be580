"""More bugs of the ancestor's repair as stories, on bookies in this process and on many ledgers."""

import asyncio
import tracemalloc
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import cast

import pytest

import dlog.testing
from bookie.autorecovery import repair_io
from bookie.autorecovery.auditor import audit
from bookie.autorecovery.checks import (
    Audit,
    CheckRecord,
    check_all,
    check_placement,
    check_replicas,
)
from bookie.autorecovery.marks import Marks
from bookie.autorecovery.move_job import decommission
from bookie.autorecovery.protocol.audit import AuditConfig, BeginCheck, CheckKind
from bookie.autorecovery.protocol.move_job import MoveOutcome as Emptied
from bookie.autorecovery.protocol.repair import RepairEnd, RepairOutcome
from bookie.autorecovery.worker import Worker
from bookie.errors import BookieRetired, WrongDirectory
from dlog.testing.memory_disk import MemoryDisk
from ledger.client import LedgerClient
from ledger.errors import LedgerFenced, LogError, MetadataUnavailable
from ledger.ids import BookieId, EntryId
from ledger.log_events import now_ms
from ledger.mark import Reason
from ledger.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore, Watch, create_node
from ledger.quorum import Quorum
from ledger.registry import COOKIES, BookieRegistration, register
from ledger.repair_marks import MARKS
from tests.bookie.autorecovery.audit_rig import Cluster
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
from tests.ledger.local_bookies import local_bookies
from tests.namespaces import made, opened
from tests.waiting import PATIENCE_S, eventually

HOUR_MS = 3_600_000
WEEK_S = 604_800.0


@pytest.mark.parametrize("lose", ["effect", "reply"])
def test_576_whatever_fails_the_lock_is_given_back(lose: str) -> None:
    def lost_member() -> World:
        return World(ledger((0, "abc"), last=9), "bcd").lacks("a")

    whole = lost_member()
    repair(whole)
    for steps in range(len(whole.written)):
        rig = lost_member()
        running = Running(rig).steps(steps)
        running.step(lose)
        running.end()
        assert not rig.locked, whole.written[steps]


async def test_576_a_worker_that_breaks_gives_its_lock_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug of ours")

    async with world() as (cluster, client):
        ledger_id = await closed_ledger(client, entries=3)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        monkeypatch.setattr(repair_io, "look", broken)
        with pytest.raises(RuntimeError):
            await Worker(client, AT_ONCE).run_once()
        assert await Marks(client.store).locked() == {}


class Failing:
    """A metadata store of which the answer to one call is lost: after *left* - 1 others."""

    def __init__(self, store: MetadataStore) -> None:
        self.left = 1 << 30
        self._store = store

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if name not in {"get", "create", "set", "delete", "children", "multi", "sync"}:
            return found

        async def call(*args: object, **options: object) -> object:
            is_list = name == "children" and str(args[0]).startswith(MARKS)
            self.left -= not is_list  # of which there are ever more
            answer = await found(*args, **options)
            if self.left == 0:
                raise MetadataUnavailable("failing", name, 1.0)
            return answer

        return call


@pytest.mark.slow
async def test_2302_a_worker_goes_on_whichever_call_to_the_metadata_store_fails() -> None:
    async with local_bookies(4) as cluster, asyncio.timeout(PATIENCE_S):
        client = await cluster.client()
        for number in range(1, 100):
            ledger_id = await closed_ledger(client, entries=2)
            leaves = (await client.describe(ledger_id)).fragments[0].bookies[0]
            await Marks(client.store).announce(leaves)
            await mark_lost(client, ledger_id, leaves, Reason.DECOMMISSIONING)
            store = Failing(await open_store(cluster.uri))
            failing = await LedgerClient.connect(cast("MetadataStore", store))
            await failing.bookies.wait_for(4, PATIENCE_S)
            store.left = number
            worker = Worker(failing, AT_ONCE)
            with suppress(LogError):
                await worker.run_once()
            over = store.left > 0
            await failing.close()
            await cast("MetadataStore", store).close()  # the session ends, and its locks
            again = Worker(client, AT_ONCE, wall_clock_ms=lambda: 10**15)
            await again.run_once()
            assert await mark_of(client, ledger_id) is None, number
            assert leaves not in (await client.describe(ledger_id)).fragments[0].bookies
            await Marks(client.store).withdraw(leaves)
            if over:  # the whole repair needs fewer calls
                break
        assert 5 < number < 50


@pytest.mark.slow
async def test_2302_a_worker_goes_on_after_a_connection_that_was_cut() -> None:
    async with world() as (cluster, client):
        ledger_id = await closed_ledger(client, entries=3)
        lost = (await client.describe(ledger_id)).fragments[0].bookies[0]
        await kill(cluster, client, lost)
        await mark_lost(client, ledger_id, lost)
        marks, begun = Marks(client.store), now_ms()
        hours = Worker(client, AT_ONCE, wall_clock_ms=lambda: begun + (now_ms() - begun) * 1000)
        async with hours:
            async with cluster.metadata_cut():
                pass

            async def is_unmarked() -> bool:
                await marks.notify_workers()
                return await mark_of(client, ledger_id) is None

            await eventually(is_unmarked)
        assert set((await copies(client, ledger_id)).values()) == {3}


@pytest.mark.slow
async def test_3377_what_a_disaster_put_on_one_rack_is_spread_when_the_other_is_back() -> None:
    async with local_bookies(0) as cluster:
        for rack in ("near", "near", "near", "far"):
            await cluster.add(rack)
        client = await cluster.client()
        await client.bookies.wait_for(4, PATIENCE_S)
        ledger_id = await closed_ledger(client, entries=9)
        far = cluster.bookies[3]
        assert far.name in (await client.describe(ledger_id)).fragments[0].bookies
        await far.kill()

        async def is_gone() -> bool:
            return not any(found.bookie == far.name for found in client.bookies.available())

        await eventually(is_gone)
        await mark_lost(client, ledger_id, far.name)
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert far.name not in (await client.describe(ledger_id)).fragments[0].bookies
        assert (await check_placement(client, now_ms=1)).misplaced == 0  # there is no other rack
        await far.start()

        async def is_seen_to_be_misplaced() -> bool:
            return (await check_placement(client, now_ms=1)).misplaced == 1

        await eventually(is_seen_to_be_misplaced)  # once the bookie is used again
        assert (await Worker(client, AT_ONCE).run_once()).outcomes == {RepairOutcome.DONE: 1}
        assert far.name in (await client.describe(ledger_id)).fragments[0].bookies
        assert set((await copies(client, ledger_id)).values()) == {3}


@pytest.mark.slow
async def test_4812_an_old_writer_gets_no_acknowledgement_of_a_bookie_that_was_emptied() -> None:
    """A new bookie of its name would know nothing of the ledger's fence: there is none."""
    async with dlog.testing.cluster(bookies=5) as cluster:
        client = await LedgerClient.connect(cluster.uri)
        writer = await client.create()
        await writer.add(b"one")
        name = writer.metadata.last_fragment.bookies[0]
        index = next(i for i, each in enumerate(cluster.bookies) if each.name == name)

        async def read_only(_: str, __: BookieId) -> None:
            await cluster.set_read_only(index)

        async with Worker(client, AT_ONCE):
            done = await decommission(client, name, pause_s=0.05, ask_read_only=read_only)
            assert done.outcome is Emptied.EMPTY
            await cluster.kill_bookie(index)
            done = await decommission(client, name, pause_s=0.05, ask_read_only=read_only)
        assert done.outcome is Emptied.RETIRED
        bookie = cluster.bookies[index]
        bookie._disk, bookie._read_only = MemoryDisk(name, 1 << 28), False
        with pytest.raises(BookieRetired):
            await bookie.start()
        with pytest.raises(LedgerFenced):
            await writer.add(b"two")
        metadata = await client.describe(writer.ledger_id)
        assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 0)
        await client.close()


@pytest.mark.slow
async def test_2612_a_wiped_bookie_under_its_old_name_is_refused_and_no_entry_is_cut_off() -> None:
    async with world(3) as (cluster, client):
        writer = await client.create()
        for number in range(5):
            await writer.add(b"entry %d" % number)
        wiped, away, _ = writer.metadata.last_fragment.bookies
        await kill(cluster, client, wiped)
        bookie = next(each for each in cluster.bookies if each.name == wiped)
        bookie._disk = MemoryDisk(wiped, 1 << 28)
        with pytest.raises(WrongDirectory):
            await bookie.start()
        # With its "no" believed, two of three would have denied every entry.
        await kill(cluster, client, away)
        with pytest.raises(LogError):
            await client.recover(writer.ledger_id)
        await next(each for each in cluster.bookies if each.name == away).start()
        await client.bookies.wait_for(2, PATIENCE_S)
        assert (await client.recover(writer.ledger_id)).last_entry == 4
        await writer.abandon()


MANY = 2_000


class Watched:
    """A metadata store that counts the watches that are open."""

    def __init__(self, store: MetadataStore) -> None:
        self.calls: Counter[str] = Counter()
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def watch(self, path: str) -> Watch:
        self.calls["watch"] += 1
        return self._store.watch(path)


async def ledgers(client: LedgerClient, count: int) -> None:
    for number in range(count):
        metadata = LedgerMetadata(
            quorum=Quorum(3, 3, 2),
            fragments=(Fragment(EntryId(0), names("abc")),),
            creation_token=b"%d" % number,
        )
        await client.ledgers.create(metadata.closed(EntryId(-1), 0))


@pytest.mark.slow
async def test_3360_watches_and_memory_of_passes_do_not_grow_with_the_ledgers() -> None:
    store = Watched(await opened("memory://many-ledgers"))
    client = await LedgerClient.connect(cast("MetadataStore", store))
    peaks: list[int] = []
    watches: list[int] = []
    for _ in range(2):
        await ledgers(client, MANY // 2 if not peaks else MANY * 3 // 2)
        before = store.calls["watch"]
        await look_at_all(client)
        tracemalloc.start()
        await look_at_all(client)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        watches.append(store.calls["watch"] - before)
    assert watches == [0, 0]
    # The second time there were four times as many.
    assert peaks[1] < peaks[0] * 1.5 + (1 << 20), peaks
    await client.close()
    await cast("MetadataStore", store).close()


async def look_at_all(client: LedgerClient) -> None:
    await check_all(client)
    await check_placement(client, now_ms=1)
    await check_replicas(client, now_ms=1)


@pytest.mark.slow
async def test_2802_passes_over_many_ledgers_leave_the_loop_to_the_stores_session() -> None:
    """What keeps a session alive runs in the same loop: nothing may hold it for long."""
    client = await LedgerClient.connect(await made("memory://long-passes"))
    for name in "abcd":
        await create_node(client.store, f"{COOKIES}/{name}")
        await register(client.store, BookieRegistration(name, "127.0.0.1:1", "i"))
    await ledgers(client, MANY)
    loop = asyncio.get_running_loop()
    beats: list[float] = []

    handle: asyncio.Handle = loop.call_soon(lambda: None)

    def beat() -> None:
        nonlocal handle
        beats.append(loop.time())
        handle = loop.call_later(0.01, beat)

    beat()
    lost = asyncio.Event()
    config = AuditConfig(delay_s=0, check_all_s=10**6, placement_s=10**6, replicas_s=10**6)
    auditing = asyncio.ensure_future(audit(client, config, lost))

    async def is_audited() -> bool:
        store = client.store
        return None not in (await CheckRecord.last(store), await Audit.last(store))

    await eventually(is_audited)
    await look_at_all(client)
    handle.cancel()
    lost.set()
    await auditing
    longest = max(after - before for before, after in pairwise(beats))
    assert longest < 1.0, longest  # sessions last ten seconds, and are proven each third of that
    assert len(beats) > 10
    await client.close()


def test_1578_one_auditor_checks_again_and_auditors_that_change_every_hour_check_too() -> None:
    for changes in (False, True):
        cluster = Cluster().begin()
        for _ in range(2 * 7 * 24 + 1):
            cluster.run(3600.0)
            if changes:
                cluster.begin(AuditConfig())
        made = Counter(each.kind for each in cluster.actions if isinstance(each, BeginCheck))
        assert made == {CheckKind.LEDGERS: 2, CheckKind.PLACEMENT: 14, CheckKind.REPLICAS: 14}


def test_4872_the_only_copy_that_is_lost_is_looked_for_once_an_hour_and_costs_nothing() -> None:
    rig = World(ledger((0, "a"), last=9, quorum=Quorum(1, 1, 1)), "bc").lacks("a")
    done = []
    for attempt in range(1, 30):
        before = len(rig.written)
        assert repair(rig).outcome is RepairOutcome.DEFERRED
        done.append(len(rig.written) - before)
        assert rig.mark is not None
        assert (rig.mark.attempts, rig.mark.lost) == (attempt, ((0, 9),))
        assert repair(rig) == RepairEnd(
            RepairOutcome.DEFERRED, rig.mark.deferred_why, rig.mark.not_before_ms
        )
        rig.now_ms = rig.mark.not_before_ms
    assert len(set(done)) == 1
    assert (rig.copied, rig.read, rig.version) == (0, 0, 0)
    assert rig.mark is not None
    rig.there = "abc"  # it comes back all the same
    assert repair(rig, eager=True) == RepairEnd(RepairOutcome.DONE)
    assert rig.is_whole()
