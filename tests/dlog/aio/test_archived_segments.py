"""Segments in object storage: they are archived, read, verified, truncated and deleted."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    archive_log,
    audit_namespace,
    create_log,
    delete_log,
    log_compression,
    plan_truncation,
    rename_log,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.maintain.archive import ArchiveReport
from dlog.aio.maintain.archiver import Archiver, ArchiverConfig
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.maintain.rewrap import rewrap
from dlog.aio.port import LedgerTail
from dlog.aio.read.chunks import ChunkReader
from dlog.aio.read.segments import learn_end
from dlog.aio.store import ManifestNode
from dlog.archive import object_store
from dlog.cli.log.overview import print_segments, segment_json
from dlog.errors import (
    DamagedObject,
    InvalidSettings,
    NoSuchLog,
    ObjectLost,
    ObjectsOwnedElsewhere,
    ObjectStorageRefused,
    ObjectStorageUnsupported,
    Trimmed,
)
from dlog.health import archive as archive_health
from dlog.health.archive import gather_archive
from dlog.health.record_trace import trace_record
from dlog.health.survey import Reach
from dlog.manifest import ON_BOOKIES, Location, Manifest, Segment, StoredObject
from dlog.position import Start, Timestamp, Txid
from dlog.protocol import archive, object_owner
from dlog.protocol.archive import is_orphan, object_name, plan_archive
from dlog.protocol.manifest_steps import LOST_REPLIES_MAX
from dlog.protocol.orphans import OrphanKind, Stamp, standing
from dlog.settings import LogSettings
from dlog.wire import log_pb2 as pb
from ledger.errors import DamagedMetadata, LevelTooLow, MetadataUnavailable, NoSuchLedger
from ledger.feature_level import ARCHIVE
from ledger.ids import EntryId, LedgerId
from ledger.metastore.memory import MemoryStore
from tests.dlog.aio.test_level_of_encryption import put_at_level
from tests.dlog.aio.test_verifying import ENTRIES
from tests.dlog.aio.test_verifying import written as written_on_bookies
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore
from tests.dlog.test_manifest import EMPTY as WITHOUT
from tests.dlog.test_manifest import grow, roundtrip, sealed
from tests.waiting import PATIENCE_S

EMPTY = replace(WITHOUT, settings=LogSettings(archive="s3://bucket/logs"))
STORED = StoredObject("1-5f3a", 4096, EMPTY.storage)
MOVED = Location(on_bookies=False, object=STORED)
COPIED = Location(object=STORED)
ALL = [b"%d" % index for index in range(6)]


@pytest.fixture(autouse=True)
def _objects_of_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "SMALL_BYTES", -1)


def at(manifest: Manifest, number: int, location: Location) -> Manifest:
    """Return *manifest* with segment *number* at *location*."""
    moved = (replace(s, location=location) if s.number == number else s for s in manifest.segments)
    return replace(manifest, segments=tuple(moved))


async def written(client: FakeLedgers, tmp_path: Path, **settings: object) -> Path:
    """Write a closed log of three segments of two records; return where its objects are to be."""
    storage = tmp_path / "objects"
    await create_log(
        "orders",
        settings=LogSettings(archive=f"file://{storage}", **settings),  # type: ignore[arg-type]
        client=client,
    )
    async with await Log.open("orders", client=client) as log:
        for index in range(6):
            if index in {2, 4}:
                await log.roll()
            await log.append(b"%d" % index, txid=index, timestamp_ms=1000 + index)
    return storage / (await manifest_of(client)).incarnation


async def archived(client: FakeLedgers, tmp_path: Path, **settings: object) -> Path:
    """As `written`, with all of it archived."""
    folder = await written(client, tmp_path, **settings)
    report = await archive_log("orders", client=client)
    assert not report.failures
    return folder


async def manifest_of(client: FakeLedgers, log: str = "orders") -> Manifest:
    manifest, _ = await ManifestNode(client.store, log).read()
    return manifest


async def values(client: FakeLedgers, start: Start, log: str = "orders") -> list[bytes]:
    async with await Log.tail(log, start=start, client=client, follow=False) as reader:
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
    other = replace(STORED, bytes=STORED.bytes + 1)
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


# What archives.


async def test_an_archived_log_is_read_without_its_ledgers_from_everywhere(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    folder = await written(client, tmp_path)
    report = await archive_log("orders", client=client)
    assert (len(report.archived), report.released, report.failures) == (3, [1, 2, 3], [])
    assert report.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert cluster.ledgers == {}
    manifest = await manifest_of(client)
    assert [str(each.location) for each in manifest.segments] == [x.name for x in report.archived]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        stored.name for stored in report.archived
    )
    starts: list[Start] = ["start", 0, Txid(0), Timestamp(1000)]
    for start in starts:
        assert await values(client, start) == ALL
    inside: list[Start] = [3, Txid(3), Timestamp(1003)]
    for start in inside:
        assert await values(client, start) == ALL[3:]
    assert await values(client, "end") == []
    assert [record.value for record in await Log.last("orders", client=client)] == [b"5"]
    assert (await archive_log("orders", client=client)).archived == [], "nothing is left to do"
    assert await log_compression("orders", client=client) is not None


async def test_a_log_is_written_on_after_its_last_segment_was_archived(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    async with await Log.open("orders", client=client) as log:
        assert log.last_txid == 5
        assert (await log.append(b"6", txid=6)).offset == 6
    assert await values(client, "start") == [*ALL, b"6"]


async def test_a_tail_crosses_from_objects_to_bookies_while_the_log_is_archived(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    async with (
        await Log.open("orders", client=client) as log,
        await Log.tail("orders", start=0, client=client) as reader,
    ):
        assert (await anext(reader)).value == b"0"
        await archive_log("orders", client=client)
        await log.append(b"6", txid=6)
        assert [(await anext(reader)).value for _ in range(6)] == [*ALL[1:], b"6"]


async def test_an_open_segment_is_not_archived(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    async with await Log.open("orders", client=client) as log:
        await log.append(b"6")
        report = await archive_log("orders", at_once=True, client=client)
        assert len(report.archived) == 3
        assert (await manifest_of(client)).segments[-1].location == ON_BOOKIES


async def test_a_segment_without_records_is_archived_too(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await (await Log.open("orders", client=client)).close()
    await archived_again(client)
    assert await values(client, "start") == ALL
    assert (await verify_log("orders", client=client)).healthy


async def archived_again(client: FakeLedgers) -> ArchiveReport:
    report = await archive_log("orders", client=client)
    assert not report.failures
    manifest = await manifest_of(client)
    assert all(not each.location.on_bookies for each in manifest.segments if each.sealed)
    return report


async def test_a_log_without_object_storage_cannot_be_archived_and_one_without_objects_may_change(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await create_log("plain", client=client)
    with pytest.raises(InvalidSettings, match="set archive to its URI"):
        await archive_log("plain", client=client)
    await update_settings("plain", {"archive": f"file://{tmp_path}/a"}, client=client)
    await update_settings("plain", {"archive": f"file://{tmp_path}/b/"}, client=client)
    assert (await manifest_of(client, "plain")).settings.archive == f"file://{tmp_path}/b"
    await archived(client, tmp_path)
    with pytest.raises(InvalidSettings, match="where they stay"):
        await update_settings("orders", {"archive": ""}, client=client)
    await update_settings("orders", {"archive_after_s": "1h"}, client=client)


async def test_settings_say_when_a_segment_is_archived_and_when_its_ledger_goes(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path, archive_after_s=3600, local_keep_s=7200)
    assert (await archive_log("orders", client=client)).archived == []
    report = await archive_log("orders", at_once=True, client=client)
    assert (len(report.archived), report.released) == (3, [])
    manifest = await manifest_of(client)
    assert all(each.location.on_bookies and each.location.object for each in manifest.segments)
    created_ms = manifest.segments[-1].created_ms
    early, late = created_ms + 3_600_000, created_ms + 7_300_000
    assert plan_archive(manifest, early).release == ()
    assert plan_archive(manifest, late).release == (1, 2, 3)
    await update_settings("orders", {"local_keep_s": 0}, client=client)
    assert (await archive_log("orders", client=client)).released == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "age_s", "due"),
    [
        ({}, 0, (1, 2, 3)),
        ({"archive_after_s": 100}, 50, ()),
        ({"archive_after_s": 100}, 150, (1, 2, 3)),
        ({"archive_after_bytes": 25}, 1000, (1,)),
        ({"archive_after_bytes": 10}, 0, (1, 2)),
        ({"archive_after_bytes": 1, "archive_after_s": 100}, 150, (1, 2, 3)),
        ({"archive_after_bytes": 1, "archive_after_s": 100}, 50, (1, 2)),
    ],
)
def test_a_segment_is_due_by_its_age_or_by_the_bytes_behind_it(
    settings: dict[str, int], age_s: int, due: tuple[int, ...]
) -> None:
    grown = grow(EMPTY, *[replace(sealed(2), bytes=15) for _ in range(3)], None)
    created_ms = grown.segments[-1].created_ms
    manifest = replace(grown, settings=LogSettings(archive="s3://b/a", **settings))  # type: ignore[arg-type]
    now_ms = created_ms + age_s * 1000
    assert plan_archive(manifest, now_ms).archive == tuple((number,) for number in due)
    kept = {name.replace("archive_after", "local_keep"): each for name, each in settings.items()}
    local = replace(manifest, settings=LogSettings(archive=EMPTY.settings.archive, **kept))  # type: ignore[arg-type]
    for number in (1, 2, 3):
        local = at(local, number, Location(object=replace(STORED, name=f"{number}-a")))
    assert plan_archive(local, now_ms).release == due


async def test_small_segments_share_an_object_which_goes_with_the_last_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SMALL_BYTES", 1 << 20)
    cluster = FakeCluster()
    client = cluster.client()
    folder = await written(client, tmp_path)
    report = await archive_log("orders", client=client)
    assert (len(report.archived), len({part.name for part in report.archived})) == (3, 1)
    assert (report.released, cluster.ledgers) == ([1, 2, 3], {})
    (path,) = folder.iterdir()
    assert path.name.startswith("1-3-")
    assert path.stat().st_size == report.bytes == sum(part.bytes for part in report.archived)
    manifest = await manifest_of(client)
    assert roundtrip(manifest) == manifest
    for offset in range(6):
        assert await values(client, offset) == ALL[offset:]
        assert await values(client, Txid(offset)) == ALL[offset:]
    assert (await verify_log("orders", client=client)).healthy
    await truncate_log("orders", before=4, client=client)
    assert list(folder.iterdir()) == [path], "a segment that is listed is in it"
    assert (await archive_log("orders", client=client)).orphans == 0
    assert await values(client, "start") == ALL[4:]
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(DamagedObject, match=r"offsets 4\.\."):
        await values(client, 4)
    path.write_bytes(data)
    await delete_log("orders", client=client)
    assert list(folder.iterdir()) == []


async def test_an_attempt_for_several_segments_takes_those_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation comes between: what is listed still is in the object, which is no orphan."""
    monkeypatch.setattr(archive, "SMALL_BYTES", 1 << 20)
    client = FakeCluster().client()
    folder = await written(client, tmp_path, local_keep_s=3600)
    trimmed: list[int] = []

    def on_progress(_: object) -> None:
        trimmed.append(1)

    report = await archive_log("orders", at_once=True, on_progress=on_progress, client=client)
    (name,) = {part.name for part in report.archived}
    assert trimmed
    manifest = await manifest_of(client)
    for before, after in ((manifest.trimmed(2), False), (manifest.trimmed(4), False)):
        assert is_orphan(before, name) is after
    free = at(manifest, 2, ON_BOOKIES)
    assert not is_orphan(at(at(free, 1, ON_BOOKIES), 3, ON_BOOKIES), name)
    other = Location(object=replace(STORED, storage=manifest.storage, name="x"))
    elsewhere = at(at(at(manifest, 1, other), 2, other), 3, other)
    assert is_orphan(elsewhere, name)
    assert not is_orphan(at(elsewhere, 2, ON_BOOKIES), name), "its attempt may yet succeed"
    assert [path.name for path in folder.iterdir()] == [name]


# What fails.


async def test_an_upload_that_fails_leaves_the_ledger_and_others_go_on(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    folder = await written(client, tmp_path)
    first = (await manifest_of(client)).segments[0].ledger_id
    cluster.fail_next("describe", NoSuchLedger(first))
    report = await archive_log("orders", client=client)
    assert [(each.segment, type(each.error)) for each in report.failures] == [(1, NoSuchLedger)]
    assert (len(report.archived), report.released) == (2, [2, 3])
    assert first in cluster.ledgers
    assert len(list(folder.iterdir())) == 2
    assert await values(client, "start") == ALL


async def test_a_swap_that_loses_its_answer_is_found_done_and_keeps_its_object(
    tmp_path: Path,
) -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    folder = await written(client, tmp_path, local_keep_s=7200)
    store.faults.extend([None, None, "lost reply"])  # the first two hold the objects
    report = await archive_log("orders", at_once=True, client=client)
    assert (len(report.archived), report.failures, report.orphans) == (3, [], 0)
    listed = sorted(stored.name for stored in report.archived)
    assert sorted(path.name for path in folder.iterdir()) == listed


async def test_an_object_whose_swap_never_happened_goes_once_another_attempt_succeeded(
    tmp_path: Path,
) -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = FakeCluster().client(store)
    folder = await written(client, tmp_path, local_keep_s=7200)
    store.faults.extend([None, None])
    store.faults.extend(["lost request"] * LOST_REPLIES_MAX)
    report = await archive_log("orders", at_once=True, client=client)
    assert [(each.segment, type(each.error)) for each in report.failures] == [
        (1, MetadataUnavailable)
    ]
    assert (len(report.archived), report.orphans) == (2, 0)
    assert len(list(folder.iterdir())) == 3, "its attempt may yet succeed, for all that is known"
    report = await archive_log("orders", at_once=True, client=client)
    assert (len(report.archived), report.orphans) == (1, 1)
    assert len(list(folder.iterdir())) == 3


async def test_a_ledger_stays_while_its_object_is_lost_or_damaged(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    folder = await written(client, tmp_path, local_keep_s=7200)
    await archive_log("orders", at_once=True, client=client)
    for segment in (await manifest_of(client)).segments:
        assert segment.location.object is not None
        path = folder / segment.location.object.name
        if segment.number == 1:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    await update_settings("orders", {"local_keep_s": 0}, client=client)
    report = await archive_log("orders", client=client)
    assert [type(each.error) for each in report.failures] == [ObjectLost]
    (folder / "1-5f3a").write_bytes(b"")
    assert len(cluster.ledgers) == 3
    assert await values(client, "start") == ALL
    verified = await verify_log("orders", client=client)
    assert [problem.segment for problem in verified.problems] == [1, 2, 3]


@pytest.mark.parametrize("change", ["truncated", "turned", "gone", "another"])
async def test_an_object_that_is_not_what_was_written_names_log_offsets_and_object(
    change: str, tmp_path: Path
) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    names = [str(each.location) for each in (await manifest_of(client)).segments]
    path = folder / names[1]
    data = path.read_bytes()
    match change:
        case "truncated":
            path.write_bytes(data[:-1])
        case "turned":
            path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
        case "gone":
            path.unlink()
        case _:
            path.write_bytes((folder / names[0]).read_bytes())
    error: type[Exception] = ObjectLost if change == "gone" else DamagedObject
    async with await Log.tail("orders", start=0, client=client) as reader:
        assert [(await anext(reader)).value for _ in range(2)] == ALL[:2]
        with pytest.raises(error, match=rf"log 'orders': offsets 2\.\..*/{names[1]}"):
            await anext(reader)
    assert await values(client, 4) == ALL[4:]
    report = await verify_log("orders", client=client)
    assert [problem.segment for problem in report.problems] == [2]
    assert report.records == 4
    audited = await audit_namespace(client=client)
    lost = [(each.segment, each.records) for each in audited.missing_objects]
    if change != "another":  # its size may be the same
        assert lost == ([] if change == "turned" else [(2, 2)]), "an audit reads no object"
    assert audited.healthy is (not lost)


async def test_storage_that_refuses_says_what_to_check(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    (tmp_path / "objects").write_bytes(b"a file")
    with pytest.raises(ObjectStorageRefused, match="check the bucket"):
        await archive_log("orders", client=client)


# Readers that know of a moment before.


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


# What changes the log.


async def test_the_log_is_renamed_and_truncated_and_its_objects_go_with_their_segments(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    names = [str(each.location) for each in (await manifest_of(client)).segments]
    await rename_log("orders", "bills", client=client)
    assert await values(client, "start", "bills") == ALL
    plan = await plan_truncation("bills", before=2, client=client)
    assert (len(plan.segments), plan.ledgers) == (1, ())
    assert [stored.name for stored in plan.objects] == names[:1]
    await truncate_log("bills", before=3, client=client)
    assert sorted(path.name for path in folder.iterdir()) == names[1:]
    assert (await manifest_of(client, "bills")).deleting_objects == ()
    with pytest.raises(Trimmed):
        await values(client, 2, "bills")
    assert await values(client, "start", "bills") == ALL[3:]


async def read_on(reader: ChunkReader) -> None:
    while await reader.read():
        pass


async def test_a_reader_whose_object_is_trimmed_away_is_told_so(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    async with await Log.open("orders", client=client) as log:
        for _ in range(4):
            await log.append(b"more")
            await log.roll()
    await archived_again(client)
    reader = ChunkReader(client, ManifestNode(client.store, "orders"), 0)
    try:
        await reader.read()
        await truncate_log("orders", before=9, client=client)
        with pytest.raises(Trimmed):
            await read_on(reader)
    finally:
        await reader.close()


async def test_a_deleted_log_leaves_no_object_not_even_of_an_attempt(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    (folder / "3-00000000").write_bytes(b"of an attempt that died")
    await delete_log("orders", client=client)
    assert list(folder.iterdir()) == []
    assert list(folder.parent.iterdir()) == [folder], "no mark and no lock of one either"
    with pytest.raises(NoSuchLog):
        await manifest_of(client)


async def test_a_deletion_waits_for_object_storage_and_the_janitor_finishes_it(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    stuck = folder / str((await manifest_of(client)).segments[0].location)
    stuck.unlink()
    (stuck / "not" / "empty").mkdir(parents=True)
    with pytest.raises(Exception, match="deleting"):
        await delete_log("orders", client=client)
    assert (await manifest_of(client)).dropped
    (stuck / "not" / "empty").rmdir()
    (stuck / "not").rmdir()
    stuck.rmdir()
    done = await Janitor(client).run_once()
    assert (done.logs_deleted, done.troubles) == (("orders",), ())
    assert list(folder.iterdir()) == []


async def test_retention_deletes_objects(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    await update_settings("orders", {"retention_bytes": 1}, client=client)
    await Janitor(client).run_once()
    assert [each.number for each in (await manifest_of(client)).segments] == [3]
    assert len(list(folder.iterdir())) == 1


# Copies of the namespace.


def copied(store: MemoryStore, place: str) -> FakeLedgers:
    """Return a client of a copy of all that *store* has, with ledgers of its own."""
    copy = MemoryStore(f"memory://{place}", place)
    copy._hub._tree = deepcopy(store._hub._tree)
    return FakeCluster().client(copy)


@pytest.mark.parametrize("does", ["truncates", "deletes", "archives"])
@pytest.mark.parametrize("place", ["fake", "elsewhere"])
async def test_a_copy_of_the_namespace_reads_objects_and_deletes_none(
    tmp_path: Path, does: str, place: str
) -> None:
    """Also one that names the same place, if the original has archived anything since."""
    client = FakeCluster().client(store := MemoryStore("memory://fake", "fake"))
    folder = await archived(client, tmp_path, local_keep_s=3600)
    copy = copied(store, f"{place}-copy" if place == "elsewhere" else "other")
    if place == "fake":
        copy.store._uri = "memory://fake"  # type: ignore[attr-defined]
        await update_settings("orders", {"local_keep_s": 0}, client=client)
        await archive_log("orders", client=client)
    await update_settings("orders", {"local_keep_s": 0}, client=copy)
    before = sorted(path.name for path in folder.iterdir())
    match does:
        case "truncates":
            await truncate_log("orders", before=4, client=copy)
            assert (await manifest_of(copy)).deleting_objects == ()
        case "deletes":
            await delete_log("orders", client=copy)
        case _:
            (folder / "1-00000000").write_bytes(b"of an attempt of the other one")
            before.append("1-00000000")
            with pytest.raises(ObjectsOwnedElsewhere, match="--claim"):
                await archive_log("orders", client=copy)
            assert len((await manifest_of(copy)).owners) == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(before)
    await update_settings("orders", {"local_keep_s": 0}, client=client)
    assert not (await archive_log("orders", client=client)).failures
    assert await values(client, "start") == ALL


async def test_who_claims_the_objects_has_them_and_the_other_copy_deletes_none_any_more(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client(store := MemoryStore("memory://fake", "fake"))
    folder = await archived(client, tmp_path)
    copy = copied(store, "moved")
    report = await archive_log("orders", claim=True, client=copy)
    assert (report.failures, report.released) == ([], [])
    before = sorted(path.name for path in folder.iterdir())
    await truncate_log("orders", before=4, client=client)
    assert sorted(path.name for path in folder.iterdir()) == before
    await truncate_log("orders", before=2, client=copy)
    assert len(list(folder.iterdir())) == len(before) - 1
    assert await values(copy, "start") == ALL[2:]
    await delete_log("orders", client=copy)
    assert list(folder.iterdir()) == []
    assert not folder.with_name(f"{folder.name}.owner").exists()


async def test_an_older_state_that_is_put_back_is_refused_until_it_claims(tmp_path: Path) -> None:
    """Its segments may be in objects that it does not know, and nowhere else."""
    cluster = FakeCluster()
    client = cluster.client(store := MemoryStore("memory://fake", "fake"))
    folder = await written(client, tmp_path, archive_after_s=3600)
    backup = deepcopy(store._hub._tree)
    await archive_log("orders", at_once=True, client=client)
    objects = sorted(path.name for path in folder.iterdir())
    store._hub._tree = backup
    with pytest.raises(ObjectsOwnedElsewhere):
        await archive_log("orders", at_once=True, client=client)
    assert sorted(path.name for path in folder.iterdir()) == objects
    report = await archive_log("orders", at_once=True, claim=True, client=client)
    assert [type(each.error) for each in report.failures] == [NoSuchLedger] * 3
    assert sorted(path.name for path in folder.iterdir()) == objects, "the only copies there are"


async def test_a_renamed_log_keeps_its_objects_and_one_of_its_old_name_has_its_own(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    await rename_log("orders", "bills", client=client)
    other = await archived(client, tmp_path)
    assert other != folder
    await delete_log("orders", client=client)
    assert await values(client, "start", "bills") == ALL
    await delete_log("bills", client=client)
    assert list(folder.iterdir()) == []


def test_a_token_is_kept_as_long_as_its_mark_may_be_there_or_come() -> None:
    life = EMPTY.incarnation

    def tried(manifest: Manifest, seen: str, token: str, *, claim: bool = False) -> Manifest:
        return object_owner.try_owner("log", life, seen, token, claim=claim)(manifest)

    def settled(manifest: Manifest, token: str) -> Manifest:
        return object_owner.settle_owner("log", life, token)(manifest)

    first = tried(EMPTY, "", "a")
    assert first.owners == ("", "a")
    second = tried(first, "", "b")
    assert second.owners == ("", "a", "b"), "what became of a is not known"
    assert settled(second, "a").owners == ("a", "b"), "b may have seen a"
    assert settled(second, "b").owners == ("b",)
    assert settled(settled(second, "b"), "a").owners == ("b",)
    assert tried(settled(second, "b"), "a", "c").owners == ("b",), "a never comes back"
    assert tried(settled(second, "b"), "x", "c", claim=True).owners == ("x", "c")
    assert roundtrip(second) == second
    many = first
    for index in range(2 * object_owner.OWNERS_MAX):
        many = tried(many, "", f"{index}")
    assert len(many.owners) == object_owner.OWNERS_MAX
    assert (many.owners[0], many.owners[-1]) == ("", f"{2 * object_owner.OWNERS_MAX - 1}")


# Orphans.


async def test_objects_of_attempts_that_lost_are_deleted_and_no_others(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await written(client, tmp_path, archive_after_s=3600)
    for name in ("1-00000000", "9-00000000", "README"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    assert (await archive_log("orders", client=client)).orphans == 0, "its attempt may yet succeed"
    audited = await audit_namespace(client=client)
    assert (audited.orphan_objects, audited.healthy) == ((), True)
    report = await archive_log("orders", at_once=True, client=client)
    assert (len(report.archived), report.orphans) == (3, 1)
    left = {path.name for path in folder.iterdir()}
    assert left == {"9-00000000", "README", *(stored.name for stored in report.archived)}


def test_an_object_is_an_orphan_only_if_no_manifest_can_list_it_any_more() -> None:
    manifest = at(grow(EMPTY, sealed(3), sealed(2), None), 1, COPIED)
    assert not is_orphan(manifest, STORED.name)
    assert is_orphan(manifest, object_name([1], "other"))
    assert not is_orphan(manifest, object_name([2], "other")), "its attempt may yet succeed"
    assert not is_orphan(manifest, object_name([4], "other")), "of a segment that is to come"
    gone = manifest.trimmed(3)
    assert is_orphan(gone, object_name([1], "other"))
    assert not is_orphan(gone, STORED.name), "it is deleted with those that are listed"
    for name in ("", "1", "1-", "-a", "x-a", "README"):
        assert not is_orphan(gone, name)


# What looks.


async def test_an_audit_and_a_verification_of_an_archived_log_are_well(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    assert (await audit_namespace(client=client)).healthy
    report = await verify_log("orders", client=client)
    assert report.healthy
    assert (report.segments, report.entries, report.records) == (3, 6, 6)


async def test_on_real_bookies_a_trace_reads_the_object_and_names_no_bookie(
    tmp_path: Path,
) -> None:
    async with written_on_bookies() as (_, client, segments):
        await put_at_level(client, ARCHIVE - 1)
        with pytest.raises(LevelTooLow, match="object storage needs level 7"):
            await update_settings("a", {"archive": f"file://{tmp_path}/objects"}, client=client)
        await put_at_level(client, ARCHIVE)
        await update_settings("a", {"archive": f"file://{tmp_path}/objects"}, client=client)
        report = await archive_log("a", client=client)
        assert (report.failures, len(report.released)) == ([], len(segments))
        for segment in segments:
            with pytest.raises(NoSuchLedger):
                await client.describe(segment.ledger_id)
        traced = await trace_record(client, "a", ENTRIES, timeout_s=PATIENCE_S)
        assert (traced.offset, traced.segment.number, traced.replicas) == (ENTRIES, 2, ())
        assert traced.record is not None
        assert traced.is_whole
        verified = await verify_log("a", client=client)
        assert (verified.healthy, verified.records) == (True, 2 * ENTRIES)
        async with await Log.open("a", client=client) as log:
            assert (await log.append(b"next")).offset == 2 * ENTRIES


async def test_a_trace_reads_the_object_of_a_segment_in_both_places_whose_ledger_is_gone(
    tmp_path: Path,
) -> None:
    async with written_on_bookies() as (_, client, segments):
        await put_at_level(client, ARCHIVE)
        stored = {"archive": f"file://{tmp_path}/objects", "local_keep_s": "1h"}
        await update_settings("a", stored, client=client)
        await archive_log("a", client=client)
        on_bookies = await trace_record(client, "a", ENTRIES, timeout_s=PATIENCE_S)
        assert on_bookies.metadata is not None
        assert on_bookies.segment.location.object is not None
        await client.delete(segments[1].ledger_id)
        traced = await trace_record(client, "a", ENTRIES, timeout_s=PATIENCE_S)
        assert (traced.record, traced.metadata, traced.replicas) == (on_bookies.record, None, ())
        assert traced.writer == on_bookies.writer


async def test_keys_are_not_rewrapped_while_an_object_would_keep_the_old_one(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    with pytest.raises(ObjectStorageUnsupported, match="cannot rewrap the keys of objects"):
        await rewrap(client, "orders", "new")  # type: ignore[arg-type]


def test_where_a_segment_is_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    manifest = grow(EMPTY, sealed(3), sealed(2), None)
    print_segments(manifest.segments)
    assert "stored on" not in capsys.readouterr().out
    manifest = at(at(manifest, 1, MOVED), 2, Location(object=StoredObject("b", 1, EMPTY.storage)))
    print_segments(manifest.segments)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rstrip().split("  ")[-1].strip() for line in lines if line.strip()][-4:] == [
        "stored on",
        "1-5f3a",
        "bookies, b",
        "bookies",
    ]
    shown = [json.loads(json.dumps(segment_json(each))) for each in manifest.segments]
    assert [(each["on_bookies"], each["object"]) for each in shown] == [
        (False, "1-5f3a"),
        (True, "b"),
        (True, None),
    ]


async def doctor(client: FakeLedgers) -> list[str]:
    """Return the kinds of what the doctor finds in object storage."""
    facts = await gather_archive(cast(Reach, SimpleNamespace(store=client.store)))
    assert facts.logs == facts.looked_at == 1
    assert facts.summary().startswith("1 log with object storage")
    assert json.loads(json.dumps(facts.to_dict()))["logs"] == 1
    return [finding.kind for finding in facts.findings()]


async def test_the_doctor_finds_what_is_not_archived_not_there_and_not_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client(store := MemoryStore("memory://fake", "fake"))
    await create_log("plain", client=client)
    folder = await written(client, tmp_path)
    assert await doctor(client) == [], "it was due a moment ago"
    monkeypatch.setattr(archive_health, "LATE_MS", 0)
    assert await doctor(client) == ["archive-backlog"]
    await archive_log("orders", client=client)
    assert await doctor(client) == []
    copy = copied(store, "copy")
    await archive_log("orders", claim=True, client=copy)
    assert await doctor(client) == ["objects-owned-elsewhere"]
    assert await doctor(copy) == []
    newest = folder / str((await manifest_of(copy)).segments[-1].location)
    data = newest.read_bytes()
    newest.write_bytes(data[:-1])
    assert await doctor(copy) == ["object-damaged"]
    newest.unlink()
    assert await doctor(copy) == ["object-damaged"]
    object_store._store_at.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "obstore.exceptions", None)
    assert await doctor(copy) == ["object-storage-unreachable"]
    object_store._store_at.cache_clear()


async def test_an_archiver_says_how_much_waits_and_for_how_long(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await written(client, tmp_path)
    folder.parent.mkdir()
    folder.write_bytes(b"a file where the log's folder is to be")
    archiver = Archiver(client, ArchiverConfig(elect=False))
    waiting: list[float] = []
    for _ in range(2):
        assert (await archiver.run_once()).failures == 3
        assert archiver.backlog_segments == 3
        assert archiver.backlog_bytes == sum(
            s.sealed.bytes for s in (await manifest_of(client)).segments if s.sealed
        )
        waiting.append(archiver.stuck_s or 0.0)
    assert waiting[1] > waiting[0] > 0, "it waits since it was seen first"
    failing_s = archiver.succeeded_s or 0.0
    assert failing_s > waiting[1]
    folder.unlink()
    await archiver.run_once()
    assert (archiver.backlog_segments, archiver.backlog_bytes, archiver.stuck_s) == (0, 0, 0.0)
    assert (archiver.succeeded_s or 0.0) < failing_s, "it is counted from the last good pass on"
    archiver._stood_down()
    assert (archiver.backlog_segments, archiver.succeeded_s) == (None, None)
