"""Blocks of objects on the disk of this machine: fetched once, bounded, and never trusted."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.aio import Log
from dlog.aio.admin import archive_log, create_log, restore_segments, verify_log
from dlog.archive import block_cache
from dlog.archive.block_cache import LEAST_BYTES, BlockCache
from dlog.archive.object_store import _Folder
from dlog.config import InvalidConfig, load
from dlog.errors import ObjectLost
from dlog.local.cluster import LocalCluster
from dlog.settings import LogSettings
from tests.dlog.aio.test_archived_segments import manifest_of
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers

RECORDS = 24
VALUES = [b"%04d" % number * 25_000 for number in range(RECORDS)]


class Gets:
    """Counts what is read from object storage; nothing else is changed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        honest = _Folder.read

        async def read(folder: _Folder, name: str, bytes_range: range) -> bytes | None:
            self.count += 1
            return await honest(folder, name, bytes_range)

        patch.setattr(_Folder, "read", read)

    def since(self) -> int:
        """Return how many there were since it was asked last."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DLOG_OBJECT_CACHE", "64M")
    block_cache._cache_at.cache_clear()
    yield tmp_path / "cache" / "dlog" / "objects"
    block_cache._cache_at.cache_clear()


def blocks(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def put_file(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no directory")


async def archived(client: FakeLedgers | None, storage: Path, uri: str | None = None) -> None:
    settings = LogSettings(archive=f"file://{storage}")
    await create_log("orders", settings=settings, client=client, uri=uri)
    async with await Log.open("orders", client=client, uri=uri) as log:
        await log.append_many(VALUES)
    assert (await archive_log("orders", client=client, uri=uri)).released


async def check(client: FakeLedgers) -> None:
    async with await Log.tail("orders", start=0, client=client, follow=False) as reader:
        assert [record.value async for record in reader] == VALUES


async def test_history_that_is_read_twice_is_fetched_once(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path / "objects")
    gets = Gets(monkeypatch)
    await check(client)
    first = gets.since()
    await check(client)
    assert (first, gets.since()) == (1 + len(blocks(directory)), 1), "its footer is read"
    assert (await verify_log("orders", client=client)).healthy
    assert gets.since() > first, "a verification reads the storage"
    assert (await restore_segments("orders", client=client)).restored
    assert gets.since() == first, "and so does who brings it back"


async def test_without_the_setting_nothing_is_kept(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLOG_OBJECT_CACHE", "0")
    client = FakeCluster().client()
    await archived(client, tmp_path / "objects")
    gets = Gets(monkeypatch)
    await check(client)
    first = gets.since()
    await check(client)
    assert gets.since() == first
    assert not blocks(directory)


def test_a_size_that_is_none_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().object_cache == 64 << 20
    for bad in ("much", "-1"):
        monkeypatch.setenv("DLOG_OBJECT_CACHE", bad)
        with pytest.raises(InvalidConfig, match="object_cache"):
            load()
    assert not directory.exists()


@pytest.mark.parametrize("damage", ["a bit", "its end", "all", "another block"])
async def test_a_block_that_is_not_right_here_is_read_from_the_storage(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path / "objects")
    await check(client)
    for path in blocks(directory):
        whole = path.read_bytes()
        other = next(each for each in blocks(directory) if each != path).read_bytes()
        at = len(whole) // 2
        path.write_bytes(
            {
                "a bit": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
                "its end": whole[:-1],
                "all": b"",
                "another block": other if other != whole else whole[::-1],
            }[damage]
        )
    gets = Gets(monkeypatch)
    await check(client)
    assert gets.since() == 1 + len(blocks(directory))
    await check(client)
    assert gets.since() == 1, "what was read is kept"


async def test_an_object_that_is_lost_is_lost_whatever_is_kept_of_it(
    tmp_path: Path, directory: Path
) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path / "objects")
    await check(client)
    assert blocks(directory)
    for path in blocks(tmp_path / "objects" / (await manifest_of(client)).incarnation):
        path.unlink()
    with pytest.raises(ObjectLost):
        await check(client)


async def test_a_disk_that_fails_makes_reading_no_worse(tmp_path: Path, directory: Path) -> None:
    client = FakeCluster().client()
    await archived(client, tmp_path / "objects")
    put_file(directory)
    await check(client)
    await check(client)


async def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    room = 10 * LEAST_BYTES
    caches = [BlockCache(tmp_path / "cache", room) for _ in range(2)]
    draft = tmp_path / "cache" / "block-0123.draft"
    draft.parent.mkdir()
    draft.write_bytes(b"of a process that died")
    os.utime(draft, (1, 1))
    for number in range(40):
        await caches[number % 2].put(f"block-{number:02d}", bytes(LEAST_BYTES))
        os.utime(tmp_path / "cache" / f"block-{number:02d}", (1000 + number, 1000 + number))
        assert await caches[0].get("block-00") == bytes(LEAST_BYTES), "it is used all the time"
        held = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
        assert held <= room + 2 * LEAST_BYTES
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left[0] == "block-00"
    assert left[1:] == [f"block-{number}" for number in range(41 - len(left), 40)]
    await caches[0].put("small", bytes(LEAST_BYTES - 1))
    assert await caches[0].get("small") is None


@pytest.mark.integration
async def test_processes_share_what_they_keep_while_it_is_damaged_and_evicted(
    tmp_path: Path, directory: Path
) -> None:
    async with LocalCluster(tmp_path / "cluster", bookies=3) as cluster:
        await archived(None, tmp_path / "objects", cluster.uri)
        environment = {
            **os.environ,
            "DLOG_URI": cluster.uri,
            "DLOG_AUDIT": "off",
            "DLOG_OBJECT_CACHE": "1M",
        }
        command = ("log", "tail", "orders", "--start", "0")

        async def read() -> bytes:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "dlog.cli", *command),
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            assert process.returncode == 0
            return out

        reading = [asyncio.create_task(read()) for _ in range(3)]
        while not all(task.done() for task in reading):
            for path in blocks(directory):
                path.write_bytes(b"damaged")
            await asyncio.wait(reading, timeout=0.05)
        for task in reading:
            assert (await task).split() == VALUES
