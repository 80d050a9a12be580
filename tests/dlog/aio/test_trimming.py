"""Truncation by all its measures, plans that say what goes, retention that waits for consumers."""

from dataclasses import replace

import pytest

from dlog.aio import Log
from dlog.aio.admin import create_log, log_info, plan_truncation, rename_log, truncate_log
from dlog.aio.maintain.trim import Before, apply_retention
from dlog.aio.store import ManifestNode
from dlog.errors import InvalidPosition, NoSuchLog, Trimmed
from dlog.manifest import Manifest, Sealed
from dlog.position import DLSN, NO_TXID, Timestamp, Txid
from dlog.protocol.retention import offset_keeping_bytes, plan_trim
from dlog.settings import LogSettings
from ledger.ids import EntryId, LedgerId
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers


def manifest_of(sizes: list[int], *, settings: LogSettings | None = None) -> Manifest:
    """Ten records in each sealed segment, of *sizes* payload bytes, and an open one."""
    manifest = Manifest(incarnation="i", settings=settings or LogSettings())
    for number, size in enumerate(sizes, 1):
        sealed = Sealed(EntryId(0), 10, size, NO_TXID, NO_TXID, 0, number * 1000)
        manifest = manifest.with_segment(number, LedgerId(100 + number), 0)
        manifest = manifest.with_sealed(number, sealed)
    return manifest.with_segment(len(sizes) + 1, LedgerId(999), 0)


def test_a_plan_names_the_ledgers_that_go_and_the_segment_that_is_cut_inside() -> None:
    plan = plan_trim("a", manifest_of([100, 200, 300]), 25)
    assert plan.ledgers == (101, 102)
    assert plan.bytes == 300
    assert plan.records == 25
    assert plan.inside is not None
    assert plan.inside.number == 3


def test_a_plan_at_a_segment_bound_cuts_no_segment_inside() -> None:
    plan = plan_trim("a", manifest_of([100, 200, 300]), 20)
    assert plan.ledgers == (101, 102)
    assert plan.inside is None


def test_a_plan_tells_what_an_earlier_truncation_left_to_be_deleted() -> None:
    before = manifest_of([100, 200, 300]).trimmed(10)
    plan = plan_trim("a", before, 5)
    assert plan.ledgers == (101,)
    assert plan.records == 0


def test_keeping_bytes_never_keeps_fewer_than_asked_for() -> None:
    manifest = manifest_of([100, 100, 100])
    for bytes_min, offset in (
        (0, 30),
        (1, 20),
        (100, 20),
        (101, 10),
        (200, 10),
        (300, 0),
        (999, 0),
    ):
        assert offset_keeping_bytes(manifest, bytes_min) == offset
    assert offset_keeping_bytes(manifest, 100, open_bytes=100) == 30


def test_retention_that_waits_for_consumers_trims_nothing_that_is_not_processed() -> None:
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    manifest = manifest_of([100, 100, 100], settings=settings)
    assert manifest.retained_from(0) == 0
    for processed, offset in ((0, 0), (9, 0), (10, 10), (25, 20), (99, 20)):
        assert manifest.retained_from(0, processed=processed) == offset
    free = replace(manifest, settings=LogSettings(retention_bytes=1))
    assert free.retained_from(0) == 20


def test_the_setting_outlives_the_manifests_bytes() -> None:
    for waits in (False, True):
        settings = LogSettings(retention_waits_for_consumers=waits)
        manifest = Manifest(incarnation="i", settings=settings)
        assert Manifest.decode(manifest.encode("a"), path="/logs/a") == manifest


async def three_segments(client: FakeLedgers, settings: LogSettings | None = None) -> Log:
    """Return an open log of ten records in each of three segments, a second between any two."""
    log = await Log.open("a", client=client, settings=settings)
    for segment in range(3):
        if segment:
            await log.roll()
        for index in range(segment * 10, segment * 10 + 10):
            await log.append(b"x" * 100, txid=index * 2, timestamp_ms=1_000_000 + index * 1000)
    return log


@pytest.mark.parametrize(
    ("before", "offset"),
    [(15, 15), (DLSN(2, 3, 0), 13), (Timestamp(1_017_000), 17), (Txid(28), 14), (25, 25)],
    ids=["offset", "DLSN", "timestamp", "txid", "offset in the open segment"],
)
async def test_a_log_is_truncated_by_each_way_to_name_a_place(before: Before, offset: int) -> None:
    client = FakeCluster().client()
    log = await three_segments(client)
    plan = await plan_truncation("a", before=before, client=client)
    assert (await log_info("a", client=client)).manifest.trim_offset == 0
    assert plan.trim_offset == offset
    assert await truncate_log("a", before=before, client=client) == offset
    assert client.cluster.deleted == list(plan.ledgers)
    reader = await Log.tail("a", client=client, follow=False)
    assert [record.offset async for record in reader] == list(range(offset, 30))
    await log.close()


async def test_a_log_is_truncated_by_bytes_and_by_age_beside_its_writer() -> None:
    client = FakeCluster().client()
    log = await three_segments(client)
    sealed = [s.sealed for s in (await log_info("a", client=client)).manifest.segments]
    assert sealed[1] is not None
    assert await truncate_log("a", keep_bytes=sealed[1].bytes, client=client) == 20
    assert client.cluster.deleted[-1:] == [2]
    assert await truncate_log("a", keep_age_s=3600, client=client) == 30  # all is of 1970
    assert (await log.append(b"y")).offset == 30
    await log.close()


async def test_a_truncation_by_age_keeps_what_is_appended_while_it_looks() -> None:
    client = FakeCluster().client()
    log = await Log.open("a", client=client)
    looks = 0

    async def append_behind_the_search(*_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            await log.append(b"young")

    client.cluster.before("open", append_behind_the_search)
    assert await truncate_log("a", keep_age_s=3600, client=client) == 0
    assert looks >= 2
    await log.close()


async def test_the_writer_truncates_its_own_log_by_the_same_measures() -> None:
    client = FakeCluster().client()
    log = await three_segments(client)
    await log.truncate(keep_bytes=10**9)
    assert (await log_info("a", client=client)).manifest.trim_offset == 0
    await log.truncate(before=Timestamp(1_000_000 + 12_000))
    assert (await log_info("a", client=client)).manifest.trim_offset == 12
    await log.truncate(before=29)
    assert (await log_info("a", client=client)).manifest.trim_offset == 29
    with pytest.raises(ValueError, match="by one of"):
        await log.truncate()
    with pytest.raises(ValueError, match="by one of"):
        await log.truncate(before=1, keep_bytes=1)
    await log.close()


async def test_a_truncation_to_what_is_trimmed_already_changes_nothing() -> None:
    client = FakeCluster().client()
    log = await three_segments(client)
    assert await truncate_log("a", before=25, client=client) == 25
    for before in (0, 25, DLSN(1, 0, 0), Timestamp(0), Txid(0)):
        assert await truncate_log("a", before=before, client=client) == 25
    with pytest.raises(Trimmed):
        await Log.tail("a", start=24, client=client)
    await log.close()


async def test_a_truncation_beyond_the_end_or_of_no_log_is_refused() -> None:
    client = FakeCluster().client()
    with pytest.raises(NoSuchLog):
        await truncate_log("a", before=0, client=client)
    log = await three_segments(client)
    for before in (-1, 31, DLSN(7, 0, 0)):
        with pytest.raises(InvalidPosition):
            await truncate_log("a", before=before, client=client)
        with pytest.raises(InvalidPosition):
            await plan_truncation("a", before=before, client=client)
    await log.close()


async def test_an_empty_log_can_be_truncated_by_everything() -> None:
    client = FakeCluster().client()
    await create_log("a", client=client)
    assert await truncate_log("a", before=0, client=client) == 0
    assert await truncate_log("a", keep_bytes=0, client=client) == 0
    assert await truncate_log("a", keep_age_s=0, client=client) == 0


async def test_a_roll_applies_retention_up_to_the_slowest_consumer_if_the_log_says_so() -> None:
    client = FakeCluster().client()
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    log = await Log.open("a", client=client, settings=settings)
    for _ in range(10):
        await log.append(b"x" * 100)
    async with await Log.consumer("slow", "a", client=client) as consumer:
        await log.roll()
        await log.append(b"y")
        await log.roll()
        assert (await log_info("a", client=client)).manifest.trim_offset == 0
        records = [record async for record in consumer.read_until(10)]
        assert len(records) == 10
        await consumer.commit()
    await log.append(b"z")
    await log.roll()
    node = ManifestNode(client.store, "a")
    assert (await node.read())[0].trim_offset == 10
    await log.close()


async def test_retention_takes_nothing_from_consumers_that_a_rename_took_along() -> None:
    client = FakeCluster().client()
    settings = LogSettings(retention_bytes=1, retention_waits_for_consumers=True)
    log = await Log.open("a", client=client, settings=settings)
    await (await Log.consumer("slow", "a", client=client)).close()
    for _ in range(2):
        await log.append(b"x" * 100)
        await log.roll()
    node = ManifestNode(client.store, "a")
    manifest, _ = await node.read()
    node.follow(manifest.incarnation)
    await rename_log("a", "b", client=client)
    kept = await apply_retention(client, node, manifest, now_ms=0)
    assert kept.trim_offset == 0
    await log.close()
