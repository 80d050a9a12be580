"""Snapshots of replicas: what they hold, what becomes of damaged ones, where a replica begins, and
what may be truncated behind them."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import dlog.testing
from dlog import (
    BarrierNotReached,
    Command,
    DamagedSnapshot,
    InvalidValue,
    LogClosed,
    NotCaughtUp,
    RequestId,
    SnapshotAhead,
    SnapshotPolicy,
    SnapshotsUnusable,
    SnapshotTooNew,
    StateMachine,
    StateNotRestored,
    Trimmed,
    metrics,
    snapshot_store,
)
from dlog.aio import Replica, snapshot_keeper
from dlog.aio.admin import list_consumers, log_info, rename_log, truncate_log
from dlog.aio.maintain import snapshot_check
from dlog.aio.read.handles import consumer
from dlog.aio.snapshot_keeper import SnapshotKeeper
from dlog.aio.store import read_consumers
from dlog.archive import object_store
from dlog.errors import ObjectStorageUnavailable
from dlog.manifest import Manifest
from dlog.protocol.archive import is_orphan
from dlog.protocol.client_table import ClientTable
from dlog.protocol.snapshot import (
    PIECE_BYTES,
    SnapshotHeader,
    SnapshotWriter,
    WriteState,
    check_snapshot,
    read_header,
    read_snapshot,
    write_snapshot,
)
from dlog.snapshot_store import SnapshotFile, SnapshotStore
from dlog.testing import AsyncCluster
from ledger.errors import MetadataUnavailable
from tests.dlog.archive.s3_server import BUCKET, FaultyS3, s3
from tests.waiting import PATIENCE_S, eventually, settled, until

LOG = "accounts"
HEADER = SnapshotHeader(
    log=LOG,
    incarnation="life",
    offset=7,
    epoch=2,
    leader="a",
    address="http://a",
    version=1,
    written_ms=5,
)
NEVER = SnapshotPolicy(every_records=10**9)


class Sums(StateMachine):
    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.applied = 0
        """Since this program began."""
        self.restored = 0

    def apply(self, command: Command) -> object:
        name, number = command.payload.decode().split()
        self.sums[name] = self.sums.get(name, 0) + int(number)
        self.applied += 1
        return self.sums[name]

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.sums).encode())

    def restore(self, source: BinaryIO) -> None:
        self.sums = json.loads(source.read())
        self.restored += 1


@asynccontextmanager
async def opened(
    cluster: AsyncCluster,
    snapshots: Path | str,
    *,
    machine: StateMachine | None = None,
    policy: SnapshotPolicy = NEVER,
    leads: bool = True,
    executor: Executor | None = None,
) -> AsyncIterator[Replica[Any]]:
    async with Replica.open(
        LOG,
        machine or Sums(),
        uri=cluster.uri,
        snapshots=str(snapshots),
        policy=policy,
        executor=executor,
        lease_s=PATIENCE_S,
    ) as replica:
        if leads:
            assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
        yield replica


async def submitted(replica: Replica[Any], count: int) -> None:
    await asyncio.gather(*(replica.submit(b"x 1") for _ in range(count)))


async def reached(snapshots: Path, offset: int) -> bool:
    return max((int(path.stem) for path in files(snapshots)), default=0) >= offset


async def first_offset(cluster: AsyncCluster) -> int:
    return (await log_info(LOG, uri=cluster.uri)).tail.first_offset


def files(snapshots: Path) -> list[Path]:
    return sorted(snapshots.glob("*/*.snapshot"))


def sums(machine: Sums) -> dict[str, int]:
    return dict(machine.sums)


# The file.


def snapshot_bytes(state: bytes = b"state", table: tuple[bytes, ...] = (b"ta", b"ble")) -> bytes:
    out = BytesIO()
    write_snapshot(out, HEADER, table, lambda stream: stream.write(state))
    return out.getvalue()


@pytest.mark.parametrize("state", [b"", b"state", bytes(3_000_000)])
def test_a_snapshot_is_read_as_it_was_written(state: bytes) -> None:
    encoded = snapshot_bytes(state)
    assert check_snapshot(BytesIO(encoded), len(encoded)) == HEADER
    header, table, source = read_snapshot(BytesIO(encoded), len(encoded))
    assert (header, table, source.read()) == (HEADER, b"table", state)


async def test_a_large_snapshot_says_how_far_it_is(tmp_path: Path) -> None:
    said: list[tuple[str, int, int | None]] = []

    def note(phase: str, done_bytes: int, total_bytes: int | None) -> None:
        said.append((phase, done_bytes, total_bytes))

    store = await SnapshotStore.open(str(tmp_path), LOG, HEADER.incarnation)
    state = bytes(3 * PIECE_BYTES)
    file = await store.write(HEADER, [b"table"], lambda out: out.write(state), note)
    path = path_of(store, file)
    size_bytes = path.stat().st_size
    written = [done for phase, done, _ in said if phase == "writing"]
    assert len(written) >= 3
    assert written == sorted(written)
    assert said[-1] == ("checking", size_bytes, size_bytes)
    said.clear()
    with path.open("rb") as source:
        _, _, restored = read_snapshot(source, size_bytes, note)
        assert restored.read() == state
    assert said[-1] == ("restoring", len(state), len(state))
    assert len(said) >= 3


def test_a_snapshot_that_was_cut_off_or_changed_anywhere_is_not_whole() -> None:
    encoded = snapshot_bytes()
    for length in range(len(encoded)):
        with pytest.raises(DamagedSnapshot):
            check_snapshot(BytesIO(encoded[:length]), length)
    for at in range(len(encoded)):
        changed = bytearray(encoded)
        changed[at] ^= 0x40
        with pytest.raises((DamagedSnapshot, SnapshotTooNew)):
            check_snapshot(BytesIO(changed), len(changed))


def test_a_snapshot_that_was_damaged_since_it_was_checked_is_not_restored() -> None:
    def restored(encoded: bytes) -> None:
        _, _, state = read_snapshot(BytesIO(encoded), len(encoded))
        state.read()

    for encoded in (snapshot_bytes(), snapshot_bytes(state=b"")):
        restored(encoded)
        for length in range(len(encoded)):
            with pytest.raises(DamagedSnapshot):
                restored(encoded[:length])
        for at in range(len(encoded)):
            changed = bytearray(encoded)
            changed[at] ^= 0x40
            with pytest.raises((DamagedSnapshot, SnapshotTooNew)):
                restored(bytes(changed))


def test_a_header_of_other_fields_is_damage() -> None:
    fields = json.loads(HEADER.encode())
    bads: list[object] = [
        fields | {"offset": -1},
        fields | {"offset": "7"},
        fields | {"epoch": True},
        fields | {"log": 7},
        fields | {"more": 1},
        {"log": LOG},
        [],
    ]
    for bad in bads:
        with pytest.raises(DamagedSnapshot):
            SnapshotHeader.decode(json.dumps(bad).encode())


# The store.


async def store_at(where: Path | str) -> SnapshotStore:
    uri = where if isinstance(where, str) else f"file://{where}"
    return await SnapshotStore.open(uri, LOG, "life")


def path_of(store: SnapshotStore, file: SnapshotFile) -> Path:
    return Path(store.place(file))


async def written(store: SnapshotStore, offset: int) -> SnapshotFile:
    header = replace(HEADER, offset=offset)
    return await store.write(header, [], lambda out: out.write(b"state of %d" % offset))


async def test_the_newest_whole_one_is_found_and_a_damaged_one_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = await store_at(tmp_path)
    assert await snapshots.newest_whole(above=0) is None
    old, new = await written(snapshots, 5), await written(snapshots, 9)
    assert await snapshots.newest_whole(above=0) == new
    assert await snapshots.newest_whole(above=9) is None
    path = path_of(snapshots, new)
    path.write_bytes(path.read_bytes()[:-1])
    assert await snapshots.newest_whole(above=0) == old
    assert "snapshot_damaged" in caplog.text


async def test_a_snapshot_under_the_name_of_another_is_damage(tmp_path: Path) -> None:
    snapshots = await store_at(tmp_path)
    path = path_of(snapshots, await written(snapshots, 5))
    path.rename(path.with_name(f"{9:020d}.snapshot"))
    assert await snapshots.newest_whole(above=0) is None


async def test_nothing_is_left_of_a_snapshot_that_could_not_be_written(tmp_path: Path) -> None:
    snapshots = await store_at(tmp_path)
    identity = await snapshots.identity()

    def fails(_: BinaryIO) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await snapshots.write(HEADER, [], fails)
    assert [path.name for path in (tmp_path / "life").iterdir()] == ["identity"]
    assert await (await store_at(tmp_path)).identity() == identity


async def test_what_is_no_snapshot_is_passed_over(tmp_path: Path) -> None:
    snapshots = await store_at(tmp_path)
    file = await written(snapshots, 7)
    (tmp_path / "life" / "7777.snapshot").mkdir()
    (tmp_path / "life" / "8888.snapshot").write_bytes(b"junk")
    assert await snapshots.newest_whole(0) == file
    assert (await snapshots.sort_out(2))[0] == [file]


async def test_a_snapshot_that_was_found_whole_is_read_though_it_was_removed(
    where: Path | str,
) -> None:
    snapshots = await store_at(where)
    file = await written(snapshots, 7)
    opened = await snapshots.open_newest(0)
    assert opened is not None
    await snapshots.delete([file])
    with opened[2] as source:
        source.seek(0)
        assert read_header(source).offset == 7


async def test_an_identity_that_a_crash_left_in_part_is_replaced(tmp_path: Path) -> None:
    snapshots = await store_at(tmp_path)
    identity = await snapshots.identity()
    assert len(identity) == 16
    assert await snapshots.identity() == await (await store_at(tmp_path)).identity() == identity
    for left in ("", identity[:7], "\0" * 16):
        (tmp_path / "life" / "identity").write_text(left)
        again = await snapshots.identity()
        assert len(again) == 16
        assert again.isalnum()
        assert await snapshots.identity() == again


async def test_directories_and_identity_are_synced_with_what_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, honest = list[Path](), os.fsync

    def fsync(opened: int) -> None:
        synced.append(Path(f"/proc/self/fd/{opened}").readlink())
        honest(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    snapshots = await store_at(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    await snapshots.identity()
    assert [path.name.partition(".")[0] for path in synced] == ["identity", "life"]


async def sorted_out(
    snapshots: SnapshotStore, count: int, whole: SnapshotFile | None = None
) -> list[int]:
    kept, surplus = await snapshots.sort_out(count, whole)
    await snapshots.delete(surplus)
    assert {file.offset for file in await snapshots.files()} == {file.offset for file in kept}
    return [file.offset for file in kept]


async def test_only_the_newest_are_kept(where: Path | str) -> None:
    snapshots = await store_at(where)
    for offset in (1, 2, 3):
        await written(snapshots, offset)
    assert await sorted_out(snapshots, 2) == [3, 2]


async def test_a_damaged_snapshot_does_not_stand_for_one_that_is_kept(tmp_path: Path) -> None:
    snapshots = await store_at(tmp_path)
    await written(snapshots, 1)
    path = path_of(snapshots, await written(snapshots, 2))
    path.write_bytes(path.read_bytes()[:-1])
    newest = await written(snapshots, 3)
    assert await sorted_out(snapshots, 2, newest) == [3, 1]


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket",
        "s3://key:secret@bucket/a",
        "http://host/a",
        "memory://",
        "memory://a/b",
        "relative/path",
        "file://host/path",
        f"gs://bucket/{'a' * 600}",
    ],
)
async def test_a_place_where_no_snapshots_can_be_is_refused(uri: str) -> None:
    with pytest.raises(SnapshotsUnusable) as caught:
        await store_at(uri)
    assert "secret" not in str(caught.value)


# Object storage.


class Objects:
    """A folder in memory, whose uploads and lists may go wrong."""

    def __init__(self) -> None:
        self.storage = "s3://bucket/snapshots/life.snapshots"
        self.data: dict[str, bytes] = {}
        self.unlisted: set[str] = set()
        self.deleted: list[str] = []
        self.upload: Callable[[bytes], bytes | None] = lambda data: data
        """Returns what of it is there afterwards; None: nothing."""

    async def put(self, name: str, chunks: AsyncGenerator[bytes, None]) -> None:
        assert name not in self.data, "an object is written once"
        data = self.upload(b"".join([chunk async for chunk in chunks]))
        if data is not None:
            self.data[name] = data

    async def read(self, name: str, bytes_range: range) -> bytes | None:
        data = self.data.get(name)
        return None if data is None else data[bytes_range.start : bytes_range.stop]

    async def size(self, name: str) -> int | None:
        data = self.data.get(name)
        return None if data is None else len(data)

    async def delete(self, name: str) -> None:
        self.deleted.append(name)
        self.data.pop(name, None)

    async def names(self) -> list[str]:
        return sorted(set(self.data) - self.unlisted)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    made = Objects()
    monkeypatch.setattr(object_store, "open_folder", lambda _storage: made)
    return made


@pytest.fixture(params=["directory", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path if request.param == "directory" else f"memory://{tmp_path.name}"


async def test_what_is_in_memory_is_of_its_process_and_name(tmp_path: Path) -> None:
    snapshots = await store_at("memory://" + tmp_path.name)
    file = await written(snapshots, 5)
    assert await (await store_at(snapshots.uri)).newest_whole(0) == file
    other = await store_at(f"memory://{tmp_path.name}-other")
    assert await other.newest_whole(0) is None
    assert await other.identity() != await snapshots.identity()


async def test_an_object_of_many_parts_is_read_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch, objects: Objects
) -> None:
    monkeypatch.setattr(snapshot_store, "_READ_BYTES", 1000)
    said: list[tuple[str, int, int | None]] = []
    snapshots, state = await store_at("s3://bucket/snapshots"), os.urandom(2 * PIECE_BYTES)
    file = await snapshots.write(
        HEADER, [b"table"], lambda out: out.write(state), lambda *done: said.append(done)
    )
    size = await snapshots.size_bytes(file)
    assert size is not None
    assert [step for step in said if step[1] == size] == [
        ("writing", size, size),
        ("checking", size, size),
    ]
    assert await snapshots.glance(file) == HEADER
    opened = await snapshots.open_newest(0)
    assert opened is not None
    with opened[2] as source:
        source.seek(0)
        header, table, restored = read_snapshot(source, size)
        assert (header, table, restored.read()) == (HEADER, b"table", state)
    objects.data[file.name] = objects.data[file.name][:-1]
    with pytest.raises(DamagedSnapshot):
        await snapshots.glance(file)
    with pytest.raises(DamagedSnapshot):
        await snapshots.check(file)
    del objects.data[file.name]
    assert await snapshots.size_bytes(file) is None
    with pytest.raises(FileNotFoundError):
        await snapshots.glance(file)


@pytest.mark.parametrize("left", [None, b"", b"dlogsnap"])
async def test_an_upload_that_is_torn_or_lost_is_no_snapshot(
    objects: Objects, left: bytes | None
) -> None:
    snapshots = await store_at("s3://bucket/snapshots")
    objects.upload = lambda _data: left
    with pytest.raises(DamagedSnapshot):
        await written(snapshots, 5)
    assert objects.data == {}


async def test_no_attempt_has_the_name_of_another_and_none_is_named_as_a_segment(
    objects: Objects,
) -> None:
    snapshots = await store_at("s3://bucket/snapshots")
    await written(snapshots, 5)
    await written(snapshots, 5)
    assert len(objects.data) == 2
    gone = Manifest(incarnation="life", next_segment=10**9, dropped=True)
    assert not any(is_orphan(gone, name) for name in objects.data)
    await written(snapshots, 4)
    assert await sorted_out(snapshots, 1) == [5]
    assert len(objects.data) == 2, "another replica may have noted either of them"


async def test_a_list_that_lacks_what_was_just_written_makes_nothing_of_it_surplus(
    objects: Objects,
) -> None:
    snapshots = await store_at("s3://bucket/snapshots")
    files = [await written(snapshots, offset) for offset in (4, 5, 6)]
    objects.unlisted = {files[2].name}
    kept, surplus = await snapshots.sort_out(2, files[2])
    assert (kept, surplus) == ([files[2], files[1]], [files[0]])


async def test_an_object_that_is_listed_and_gone_is_passed_over(objects: Objects) -> None:
    snapshots = await store_at("s3://bucket/snapshots")
    old, new = await written(snapshots, 4), await written(snapshots, 5)
    honest = objects.names
    del objects.data[new.name]

    async def names() -> list[str]:
        return [*await honest(), new.name]

    objects.names = names  # type: ignore[method-assign]
    assert await snapshots.newest_whole(0) == old
    assert (await snapshots.sort_out(2))[0] == [old]


async def test_a_list_that_lacks_the_newest_object_hides_no_snapshot_that_is_kept(
    objects: Objects,
) -> None:
    policy = replace(NEVER, keep=1, truncate=True)
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, "s3://bucket/snapshots", policy=policy) as replica:
            await submitted(replica, 10)
            offset = await replica.snapshot()
            assert await first_offset(cluster) == offset
            objects.unlisted = set(objects.data)
            shown = await snapshot_check.check_store(
                LOG, "s3://bucket/snapshots", read=True, uri=cluster.uri
            )
            assert [each.state for each in shown.snapshots] == ["whole"]
        async with opened(cluster, "s3://bucket/snapshots") as again:
            assert again.applied >= offset
            assert await again.read(sums) == {"x": 10}


async def test_what_is_kept_is_noted_before_others_are_deleted(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a replica whose list is late would find nothing where the log begins."""
    policy = replace(NEVER, keep=1, truncate=True)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, "s3://bucket/snapshots", policy=policy) as replica,
    ):
        await submitted(replica, 10)
        await replica.snapshot()
        [first] = objects.data

        async def unavailable(*_: object) -> None:
            raise MetadataUnavailable("", "set", 0.0, "for a moment")

        with monkeypatch.context() as patch:
            patch.setattr(SnapshotKeeper, "_commit", unavailable)
            await submitted(replica, 10)
            with pytest.raises(MetadataUnavailable):
                await replica.snapshot()
        assert first in objects.data
        await submitted(replica, 1)
        offset = await replica.snapshot()
        assert [int(name.split("-")[1]) for name in objects.data] == [offset]
        assert len(objects.deleted) == 2


async def test_a_replica_looks_again_if_others_took_the_place_of_what_was_noted(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = replace(NEVER, keep=1, truncate=True)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, "s3://bucket/snapshots", policy=policy) as leader,
    ):
        await submitted(leader, 10)
        await leader.snapshot()
        await submitted(leader, 10)
        honest, looks = SnapshotKeeper._noted, 0

        async def noted(self: SnapshotKeeper) -> list[str]:
            nonlocal looks
            looks += 1
            names = await honest(self)
            if looks == 1:
                await leader.snapshot()
                objects.unlisted = set(objects.data)
            return names

        monkeypatch.setattr(SnapshotKeeper, "_noted", noted)
        async with opened(cluster, "s3://bucket/snapshots", leads=False) as follower:
            assert follower._state.machine.restored == 1
            assert looks == 2
            assert await follower.read(sums) == {"x": 20}


@pytest.mark.parametrize("by", ["follower", "leader"])
def test_a_policy_is_due_by_records_bytes_or_time_and_later_for_others(by: SnapshotWriter) -> None:
    policy = SnapshotPolicy(every_records=10, every_bytes=1000, every_s=60, by=by)
    writes = by == "leader"

    def due(records: int = 1, command_bytes: int = 1, since_s: float = 1, *, leads: bool) -> bool:
        return policy.is_due(
            records=records, command_bytes=command_bytes, since_s=since_s, leads=leads
        )

    for leads, times in ((writes, 1), (not writes, 2)):
        assert not due(leads=leads)
        assert due(records=10 * times, leads=leads)
        assert not due(records=10 * times - 1, leads=leads)
        assert due(command_bytes=1000 * times, leads=leads)
        assert due(since_s=60.0 * times, leads=leads)
        assert not due(records=0, since_s=1e6, leads=leads), "nothing was applied"
    wrongs: list[dict[str, Any]] = [
        {"every_records": 0},
        {"keep": 0},
        {"every_bytes": 0},
        {"every_s": -1},
        {"by": "anybody"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidValue):
            SnapshotPolicy(**wrong)


# Replicas.


@pytest.mark.parametrize("others", [0, 1])
async def test_a_snapshot_that_is_damaged_while_it_is_restored_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    honest = SnapshotKeeper._check_reached
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            for _ in range(1 + others):
                await submitted(replica, 50)
                await replica.snapshot()
            after = await replica.read(sums)
        *_, newest = files(tmp_path)

        async def check_reached(self: SnapshotKeeper, header: SnapshotHeader) -> None:
            await honest(self, header)
            whole = newest.read_bytes()
            newest.write_bytes(whole[:-22] + bytes([whole[-22] ^ 1]) + whole[-21:])  # a digit of it
            monkeypatch.undo()

        monkeypatch.setattr(SnapshotKeeper, "_check_reached", check_reached)
        if others:
            async with opened(cluster, tmp_path, leads=False) as replica:
                assert await replica.read(sums) == after
        else:
            with pytest.raises(DamagedSnapshot):
                async with opened(cluster, tmp_path, leads=False):
                    pytest.fail("it was opened")


@pytest.mark.parametrize("threads", [0, 1])
async def test_a_state_that_was_restored_in_part_is_neither_read_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    checks = 0
    pool = ThreadPoolExecutor(1) if threads else None
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path) as leader,
        opened(cluster, tmp_path, leads=False, executor=pool) as follower,
    ):
        turn = follower._state.apply
        monkeypatch.setattr(follower._state, "apply", lambda *_, **__: turn([]))
        for _ in range(2):
            await submitted(leader, 50)
            await leader.snapshot()

        async def check_reached(_: SnapshotHeader) -> None:
            nonlocal checks
            checks += 1
            if checks == 1:
                newest = files(tmp_path)[-1]
                whole = newest.read_bytes()
                newest.write_bytes(whole[:-22] + bytes([whole[-22] ^ 1]) + whole[-21:])
                return
            with pytest.raises(StateNotRestored):
                await follower.read(sums, consistency="local")
            with pytest.raises(StateNotRestored):
                await follower.snapshot()

        keeper = follower._keeper
        assert keeper is not None
        monkeypatch.setattr(keeper, "_check_reached", check_reached)
        assert await keeper.restore_newest()
        assert await follower.read(sums, consistency="local") == {"x": 50}
        assert checks == 2
    if pool is not None:
        pool.shutdown()


async def test_a_replica_begins_with_the_newest_snapshot_and_applies_what_follows(
    tmp_path: Path,
) -> None:
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            await submitted(replica, 50)
            assert await replica.snapshot() == replica.applied
            assert await replica.snapshot() == replica.applied, "there is one of this state"
            await submitted(replica, 7)
        async with opened(cluster, tmp_path) as again:
            machine = again._state.machine
            assert (machine.restored, machine.applied) == (1, 7)
            assert await again.read(sums) == {"x": 57}


async def test_requests_are_done_once_across_a_snapshot_and_a_truncation(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            assert await replica.submit(b"x 5", request_id=RequestId("client", 1)) == 5
            await submitted(replica, 10)
            offset = await replica.snapshot()
        await truncate_log(LOG, before=offset, uri=cluster.uri)
        async with opened(cluster, tmp_path) as again:
            assert await again.submit(b"x 5", request_id=RequestId("client", 1)) == 5
            assert await again.read(sums) == {"x": 15}
            assert again.leader is not None


async def test_replicas_and_their_snapshots_are_counted(tmp_path: Path) -> None:
    snapshots, records = metrics.REPLICA_SNAPSHOTS.values, metrics.REPLICA_RECORDS.values
    written, restored, applied = snapshots["written",], snapshots["restored",], records[()]
    before = dict(metrics.REPLICA_SNAPSHOT_BYTES.values)
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            await submitted(replica, 5)
            await replica.snapshot()
            assert [each.role for each in metrics.REPLICAS if each is replica] == ["leader"]
        assert replica not in metrics.REPLICAS
        async with opened(cluster, tmp_path, leads=False):
            pass
    assert (snapshots["written",], snapshots["restored",]) == (written + 1, restored + 1)
    assert records[()] >= applied + 6
    for phase, size_bytes in metrics.REPLICA_SNAPSHOT_BYTES.values.items():
        assert size_bytes > before[phase]


async def test_a_damaged_snapshot_is_passed_over_for_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            for _ in range(2):
                await submitted(replica, 10)
                await replica.snapshot()
        newest = files(tmp_path)[-1]
        newest.write_bytes(newest.read_bytes().replace(b'{"x": 20}', b'{"x": 99}'))
        async with opened(cluster, tmp_path) as again:
            assert await again.read(sums) == {"x": 20}
            assert again._state.machine.restored == 1
    assert "snapshot_damaged" in caplog.text


async def test_a_follower_writes_when_its_policy_says_so_and_old_ones_go(tmp_path: Path) -> None:
    policy = SnapshotPolicy(every_records=20)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path) as leader,
        opened(cluster, tmp_path, policy=policy, leads=False) as follower,
    ):
        for before in range(1, 5):
            await submitted(leader, 20)
            newest = 20 * before
            await eventually(partial(reached, tmp_path, newest))
        await until(lambda: follower._keeper is not None and follower._keeper._writing is None)
        assert len(files(tmp_path)) == 2


async def test_a_snapshot_is_of_one_state_while_commands_are_applied(tmp_path: Path) -> None:
    """What `capture` returns runs beside them; here it is held until many were applied."""
    gate = threading.Event()

    class Held(Sums):
        def capture(self) -> WriteState:
            write = super().capture()

            def later(out: BinaryIO) -> None:
                assert gate.wait(PATIENCE_S)
                write(out)

            return later

    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path, machine=Held()) as replica:
            await submitted(replica, 10)
            writing = asyncio.create_task(replica.snapshot())
            await until(
                lambda: replica._keeper is not None and replica._keeper._writing is not None
            )
            await submitted(replica, 30)
            gate.set()
            assert await writing < replica.applied
        async with opened(cluster, tmp_path) as again:
            assert await again.read(sums) == {"x": 40}


async def test_a_snapshot_that_fails_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Sums):
        def snapshot(self, out: BinaryIO) -> None:
            out.write(b"half")
            raise RuntimeError("no")

    async with dlog.testing.cluster() as cluster:
        policy = SnapshotPolicy(every_records=5)
        async with opened(cluster, tmp_path, machine=Failing(), policy=policy) as replica:
            await submitted(replica, 20)
            await until(lambda: "snapshot_failed" in caplog.text)
            with pytest.raises(RuntimeError):
                await replica.snapshot()
            await submitted(replica, 1)
        assert files(tmp_path) == []


async def test_the_log_is_truncated_to_the_oldest_that_is_kept(tmp_path: Path) -> None:
    policy = SnapshotPolicy(every_records=10**9, keep=2, truncate=True)
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path, policy=policy) as replica:
            offsets = []
            for _ in range(3):
                await submitted(replica, 10)
                offsets.append(await replica.snapshot())
            assert await first_offset(cluster) == offsets[1]
        async with opened(cluster, tmp_path) as again:
            assert await again.read(sums) == {"x": 30}


async def test_nothing_is_truncated_that_another_store_or_a_consumer_needs(
    tmp_path: Path,
) -> None:
    policy = SnapshotPolicy(every_records=10**9, keep=1, truncate=True)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path / "here", policy=policy) as replica,
        opened(cluster, tmp_path / "there", leads=False) as other,
    ):
        await submitted(replica, 10)
        await replica.snapshot()
        assert await first_offset(cluster) == 0
        await other.read(sums)
        there = await other.snapshot()
        await submitted(replica, 10)
        reader = await consumer("audit", LOG, uri=cluster.uri, start=5)
        await replica.snapshot()
        assert await first_offset(cluster) == 5
        await anext(aiter(reader))
        await reader.close()
        names = [each.name for each in await list_consumers(LOG, uri=cluster.uri)]
        assert len([name for name in names if name.startswith("snapshots-")]) == 2
        async with Replica.open(
            LOG, Sums(), uri=cluster.uri, snapshots=str(tmp_path / "there")
        ) as again:
            assert again.applied >= there
            assert await again.read(sums) == {"x": 20}


async def test_a_damaged_snapshot_keeps_the_log_from_being_truncated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = SnapshotPolicy(every_records=10**9, keep=2, truncate=True)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path, policy=policy) as replica,
    ):
        await submitted(replica, 10)
        await replica.snapshot()
        [first] = files(tmp_path)
        first.write_bytes(first.read_bytes()[:-3])
        await submitted(replica, 10)
        await replica.snapshot()
        assert await first_offset(cluster) == 0
        assert "snapshot_damaged" in caplog.text


@pytest.mark.parametrize("interruptions", [0, 2])
async def test_a_follower_that_was_overtaken_by_a_truncation_goes_on_from_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptions: int
) -> None:
    gate, interrupted = threading.Event(), 0
    restore_newest = SnapshotKeeper.restore_newest

    async def restore(self: SnapshotKeeper) -> bool:
        nonlocal interrupted
        if interrupted < interruptions:
            interrupted += 1
            raise MetadataUnavailable("", "get", 0.0, "for a moment")
        return await restore_newest(self)

    class Slow(Sums):
        def apply(self, command: Command) -> object:
            gate.wait(PATIENCE_S)
            return super().apply(command)

    pool = ThreadPoolExecutor(1)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path) as leader,
        Replica.open(
            LOG,
            Slow(),
            uri=cluster.uri,
            snapshots=str(tmp_path),
            policy=NEVER,
            executor=pool,
            lease_s=PATIENCE_S,
        ) as slow,
    ):
        try:
            for _ in range(3):  # more than is read ahead, in segments that go
                for _ in range(6):
                    await leader.submit(b"x 1" + b" " * 900_000)
                assert leader._term is not None
                await leader._term.log.roll()
            offset = await leader.snapshot()
            await truncate_log(LOG, before=offset, uri=cluster.uri)
            monkeypatch.setattr(SnapshotKeeper, "restore_newest", restore)
        finally:
            gate.set()
        assert await slow.read(sums, timeout_s=PATIENCE_S) == {"x": 18}
        assert slow.role == "standby"
        assert slow._state.machine.restored == 1
        assert interrupted == interruptions
    pool.shutdown()


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    monkeypatch.setattr(object_store, "RETRIES_MAX", 1)  # each pause is longer than the last
    with s3(monkeypatch, seed=1) as storage:
        yield storage


@pytest.mark.integration
async def test_a_replica_begins_with_the_log_and_leads_while_object_storage_is_unavailable(
    storage: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots, policy = f"s3://{BUCKET}/snapshots", SnapshotPolicy(every_records=10)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, snapshots, policy=policy) as leader,
    ):
        await submitted(leader, 4)
        await leader.snapshot()
        storage.rate = 1.0
        await submitted(leader, 20)
        await until(lambda: "snapshot_failed" in caplog.text)
        await submitted(leader, 1)
        assert "snapshots_unavailable" not in caplog.text
        async with opened(cluster, snapshots, leads=False) as follower:
            assert "snapshots_unavailable" in caplog.text
            assert await follower.read(sums, timeout_s=PATIENCE_S) == {"x": 25}
            await leader.abandon()
            assert await follower.wait_role("leader", timeout_s=PATIENCE_S)
            await submitted(follower, 1)
            with pytest.raises(ObjectStorageUnavailable):
                await follower.snapshot()
            storage.rate = 0.0
            assert await follower.snapshot() == follower.applied


@pytest.mark.integration
async def test_a_replica_whose_log_was_truncated_waits_for_object_storage_and_lets_others_lead(
    storage: FaultyS3, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = f"s3://{BUCKET}/snapshots"
    policy = SnapshotPolicy(every_records=10**9, keep=1, truncate=True)
    async with dlog.testing.cluster() as cluster, AsyncExitStack() as stack:
        leader = await stack.enter_async_context(opened(cluster, snapshots, policy=policy))
        await submitted(leader, 10)
        assert await leader.snapshot() == await first_offset(cluster) > 0
        storage.rate = 1.0
        late = await stack.enter_async_context(opened(cluster, snapshots, leads=False))
        await until(lambda: "replica_waits_for_snapshots" in caplog.text)
        with pytest.raises(NotCaughtUp) as caught:
            await late.read(sums, timeout_s=0.01)
        assert caught.value.retryable
        await leader.resign()
        assert await leader.wait_role("leader", timeout_s=PATIENCE_S)
        assert (late.role, late.applied) == ("standby", 0)
        storage.rate = 0.0
        assert await late.read(sums, timeout_s=PATIENCE_S) == {"x": 10}
        await leader.close()
        assert await late.wait_role("leader", timeout_s=PATIENCE_S)


async def test_a_replica_without_a_snapshot_does_not_begin_in_the_middle(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path / "a") as replica:
            await submitted(replica, 10)
            offset = await replica.snapshot()
        await truncate_log(LOG, before=offset, uri=cluster.uri)
        async with opened(cluster, tmp_path / "b", leads=False) as late:
            assert await late.wait_role("stopped", timeout_s=PATIENCE_S)
            assert isinstance(late.error, Trimmed)


async def test_a_snapshot_of_a_later_version_of_the_application_is_refused(tmp_path: Path) -> None:
    class Later(Sums):
        version = 2

    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path, machine=Later()) as replica:
            await submitted(replica, 1)
            await replica.snapshot()
        with pytest.raises(SnapshotTooNew):
            await Replica.open(LOG, Sums(), uri=cluster.uri, snapshots=str(tmp_path))


async def test_a_machine_without_snapshots_is_not_opened_with_a_store(tmp_path: Path) -> None:
    class Plain(StateMachine):
        def apply(self, command: Command) -> object:
            return None

    async with dlog.testing.cluster() as cluster:
        with pytest.raises(InvalidValue, match="snapshot"):
            await Replica.open(LOG, Plain(), uri=cluster.uri, snapshots=str(tmp_path))
        async with Replica.open(LOG, Plain(), uri=cluster.uri) as replica:
            with pytest.raises(InvalidValue):
                await replica.snapshot()


async def test_a_foreign_file_does_not_stand_for_a_snapshot(tmp_path: Path) -> None:
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path, policy=SnapshotPolicy(every_records=5)) as replica,
    ):
        junk = tmp_path / replica._incarnation / f"{10**15}.snapshot"
        junk.write_bytes(b"junk")
        await submitted(replica, 20)
        await until(lambda: bool(set(files(tmp_path)) - {junk}))
        junk.write_bytes(b"junk")
        await submitted(replica, 1)
        offset = await replica.snapshot()
        assert offset == replica.applied
        assert junk.with_name(f"{offset:020d}.snapshot") in files(tmp_path)


async def test_the_name_of_a_file_lets_nothing_of_the_log_go(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster:
        async with opened(cluster, tmp_path) as replica:
            await submitted(replica, 20)
            directory = tmp_path / replica._incarnation
        (directory / f"{10**15}.snapshot").write_bytes(b"junk")
        async with opened(cluster, tmp_path):
            [store] = await list_consumers(LOG, uri=cluster.uri)
            assert store.position == 0


async def test_a_snapshot_that_is_ahead_of_its_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore of an older backup. Where nobody can tell at first, a takeover does."""

    async def unknown(*_: object) -> None:
        raise BarrierNotReached(LOG, 1, 1.0)

    async with dlog.testing.cluster() as cluster, opened(cluster, tmp_path) as replica:
        await submitted(replica, 5)
        await replica.snapshot()
        [file] = files(tmp_path)
        with file.open("rb") as source:
            header, _, _ = read_snapshot(source, file.stat().st_size)
        ahead = replace(header, offset=header.offset + 10)
        for wrong in (replace(header, epoch=header.epoch + 1), ahead):
            with file.with_name(f"{wrong.offset:020d}.snapshot").open("wb") as out:
                write_snapshot(out, wrong, ClientTable().encode(), lambda to: to.write(b"{}"))
            with pytest.raises(SnapshotAhead, match="older backup"):
                await Replica.open(LOG, Sums(), uri=cluster.uri, snapshots=str(tmp_path))
        monkeypatch.setattr(snapshot_check, "tail_of", unknown)
        async with opened(cluster, tmp_path, leads=False) as late:
            assert late.applied == ahead.offset
            await replica.close()
            assert await late.wait_role("stopped", timeout_s=PATIENCE_S)
            assert isinstance(late.error, SnapshotAhead)


async def test_nothing_is_truncated_if_the_log_got_another_name_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumers have gone with it, so that there are none at the old name."""
    async with (
        dlog.testing.cluster() as cluster,
        opened(
            cluster, tmp_path, policy=SnapshotPolicy(every_records=10**9, keep=1, truncate=True)
        ) as replica,
    ):
        reader = await consumer("audit", LOG, uri=cluster.uri, start="start")
        await submitted(replica, 10)

        async def renamed(*given: Any) -> Any:
            monkeypatch.undo()
            await rename_log(LOG, "renamed", uri=cluster.uri)
            return await read_consumers(*given)

        monkeypatch.setattr(snapshot_keeper, "read_consumers", renamed)
        await replica.snapshot()
        assert (await log_info("renamed", uri=cluster.uri)).tail.first_offset == 0
        await submitted(replica, 1)
        await replica.snapshot()
        assert (await log_info("renamed", uri=cluster.uri)).tail.first_offset == 0
        await reader.close()


async def test_a_snapshot_that_waited_when_its_replica_was_closed_is_not_begun(
    tmp_path: Path,
) -> None:
    gate = threading.Event()

    class Held(Sums):
        def capture(self) -> WriteState:
            assert gate.wait(PATIENCE_S)
            return super().capture()

    with ThreadPoolExecutor(1) as pool:
        async with dlog.testing.cluster() as cluster:
            async with opened(cluster, tmp_path, machine=Held(), executor=pool) as replica:
                first = asyncio.create_task(replica.snapshot())
                await settled()
                second = asyncio.create_task(replica.snapshot())
                await settled()
                closing = asyncio.create_task(replica.close())
                keeper = replica._keeper
                assert keeper is not None
                await until(lambda: keeper._is_closed)
                gate.set()
                await closing
            assert await first > 0
            with pytest.raises(LogClosed):
                await second


async def test_a_snapshot_is_due_by_time_though_nothing_is_applied_any_more(
    tmp_path: Path,
) -> None:
    policy = SnapshotPolicy(every_records=10**9, every_s=0.05)
    async with (
        dlog.testing.cluster() as cluster,
        opened(cluster, tmp_path, policy=policy) as replica,
    ):
        await submitted(replica, 1)
        await eventually(partial(reached, tmp_path, replica.applied))
