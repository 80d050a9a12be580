"""Object storage as a directory, and what a storage that is not there is called."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dlog.archive import object_store
from dlog.archive.object_store import PART_BYTES, open_folder
from dlog.errors import ArchiveMissing, ObjectStorageRefused, ObjectStorageUnavailable
from dlog.settings import LogSettings
from ledger.errors import InvalidValue
from tests.waiting import until

CHUNK = bytes(range(256)) * 4096


async def chunks(count: int, *, fails: bool = False) -> AsyncGenerator[bytes, None]:
    for _ in range(count):
        yield CHUNK
    if fails:
        raise KeyError("mine")


async def test_an_object_of_many_parts_is_read_by_ranges_listed_and_deleted(tmp_path: Path) -> None:
    folder = open_folder(f"file://{tmp_path}/a b/log")
    count = 2 * PART_BYTES // len(CHUNK) + 1
    assert await folder.names() == []
    await folder.put("1-a", chunks(count))
    assert await folder.size("1-a") == count * len(CHUNK)
    assert await folder.read("1-a", range(255, 258)) == b"\xff\x00\x01"
    assert await folder.read("1-a", range(5, 5)) == b""
    assert await folder.names() == ["1-a"]
    assert (tmp_path / "a b" / "log" / "1-a").read_bytes() == CHUNK * count
    await folder.delete("1-a")
    await folder.delete("1-a")
    assert (await folder.size("1-a"), await folder.read("1-a", range(1))) == (None, None)
    assert await folder.names() == []


async def test_an_upload_whose_source_fails_or_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    folder = open_folder(f"file://{tmp_path}/objects/log")
    with pytest.raises(KeyError, match="mine"):
        await folder.put("1-a", chunks(3 * PART_BYTES // len(CHUNK), fails=True))
    waits = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        for _ in range(2 * PART_BYTES // len(CHUNK)):
            yield CHUNK
        waits.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(folder.put("2-a", endless()))
    await waits.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await folder.names() == []
    await until(lambda: not list((tmp_path / "objects" / "log").iterdir()))


async def test_storage_that_does_not_answer_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "AWS_ENDPOINT": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "RETRY_S", 0.1)
    object_store._store_at.cache_clear()
    try:
        folder = open_folder("s3://bucket/logs/incarnation")
        with pytest.raises(
            ObjectStorageUnavailable, match="looking for 1-a got no answer"
        ) as caught:
            await folder.size("1-a")
    finally:
        object_store._store_at.cache_clear()
    assert caught.value.retryable
    assert caught.value.outcome_unknown


async def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectStorageRefused, match="check the bucket"):
        open_folder(f"file://{tmp_path}/file/objects/log")


def test_without_the_library_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.exceptions", None)
    object_store._store_at.cache_clear()
    with pytest.raises(ArchiveMissing, match=r"pip install 'dlog-ledgers\[archive\]'"):
        open_folder(f"file://{tmp_path}/objects/log")


@pytest.mark.parametrize(
    "uri",
    [
        "bucket",
        "s3://bucket",
        "s3:///prefix",
        "file://relative",
        "file:///",
        "memory:///a",
        "http://host/a",
        "s3://key:secret@bucket/a",
        "s3://bucket/a?x=1",
        "s3://bucket//a",
        f"s3://bucket/{'a' * 600}",
    ],
)
def test_a_uri_that_is_no_storage_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidValue, match="use s3://BUCKET/PREFIX") as caught:
        LogSettings(archive=uri)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["s3://b/a", "gs://b/a/c", "az://account/container/a", "file:///a b/c"]
)
def test_a_uri_of_a_storage_is_kept_without_its_last_slash(uri: str) -> None:
    assert LogSettings(archive=f"{uri}/").archive == uri


async def test_a_mark_is_swapped_by_one_at_a_time_also_while_others_delete_it(
    tmp_path: Path,
) -> None:
    folder = open_folder(f"file://{tmp_path}/logs/one")
    count, wins = 20, list[int]()

    async def swap(number: int) -> None:
        mark = b"%d" % number
        if await folder.swap_mark(None, mark) == mark:
            wins.append(number)
            assert await folder.read_mark() == mark
            await folder.delete_mark()

    await asyncio.gather(*map(swap, range(count)))
    assert wins
    assert await folder.read_mark() is None
    assert list((tmp_path / "logs").iterdir()) == []
