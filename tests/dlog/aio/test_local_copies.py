"""Archived segments that come back to bookies: local copies beside their objects."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
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
    rename_log,
    restore_segments,
    truncate_log,
    update_settings,
    verify_log,
)
from dlog.aio.maintain.janitor import COPY_MS_MAX, Janitor
from dlog.archive import segment_index as indexes
from dlog.encryption.files import add_key
from dlog.encryption.keyring import use_keys
from dlog.errors import (
    CopiesSuperseded,
    InvalidPosition,
    KeyMissing,
    NoSuchLog,
    ObjectLost,
    TooManyCopies,
)
from dlog.manifest import LocalCopy, Location, Manifest, StoredObject
from dlog.position import Timestamp, Txid
from dlog.protocol import archive, segment_index
from dlog.protocol.edits import add_copy
from dlog.protocol.orphans import CopyFor, OrphanKind, stamp_of, standing
from dlog.settings import LogSettings
from ledger.errors import DamagedMetadata, MetadataUnavailable, NotEnoughBookies
from ledger.ids import LedgerId
from ledger.log_events import now_ms
from ledger.metastore.memory import MemoryStore
from tests.dlog.aio.test_archived_segments import ALL, EMPTY, at, manifest_of, values, written
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.faulty_store import FaultyStore
from tests.dlog.test_manifest import grow, roundtrip, sealed

COPIED = Location(on_bookies=False, object=StoredObject("1-5f3a", 4096, EMPTY.storage))
COPY = LocalCopy(1, LedgerId(90), 3, 5000)


@pytest.fixture(autouse=True)
def _objects_of_one_segment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(archive, "SMALL_BYTES", -1)
    indexes.forget_indexes()
    yield
    indexes.forget_indexes()
    use_keys()


async def archived(client: FakeLedgers, tmp_path: Path, **settings: object) -> Path:
    """Write and archive three segments of two records; return the folder of their objects."""
    folder = await written(client, tmp_path, **settings)
    assert not (await archive_log("orders", client=client)).failures
    return folder


async def restored(client: FakeLedgers, **more: object) -> dict[int, int]:
    """Restore; return the ledgers of the copies that were made, by segment."""
    report = await restore_segments("orders", client=client, **more)  # type: ignore[arg-type]
    assert (report.failures, report.waiting) == ([], 0)
    return {copy.number: copy.ledger_id for copy in report.restored}


async def check_everywhere(client: FakeLedgers) -> None:
    for index in range(len(ALL)):
        assert await values(client, index) == ALL[index:]
        assert await values(client, Txid(index)) == ALL[index:]
        assert await values(client, Timestamp(1000 + index)) == ALL[index:]
    (last,) = await Log.last("orders", client=client)
    assert (last.value, last.offset) == (ALL[-1], len(ALL) - 1)


# The manifest.


def with_copy() -> Manifest:
    return at(grow(EMPTY, sealed(3), sealed(2), None), 1, COPIED).with_copies([COPY])


def test_a_copy_is_kept_with_the_manifest_and_goes_with_its_segment() -> None:
    manifest = with_copy()
    assert manifest.segments[0].location.copy == 90
    assert str(manifest.segments[0].location) == "ledger 90, 1-5f3a"
    assert roundtrip(manifest) == manifest
    listed = [s.ledger_id for s in manifest.segments[1:]]
    assert manifest.listed_ledgers == (*listed, 90)
    for after in (manifest.trimmed(3), manifest.with_copies([]), manifest.dropping()):
        assert 90 in after.deleting
        assert not after.copies
        assert all(segment.location.copy is None for segment in after.segments)
        assert roundtrip(after) == after
    assert manifest.trimmed(2).copies == (COPY,)


def test_a_manifest_with_a_copy_that_cannot_be_is_refused() -> None:
    manifest = with_copy()
    for change, why in (
        ({"deleting": (LedgerId(90),)}, "waits for deletion"),
        ({"copies": (COPY, COPY)}, "ascend"),
        ({"copies": (COPY, replace(COPY, number=2))}, "two segments"),
        ({"copies": (replace(COPY, ledger_id=manifest.segments[1].ledger_id),)}, "is a segment"),
        ({"trim_offset": 3}, "can be read"),
        ({"copies": (replace(COPY, number=2),)}, "on bookies"),
    ):
        with pytest.raises(AssertionError, match=why):
            replace(manifest, **change)
    plain = grow(EMPTY, sealed(3), None)
    older = replace(plain, settings=LogSettings()).encode("a") + b"\xa2\x02\x02\x08\x01"
    with pytest.raises(DamagedMetadata, match="has no objects"):
        Manifest.decode(older, path="/logs/a")


def test_a_copy_is_an_orphan_once_no_round_can_list_it() -> None:
    manifest, stamp = with_copy(), CopyFor("a", EMPTY.incarnation, 1)
    assert stamp_of(stamp.custom()) == stamp
    now = replace(manifest, copy_round=1)
    assert standing(LedgerId(90), stamp, now) is OrphanKind.SEGMENT
    assert standing(LedgerId(91), stamp, now) is OrphanKind.PENDING
    assert standing(LedgerId(91), stamp, replace(now, sealed=True)) is OrphanKind.PENDING
    assert standing(LedgerId(90), stamp, now.with_copies([])) is OrphanKind.WAITING
    later = replace(now, copy_round=2)
    assert standing(LedgerId(91), stamp, later) is OrphanKind.UNUSED_COPY
    assert standing(LedgerId(90), stamp, later) is OrphanKind.SEGMENT
    assert standing(LedgerId(91), stamp, now.dropping()) is OrphanKind.UNUSED_COPY
    assert standing(LedgerId(91), stamp, None) is OrphanKind.LOG_GONE
    edit = add_copy("a", replace(COPY, number=2), incarnation=EMPTY.incarnation, copy_round=1)
    assert edit(later) == later, "what is an orphan is never listed"


# What is restored.


async def test_archived_segments_are_read_from_local_copies_as_from_their_objects(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    folder = await archived(client, tmp_path)
    assert cluster.ledgers == {}
    copies = await restored(client)
    assert sorted(copies) == [1, 2, 3]
    assert set(cluster.ledgers) == set(copies.values())
    aside = folder.with_name("aside")
    folder.rename(aside)
    await check_everywhere(client)
    aside.rename(folder)
    await rename_log("orders", "moved", client=client)
    await rename_log("moved", "orders", client=client)
    assert (await verify_log("orders", client=client)).healthy
    assert (await audit_namespace(client=client)).healthy
    assert not (await Janitor(client).run_once()).orphans
    assert not (await archive_log("orders", client=client)).copies_dropped, "it is not time yet"
    again = await restore_segments("orders", keep_s="1h", client=client)
    assert (again.restored, again.kept) == ([], 3)
    assert {copy.until_ms for copy in (await manifest_of(client)).copies} == {again.until_ms}
    assert (await restore_segments("orders", keep_s=0, client=client)).kept == 3
    assert (await archive_log("orders", client=client)).copies_dropped == 3
    assert cluster.ledgers == {}
    await check_everywhere(client)


async def test_those_with_an_offset_in_the_range_come_back_and_others_stay(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    assert sorted(await restored(client, first=2, end=4)) == [2]
    assert sorted(await restored(client, first=3, end=5)) == [3]
    await check_everywhere(client)
    for first, end in ((3, 3), (3, 2)):
        with pytest.raises(InvalidPosition, match="not above 3"):
            await restore_segments("orders", first=first, end=end, client=client)


async def test_what_has_not_left_the_bookies_is_counted_and_stays(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path, local_keep_bytes=1 << 30)
    report = await restore_segments("orders", client=client)
    assert (report.restored, report.on_bookies, report.kept) == ([], 3, 0)


async def test_segments_that_share_an_object_come_back_each_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "SMALL_BYTES", 1 << 20)
    cluster = FakeCluster()
    client = cluster.client()
    folder = await archived(client, tmp_path)
    (path,) = folder.iterdir()
    assert sorted(await restored(client, first=2, end=3)) == [2]
    data = path.read_bytes()
    path.unlink()
    async with await Log.tail("orders", start=2, client=client, follow=False) as reader:
        assert [(await anext(reader)).value, (await anext(reader)).value] == ALL[2:4]
        with pytest.raises(ObjectLost):
            await anext(reader)
    path.write_bytes(data)
    await truncate_log("orders", before=4, client=client)
    assert cluster.ledgers == {}
    assert list(folder.iterdir()) == [path]
    await check_end(client, 4)


async def check_end(client: FakeLedgers, first: int) -> None:
    assert await values(client, "start") == ALL[first:]
    assert (await audit_namespace(client=client)).healthy


async def test_segments_whose_lines_are_in_an_index_come_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_index, "LISTED_MAX", 2)
    monkeypatch.setattr(segment_index, "RUN_SEGMENTS", 4)
    cluster = FakeCluster()
    client = cluster.client()
    folder = await archived(client, tmp_path)
    assert (await manifest_of(client)).runs
    copies = await restored(client)
    assert sorted(copies) == [1, 2, 3]
    for segment in folder.glob("[0-9]*"):
        segment.rename(segment.with_name(f"aside-{segment.name}"))
    await check_everywhere(client)
    for segment in folder.glob("aside-*"):
        segment.rename(segment.with_name(segment.name.removeprefix("aside-")))
    assert (await verify_log("orders", client=client)).healthy
    assert (await audit_namespace(client=client)).healthy
    plan = await plan_truncation("orders", before=2, client=client)
    assert plan.ledgers == (copies[1],)
    await truncate_log("orders", before=2, client=client)
    assert set(cluster.ledgers) == {copies[2], copies[3]}
    await check_end(client, 2)


async def test_segments_that_have_copies_go_to_an_index_and_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    folder = await archived(client, tmp_path)
    copies = await restored(client)
    monkeypatch.setattr(segment_index, "LISTED_MAX", 2)
    assert (await archive_log("orders", client=client)).indexed == 2
    manifest = await manifest_of(client)
    assert {copy.number: copy.ledger_id for copy in manifest.copies} == copies
    for segment in folder.glob("[0-9]*"):
        segment.rename(segment.with_name(f"aside-{segment.name}"))
    await check_everywhere(client)


async def test_encrypted_segments_come_back_without_a_key_and_are_read_with_it(
    tmp_path: Path,
) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    add_key(keys, "one")
    add_key(others, "other")
    use_keys(file=str(keys))
    client = FakeCluster().client()
    folder = await archived(client, tmp_path, encrypt_with="one")
    add_key(keys, "two")
    use_keys(file=str(keys))
    await update_settings("orders", {"encrypt_with": "two"}, client=client)  # objects keep the old
    await check_everywhere(client)
    use_keys(file=str(others))
    with pytest.raises(KeyMissing):
        await values(client, 0)
    assert sorted(await restored(client)) == [1, 2, 3]
    shutil.rmtree(folder)
    use_keys(file=str(keys))
    await check_everywhere(client)


async def test_a_reader_goes_on_through_the_object_when_its_copy_goes(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    await restored(client)
    async with await Log.tail("orders", start=0, client=client) as reader:
        assert (await anext(reader)).value == ALL[0]
        await restore_segments("orders", keep_s=0, client=client)
        assert (await archive_log("orders", client=client)).copies_dropped == 3
        assert [(await anext(reader)).value for _ in ALL[1:]] == ALL[1:]


async def test_a_copy_that_is_gone_or_another_ledger_is_not_read(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    copies = await restored(client)
    del cluster.ledgers[LedgerId(copies[1])]
    cluster.ledgers[LedgerId(copies[2])].custom = cluster.ledgers[LedgerId(copies[3])].custom
    del cluster.ledgers[LedgerId(copies[3])].entries[-1]
    await check_everywhere(client)
    problems = (await verify_log("orders", client=client)).problems
    assert problems[0].segment == 1
    assert "does not exist: its object is read" in problems[0].reason


# What comes between.


def during_copy(cluster: FakeCluster, act: Callable[[], object]) -> None:
    """Do *act* once, before the first copy is closed."""
    begun: list[int] = []

    async def hook(*_: object) -> None:
        if not begun:
            begun.append(1)
            result = act()
            if asyncio.iscoroutine(result):
                await result

    cluster.before("close", hook)


async def test_a_segment_that_is_truncated_meanwhile_leaves_no_copy(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    during_copy(cluster, lambda: truncate_log("orders", before=2, client=client))
    report = await restore_segments("orders", client=client)
    assert [copy.number for copy in report.restored] == [2, 3]
    assert not report.failures
    assert set(cluster.ledgers) == {copy.ledger_id for copy in report.restored}
    await check_end(client, 2)


async def test_a_log_that_is_re_created_meanwhile_gets_no_copy(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)

    async def recreate() -> None:
        await delete_log("orders", client=client)
        settings = LogSettings(archive=f"file://{tmp_path}/others")
        await create_log("orders", settings=settings, client=client)

    during_copy(cluster, recreate)
    with pytest.raises(NoSuchLog, match="another one has its name"):
        await restore_segments("orders", client=client)
    assert cluster.ledgers == {}
    assert (await log_info("orders", client=client)).records == 0


async def test_of_two_that_restore_the_first_stops_and_leaves_nothing_half_done(
    tmp_path: Path,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    during_copy(cluster, lambda: restored(client))
    with pytest.raises(CopiesSuperseded, match="another process began") as superseded:
        await restore_segments("orders", client=client)
    assert superseded.value.retryable
    manifest = await manifest_of(client)
    assert set(cluster.ledgers) == {copy.ledger_id for copy in manifest.copies}
    assert len(manifest.copies) == 3


async def test_who_lets_copies_go_stops_whoever_makes_more(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    during_copy(cluster, lambda: restore_segments("orders", keep_s=0, client=client))
    with pytest.raises(CopiesSuperseded):
        await restore_segments("orders", client=client)
    assert (await manifest_of(client)).copies == ()
    assert cluster.ledgers == {}


async def test_a_copy_that_nobody_lists_for_a_day_is_deleted(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)

    async def killed(*_: object) -> None:
        raise asyncio.CancelledError

    cluster.before("close", killed)
    cluster.before("delete", killed)
    with pytest.raises(asyncio.CancelledError):
        await restore_segments("orders", client=client)
    cluster.hooks.clear()
    (orphan,) = cluster.ledgers
    assert (await audit_namespace(client=client)).pending
    assert not (await Janitor(client).run_once()).orphans
    assert orphan in cluster.ledgers, "it may be listed yet"
    later = Janitor(client, now_ms=lambda: now_ms() + COPY_MS_MAX)
    await later.run_once()
    assert len((await later.run_once()).orphans) == 1
    assert cluster.ledgers == {}
    assert sorted(await restored(client)) == [1, 2, 3]


async def test_a_swap_without_an_answer_keeps_its_ledger(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    cluster = FakeCluster()
    client = cluster.client(store)
    await archived(client, tmp_path)
    store.faults.extend([None, "lost reply"])
    assert sorted(await restored(client)) == [1, 2, 3]
    assert len(cluster.ledgers) == 3
    assert (await audit_namespace(client=client)).healthy


@pytest.mark.parametrize("error", ["bookies", "store"])
async def test_what_cannot_be_restored_is_reported_and_nothing_is_left(
    tmp_path: Path, error: str
) -> None:
    cluster = FakeCluster()
    store = FaultyStore(MemoryStore("memory://fake", "fake"))
    client = cluster.client(store)
    await archived(client, tmp_path)
    if error == "bookies":
        shortage = NotEnoughBookies(3, ["b1"])
        cluster.fail_next("create", shortage, shortage, shortage)
        report = await restore_segments("orders", client=client)
        assert (len(report.failures), report.waiting, report.restored) == (3, 0, [])
        assert "bookies" in str(report.failures[0].error)
    else:
        store.faults.extend(["lost request"] * 3)
        with pytest.raises(MetadataUnavailable):
            await restore_segments("orders", client=client)
    assert cluster.ledgers == {}
    await check_everywhere(client)


async def test_a_copy_that_differs_from_its_object_is_not_listed(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)

    def spoil() -> None:
        (ledger,) = cluster.ledgers.values()
        ledger.entries[0] = b"x" * len(ledger.entries[0])

    during_copy(cluster, spoil)
    report = await restore_segments("orders", client=client)
    assert [failure.segment for failure in report.failures] == [1]
    assert "differs from its object" in str(report.failures[0].error)
    assert len(cluster.ledgers) == len(report.restored) == 2
    await check_everywhere(client)


async def test_a_log_has_a_bounded_number_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path)
    monkeypatch.setattr(archive, "COPIES_MAX", 2)
    assert len(await restored(client, end=2)) == 1
    with pytest.raises(TooManyCopies, match="at most 2 local copies"):
        await restore_segments("orders", client=client)
    assert len(await restored(client, first=4)) == 1


async def test_a_deletion_takes_the_copies_along(tmp_path: Path) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    await archived(client, tmp_path)
    await restored(client)
    await delete_log("orders", client=client)
    assert cluster.ledgers == {}
