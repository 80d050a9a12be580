"""Real processes and a real S3 wire: no kill and no fault of the storage loses a record."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import (
    archive_log,
    audit_namespace,
    create_log,
    delete_log,
    log_info,
    rebuild_table,
    restore_segments,
    table_info,
    truncate_log,
    update_settings,
    verify_log,
    verify_table,
)
from dlog.archive import object_store
from dlog.archive.object_store import PART_BYTES, open_folder
from dlog.errors import ObjectStorageUnavailable
from dlog.local.cluster import LocalCluster
from dlog.manifest import Manifest
from dlog.settings import LogSettings
from tests.dlog.archive.s3_server import BUCKET, s3
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers
from tests.waiting import eventually, until

pytestmark = pytest.mark.integration

SEGMENTS = 6
RECORDS = 40
VALUE_BYTES = 50_000
KILLS = 2
TRIES_MAX = 20


def value(index: int) -> bytes:
    return b"%08d" % index * (VALUE_BYTES // 8)


async def write(log: Log) -> None:
    """Append segments of some 2 MB."""
    for segment in range(SEGMENTS):
        if segment:
            await log.roll()
        for index in range(RECORDS):
            log.append_async(value(segment * RECORDS + index), txid=segment * RECORDS + index)
        await log.flush()


async def check_all(*, uri: str | None = None, client: FakeLedgers | None = None) -> None:
    """Read the log from its start, and compare each record."""
    expected = 0
    tail = Log.tail("orders", start="start", follow=False, uri=uri, client=client)
    async with await tail as reader:
        async for record in reader:
            assert (record.offset, record.txid) == (expected, expected)
            assert record.value == value(expected)
            expected += 1
    assert expected == SEGMENTS * RECORDS


async def manifest_of(uri: str) -> Manifest:
    return (await log_info("orders", uri=uri)).manifest


async def archiver(uri: str) -> asyncio.subprocess.Process:
    command = ("log", "archive", "orders", "--now", "--json")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dlog.cli",
        *command,
        env={**os.environ, "DLOG_URI": uri, "DLOG_AUDIT": "off"},
        stdout=asyncio.subprocess.PIPE,
    )


async def test_an_archiver_killed_at_any_moment_leaves_every_record_and_nothing_behind(
    tmp_path: Path,
) -> None:
    storage = tmp_path / "objects"
    async with LocalCluster(tmp_path / "cluster", bookies=3) as cluster:
        uri = cluster.uri
        settings = LogSettings(archive=f"file://{storage}")
        async with await Log.open("orders", uri=uri, settings=settings) as log:
            await write(log)
        folder = storage / (await manifest_of(uri)).incarnation
        killed = 0

        def files() -> int:
            return len(list(folder.iterdir())) if folder.is_dir() else 0

        for least in range(1, SEGMENTS + 1):
            process = await archiver(uri)
            await until(lambda: files() >= least or process.returncode is not None)  # noqa: B023
            if process.returncode is None:
                process.kill()
                killed += 1
            await process.wait()
            await check_all(uri=uri)
        assert killed >= SEGMENTS // 2
        process = await archiver(uri)
        await process.communicate()
        assert process.returncode == 0
        manifest = await manifest_of(uri)
        assert not any(segment.location.on_bookies for segment in manifest.segments)
        await check_all(uri=uri)
        report = await audit_namespace(uri=uri)
        assert (report.healthy, report.ledgers) == (True, 0)
        assert (await verify_log("orders", uri=uri)).records == SEGMENTS * RECORDS
        listed = {s.location.object.name for s in manifest.segments if s.location.object}
        left = {path.name for path in folder.iterdir() if "#" not in path.name}
        assert left == listed, "objects of attempts that were killed are deleted"


async def restorer(uri: str) -> asyncio.subprocess.Process:
    command = ("log", "restore-local", "orders", "--json")
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dlog.cli",
        *command,
        env={**os.environ, "DLOG_URI": uri, "DLOG_AUDIT": "off"},
        stdout=asyncio.subprocess.PIPE,
    )


async def test_a_restorer_killed_at_any_moment_leaves_every_record_and_nothing_behind(
    tmp_path: Path,
) -> None:
    storage = tmp_path / "objects"
    async with LocalCluster(tmp_path / "cluster", bookies=3) as cluster:
        uri = cluster.uri
        settings = LogSettings(archive=f"file://{storage}")
        async with await Log.open("orders", uri=uri, settings=settings) as log:
            await write(log)
        assert not (await archive_log("orders", uri=uri)).failures

        async def copies() -> int:
            return len((await manifest_of(uri)).copies)

        killed = 0
        for _ in range(TRIES_MAX):
            before, process = await copies(), await restorer(uri)

            async def is_under_way() -> bool:
                return await copies() > before or process.returncode is not None  # noqa: B023

            await eventually(is_under_way, "a copy is listed")
            if process.returncode is None:
                process.kill()
                killed += 1
            await process.wait()
            await check_all(uri=uri)
            if await copies() == SEGMENTS:  # begin again
                await restore_segments("orders", keep_s=0, uri=uri)
                await archive_log("orders", uri=uri)
            elif killed >= KILLS:
                break
        assert killed >= KILLS
        process = await restorer(uri)
        await process.communicate()
        assert process.returncode == 0
        assert await copies() == SEGMENTS
        folder = storage / (await manifest_of(uri)).incarnation
        folder.rename(folder.with_name("aside"))
        await check_all(uri=uri)
        folder.with_name("aside").rename(folder)
        assert (await verify_log("orders", uri=uri)).healthy
        await restore_segments("orders", keep_s=0, uri=uri)
        assert (await archive_log("orders", uri=uri)).copies_dropped == SEGMENTS
        report = await audit_namespace(repair=True, uri=uri)
        assert (report.missing, report.pending, report.troubles) == ((), (), ())
        report = await audit_namespace(uri=uri)
        assert (report.healthy, report.ledgers) == (True, 0)
        await check_all(uri=uri)


@pytest.mark.spark
async def test_a_table_whose_archivers_are_killed_has_each_record_once(tmp_path: Path) -> None:
    storage = tmp_path / "objects"
    async with LocalCluster(tmp_path / "cluster", bookies=3) as cluster:
        uri = cluster.uri
        settings = LogSettings(archive=f"file://{storage}")
        async with await Log.open("orders", uri=uri, settings=settings) as log:
            await write(log)
        await archive_log("orders", at_once=True, uri=uri)
        await update_settings("orders", {"archive_table": "parquet"}, uri=uri)
        killed = 0

        def written() -> int:
            return len([path for path in storage.rglob("*.parquet*") if path.is_file()])

        for _ in range(10):
            before = written()
            process = await archiver(uri)
            await until(lambda: written() > before or process.returncode is not None)  # noqa: B023
            if process.returncode is None:
                process.kill()
                killed += 1
            await process.wait()
            await rebuild_table("orders", later=True, uri=uri)
            if killed == 3:
                break
        assert killed
        process = await archiver(uri)
        await process.communicate()
        assert process.returncode == 0
        check = await verify_table("orders", uri=uri)
        assert (check.problems, check.rows) == ([], SEGMENTS * RECORDS)
        info = await table_info("orders", uri=uri)
        listed = {file.path for file in info.table.files} | set(info.table.replaced)
        names = await open_folder(info.storage).names()
        assert set(names) == listed, "files of attempts that were killed are deleted"


async def written(client: FakeLedgers) -> None:
    await create_log("orders", settings=LogSettings(archive=f"s3://{BUCKET}/logs"), client=client)
    async with await Log.open("orders", client=client) as log:
        await write(log)


async def test_a_log_moves_to_s3_through_refusals_broken_and_unanswered_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    client = cluster.client()
    with s3(monkeypatch, seed=3) as storage:
        await written(client)
        storage.rate = 0.15
        for _ in range(10):
            report = await archive_log("orders", client=client)
            assert all(isinstance(each.error, ObjectStorageUnavailable) for each in report.failures)
            await check_all(client=client)
            if not report.failures:
                break
        assert cluster.ledgers == {}
        assert {"refused", "broken", "unanswered"} <= storage.seen.keys()
        storage.rate = 0.0
        assert (await audit_namespace(client=client)).healthy
        assert (await verify_log("orders", client=client)).healthy
        await truncate_log("orders", before=RECORDS + 1, client=client)
        manifest = (await log_info("orders", client=client)).manifest
        folder = open_folder(manifest.storage)
        assert len(await folder.names()) == SEGMENTS - 1
        await delete_log("orders", client=client)
        assert await folder.names() == []


async def test_an_object_of_many_parts_comes_back_from_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = bytes(range(256)) * 4096
    count = 2 * PART_BYTES // len(chunk) + 1

    async def chunks() -> AsyncGenerator[bytes, None]:
        for _ in range(count):
            yield chunk

    with s3(monkeypatch, seed=1):
        folder = open_folder(f"s3://{BUCKET}/logs/incarnation")
        await folder.put("1-a", chunks())
        size = await folder.size("1-a")
        assert size == count * len(chunk)
        assert await folder.read("1-a", range(PART_BYTES - 1, PART_BYTES + 1)) == b"\xff\x00"
        assert await folder.read("1-a", range(size - 1, size)) == b"\xff"
        assert await folder.names() == ["1-a"]


async def test_a_reader_waits_for_storage_that_is_away_and_reads_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeCluster().client()
    monkeypatch.setattr(object_store, "RETRIES_MAX", 0)
    with s3(monkeypatch, seed=1) as storage:
        await written(client)
        assert not (await archive_log("orders", client=client)).failures
        async with await Log.tail("orders", start=0, client=client) as reader:
            assert (await anext(reader)).offset == 0
            storage.rate = 1.0
            faults = storage.seen.total()

            async def read_on() -> None:
                for expected in range(1, SEGMENTS * RECORDS):
                    assert (await anext(reader)).value == value(expected)

            reading = asyncio.create_task(read_on())
            await until(lambda: storage.seen.total() > faults + 5 or reading.done())
            assert not reading.done()
            storage.rate = 0.0
            await reading
