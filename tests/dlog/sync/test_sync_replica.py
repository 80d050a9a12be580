"""The replicated state machine for threads, on bookies that live on the facade's loop thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import dlog.testing
from dlog import ApplyFailed, Command, LogClosed, NotLeader, Replica, StateMachine
from tests.waiting import PATIENCE_S

LOG = "accounts"


class Counter(StateMachine):
    def __init__(self) -> None:
        self.value = 0
        self.threads: set[int] = set()

    def apply(self, command: Command) -> object:
        self.threads.add(threading.get_ident())
        before = self.value
        self.value = before + int(command.payload)
        return self.value

    def snapshot(self, out: BinaryIO) -> None:
        out.write(b"%d" % self.value)

    def restore(self, source: BinaryIO) -> None:
        self.value = int(source.read())


def value(counter: Counter) -> int:
    counter.threads.add(threading.get_ident())
    return counter.value


def test_threads_submit_and_read_and_one_thread_uses_the_state() -> None:
    counter = Counter()
    with (
        dlog.testing.cluster() as cluster,
        Replica.open(LOG, counter, uri=cluster.uri, lease_s=PATIENCE_S) as replica,
        ThreadPoolExecutor(8) as pool,
    ):
        assert replica.wait_role("leader", timeout_s=PATIENCE_S)
        results = list(pool.map(lambda _: replica.submit(b"1"), range(200)))
        assert sorted(map(str, results)) == sorted(map(str, range(1, 201)))
        assert replica.read(value) == 200
        assert replica.read(value, consistency="local") == 200
        assert replica.age_s() < PATIENCE_S
        assert (replica.role, replica.applied) == ("leader", 201)
        assert replica.leader is not None
        assert replica.leader.epoch == replica.epoch
        assert len(counter.threads) == 1
        assert threading.get_ident() not in counter.threads


def test_a_blocking_replica_follows_leads_and_begins_with_a_snapshot(tmp_path: Path) -> None:
    with dlog.testing.cluster() as cluster:

        def opened() -> Replica[Counter]:
            snapshots = f"file://{tmp_path}"
            return Replica.open(
                LOG, Counter(), uri=cluster.uri, snapshots=snapshots, lease_s=PATIENCE_S
            )

        with opened() as first, opened() as second:
            assert first.wait_role("leader", timeout_s=PATIENCE_S)
            roles = first.roles()
            assert next(roles) == "leader"
            assert first.submit(b"5", request_id=("client", 1)) == 5
            assert second.read(value) == 5
            with pytest.raises(NotLeader):
                second.submit(b"1")
            first.resign()
            assert second.wait_role("leader", timeout_s=PATIENCE_S)
            assert second.submit(b"5", request_id=("client", 1)) == 5
            assert second.snapshot() == second.applied
            assert next(roles) == "standby"
        assert list(roles) == []
        with pytest.raises(LogClosed):
            first.read(value)
        with opened() as again:
            assert again.read(value) == 5


def test_what_apply_raises_is_raised_by_each_call() -> None:
    with (
        dlog.testing.cluster() as cluster,
        Replica.open(LOG, Counter(), uri=cluster.uri, lease_s=PATIENCE_S) as replica,
    ):
        assert replica.wait_role("leader", timeout_s=PATIENCE_S)
        with pytest.raises(ApplyFailed):
            replica.submit(b"nothing")
        assert replica.wait_role("stopped", timeout_s=PATIENCE_S)
        assert isinstance(replica.error, ApplyFailed)
        with pytest.raises(ApplyFailed):
            replica.read(value)


def test_a_state_machine_does_not_wait_for_its_own_replica() -> None:
    """It would wait for itself: its thread is the one that has to answer."""
    replicas: list[Replica[Any]] = []

    class Asks(Counter):
        def apply(self, command: Command) -> object:
            with pytest.raises(RuntimeError, match="its own state machine"):
                replicas[0].submit(b"1")
            return super().apply(command)

    with (
        dlog.testing.cluster() as cluster,
        Replica.open(LOG, Asks(), uri=cluster.uri, lease_s=PATIENCE_S) as replica,
    ):
        replicas.append(replica)
        assert replica.wait_role("leader", timeout_s=PATIENCE_S)
        assert replica.submit(b"1") == 1
        with pytest.raises(RuntimeError, match="its own state machine"):
            replica.read(lambda _: replica.read(value, consistency="local"))
        with pytest.raises(RuntimeError, match="its own state machine"):
            replica.read(lambda _: replica.close())
        assert replica.read(value) == 1
