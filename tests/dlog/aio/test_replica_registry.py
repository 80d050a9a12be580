"""What running replicas report of themselves, what that keeps in the log; requested snapshots."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import dlog.testing
from dlog import Command, NoSuchLog, SnapshotPolicy, StateMachine
from dlog.aio import Replica, replica_registry, snapshot_keeper
from dlog.aio.admin import log_info, rename_log
from dlog.aio.replica_registry import (
    RegisteredReplica,
    list_replicas,
    read_replicas,
    request_snapshot,
)
from dlog.aio.store import ManifestNode
from dlog.errors import SnapshotRequestFailed
from dlog.protocol.replica_record import ReplicaRecord, SnapshotRequest, replica_path, request_path
from dlog.testing import AsyncCluster
from ledger.errors import DamagedMetadata, MetadataUnavailable
from ledger.metastore import open_store
from ledger.metastore.memory import MemoryStore
from ledger.metastore.port import MetadataStore
from tests.waiting import PATIENCE_S, eventually

LOG = "accounts"
NEVER = SnapshotPolicy(every_records=10**9)
RECORD = ReplicaRecord(
    log=LOG,
    candidate="a",
    address="http://a",
    process="host:1",
    role="leader",
    epoch=3,
    applied=7,
    version=2,
    since_ms=5,
    snapshots="file:///srv/snapshots",
    newest_snapshot=4,
    phase="checking",
    done_bytes=1,
    total_bytes=2,
    error="broken",
    updated_ms=6,
)


class Count(StateMachine):
    def __init__(self, *, broken: bool = False) -> None:
        self.count, self.broken = 0, broken

    def apply(self, command: Command) -> object:
        if command.payload == b"fail":
            raise ValueError("cannot apply that: \udcff")
        self.count += 1
        return self.count

    def snapshot(self, out: BinaryIO) -> None:
        if self.broken:
            raise OSError("the disk is full: \udcff")
        out.write(b"%d" % self.count)

    def restore(self, source: BinaryIO) -> None:
        self.count = int(source.read())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_registry, "STATUS_S", 0.0)
    monkeypatch.setattr(replica_registry, "POLL_S", 0.02)


@asynccontextmanager
async def opened(
    cluster: AsyncCluster, candidate: str = "a", **how: Any
) -> AsyncIterator[Replica[Any]]:
    how.setdefault("machine", Count())
    machine = how.pop("machine")
    async with Replica.open(
        LOG,
        machine,
        uri=cluster.uri,
        candidate=candidate,
        address=f"http://{candidate}",
        lease_s=PATIENCE_S,
        policy=how.pop("policy", NEVER),
        **how,
    ) as replica:
        yield replica


@asynccontextmanager
async def leading(cluster: AsyncCluster, **how: Any) -> AsyncIterator[Replica[Any]]:
    async with opened(cluster, **how) as replica:
        assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
        yield replica


@asynccontextmanager
async def store_of(cluster: AsyncCluster) -> AsyncIterator[MetadataStore]:
    store = await open_store(cluster.uri)
    try:
        yield store
    finally:
        await store.close()


async def listed(cluster: AsyncCluster, log: str | None = LOG) -> list[ReplicaRecord]:
    return [each.record for each in await list_replicas(log, uri=cluster.uri)]


async def first(cluster: AsyncCluster) -> RegisteredReplica:
    return (await list_replicas(LOG, uri=cluster.uri))[0]


def offsets(snapshots: Path) -> list[int]:
    return sorted(int(path.stem) for path in snapshots.glob("*/*.snapshot"))


def test_records_and_requests_are_read_as_they_were_written() -> None:
    assert ReplicaRecord.decode(RECORD.encode(), path="/r") == RECORD
    foreign = replace(RECORD, error="\udcff", snapshots="file:///\udcff")
    read = ReplicaRecord.decode(foreign.encode(), path="/r")
    assert (read.error, read.snapshots) == ("?", "file:///?")
    request = SnapshotRequest(asked_by="me:1", asked_ms=3, begun=True, offset=0)
    assert SnapshotRequest.decode(request.encode(), path="/r") == request
    for value in (b"\xff", b"", RECORD.encode().replace(b"leader", b"ledaer")):
        with pytest.raises(DamagedMetadata):
            ReplicaRecord.decode(value, path="/r")


async def test_replicas_report_their_role_and_how_far_they_are(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        async with opened(cluster, "b", snapshots=str(tmp_path)):
            for _ in range(5):
                await leader.submit(b"x")

            async def all_applied() -> bool:
                replicas = await list_replicas(LOG, uri=cluster.uri)
                applied = [(each.record.applied, each.lag) for each in replicas]
                return applied == [(leader.applied, 0)] * 2  # a reader knows of the end later

            await eventually(all_applied)
            a, b = await listed(cluster)
            assert (a.candidate, a.role, a.epoch, a.address) == (
                "a",
                "leader",
                leader.epoch,
                "http://a",
            )
            assert (b.candidate, b.role, b.epoch) == ("b", "standby", 0)
            assert (a.snapshots, b.snapshots) == ("", tmp_path.as_uri())
            assert a.applied == b.applied == leader.applied
            assert await listed(cluster, None) == [a, b]
        assert [each.candidate for each in await listed(cluster)] == ["a"], "b was closed"


async def test_nothing_is_left_in_the_store_of_replicas_that_were_closed() -> None:
    async with dlog.testing.cluster() as cluster:
        async with leading(cluster):
            pass
        async with store_of(cluster) as store:
            assert await store.children("/replicas") == []
        assert await listed(cluster) == []
        with pytest.raises(NoSuchLog):
            await listed(cluster, "other")


async def test_a_replica_is_listed_again_after_its_session_was_lost() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster):
        before = await first(cluster)
        async with cluster.metadata_cut():
            pass

        async def is_another() -> bool:
            replicas = await list_replicas(LOG, uri=cluster.uri)
            return len(replicas) == 1 and replicas[0].id != before.id

        await eventually(is_another)


async def test_a_replica_that_stopped_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers of xdist cannot send the traceback that is logged, which is not Unicode.
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        with pytest.raises(Exception, match="cannot apply that"):
            await leader.submit(b"fail")

        async def has_stopped() -> bool:
            [record] = await listed(cluster)
            return record.role == "stopped" and "cannot apply that: ?" in record.error

        await eventually(has_stopped)


async def test_a_replica_is_listed_under_the_new_name_of_its_log() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        await rename_log(LOG, "other", uri=cluster.uri)
        await leader.resign()

        async def is_renamed() -> bool:
            return [each.log for each in await listed(cluster, "other")] == ["other"]

        await eventually(is_renamed)


# What replicas keep in the log.


async def test_the_log_keeps_what_a_running_replica_without_snapshots_has_not_applied(
    tmp_path: Path,
) -> None:
    policy = SnapshotPolicy(every_records=10**9, keep=1, truncate=True)

    async def first_offset() -> int:
        return (await log_info(LOG, uri=cluster.uri)).tail.first_offset

    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, snapshots=str(tmp_path), policy=policy) as leader,
    ):
        async with opened(cluster, "slow") as slow:
            turn = slow._state.apply
            slow._state.apply = lambda *_, **__: turn([])  # type: ignore[method-assign]
            for _ in range(5):
                await leader.submit(b"x")
            applied = slow.applied
            assert applied < leader.applied
            await leader.snapshot()
            assert await first_offset() <= applied
        await leader.submit(b"x")
        await leader.snapshot()
        assert await first_offset() > applied, "a replica that is closed keeps nothing"


@pytest.mark.parametrize("has_store", [False, True])
async def test_a_truncation_that_was_decided_before_a_replica_registered_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_store: bool
) -> None:
    policy = SnapshotPolicy(every_records=10**9, keep=1, truncate=True)
    own = {"snapshots": str(tmp_path / "own")} if has_store else {}
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, snapshots=str(tmp_path / "shared"), policy=policy) as leader,
        AsyncExitStack() as late,
    ):
        for _ in range(5):
            await leader.submit(b"x")

        async def listed_too_early(*given: Any) -> Any:
            monkeypatch.setattr(snapshot_keeper, "read_replicas", read_replicas)
            replicas = await read_replicas(*given)
            await late.enter_async_context(opened(cluster, "late", **own))
            return replicas

        monkeypatch.setattr(snapshot_keeper, "read_replicas", listed_too_early)
        await leader.snapshot()
        [replica] = [each for each in await listed(cluster) if each.candidate == "late"]
        first_offset = (await log_info(LOG, uri=cluster.uri)).tail.first_offset
        assert first_offset <= (0 if has_store else replica.applied)


async def test_a_replica_that_cannot_describe_itself_is_listed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    describe, calls = Replica._describe, 0

    def failing(replica: Replica[Any]) -> ReplicaRecord:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise ZeroDivisionError
        return describe(replica)

    monkeypatch.setattr(Replica, "_describe", failing)
    async with dlog.testing.cluster() as cluster, leading(cluster):

        async def is_listed() -> bool:
            return [each.role for each in await listed(cluster)] == ["leader"]

        await eventually(is_listed)


def test_a_replica_with_snapshots_or_that_stopped_needs_nothing_of_the_log() -> None:
    assert RECORD.needed_offset is None
    alone = replace(RECORD, snapshots="")
    assert alone.needed_offset == 7
    assert replace(alone, role="stopped").needed_offset is None


# Requests.


async def test_a_requested_snapshot_is_written_by_the_replica(tmp_path: Path) -> None:
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, snapshots=str(tmp_path)) as leader,
        store_of(cluster) as store,
    ):
        await leader.submit(b"x")
        replica = await first(cluster)
        offset = await request_snapshot(replica, store)
        assert offset == leader.applied
        assert offsets(tmp_path) == [offset]
        assert await request_snapshot(replica, store) == offset, "nothing was applied since"
        await leader.submit(b"x")
        assert await request_snapshot(replica, store) == offset + 1

        async def is_reported() -> bool:
            return (await first(cluster)).record.newest_snapshot == offset + 1

        await eventually(is_reported)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_snapshot_that_fails_is_reported_to_the_client(
    tmp_path: Path, *, stored: bool
) -> None:
    how = {"snapshots": str(tmp_path)} if stored else {}
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, machine=Count(broken=True), **how),
        store_of(cluster) as store,
    ):
        said = r"the disk is full: \?" if stored else "without a store"
        with pytest.raises(SnapshotRequestFailed, match=said):
            await request_snapshot(await first(cluster), store)


async def test_a_second_request_is_refused_while_one_waits(tmp_path: Path) -> None:
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, snapshots=str(tmp_path)),
        store_of(cluster) as store,
    ):
        replica = await first(cluster)
        path = request_path(replica.incarnation, replica.id)
        request = SnapshotRequest(asked_by="other", asked_ms=1, error="failed before")
        await store.create(path, request.encode(), ephemeral=True)
        with pytest.raises(SnapshotRequestFailed, match="another client"):
            await request_snapshot(replica, store)


async def test_a_request_of_a_replica_that_went_ends_at_once(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster, store_of(cluster) as store:
        async with leading(cluster, snapshots=str(tmp_path)):
            replica = await first(cluster)
        with pytest.raises(SnapshotRequestFailed, match="was closed"):
            await request_snapshot(replica, store)


async def test_a_request_that_nobody_answers_ends_in_time(tmp_path: Path) -> None:
    async with dlog.testing.cluster() as cluster, store_of(cluster) as store:
        path = replica_path("life", "0123")
        await store.create(path, RECORD.encode(), ephemeral=True)
        with pytest.raises(SnapshotRequestFailed, match="it did not begin"):
            await request_snapshot(RegisteredReplica("0123", "life", RECORD), store, timeout_s=0.05)
        assert await store.children("/replicas/life") == ["0123"], "no request is left"
        assert await read_replicas(store, "life") == [("0123", RECORD)]


async def test_a_store_that_refuses_registration_stops_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(*_: object) -> None:
        raise MetadataUnavailable("", "/replicas", 0.0, "refused")

    monkeypatch.setattr(replica_registry.ReplicaRegistration, "_write", refused)
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        assert await leader.submit(b"x") == 1
        assert await listed(cluster) == []


@pytest.mark.parametrize("rounds", [{1}, {3}])
async def test_a_registration_that_failed_is_repeated_whatever_it_was(
    monkeypatch: pytest.MonkeyPatch, rounds: set[int]
) -> None:
    write, done = replica_registry.ReplicaRegistration._write, 0

    async def failing(registration: replica_registry.ReplicaRegistration) -> None:
        nonlocal done
        done += 1
        if done in rounds:
            raise ZeroDivisionError
        await write(registration)

    monkeypatch.setattr(replica_registry.ReplicaRegistration, "_write", failing)
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:

        async def is_up_to_date() -> bool:
            return done > 3 and [each.role for each in await listed(cluster)] == ["leader"]

        await eventually(is_up_to_date)
        assert await leader.submit(b"x") == 1


class Interrupted(MemoryStore):
    """Its next call of *operation* waits for a connection, which comes with another session."""

    operation = ""

    async def _turn(self, operation: str) -> None:
        if operation == self.operation:
            self.operation = ""
            self.expire()
        await super()._turn(operation)


@asynccontextmanager
async def registered(operation: str) -> AsyncIterator[tuple[Interrupted, list[int]]]:
    """A registration whose *operation* meets another session, and what it reports as applied."""
    store, applied = Interrupted("memory://registered", "registered"), [0]
    store.operation = operation

    async def take_snapshot() -> int:
        raise AssertionError("nobody requests one")

    def describe() -> ReplicaRecord:
        return replace(RECORD, applied=applied[0], updated_ms=0)

    node = ManifestNode(store, LOG)
    node.follow("life")
    registration = replica_registry.ReplicaRegistration(node, describe, take_snapshot)
    await registration.start()
    yield store, applied
    await registration.close()
    assert await read_replicas(store, "life") == [], "a replica that was closed"
    await store.close()


@pytest.mark.parametrize("operation", ["set", "create", "delete"])
async def test_one_node_is_left_of_a_replica_whose_call_met_another_session(
    operation: str,
) -> None:
    async with registered("create") as (store, applied):
        for offset in range(1, 4):
            applied[0], store.operation = offset, operation
            if operation != "set":  # which is called in each round
                store.expire()

            async def is_one() -> bool:
                replicas = await read_replicas(store, "life")
                return not store.operation and [r.applied for _, r in replicas] == [applied[0]]

            await eventually(is_one)


@pytest.mark.parametrize("operation", ["set", "create"])
async def test_nothing_is_left_of_a_replica_that_was_closed_when_its_call_had_met_another_session(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(replica_registry, "POLL_S", PATIENCE_S)
    async with registered(operation):
        pass
