"""Runs: lines of archived segments that are in an index object, and not in the manifest."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    archive_log,
    audit_namespace,
    create_log,
    delete_log,
    log_info,
    plan_truncation,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.maintain.janitor import Janitor
from dlog.aio.read.chunks import read_range
from dlog.aio.read.tails import tail_of
from dlog.archive import segment_index as indexes
from dlog.archive.object_store import _Folder
from dlog.archive.segment_index import all_segments, encode_index, parse_index
from dlog.errors import DamagedObject, MalformedObject, ObjectLost, Trimmed
from dlog.manifest import Location, Manifest, Segment, StoredObject
from dlog.position import DLSN, Start, Timestamp, Txid
from dlog.protocol import archive, segment_index
from dlog.settings import LogSettings
from tests.dlog.aio.test_archived_segments import EMPTY, manifest_of, values
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.test_manifest import grow, roundtrip, sealed

SEGMENTS = 20
ALL = [b"%d" % index for index in range(2 * SEGMENTS)]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(segment_index, "LISTED_MAX", 3)
    monkeypatch.setattr(segment_index, "RUN_SEGMENTS", 8)
    monkeypatch.setattr(archive, "MERGED_MAX", 3)
    indexes.forget_indexes()
    yield
    indexes.forget_indexes()


async def indexed(client: FakeLedgers, tmp_path: Path, **settings: object) -> Path:
    """Write a closed log of `SEGMENTS` segments of two records, all of it archived."""
    storage = tmp_path / "objects"
    archive = LogSettings(archive=f"file://{storage}", **settings)  # type: ignore[arg-type]
    await create_log("orders", settings=archive, client=client)
    async with await Log.open("orders", client=client) as log:
        for index in range(2 * SEGMENTS):
            if index and index % 2 == 0:
                await log.roll()
            await log.append(b"%d" % index, txid=index, timestamp_ms=1000 + index)
            if index % 12 == 11:
                await archive_log("orders", client=client)
    report = await archive_log("orders", client=client)
    assert not report.failures
    return storage / (await manifest_of(client)).incarnation


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def objects_of(client: FakeLedgers) -> set[str]:
    """Return the names of all objects that the log needs."""
    manifest = await manifest_of(client)
    needed = {run.index.name for run in manifest.runs}
    async for segment in all_segments("orders", manifest):
        if segment.location.object is not None:
            needed.add(segment.location.object.name)
    return needed


async def test_lines_of_archived_segments_go_to_runs_and_every_record_is_read(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    manifest = await manifest_of(client)
    assert len(manifest.segments) <= 3
    assert sum(run.segments for run in manifest.runs) + len(manifest.segments) == SEGMENTS
    assert max(run.segments for run in manifest.runs) <= 8
    assert manifest.segment_count == SEGMENTS
    assert names(folder) == await objects_of(client), "no index of an attempt is left"
    starts: list[Start] = [0, Txid(0), Timestamp(1000), DLSN(1, 0, 0)]
    for start in starts:
        assert await values(client, start) == ALL
    for offset in range(2 * SEGMENTS):
        inside: list[Start] = [offset, Txid(offset), Timestamp(1000 + offset)]
        for start in inside:
            assert await values(client, start) == ALL[offset:]
        read = [
            record.value
            async for chunk in read_range(client, "orders", offset, offset + 1)
            for record in chunk
        ]
        assert read == [ALL[offset]]
    tail = await tail_of(client, "orders")
    assert [end for end, _ in tail.stored_sizes()][-1] == 2 * SEGMENTS
    assert (tail.first_offset, tail.next_offset, tail.last_txid) == (0, 40, 39)
    report = await verify_log("orders", client=client)
    assert (report.healthy, report.segments, report.records) == (True, SEGMENTS, 2 * SEGMENTS)
    audited = await audit_namespace(client=client)
    assert (audited.healthy, audited.segments) == (True, SEGMENTS)


async def test_a_log_is_written_on_behind_runs_and_a_tail_crosses_them(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await indexed(client, tmp_path)
    async with (
        await Log.open("orders", client=client) as log,
        await Log.tail("orders", start=0, client=client) as reader,
    ):
        assert log.last_txid == 2 * SEGMENTS - 1
        await log.append(b"next", txid=100)
        read = [(await anext(reader)).value for _ in range(2 * SEGMENTS + 1)]
        assert read == [*ALL, b"next"]


@pytest.mark.parametrize("before", range(1, 2 * SEGMENTS + 1, 4))
async def test_a_truncation_deletes_the_objects_below_it_also_within_a_run(
    tmp_path: Path, before: int
) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    plan = await plan_truncation("orders", before=before, client=client)
    assert plan.records == before
    await truncate_log("orders", before=before, client=client)
    assert names(folder) == await objects_of(client)
    assert await values(client, "start") == ALL[before:]
    with pytest.raises(Trimmed):
        await values(client, before - 1)
    assert (await audit_namespace(client=client)).healthy
    assert (await verify_log("orders", client=client)).healthy
    await truncate_log("orders", before=2 * SEGMENTS, client=client)
    assert names(folder) == await objects_of(client)
    assert (await manifest_of(client)).runs == ()
    async with await Log.open("orders", client=client) as log:
        assert log.last_txid == 2 * SEGMENTS - 1


async def test_retention_takes_whole_runs_and_a_deleted_log_leaves_nothing(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    runs = (await manifest_of(client)).runs
    await update_settings("orders", {"retention_bytes": 1}, client=client)
    await Janitor(client).run_once()
    manifest = await manifest_of(client)
    assert manifest.runs == ()
    assert manifest.trim_offset >= runs[-1].end_offset
    assert names(folder) == await objects_of(client)
    await delete_log("orders", client=client)
    assert names(folder) == set()


async def test_a_deleted_log_of_runs_leaves_nothing(tmp_path: Path) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    await delete_log("orders", client=client)
    assert names(folder) == set()


async def test_an_index_that_is_damaged_or_lost_is_an_error_of_its_offsets_alone(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    manifest = await manifest_of(client)
    index = folder / manifest.runs[0].index.name
    data = index.read_bytes()
    end = manifest.runs[0].end_offset
    index.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    indexes.forget_indexes()
    with pytest.raises(DamagedObject, match=f"offsets 0..{end - 1}.*checksum"):
        await values(client, 0)
    assert await values(client, end) == ALL[end:]
    report = await verify_log("orders", client=client)
    assert [problem.segment for problem in report.problems] == [1]
    assert not (await audit_namespace(client=client)).healthy
    index.unlink()
    with pytest.raises(ObjectLost):
        await values(client, 0)
    assert [x.reason for x in (await audit_namespace(client=client)).missing_objects] != []
    left = names(folder)
    await truncate_log("orders", before=end + 6, client=client)
    assert await values(client, "start") == ALL[end + 6 :]
    assert left - names(folder), "the next run is swept"
    index.write_bytes(data)


async def test_an_index_that_was_torn_is_never_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = _Folder.put

    async def put(self: _Folder, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
        async def torn() -> AsyncGenerator[bytes, None]:
            async for chunk in chunks:
                yield chunk[:-1]

        await honest(self, name, torn() if name.startswith("index") else chunks)

    client = FakeCluster().client()
    with monkeypatch.context() as patch:
        patch.setattr(_Folder, "put", put)
        folder = await indexed(client, tmp_path)
        assert (await manifest_of(client)).runs == ()
        assert await values(client, 0) == ALL
        assert names(folder) == await objects_of(client)
    assert (await archive_log("orders", client=client)).indexed > 0
    assert await values(client, 0) == ALL


async def test_an_object_of_an_attempt_is_an_orphan_if_the_index_names_another_one(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    folder = await indexed(client, tmp_path)
    needed = names(folder)
    (folder / "2-00000000").write_bytes(b"of an attempt that died")
    (folder / "index-1-2-00000000").write_bytes(b"of an attempt that died")
    (folder / f"index-1-{SEGMENTS}-00000000").write_bytes(b"of one that may succeed")
    report = await archive_log("orders", client=client)
    assert report.orphans == 2
    assert names(folder) == {*needed, f"index-1-{SEGMENTS}-00000000"}


# The manifest.


def archived(count: int, *, shared: frozenset[int] = frozenset()) -> Manifest:
    """Return a manifest of *count* segments of two records in objects, and an open one; a segment
    of *shared* is in the object of the one before."""
    manifest = grow(EMPTY, *[sealed(2) for _ in range(count)], None)
    moved: list[Segment] = []
    name = ""
    for segment in manifest.segments[:-1]:
        name = name if segment.number in shared else f"{segment.number}-a"
        stored = StoredObject(name, 10, EMPTY.storage)
        moved.append(replace(segment, location=Location(on_bookies=False, object=stored)))
    return replace(manifest, segments=(*moved, manifest.segments[-1]))


def run_added(manifest: Manifest) -> Manifest:
    due = segment_index.due_for_index(manifest)
    index = StoredObject(f"index-{due[0].number}-{due[-1].number}-b", 9, manifest.storage)
    run = segment_index.run_of(manifest, due, index, None)
    return segment_index.add_run("log", run, due, None, incarnation=manifest.incarnation)(manifest)


def test_a_run_comes_back_and_loses_nothing_of_what_the_segments_said() -> None:
    before = archived(4)
    after = run_added(before)
    assert roundtrip(after) == after
    assert [segment.number for segment in after.segments] == [5]
    assert (after.sealed_end, after.sealed_last_txid) == (
        before.sealed_end,
        before.sealed_last_txid,
    )
    assert (after.sealed_bytes, after.segment_count) == (before.sealed_bytes, 5)
    assert after.has_objects
    assert after.trimmed(8).trimmed_txid == before.trimmed(8).trimmed_txid
    dropped = after.dropping()
    assert dropped.runs == after.runs, "its objects are to go"
    assert dropped.living_runs == ()
    data = encode_index(before, "log", before.segments[:4])
    assert parse_index(data, "there").segments == before.segments[:4]
    with pytest.raises(MalformedObject):
        parse_index(data[:-1], "there")


def test_a_swap_demands_the_segments_as_they_were_read() -> None:
    before = archived(4)
    after = run_added(before)
    due, run = before.segments[:4], after.runs[0]
    edit = segment_index.add_run("log", run, due, None, incarnation=before.incarnation)
    trimmed = before.trimmed(2)
    assert edit(trimmed) == trimmed
    assert edit(after) == after
    extends = segment_index.add_run("log", run, due, run, incarnation=before.incarnation)
    assert extends(before) == before, "the run that it extends is gone"


def test_segments_that_share_an_object_go_to_a_run_together() -> None:
    assert len(segment_index.due_for_index(archived(4))) == 4
    assert segment_index.due_for_index(archived(2)) == ()
    manifest = archived(6, shared=frozenset({4, 5, 6}))
    cut = replace(manifest, segments=manifest.segments[:5], next_segment=7)
    assert [segment.number for segment in segment_index.due_for_index(cut)] == [1, 2]


def test_objects_of_a_run_go_with_the_last_of_their_segments() -> None:
    manifest = archived(4, shared=frozenset({2}))
    after = run_added(manifest)
    run, segments = after.runs[0], manifest.segments[:4]

    def doomed(trim: int, deleted_to: int = 0) -> list[str]:
        at = replace(run, deleted_to=deleted_to)
        return [stored.name for stored, _ in segment_index.doomed_objects(segments, at, trim)]

    assert doomed(2) == []
    assert doomed(4) == ["1-a"]
    assert doomed(7) == ["1-a", "3-a"]
    assert doomed(8, deleted_to=4) == ["3-a", "4-a"]
    part = segment_index.swept("log", run, 4, incarnation=after.incarnation)(after.trimmed(5))
    assert part.runs[0].deleted_to == 4
    whole = segment_index.swept("log", run, 8, incarnation=after.incarnation)(after.trimmed(8))
    assert (whole.runs, whole.deleting_objects) == ((), (run.index,))
    assert whole.trimmed_txid == run.last_txid


def test_an_index_is_an_orphan_only_if_no_manifest_can_list_it_any_more() -> None:
    before = archived(4)
    after = run_added(before)
    assert not segment_index.is_orphan_index(before, "index-1-4-c"), "its attempt may yet succeed"
    assert segment_index.is_orphan_index(after, "index-1-4-c")
    assert segment_index.is_orphan_index(after, "index-1-3-c")
    assert not segment_index.is_orphan_index(after, after.runs[0].index.name)
    assert not segment_index.is_orphan_index(after, "index-1-5-c")
    for name in ("index", "index-1-4", "4-c", "index-a-b-c", "README"):
        assert not segment_index.is_orphan_index(after, name)


async def test_what_a_log_shows_counts_segments_of_runs(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await indexed(client, tmp_path)
    info = await log_info("orders", client=client)
    assert info.records == 2 * SEGMENTS
    assert info.manifest.size_bytes < 2000
