"""The table of a log: each archived record once, whatever fails, and nothing of other logs."""

import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy

import pyarrow.parquet as pq
import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    TableInfo,
    archive_log,
    create_log,
    delete_log,
    rebuild_table,
    table_info,
    truncate_log,
    update_settings,
    verify_table,
)
from dlog.aio.maintain.table import extend_table
from dlog.aio.store import ManifestNode
from dlog.archive import object_store, table_files
from dlog.archive.object_store import open_folder
from dlog.encryption.files import add_key
from dlog.encryption.keyring import use_keys
from dlog.errors import (
    InvalidSettings,
    MalformedObject,
    NoSuchLog,
    NoSuchTable,
    ObjectStorageUnavailable,
    TableBehind,
    TableDiverged,
    TableFull,
    TableMissing,
)
from dlog.manifest import Location, Manifest, StoredObject
from dlog.protocol import archive
from dlog.protocol import table as protocol
from dlog.protocol.table import (
    DUE_BYTES,
    DUE_MS,
    REPLACED_KEEP_MS,
    Table,
    TableFile,
    archived_end,
    encode_table,
    is_due,
    is_orphan_file,
    parse_table,
)
from dlog.settings import LogSettings
from tests.dlog.archive.s3_server import BUCKET, s3
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.dlog.test_manifest import EMPTY, grow, sealed

pytestmark = pytest.mark.spark

SEGMENTS, RECORDS = 4, 50
TOTAL = SEGMENTS * RECORDS
NOON_MS = 1_777_636_800_000
STEP_MS = 1_000_000
"""So that the records are of three days."""
TABLE = LogSettings(archive="s3://bucket/logs", archive_table="parquet")


@pytest.fixture(autouse=True)
def _objects_of_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "SMALL_BYTES", -1)


async def write(log: Log, first: int, count: int) -> None:
    for index in range(first, first + count):
        log.append_async(
            b"value %d" % index,
            txid=index if index % 5 else None,
            key=b"key" if index % 2 else None,
            timestamp_ms=NOON_MS + index * STEP_MS,
            headers={"number": b"%d" % index} if index % 3 == 0 else None,
        )
    await log.flush()


async def written(client: FakeLedgers, directory: Path, table: str = "parquet") -> None:
    settings = LogSettings(archive=f"file://{directory}/objects", archive_table=table)
    await create_log("orders", settings=settings, client=client)
    async with await Log.open("orders", client=client) as log:
        for segment in range(SEGMENTS):
            if segment:
                await log.roll()
            await write(log, segment * RECORDS, RECORDS)


async def more(client: FakeLedgers, first: int) -> None:
    async with await Log.open("orders", client=client) as log:
        await write(log, first, RECORDS)


async def extend(client: FakeLedgers, now_ms: int = 0) -> int:
    """Add what is archived to the table; return how many rows."""
    node = ManifestNode(client.store, "orders")
    manifest, _ = await node.read()
    report = await extend_table(
        client,
        node,
        incarnation=manifest.incarnation,
        now_ms=lambda: now_ms,
        at_once=True,
    )
    return report.rows


def paths_of(info: TableInfo) -> list[Path]:
    folder = info.storage.removeprefix("file://")
    return [Path(folder, file.path) for file in info.table.files]


def offsets_of(info: TableInfo) -> list[int]:
    """Return what another program finds in the files, sorted."""
    whole = [pq.ParquetFile(path).read(["offset"]) for path in paths_of(info)]
    return sorted(offset for part in whole for offset in part.column("offset").to_pylist())


async def test_another_program_finds_each_archived_record_once_by_day(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    report = await archive_log("orders", client=client)
    assert (report.table.rows, report.table_error) == (TOTAL, None)
    info = await table_info("orders", client=client)
    assert (info.table.first, info.table.end, info.waiting) == (0, TOTAL, 0)
    assert offsets_of(info) == list(range(TOTAL))
    days = {path.parent.name for path in paths_of(info)}
    assert days == {"day=2026-05-01", "day=2026-05-02", "day=2026-05-03"}
    for file, path in zip(info.table.files, paths_of(info), strict=True):
        rows = pq.ParquetFile(path).read().to_pylist()
        assert (rows[0]["offset"], rows[-1]["offset"]) == (file.first, file.last)
        assert (len(rows), path.stat().st_size) == (file.rows, file.bytes)
        for row in rows:
            index = row["offset"]
            assert row["value"] == b"value %d" % index
            assert row["txid"] == (index if index % 5 else None)
            assert row["key"] == (b"key" if index % 2 else None)
            headers = [{"key": "number", "value": b"%d" % index}] if index % 3 == 0 else []
            assert row["headers"] == headers
            at = datetime.fromtimestamp((NOON_MS + index * STEP_MS) / 1000, UTC)
            assert row["timestamp"] == at
            assert path.parent.name == f"day={at.date()}"
            assert row["dlsn"].startswith(f"{index // RECORDS + 1}:")
    check = await verify_table("orders", client=client)
    assert (check.healthy, check.rows) == (True, TOTAL)


async def test_a_table_that_is_not_by_day_has_one_file_for_all(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path, "parquet:none")
    await archive_log("orders", client=client)
    info = await table_info("orders", client=client)
    (path,) = paths_of(info)
    assert path.parent.name.endswith(".table")
    assert offsets_of(info) == list(range(TOTAL))


async def test_full_files_and_many_days_are_closed_and_no_row_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    monkeypatch.setattr(table_files, "OPEN_FILES_MAX", 1)
    monkeypatch.setattr(table_files, "FILE_BYTES", 1)
    monkeypatch.setattr("dlog.aio.maintain.table.WRITTEN_BYTES_MAX", 1)
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    info = await table_info("orders", client=client)
    assert info.table.number > 1, "a commit is bounded"
    assert len(info.table.files) > info.table.number
    assert offsets_of(info) == list(range(TOTAL))


async def test_what_is_archived_later_is_added_behind(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    await more(client, TOTAL)
    young = await archive_log("orders", client=client)
    assert young.table.rows == 0, "too little, and too soon"
    assert (await table_info("orders", client=client)).waiting == RECORDS
    report = await archive_log("orders", at_once=True, client=client)
    assert report.table.rows == RECORDS
    assert offsets_of(await table_info("orders", client=client)) == list(range(TOTAL + RECORDS))


class Losing:
    """A folder whose next swap of a manifest has its effect, or not, and then no answer."""

    def __init__(self, folder: object_store.ObjectFolder, arrives: list[bool]) -> None:
        self._folder, self._arrives = folder, arrives

    def __getattr__(self, name: str) -> object:
        return getattr(self._folder, name)

    async def swap_mark(self, seen: bytes | None, mark: bytes) -> bytes | None:
        if not self._arrives or not self._folder.storage.endswith(".table"):
            return await self._folder.swap_mark(seen, mark)
        if self._arrives.pop():
            await self._folder.swap_mark(seen, mark)
        raise ObjectStorageUnavailable(self._folder.storage, "swapping", "simulated")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_without_an_answer_is_neither_lost_nor_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    fates = [arrives]
    honest = object_store.open_folder
    monkeypatch.setattr(object_store, "open_folder", lambda uri: Losing(honest(uri), fates))
    report = await archive_log("orders", client=client)
    assert isinstance(report.table_error, ObjectStorageUnavailable)
    assert not report.failures, "archiving does not depend on it"
    assert await extend(client) == (0 if arrives else TOTAL)
    info = await table_info("orders", client=client)
    assert offsets_of(info) == list(range(TOTAL))
    names = await honest(info.storage).names()
    assert sorted(names) == sorted(file.path for file in info.table.files), "no orphan is left"


async def test_of_two_attempts_at_once_one_commits_and_the_files_of_the_other_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await update_settings("orders", {"archive_table": ""}, client=client)
    await archive_log("orders", client=client)
    await update_settings("orders", {"archive_table": "parquet"}, client=client)
    raced: list[int] = []

    class Racing(Losing):
        async def put(self, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
            if self._folder.storage.endswith(".table") and not raced:
                raced.append(0)
                raced.append(await extend(client))
            await self._folder.put(name, chunks)

    honest = object_store.open_folder
    monkeypatch.setattr(object_store, "open_folder", lambda uri: Racing(honest(uri), []))
    assert await extend(client) == 0
    assert raced == [0, TOTAL], "the second attempt was faster"
    info = await table_info("orders", client=client)
    assert (offsets_of(info), info.table.number) == (list(range(TOTAL)), 1)
    assert len(await open_folder(info.storage).names()) == len(info.table.files)


async def test_a_table_keeps_what_the_log_truncates_until_it_is_rebuilt(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    before = paths_of(await table_info("orders", client=client))
    await truncate_log("orders", before=RECORDS + 7, client=client)
    info = await table_info("orders", client=client)
    assert (info.table.first, info.log_first) == (0, RECORDS + 7)
    report = await rebuild_table("orders", client=client)
    assert report.rows == TOTAL - RECORDS - 7
    info = await table_info("orders", client=client)
    assert offsets_of(info) == list(range(RECORDS + 7, TOTAL))
    assert all(path.exists() for path in before), "readers may be at work"
    await extend(client, info.table.replaced_ms + REPLACED_KEEP_MS)
    assert not any(path.exists() for path in before)
    assert offsets_of(info) == list(range(RECORDS + 7, TOTAL))


async def test_a_table_that_misses_truncated_records_says_so_until_it_is_rebuilt(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    await more(client, TOTAL)
    await more(client, TOTAL + RECORDS)
    await archive_log("orders", client=client)
    await truncate_log("orders", before=TOTAL + 1, client=client)
    report = await archive_log("orders", at_once=True, client=client)
    assert isinstance(report.table_error, TableBehind)
    assert (report.table_error.end, report.table_error.first_offset) == (TOTAL, TOTAL + 1)
    later = await rebuild_table("orders", later=True, client=client)
    assert later.end is None
    assert (await table_info("orders", client=client)).table.files == ()
    assert await extend(client) == 2 * RECORDS - 1


async def test_a_table_goes_with_its_log(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    await delete_log("orders", client=client)
    assert [path for path in (tmp_path / "objects").rglob("*") if path.suffix == ".parquet"] == []
    assert list((tmp_path / "objects").glob("*.json")) == []


async def test_a_log_that_is_deleted_meanwhile_leaves_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await update_settings("orders", {"archive_table": ""}, client=client)
    await archive_log("orders", client=client)
    await update_settings("orders", {"archive_table": "parquet"}, client=client)
    deleted: list[bool] = []

    class Deleting(Losing):
        async def swap_mark(self, seen: bytes | None, mark: bytes) -> bytes | None:
            if self._folder.storage.endswith(".table") and not deleted:
                deleted.append(True)
                await delete_log("orders", client=client)
            return await self._folder.swap_mark(seen, mark)

    opened = object_store.open_folder
    monkeypatch.setattr(object_store, "open_folder", lambda uri: Deleting(opened(uri), []))
    with pytest.raises(NoSuchLog):
        await extend(client)
    assert deleted
    assert [path for path in (tmp_path / "objects").rglob("*") if path.suffix == ".parquet"] == []
    assert list((tmp_path / "objects").glob("*.json")) == []


async def test_a_table_of_another_state_of_the_log_is_neither_read_nor_extended(
    tmp_path: Path,
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    info = await table_info("orders", client=client)
    folder = open_folder(info.storage)
    seen = encode_table(info.table)
    for other in (
        replace(info.table, object="4-other"),
        replace(info.table, segment=99),
        replace(info.table, incarnation="another"),
    ):
        await folder.swap_mark(seen, encode_table(other))
        seen = encode_table(other)
        with pytest.raises(TableDiverged, match="another state"):
            await table_info("orders", client=client)
        assert isinstance((await archive_log("orders", client=client)).table_error, TableDiverged)
    await rebuild_table("orders", client=client)
    assert offsets_of(await table_info("orders", client=client)) == list(range(TOTAL))


def test_settings_that_fit_no_table_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="plain text"):
        LogSettings(archive="s3://b/c", archive_table="parquet", encrypt_with="key")
    with pytest.raises(InvalidSettings, match="set archive too"):
        LogSettings(archive_table="parquet")
    with pytest.raises(InvalidSettings, match="parquet or parquet:none"):
        LogSettings(archive="s3://b/c", archive_table="orc")


async def test_records_that_were_encrypted_before_stay_in_the_log_alone(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    add_key(keys, "secret")
    use_keys(file=str(keys))
    try:
        client = FakeCluster().client()
        settings = LogSettings(archive=f"file://{tmp_path}/objects", encrypt_with="secret")
        await create_log("orders", settings=settings, client=client)
        await more(client, 0)
        changes = {"encrypt_with": "", "archive_table": "parquet"}
        await update_settings("orders", changes, client=client)
        report = await archive_log("orders", at_once=True, client=client)
    finally:
        use_keys()
    assert (len(report.archived), report.failures) == (1, [])
    assert isinstance(report.table_error, InvalidSettings)
    assert "encrypted records from offset 0 on" in str(report.table_error)
    assert list((tmp_path / "objects").rglob("*.parquet")) == []


async def test_a_log_without_a_table_says_what_to_do(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path, "")
    assert (await archive_log("orders", client=client)).table.rows == 0
    with pytest.raises(NoSuchTable, match="set archive_table"):
        await table_info("orders", client=client)
    with pytest.raises(InvalidSettings, match="set archive_table"):
        await rebuild_table("orders", client=client)


async def test_a_missing_library_is_named_and_archiving_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    monkeypatch.setitem(sys.modules, "dlog.archive.table_files", None)
    report = await archive_log("orders", client=client)
    assert (len(report.archived), report.failures) == (SEGMENTS, [])
    assert isinstance(report.table_error, TableMissing)
    assert "dlog-ledgers[table]" in str(report.table_error)


async def test_a_full_manifest_refuses_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    await more(client, TOTAL)
    monkeypatch.setattr(protocol, "FILES_MAX", 1)
    report = await archive_log("orders", at_once=True, client=client)
    assert isinstance(report.table_error, TableFull)


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped"])
async def test_verify_finds_a_file_that_is_lost_or_damaged(tmp_path: Path, damage: str) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    path = paths_of(await table_info("orders", client=client))[1]
    data = path.read_bytes()
    match damage:
        case "lost":
            path.unlink()
        case "cut":
            path.write_bytes(data[:-1])
        case _:
            path.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
    check = await verify_table("orders", client=client)
    assert not check.healthy
    assert path.name in check.problems[0]
    assert "is missing" in check.problems[1]


async def test_verify_finds_an_offset_that_is_there_twice(tmp_path: Path) -> None:
    client = FakeCluster().client()
    await written(client, tmp_path)
    await archive_log("orders", client=client)
    info = await table_info("orders", client=client)
    one, two, *others = info.table.files
    copied = Path(info.storage.removeprefix("file://"), "1-copy-1.parquet")
    copy(paths_of(info)[0], copied)
    files = (one, replace(one, path=copied.name), *others)
    wrong = replace(info.table, files=files, end=info.table.end + one.rows - two.rows)
    await open_folder(info.storage).swap_mark(encode_table(info.table), encode_table(wrong))
    problems = (await verify_table("orders", client=client)).problems
    assert any("twice" in problem for problem in problems)
    assert any("missing" in problem for problem in problems)


async def test_a_table_grows_through_refusals_and_broken_requests_of_an_s3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    with s3(monkeypatch, seed=5) as storage:
        settings = LogSettings(archive=f"s3://{BUCKET}/logs", archive_table="parquet")
        await create_log("orders", settings=settings, client=client)
        total = 0
        storage.rate = 0.15
        for _ in range(6):
            await more(client, total)
            total += RECORDS
            for _ in range(10):
                report = await archive_log("orders", at_once=True, client=client)
                if not report.failed:
                    break
        assert {"refused", "broken", "unanswered"} <= storage.seen.keys()
        storage.rate = 0.0
        await archive_log("orders", at_once=True, client=client)
        check = await verify_table("orders", client=client)
        assert (check.problems, check.rows, check.end) == ([], total, total)
        info = await table_info("orders", client=client)
        names = await open_folder(info.storage).names()
        assert sorted(names) == sorted(file.path for file in info.table.files)
        await delete_log("orders", client=client)
        assert await open_folder(info.storage).names() == []
        assert await open_folder(info.storage).read_mark() is None


def file_of(number: int, path: str = "") -> TableFile:
    path = path or f"day=2026-01-01/{number}-ab-1.parquet"
    return TableFile(path=path, rows=1, bytes=1, first=0, last=0)


def test_a_file_is_an_orphan_only_if_no_manifest_can_list_it_any_more() -> None:
    listed = file_of(3)
    table = Table(incarnation="i", number=3, end=1, files=(listed,), replaced=("2-old-1.parquet",))
    now_ms = REPLACED_KEEP_MS
    assert not is_orphan_file(table, listed.path, now_ms)
    assert not is_orphan_file(table, "4-cd-1.parquet", now_ms), "its attempt may succeed still"
    assert is_orphan_file(table, "3-cd-1.parquet", now_ms)
    assert is_orphan_file(table, "day=2026-01-01/1-cd-1.parquet", now_ms)
    assert not is_orphan_file(table, "2-old-1.parquet", now_ms - 1), "readers may be at work"
    assert is_orphan_file(table, "2-old-1.parquet", now_ms)
    for foreign in ("notes.txt", "x-y.parquet", "3.parquet", "_SUCCESS", "3-notes.txt"):
        assert not is_orphan_file(table, foreign, now_ms)


def test_a_manifest_is_read_as_it_was_written() -> None:
    table = Table(incarnation="i", number=7, end=2, files=(file_of(1), file_of(2)), token="ab")
    assert parse_table(encode_table(table)) == table


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b'"rows":1', b'"rows":2'),
        lambda data: data.replace(b'"end":1', b'"ends":1'),
        lambda _: b"[]",
        lambda _: b"\xff",
    ],
    ids=["cut", "newer", "rows", "field", "list", "text"],
)
def test_a_manifest_that_is_damaged_is_refused(change: Callable[[bytes], bytes]) -> None:
    data = encode_table(Table(incarnation="i", number=1, end=1, files=(file_of(1),)))
    with pytest.raises(MalformedObject, match="manifest of its table"):
        parse_table(change(data))


def in_objects(manifest: Manifest) -> Manifest:
    stored = (StoredObject(f"{s.number}-ab", 9, manifest.storage) for s in manifest.segments)
    segments = (
        replace(segment, location=Location(object=each))
        for segment, each in zip(manifest.segments, stored, strict=True)
    )
    return replace(manifest, segments=tuple(segments))


def test_a_table_is_extended_when_there_is_much_or_after_an_hour() -> None:
    manifest = replace(EMPTY, settings=TABLE)
    table = Table(incarnation=EMPTY.incarnation, committed_ms=1000)
    assert not is_due(manifest, table, 1000 + DUE_MS - 1)
    assert is_due(manifest, table, 1000 + DUE_MS)
    half = sealed(1, size=DUE_BYTES // 2)
    for count, due in ((1, False), (2, True)):
        full = in_objects(grow(manifest, *[half] * count))
        assert is_due(full, table, 1000) is due
    behind = in_objects(grow(manifest, half, half))
    assert archived_end(behind) == 2
    assert archived_end(grow(manifest, half, half)) == 0
