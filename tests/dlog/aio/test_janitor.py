"""The janitor and the audit: what they delete, and above all what they must not."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    audit_namespace,
    create_log,
    delete_log,
    list_logs,
    log_info,
    rename_log,
    seal_log,
)
from dlog.aio.maintain.janitor import Janitor, JanitorConfig, JanitorPass, slowest_lag
from dlog.aio.maintain.lifecycle import begin_drop
from dlog.aio.read.segments import stamp
from dlog.aio.store import ManifestNode
from dlog.manifest import Manifest, Sealed
from dlog.position import NO_TXID
from dlog.protocol.consumer_steps import ConsumerState
from dlog.protocol.orphans import STAMP_LOG, OrphanKind, StagedFor, Stamp, stamp_of, standing
from dlog.receipts import Receipt, Receipts
from dlog.settings import LogSettings
from dlog.testing import AsyncCluster
from ledger.client import LedgerClient
from ledger.errors import MetadataUnavailable
from ledger.ids import EntryId, LedgerId
from ledger.log_events import now_ms
from ledger.metastore.memory import MemoryStore
from ledger.quorum import Quorum
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.ledger.flaky_store import LyingStore
from tests.metering.happenings import left_by_its_leader
from tests.patience import PATIENT
from tests.waiting import ended


def test_a_ledger_is_an_orphan_only_if_it_can_never_be_listed_again() -> None:
    seal = Sealed(EntryId(0), 1, 1, NO_TXID, NO_TXID, 0, 0)
    manifest = Manifest(incarnation="i").with_segment(1, LedgerId(11), 0).with_sealed(1, seal)
    manifest = manifest.with_segment(2, LedgerId(12), 0)
    trimmed = manifest.trimmed(1)

    def of(ledger_id: int, segment: int, known: Manifest | None) -> OrphanKind:
        return standing(LedgerId(ledger_id), Stamp("a", "i", segment), known)

    assert of(11, 1, manifest) is OrphanKind.SEGMENT
    assert of(12, 2, manifest) is OrphanKind.SEGMENT
    assert of(11, 1, trimmed) is OrphanKind.WAITING
    assert of(11, 1, trimmed.deleted([LedgerId(11)])) is OrphanKind.UNLISTED
    assert of(99, 2, manifest) is OrphanKind.UNLISTED
    assert of(99, 3, manifest) is OrphanKind.PENDING
    assert of(99, 3, replace(manifest, sealed=True)) is OrphanKind.ENDED
    assert of(99, 3, manifest.dropping()) is OrphanKind.ENDED
    assert of(99, 3, None) is OrphanKind.LOG_GONE
    orphans = [each for each in OrphanKind if each.is_orphan]
    assert orphans == [
        OrphanKind.UNLISTED,
        OrphanKind.DISCARDED,
        OrphanKind.UNUSED_COPY,
        OrphanKind.ENDED,
        OrphanKind.LOG_GONE,
    ]


def test_the_lag_is_that_of_the_slowest_consumer_and_what_was_trimmed_is_not_in_it() -> None:
    seal = Sealed(EntryId(0), 10, 1, NO_TXID, NO_TXID, 0, 0)
    manifest = Manifest(incarnation="i").with_segment(1, LedgerId(11), 0).with_sealed(1, seal)
    manifest = replace(manifest, trim_offset=2)

    def at(position: int) -> tuple[str, ConsumerState]:
        state = ConsumerState(incarnation="c", log_incarnation="i", position=position)
        return f"at {position}", state

    assert slowest_lag([], manifest) is None
    assert slowest_lag([at(4), at(9)], manifest) == 6
    assert slowest_lag([at(0)], manifest) == 8
    assert slowest_lag([at(12)], manifest) == 0, "it is in a segment that is not sealed"


async def test_a_pass_counts_logs_without_leader_and_how_far_consumers_are_behind() -> None:
    async with AsyncCluster() as cluster:
        client = await LedgerClient.connect(cluster.uri, PATIENT)
        log = await Log.open("kept", client=client)
        for _ in range(3):
            await log.append(b"x")
            await log.roll()
        await log.close()
        await (await Log.consumer("slow", "kept", start=1, client=client)).close()
        await left_by_its_leader(client, "left")
        janitor = Janitor(client, JanitorConfig(elect=False))
        await janitor.run_once()
        assert janitor.consumer_lags == {"kept": 2}
        seen = [janitor.leaderless]
        await seal_log("left", client=client)
        await janitor.run_once()
        assert [*seen, janitor.leaderless] == [1, 0]
        await client.close()


def test_a_staged_ledger_is_an_orphan_once_its_unit_or_its_epoch_is_over() -> None:
    manifest = Manifest(incarnation="i").taken_over(3, LedgerId(11), 0, "me")
    unit = Receipt(bytes(16), 7)

    def of(epoch: int, known: Manifest | None) -> OrphanKind:
        return standing(LedgerId(99), StagedFor("a", "i", epoch, unit), known)

    assert of(3, manifest) is OrphanKind.PENDING
    assert of(2, manifest) is OrphanKind.DISCARDED
    for number, expected in (
        (6, OrphanKind.PENDING),
        (7, OrphanKind.DISCARDED),
        (8, OrphanKind.DISCARDED),
    ):
        receipts = Receipts((Receipt(bytes(16), number),))
        assert of(3, replace(manifest, receipts=receipts)) is expected
    other = Receipts((Receipt(bytes(range(16)), 9),))
    assert of(3, replace(manifest, receipts=other)) is OrphanKind.PENDING
    assert of(3, replace(manifest, sealed=True)) is OrphanKind.ENDED
    assert of(3, None) is OrphanKind.LOG_GONE


def test_the_stamp_of_a_staged_ledger_is_read_as_it_was_written() -> None:
    stamped = StagedFor("a", "i", 3, Receipt(bytes(range(16)), 7))
    assert stamp_of(stamped.custom()) == stamped
    assert stamp_of({**stamped.custom(), "dlog.epoch": b"x"}) is None
    assert stamp_of({**stamped.custom(), "dlog.origin": b"x"}) is None
    assert stamp_of(stamp("a", "i", 1)) == Stamp("a", "i", 1)


@pytest.mark.parametrize(
    "custom",
    [
        {},
        {STAMP_LOG: b"a"},
        stamp("a", "i", 0),
        stamp("a", "", 1),
        {**stamp("a", "i", 1), "dlog.segment": b"x"},
    ],
)
def test_ledgers_of_others_have_no_stamp(custom: dict[str, bytes]) -> None:
    assert Stamp.of(custom) is None


async def incarnation_of(client: FakeLedgers, log: str) -> str:
    return (await ManifestNode(client.store, log).read())[0].incarnation


async def test_orphans_go_and_everything_else_stays() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("a", client=client)
    await log.append(b"x")
    await log.roll()
    await log.append(b"y")
    await create_log("gone", client=client)
    incarnation = await incarnation_of(client, "a")
    gone = await incarnation_of(client, "gone")
    await delete_log("gone", client=client)

    def made(custom: dict[str, bytes]) -> LedgerId:
        return cluster.new_ledger(Quorum(), custom).ledger_id

    orphans = {
        made(stamp("a", incarnation, 1)): OrphanKind.UNLISTED,
        made(stamp("a", incarnation, 2)): OrphanKind.UNLISTED,
        made(stamp("gone", gone, 1)): OrphanKind.LOG_GONE,
    }
    kept = set(cluster.ledgers) - set(orphans)
    kept |= {made(stamp("a", incarnation, 3)), made({}), made({"application": b"its own"})}
    report = await audit_namespace(client=client)
    assert {each.ledger_id: each.standing for each in report.orphans} == orphans
    assert (report.foreign, len(report.pending), report.healthy) == (2, 1, False)
    assert set(cluster.ledgers) == kept | set(orphans)
    done = await Janitor(client).run_once()
    assert {each.ledger_id for each in done.orphans} == set(orphans)
    assert set(cluster.ledgers) == kept
    assert (await audit_namespace(client=client)).healthy
    await log.append(b"z")
    await log.roll()
    await log.close()
    assert (await log_info("a", client=client)).records == 3


async def test_the_audit_repairs_what_it_found_by_the_janitors_ways() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    await create_log("half", client=client)
    await begin_drop(ManifestNode(client.store, "half"))
    orphan = cluster.new_ledger(Quorum(), stamp("old", "0123", 1)).ledger_id
    report = await audit_namespace(client=client)
    assert not report.healthy
    assert report.half_deleted == ("half",)
    assert orphan in cluster.ledgers
    repaired = await audit_namespace(client=client, repair=True)
    assert repaired.healthy
    assert orphan not in cluster.ledgers
    assert await list_logs(client=client) == ["a"]


async def test_the_audit_finds_segments_whose_ledgers_are_missing() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
        await log.roll()
        await log.append(b"y")
    lost = (await log_info("a", client=client)).manifest.segments[0].ledger_id
    del cluster.ledgers[lost]
    steps: list[str] = []
    report = await audit_namespace(client=client, on_progress=lambda p: steps.append(p.what))
    assert [(m.log, m.segment, m.ledger_id, m.records) for m in report.missing] == [
        ("a", 1, lost, 1)
    ]
    assert not report.healthy
    assert not (await audit_namespace(client=client, repair=True)).healthy
    assert steps == ["logs"]


@pytest.mark.parametrize("behind", [False, True])
async def test_a_ledger_made_during_the_look_is_neither_missing_nor_an_orphan(behind: bool) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    log = await Log.open("a", client=client)
    other: list[Log] = []

    async def meanwhile(*_: object) -> None:
        cluster.hooks.clear()
        await log.append(b"x")
        await log.roll()
        other.append(await Log.open("b", client=client))

    class Slow(FakeLedgers):
        async def list(self) -> AsyncIterator[LedgerId]:
            if not behind:
                await meanwhile()
            async for each in super().list():
                yield each
            if behind:
                await meanwhile()

    slow = Slow(cluster, client.store)
    report = await audit_namespace(client=slow)
    assert report.healthy
    assert report.segments == 3
    assert len(cluster.ledgers) == 3
    assert (await Janitor(slow).run_once()).orphans == ()
    assert len(cluster.ledgers) == 5
    for each in (log, *other):
        await each.close()


async def test_no_ledger_of_a_renamed_log_is_taken_for_an_orphan() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    await rename_log("a", "b", client=client)
    await create_log("a", client=client)
    assert (await audit_namespace(client=client)).healthy
    assert (await Janitor(client).run_once()).orphans == ()
    assert (await log_info("b", client=client)).records == 1


class _RenamingStore(MemoryStore):
    """Renames a log to a name that a scan has passed already."""

    def __init__(self) -> None:
        super().__init__("memory://renaming", "renaming")
        self.client: FakeLedgers | None = None

    async def sync(self, path: str = "/") -> None:
        await super().sync(path)
        if path == "/logs/z" and self.client is not None:
            client, self.client = self.client, None
            await rename_log("z", "a", client=client)


async def test_a_log_that_is_renamed_behind_the_scan_keeps_its_ledgers() -> None:
    cluster = FakeCluster()
    store = _RenamingStore()
    client = cluster.client(store)
    async with await Log.open("z", client=client) as log:
        await log.append(b"x")
    await create_log("m", client=client)
    store.client = client
    done = await Janitor(client).run_once()
    assert store.client is None, "the rename came in between"
    assert done.orphans == ()
    assert (await log_info("a", client=client)).records == 1
    assert (await Janitor(client).run_once()).orphans == ()
    assert len(cluster.ledgers) == 1


class _FleeingStore(MemoryStore):
    """Renames a log just before anybody reads it."""

    def __init__(self) -> None:
        super().__init__("memory://fleeing", "fleeing")
        self.client: FakeLedgers | None = None
        self.at = "a"

    async def sync(self, path: str = "/") -> None:
        await super().sync(path)
        if path == f"/logs/{self.at}" and self.client is not None:
            client, self.client = self.client, None
            before, self.at = self.at, "b" if self.at == "a" else "a"
            await rename_log(before, self.at, client=client)
            self.client = client


async def test_a_log_that_is_renamed_before_each_look_is_never_gone() -> None:
    store = _FleeingStore()
    client = FakeCluster().client(store)
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    store.client = client
    assert (await Janitor(client).run_once()).orphans == ()
    store.client = None
    assert (await log_info(store.at, client=client)).records == 1


async def test_while_one_manifest_cannot_be_read_no_ledger_counts_as_one_of_a_deleted_log() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    path = ManifestNode(client.store, "a").path
    whole = (await client.store.get(path)).value
    await client.store.set(path, b"\xff" + whole)
    done = await Janitor(client).run_once()
    assert done.orphans == ()
    assert [trouble.what for trouble in done.troubles] == ["a"]
    report = await audit_namespace(client=client, repair=True)
    assert (report.undecided, report.healthy) == (1, False)
    await client.store.set(path, whole)
    assert (await log_info("a", client=client)).records == 1


@pytest.mark.parametrize("renamed", [False, True])
async def test_a_log_that_the_list_lacks_is_read_before_its_ledgers_are_orphans(
    renamed: bool,
) -> None:
    store = LyingStore()
    cluster = FakeCluster()
    client = cluster.client(store)
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    await client.create(Quorum(), custom=stamp("deleted", "gone", 1, epoch=1, owner="me"))
    if renamed:
        await rename_log("a", "b", client=client)
    store.unlisted["/logs/b" if renamed else "/logs/a"] = 1
    done = await Janitor(client).run_once()
    assert done.orphans == ()
    assert ["lacks it" in str(trouble.error) for trouble in done.troubles] == [True]
    assert (await log_info("b" if renamed else "a", client=client)).records == 1
    assert len((await Janitor(client).run_once()).orphans) == 1


async def test_a_log_that_is_listed_and_not_found_lets_no_ledger_count_as_orphan() -> None:
    store = LyingStore()
    cluster = FakeCluster()
    client = cluster.client(store)
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    store.unread.add("/logs/a")
    done = await Janitor(client).run_once()
    assert done.orphans == ()
    assert ["it is listed" in str(trouble.error) for trouble in done.troubles] == [True]
    assert (await audit_namespace(client=client, repair=True)).undecided == 1
    store.unread.clear()
    assert (await log_info("a", client=client)).records == 1


async def test_a_node_that_is_left_empty_where_a_log_was_keeps_no_orphan() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await client.store.create("/logs/empty/left")
    await client.create(Quorum(), custom=stamp("deleted", "gone", 1, epoch=1, owner="me"))
    assert len((await Janitor(client).run_once()).orphans) == 1


async def test_retention_waits_for_a_consumer_that_one_list_lacks() -> None:
    store = LyingStore()
    client = FakeCluster().client(store)
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    async with await Log.open("a", client=client, settings=settings) as log:
        consumer = await Log.consumer("slow", "a", client=client)
        for _ in range(4):
            await log.append(b"x")
            await log.roll()
        store.unlisted["/logs/a/consumers/slow"] = 1
        assert (await Janitor(client).run_once()).records_trimmed == 0
        store.unread.add("/logs/a/consumers/slow")
        done = await Janitor(client).run_once()
        assert (done.records_trimmed, [each.what for each in done.troubles]) == (0, ["a"])
        store.unread.clear()
        await consumer.close()


async def test_retention_reaches_logs_without_a_writer() -> None:
    client = FakeCluster().client()
    async with await Log.open("a", client=client) as log:
        for _ in range(3):
            await log.append(b"x" * 100, timestamp_ms=1000)
            await log.roll()
        later_ms = now_ms() + 10_000_000
        await log.append(b"y", timestamp_ms=later_ms - 1000)
    node = ManifestNode(client.store, "a")
    janitor = Janitor(client, now_ms=lambda: later_ms)
    assert (await janitor.run_once()).records_trimmed == 0
    manifest, version = await node.read()
    await node.write(replace(manifest, settings=LogSettings(retention_age_s=100)), version)
    done = await janitor.run_once()
    assert (done.records_trimmed, done.ledgers_deleted) == (3, 3)
    assert (await log_info("a", client=client)).records == 1
    assert (await node.read())[0].deleting == ()


async def test_the_janitor_asks_the_slowest_consumer_if_the_settings_say_so() -> None:
    client = FakeCluster().client()
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    async with await Log.open("a", client=client, settings=settings) as log:
        await log.append(b"x")
        async with await Log.consumer("c", "a", client=client) as consumer:
            await log.roll()
            await log.append(b"y")
            await log.roll()
            await log.append(b"z")
            assert (await Janitor(client).run_once()).records_trimmed == 0
            await anext(consumer)
            await consumer.commit()
        assert (await Janitor(client).run_once()).records_trimmed == 1


async def test_what_a_truncation_or_a_deletion_left_half_done_is_finished() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
        await log.roll()
        await log.append(b"y")
        cluster.fail_next("delete", MetadataUnavailable("x", "delete", 1))
        with pytest.raises(MetadataUnavailable):
            await log.truncate(before=1)
    async with await Log.open("b", client=client) as log:
        await log.append(b"x")
    cluster.fail_next("delete", MetadataUnavailable("x", "delete", 1))
    with pytest.raises(MetadataUnavailable):
        await delete_log("b", client=client)
    report = await audit_namespace(client=client)
    assert [waiting.log for waiting in report.waiting] == ["a"]
    assert report.half_deleted == ("b",)
    done = await Janitor(client).run_once()
    assert (done.ledgers_deleted, done.logs_deleted) == (1, ("b",))
    assert len(cluster.ledgers) == 1
    assert (await audit_namespace(client=client)).healthy


async def test_trouble_with_one_log_or_ledger_does_not_keep_the_janitor_from_the_others() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    for name in ("a", "b"):
        async with await Log.open(name, client=client) as log:
            await log.append(b"x")
        await begin_drop(ManifestNode(client.store, name))
    first, second = (
        cluster.new_ledger(Quorum(), stamp("old", "0123", n)).ledger_id for n in (1, 2)
    )
    failing = {min(cluster.ledgers), first}

    async def fail_once(ledger_id: LedgerId) -> None:
        if ledger_id in failing:
            failing.remove(ledger_id)
            raise MetadataUnavailable("x", "delete", 1)

    cluster.before("delete", fail_once)
    done = await Janitor(client).run_once()
    assert done.logs_deleted == ("b",)
    assert [each.ledger_id for each in done.orphans] == [second]
    assert [trouble.what for trouble in done.troubles] == ["a", f"ledger {first}"]
    done = await Janitor(client).run_once()
    assert done.logs_deleted == ("a",)
    assert [each.ledger_id for each in done.orphans] == [first]


async def test_one_pass_deletes_no_more_orphans_than_it_may() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    for number in range(5):
        cluster.new_ledger(Quorum(), stamp("old", "0123", number + 1))
    janitor = Janitor(client, JanitorConfig(orphans_max=2))
    assert [len((await janitor.run_once()).orphans) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_ledger_that_was_never_listed_in_a_sealed_log_does_not_leak_for_ever() -> None:
    cluster = FakeCluster()
    client = cluster.client()
    async with await Log.open("a", client=client) as log:
        await log.append(b"x")
    number = (await ManifestNode(client.store, "a").read())[0].next_segment
    cluster.new_ledger(Quorum(), stamp("a", await incarnation_of(client, "a"), number))
    assert (await Janitor(client).run_once()).orphans == ()
    await seal_log("a", client=client)
    (orphan,) = (await Janitor(client).run_once()).orphans
    assert orphan.standing is OrphanKind.ENDED


async def test_several_janitors_beside_a_writer_that_rolls_delete_nothing_of_the_log() -> None:
    cluster = FakeCluster()
    log = await Log.open("a", client=cluster.client(), settings=LogSettings(roll_records=3))
    config = JanitorConfig(interval_s=0.001, elect=False)
    janitors = [Janitor(cluster.client(), config) for _ in range(3)]
    for janitor in janitors:
        await janitor.start()
    for _ in range(60):
        await log.append(b"x")
    await log.close()
    for _ in range(2):
        await asyncio.gather(*(janitor.next_pass() for janitor in janitors))
    for janitor in janitors:
        await janitor.close()
    assert cluster.deleted == []
    assert (await log_info("a", client=cluster.client())).records == 60


async def test_of_several_janitors_one_is_elected_and_another_follows_it() -> None:
    cluster = FakeCluster()
    config = JanitorConfig(interval_s=0.01)
    first, second = Janitor(cluster.client(), config), Janitor(cluster.client(), config)
    async with first:
        await first.next_pass()
        async with second:
            await first.next_pass()
            await first.next_pass()
            assert second.passes == 0
            await first.close()
            await second.next_pass()


async def test_the_janitor_outlives_an_outage() -> None:
    cluster = FakeCluster()
    cluster.fail_next("list", *(MetadataUnavailable("x", "children", 1) for _ in range(3)))
    async with Janitor(cluster.client(), JanitorConfig(interval_s=0.001)) as janitor:
        done = await ended(janitor.next_pass(), "a pass after the outage")
        assert done.troubles == ()


async def test_a_bug_that_ends_one_pass_ends_none_of_those_to_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    janitor = Janitor(cluster.client(), JanitorConfig(interval_s=0.001))
    passes, told = janitor._pass, list[str]()

    async def stumble() -> JanitorPass:
        if not told:
            told.append("a bug")
            raise ValueError(told[0])
        told.extend(janitor.readiness().reasons)
        return await passes()

    monkeypatch.setattr(janitor, "_pass", stumble)
    async with janitor:
        await ended(janitor.next_pass(), "the pass after the one with a bug")
        await ended(janitor.next_pass(), "another one")
    assert told == ["a bug", "the last pass failed: ValueError('a bug')"]
