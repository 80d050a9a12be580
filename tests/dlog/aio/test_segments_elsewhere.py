"""Segments in object storage, by a newer dlog: this one cannot read them, and keeps them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    audit_namespace,
    create_log,
    delete_log,
    log_compression,
    log_info,
    plan_truncation,
    rename_log,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.maintain.rewrap import rewrap
from dlog.aio.port import LedgerTail
from dlog.aio.read.segments import learn_end
from dlog.aio.store import ManifestNode
from dlog.cli.log.overview import print_segments, segment_json
from dlog.errors import NoSuchLog, ObjectStorageUnsupported
from dlog.health.record_trace import trace_record
from dlog.manifest import ON_BOOKIES, Location, Manifest, Segment, StoredObject
from dlog.position import Start, Timestamp, Txid
from dlog.protocol.orphans import OrphanKind, Stamp, standing
from dlog.wire import log_pb2 as pb
from ledger.errors import DamagedMetadata
from ledger.ids import EntryId, LedgerId
from tests.dlog.aio.test_verifying import ENTRIES
from tests.dlog.aio.test_verifying import written as written_on_bookies
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.test_manifest import EMPTY, grow, roundtrip, sealed

STORED = StoredObject("orders/1-5f3a", 4096)
MOVED = Location(on_bookies=False, object=STORED)
COPIED = Location(object=STORED)


def at(manifest: Manifest, number: int, location: Location) -> Manifest:
    """Return *manifest* with segment *number* at *location*."""
    moved = (replace(s, location=location) if s.number == number else s for s in manifest.segments)
    return replace(manifest, segments=tuple(moved))


async def move(client: FakeLedgers, log: str, number: int, location: Location) -> Segment:
    """Do what a newer dlog does once the object is whole; return the segment."""
    await ManifestNode(client.store, log).edit(lambda manifest: at(manifest, number, location))
    manifest = (await log_info(log, client=client)).manifest
    segment = manifest.find(number)
    assert segment is not None
    if not location.on_bookies:
        await client.delete(segment.ledger_id)
    return segment


async def written(client: FakeLedgers, location: Location = MOVED) -> Segment:
    """Write a closed log of three segments of two records, and move the first."""
    async with await Log.open("orders", client=client) as log:
        for index in range(6):
            if index in {2, 4}:
                await log.roll()
            await log.append(b"%d" % index, txid=index, timestamp_ms=1000 + index)
    return await move(client, "orders", 1, location)


async def values(client: FakeLedgers, start: Start) -> list[bytes]:
    async with await Log.tail("orders", start=start, client=client, follow=False) as reader:
        return [record.value async for record in reader]


# The manifest.


@pytest.mark.parametrize("location", [MOVED, COPIED])
def test_a_location_comes_back_in_a_version_that_older_programs_refuse(location: Location) -> None:
    manifest = at(grow(EMPTY, sealed(3), sealed(2), None), 1, location)
    assert roundtrip(manifest) == manifest
    node = pb.ManifestNode.FromString(manifest.encode("log"))
    assert node.version == 4
    gone = manifest.trimmed(3)
    assert gone.deleting_objects == (STORED,)
    assert pb.ManifestNode.FromString(gone.encode("log")).version == 4
    assert roundtrip(gone) == gone


@pytest.mark.parametrize("location", [MOVED, COPIED])
def test_no_edit_of_a_manifest_loses_an_object(location: Location) -> None:
    manifest = at(grow(EMPTY, sealed(3), sealed(2), None), 1, location)
    ledger = manifest.segments[0].ledger_id
    grown = grow(manifest.with_sealed(3, sealed(1)), sealed(4), None)
    assert grown.segments[0].location == location
    for gone in (grown.trimmed(4), grown.dropping(), grown.trimmed(4).dropping()):
        assert gone.deleting_objects == (STORED,)
        assert (ledger in gone.deleting) is location.on_bookies
        assert gone.deleted(gone.deleting).deleting_objects == (STORED,)


def test_an_object_of_several_segments_is_deleted_with_the_last_of_them() -> None:
    manifest = grow(EMPTY, sealed(3), sealed(2), None)
    shared = at(at(manifest, 1, MOVED), 2, MOVED)
    assert shared.trimmed(3).deleting_objects == ()
    assert shared.trimmed(3).trimmed(5).deleting_objects == (STORED,)
    assert shared.trimmed(5).deleting_objects == (STORED,)


def test_an_object_has_one_size_and_is_known_by_its_name() -> None:
    manifest = grow(EMPTY, sealed(3), sealed(2), None)
    other = StoredObject(STORED.name, STORED.bytes + 1)
    with pytest.raises(AssertionError, match="two sizes"):
        at(at(manifest, 1, MOVED), 2, Location(False, other))
    with pytest.raises(AssertionError, match="waits for deletion"):
        replace(at(manifest, 1, MOVED), deleting_objects=(other,))
    with pytest.raises(AssertionError, match="two sizes"):
        replace(manifest, deleting_objects=(STORED, other))


def test_the_ledger_of_a_segment_that_has_left_the_bookies_may_wait_for_deletion() -> None:
    """A newer dlog lists it in the compare-and-swap that lets go of it."""
    manifest = at(grow(EMPTY, sealed(3), sealed(2), None), 1, COPIED)
    ledger = manifest.segments[0].ledger_id
    stamp = Stamp("log", manifest.incarnation, 1)
    assert standing(ledger, stamp, manifest) is OrphanKind.SEGMENT
    left = replace(at(manifest, 1, MOVED), deleting=(ledger,))
    assert roundtrip(left) == left
    assert standing(ledger, stamp, left) is OrphanKind.WAITING
    assert standing(ledger, stamp, left.deleted([ledger])) is OrphanKind.UNLISTED
    with pytest.raises(AssertionError, match="a listed ledger waits"):
        replace(manifest, deleting=(ledger,))


def test_a_location_that_cannot_be_is_damage() -> None:
    manifest = at(grow(EMPTY, sealed(3), None), 1, MOVED)

    def damaged(change: Callable[[pb.ManifestNode], object]) -> str:
        node = pb.ManifestNode.FromString(manifest.encode("log"))
        change(node)
        with pytest.raises(DamagedMetadata) as caught:
            Manifest.decode(node.SerializeToString(), path="/logs/log")
        return str(caught.value)

    def open_one(node: pb.ManifestNode) -> None:
        node.elsewhere[0].number = 2

    def unlisted(node: pb.ManifestNode) -> None:
        node.elsewhere[0].number = 3

    def older(node: pb.ManifestNode) -> None:
        node.version = 3

    assert "format version 3 has no objects" in damaged(older)
    assert "an object has a name" in damaged(lambda node: node.elsewhere[0].ClearField("object"))
    assert "open ones are on bookies" in damaged(open_one)
    assert "of a segment that is listed" in damaged(unlisted)
    assert "one location" in damaged(lambda node: node.elsewhere.append(node.elsewhere[0]))
    assert "waits for deletion" in damaged(
        lambda node: node.deleting_objects.append(node.elsewhere[0].object)
    )
    with pytest.raises(AssertionError, match="is somewhere"):
        Location(on_bookies=False)


# What reads.


async def test_a_reader_that_meets_an_object_says_what_to_do_and_reads_what_is_after_it() -> None:
    client = FakeCluster().client()
    await written(client)
    inside: list[Start] = ["start", 1, Txid(1), Timestamp(1001)]
    for start in inside:
        with pytest.raises(ObjectStorageUnsupported) as caught:
            await values(client, start)
        assert str(caught.value) == (
            "log 'orders': segment 1 is in object storage, as 'orders/1-5f3a', put there by a "
            "newer dlog; this one cannot read objects: upgrade it"
        )
        assert (caught.value.log, caught.value.object) == ("orders", "orders/1-5f3a")
        assert not caught.value.retryable
    after: list[Start] = [2, Txid(2), Timestamp(1002)]
    for start in after:
        assert await values(client, start) == [b"2", b"3", b"4", b"5"]


async def test_a_reader_that_comes_from_the_segment_before_it_ends_with_the_same_error() -> None:
    client = FakeCluster().client()
    await written(client, ON_BOOKIES)
    await move(client, "orders", 2, MOVED)
    async with await Log.tail("orders", start=0, client=client) as reader:
        assert [(await anext(reader)).value for _ in range(2)] == [b"0", b"1"]
        with pytest.raises(ObjectStorageUnsupported, match="segment 2"):
            await anext(reader)


class Unaware:
    """A reader whose ledger was CLOSED, and which has not heard of it yet."""

    closed = False
    last_entry: EntryId | None = None

    async def read_last_stored(self) -> EntryId:
        self.last_entry = EntryId(1)
        return self.last_entry


async def test_a_reader_learns_an_end_though_the_next_segment_has_left_the_bookies() -> None:
    later = Segment(2, LedgerId(999), 0, 2, sealed(1), MOVED)
    reader = cast("LedgerTail", Unaware())
    assert await learn_end(FakeCluster().client(), reader, later) == 1


async def test_a_segment_with_a_copy_in_an_object_is_read_from_bookies() -> None:
    client = FakeCluster().client()
    await written(client, COPIED)
    assert await values(client, "start") == [b"%d" % index for index in range(6)]


async def test_a_segment_with_a_copy_in_an_object_is_not_lost_with_its_ledger() -> None:
    client = FakeCluster().client()
    segment = await written(client, COPIED)
    await client.delete(segment.ledger_id)
    with pytest.raises(ObjectStorageUnsupported, match="segment 1"):
        await values(client, "start")
    assert await values(client, 2) == [b"2", b"3", b"4", b"5"]
    assert (await audit_namespace(client=client)).missing == ()
    report = await verify_log("orders", client=client)
    assert [(each.segment, each.reason) for each in report.problems] == [
        (1, "it is in object storage (orders/1-5f3a): this dlog cannot verify it")
    ]
    assert (report.trimmed, report.records) == (0, 4)


# What changes the log.


async def test_the_log_is_written_rolled_renamed_and_truncated_and_its_object_is_kept() -> None:
    client = FakeCluster().client()
    segment = await written(client)
    async with await Log.open("orders", client=client) as log:
        assert log.last_txid == 5
        await log.append(b"6")
        await log.roll()
        await log.append(b"7")
    await update_settings("orders", {"roll_records": 1000}, client=client)
    await rename_log("orders", "bills", client=client)
    manifest = (await log_info("bills", client=client)).manifest
    assert manifest.segments[0] == segment
    plan = await plan_truncation("bills", before=4, client=client)
    assert len(plan.segments) == 2
    assert segment.ledger_id not in plan.ledgers
    await truncate_log("bills", before=4, client=client)
    manifest = (await log_info("bills", client=client)).manifest
    assert (manifest.deleting, manifest.deleting_objects) == ((), (STORED,))
    async with await Log.open("bills", client=client) as log:
        await log.append(b"8")
    assert (await log_info("bills", client=client)).manifest.deleting_objects == (STORED,)


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_deleted_log_waits_for_a_dlog_that_deletes_its_objects(is_trimmed: bool) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await written(client)
    if is_trimmed:
        await truncate_log("orders", before=4, client=client)
    for _ in range(2):
        with pytest.raises(ObjectStorageUnsupported, match="this one cannot delete objects"):
            await delete_log("orders", client=client)
    assert [each async for each in client.list()] == [], "its ledgers are gone"
    manifest, _ = await ManifestNode(client.store, "orders").read()
    assert (manifest.dropped, manifest.deleting_objects) == (True, (STORED,))
    with pytest.raises(ObjectStorageUnsupported):
        await Log.open("orders", client=client)
    with pytest.raises(NoSuchLog):
        await Log.open("orders", client=client, create=False)
    with pytest.raises(ObjectStorageUnsupported):
        await create_log("orders", client=client)
    done = await Janitor(client).run_once()
    assert [(each.what, type(each.error)) for each in done.troubles] == [
        ("orders", ObjectStorageUnsupported)
    ]
    assert (await ManifestNode(client.store, "orders").read())[0] == manifest


async def test_a_retention_that_reaches_an_object_lists_it_for_deletion() -> None:
    client = FakeCluster().client()
    await written(client)
    await update_settings("orders", {"retention_bytes": 1}, client=client)
    await Janitor(client).run_once()
    manifest = (await log_info("orders", client=client)).manifest
    assert [each.number for each in manifest.segments] == [3]
    assert (manifest.deleting, manifest.deleting_objects) == ((), (STORED,))


# What looks.


async def test_an_audit_does_not_miss_the_ledger_and_a_verification_says_what_it_left_out() -> None:
    client = FakeCluster().client()
    await written(client)
    assert (await audit_namespace(client=client)).healthy
    report = await verify_log("orders", client=client)
    assert [(each.segment, each.reason) for each in report.problems] == [
        (1, "it is in object storage (orders/1-5f3a): this dlog cannot verify it")
    ]
    assert (report.healthy, report.segments, report.records) == (False, 3, 4)
    assert await log_compression("orders", client=client) is not None


async def test_on_real_bookies_a_trace_and_a_verification_meet_the_object() -> None:
    async with written_on_bookies() as (_, client, segments):
        await ManifestNode(client.store, "a").edit(lambda manifest: at(manifest, 1, MOVED))
        await client.delete(segments[0].ledger_id)
        with pytest.raises(ObjectStorageUnsupported, match="segment 1"):
            await trace_record(client, "a", 0, timeout_s=5.0)
        traced = await trace_record(client, "a", ENTRIES, timeout_s=5.0)
        assert (traced.offset, traced.segment.number) == (ENTRIES, 2)
        report = await verify_log("a", client=client)
        assert ([each.segment for each in report.problems], report.records) == ([1], ENTRIES)
        async with await Log.open("a", client=client) as log:
            assert (await log.append(b"next")).offset == 2 * ENTRIES


async def test_keys_are_not_rewrapped_while_an_object_would_keep_the_old_one() -> None:
    client = FakeCluster().client()
    await written(client, COPIED)
    with pytest.raises(ObjectStorageUnsupported, match="cannot rewrap the keys of objects"):
        await rewrap(client, "orders", "new")  # type: ignore[arg-type]


def test_where_a_segment_is_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = grow(EMPTY, sealed(3), sealed(2), None)
    print_segments(manifest.segments)
    assert "stored on" not in capsys.readouterr().out
    manifest = at(at(manifest, 1, MOVED), 2, Location(object=StoredObject("b", 1)))
    print_segments(manifest.segments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip().split("  ")[-1].strip() for line in lines if line.strip()][-4:] == [
        "stored on",
        "orders/1-5f3a",
        "bookies, b",
        "bookies",
    ]
    shown = [json.loads(json.dumps(segment_json(each))) for each in manifest.segments]
    assert [(each["on_bookies"], each["object"]) for each in shown] == [
        (False, "orders/1-5f3a"),
        (True, "b"),
        (True, None),
    ]
