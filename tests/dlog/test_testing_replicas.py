"""What applications get to test their state machines with: replicas that crash, and a check for
what is not deterministic."""

import asyncio
import json
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import dlog.testing
from dlog import ApplyFailed, Command, CommandOutcomeUnknown, NotLeader, SnapshotPolicy
from dlog.aio.admin import log_info
from dlog.protocol.snapshot import WriteState
from dlog.testing import InvalidTestCluster, NotDeterministic, StatesDiffer, replica_group
from tests.waiting import settled

pytest_plugins = ["dlog.testing.plugin"]

COMMANDS = [b"alice 5", b"bob 2", b"alice 1", b"carol 3"]


class Accounts(dlog.StateMachine):
    def __init__(self) -> None:
        self.balances: dict[str, int] = {}

    def apply(self, command: Command) -> object:
        name, amount = command.payload.decode().split()
        self.balances[name] = self.balances.get(name, 0) + int(amount)
        return self.balances[name]

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.balances).encode())

    def restore(self, source: BinaryIO) -> None:
        self.balances = json.load(source)


# Replicas.


async def test_a_killed_leaders_requests_have_one_effect_and_the_others_one_state() -> None:
    async with dlog.testing.replicas(Accounts) as group:
        leader = await group.leader()
        assert await leader.submit(b"alice 5", request_id=("client", 1)) == 5
        assert await group.kill_leader() is leader
        assert leader.role == "stopped"
        assert len(group.replicas) == 2
        leader = await group.leader()
        assert await leader.submit(b"alice 5", request_id=("client", 1)) == 5, "done before"
        assert json.loads(str(await group.same_state(_text))) == {"alice": 5}
        again = await group.start()
        assert json.loads(str(await group.same_state(_text))) == {"alice": 5}
        assert again.applied == leader.applied


async def test_what_was_submitted_to_a_killed_leader_has_no_outcome_there() -> None:
    async with (
        dlog.testing.cluster() as cluster,
        dlog.testing.replicas(Accounts, uri=cluster.uri) as group,
    ):
        leader = await group.leader()
        await cluster.kill_bookie(0)
        await cluster.kill_bookie(1)
        submitted = asyncio.create_task(leader.submit(b"alice 1", request_id=("client", 1)))
        await settled()  # one bookie has it, and nobody may confirm it
        await group.kill(leader)
        with pytest.raises(CommandOutcomeUnknown):
            await submitted
        await cluster.restart_bookie(0)
        await cluster.restart_bookie(1)
        leader = await group.leader()
        assert await leader.submit(b"alice 1", request_id=("client", 1)) == 1
        assert await group.same_state(lambda accounts: accounts.balances) == {"alice": 1}


def test_a_killed_leader_seals_nothing_so_the_next_one_recovers_its_log() -> None:
    with dlog.testing.replicas(Accounts, 1) as group:
        group.leader().submit(b"alice 5")
        assert dlog.Log.end_of("replicated", uri=group.uri) == 2, "its mark, and the command"
        group.kill_leader()
        [segment] = _segments(group.uri)
        assert segment.sealed is None, "open, as after a crash"
        group.start()
        group.leader()
        assert _segments(group.uri)[0].end_offset == 2


def test_blocking_replicas_do_the_same(tmp_path: Path) -> None:
    with dlog.testing.replicas(Accounts, snapshots=tmp_path) as group:
        leader = group.leader()
        followers = [replica for replica in group.replicas if replica is not leader]
        assert leader.submit(b"alice 5") == 5
        assert group.same_state() == b'{"alice": 5}'
        with pytest.raises(NotLeader, match="replica-1 at http://replica-1"):
            followers[0].submit(b"alice 5")
        leader.resign()
        assert group.kill_leader() is not leader
        assert group.leader().submit(b"alice 1") == 6
        assert group.same_state(lambda accounts: accounts.balances) == {"alice": 6}
    assert group.replicas == ()


def test_a_torn_snapshot_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    policy = SnapshotPolicy(keep=2)
    with dlog.testing.replicas(Accounts, 1, snapshots=tmp_path, policy=policy) as group:
        leader = group.leader()
        for command in COMMANDS:
            leader.submit(command)
            leader.snapshot()
        size_bytes = max(path.stat().st_size for path in tmp_path.glob("*/*.snapshot"))
        assert group.tear_snapshot().stat().st_size <= size_bytes // 2
        again = group.start()
        assert again.read(lambda accounts: accounts.balances, consistency="local") != {}
        assert group.same_state() == b'{"alice": 6, "bob": 2, "carol": 3}'


def test_states_that_differ_are_told_with_their_replicas() -> None:
    numbers = iter(range(9))

    class Numbered(Accounts):
        def __init__(self) -> None:
            super().__init__()
            self.number = next(numbers)

        def apply(self, command: Command) -> object:
            super().apply(command)
            if command.payload == b"bob 2":
                self.balances["bob"] += self.number
            return None

    with dlog.testing.replicas(Numbered) as group:
        group.leader().submit(b"alice 1")
        assert group.same_state() == b'{"alice": 1}'
        group.leader().submit(b"bob 2")
        with pytest.raises(StatesDiffer, match=r"replica-1 and replica-2 .*, below offset 3") as no:
            group.same_state()
        assert """{"alice": 1, "bob": 2}' and b'{"alice": 1, "bob": 3}""" in str(no.value)


def test_what_stopped_a_replica_is_raised_to_the_test() -> None:
    with dlog.testing.replicas(Accounts, 2) as group:
        with pytest.raises(ApplyFailed):
            group.leader().submit(b"nonsense")
        with pytest.raises(ApplyFailed, match="at offset 1"):
            group.same_state()


async def test_replicas_that_never_agree_on_an_end_end_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with dlog.testing.replicas(Accounts, 2) as group:
        leader = await group.leader()
        stopping = asyncio.Event()

        async def submit() -> None:
            while not stopping.is_set():
                await leader.submit(b"alice 1")

        monkeypatch.setattr(replica_group, "WAIT_S", 0.2)
        submitting = asyncio.create_task(submit())
        with pytest.raises(AssertionError, match="submit nothing meanwhile"):
            await group.same_state()
        stopping.set()
        await submitting


def test_the_fixture_starts_replicas_on_the_cluster_of_the_test(
    dlog_cluster: dlog.testing.Cluster, dlog_replicas: Callable[..., Any]
) -> None:
    group = dlog_replicas(Accounts, 2)
    assert group.leader().submit(b"alice 5") == 5
    dlog_cluster.kill_bookie(0)
    assert group.leader().submit(b"alice 5") == 10
    assert len(group.replicas) == 2
    assert group.uri == dlog_cluster.uri


@pytest.mark.parametrize("count", [0, 17])
def test_a_group_has_1_to_16_replicas(count: int) -> None:
    with pytest.raises(InvalidTestCluster, match=f"{count} replicas asked for"):
        dlog.testing.replicas(Accounts, count)


def test_no_snapshot_is_torn_where_there_is_none(tmp_path: Path) -> None:
    with (
        dlog.testing.replicas(Accounts, 1, snapshots=tmp_path) as group,
        pytest.raises(InvalidTestCluster, match="there is no snapshot"),
    ):
        group.tear_snapshot()


def _text(accounts: Accounts) -> str:
    return json.dumps(accounts.balances)


def _segments(uri: str) -> Any:
    return asyncio.run(log_info("replicated", uri=uri)).manifest.segments


# Determinism.


def test_a_deterministic_machine_has_the_same_fingerprint_each_time() -> None:
    fingerprint = dlog.testing.check_deterministic(Accounts, COMMANDS)
    assert fingerprint == dlog.testing.check_deterministic(Accounts, COMMANDS)
    assert fingerprint != dlog.testing.check_deterministic(Accounts, COMMANDS[:-1])


class UsesTheClock(Accounts):
    def apply(self, command: Command) -> object:
        if command.payload.startswith(b"carol"):
            self.balances["at"] = time.perf_counter_ns()
        return super().apply(command)


class ReturnsTheClock(Accounts):
    def apply(self, command: Command) -> object:
        super().apply(command)
        return time.perf_counter_ns() if command.offset == 2 else 0


class ForgetsTheCount(Accounts):
    """Of commands: it is no part of its snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def apply(self, command: Command) -> object:
        self.count += 1
        if self.count == 3:
            self.balances["third"] = 1
        return super().apply(command)


class LosesZeros(Accounts):
    def restore(self, source: BinaryIO) -> None:
        super().restore(source)
        self.balances = {name: amount for name, amount in self.balances.items() if amount != 2}


class SharesItsState(Accounts):
    def capture(self) -> WriteState:
        return self.snapshot


@pytest.mark.parametrize(
    ("machine", "index", "reason"),
    [
        (UsesTheClock, 3, "two state machines that applied the same commands have the states"),
        (ReturnsTheClock, 2, "two state machines that applied the same commands returned"),
        (ForgetsTheCount, 2, "one that applied all commands, and one restored"),
        (LosesZeros, 1, "a state machine, and one restored from its snapshot"),
        (SharesItsState, 0, "capture must copy more"),
    ],
)
def test_the_first_command_after_which_machines_differ_is_named(
    machine: Callable[[], Accounts], index: int, reason: str
) -> None:
    with pytest.raises(NotDeterministic, match=reason) as caught:
        dlog.testing.check_deterministic(machine, COMMANDS)
    assert (caught.value.index, caught.value.command) == (index, COMMANDS[index])
    assert f"after commands[{index}], {COMMANDS[index]!r}" in str(caught.value)


def test_new_machines_that_differ_are_found_before_any_command() -> None:
    numbers = iter(range(9))

    class Numbered(Accounts):
        def __init__(self) -> None:
            self.balances = {"number": next(numbers)}

    with pytest.raises(NotDeterministic, match="before any command"):
        dlog.testing.check_deterministic(Numbered, [])


def test_equal_states_with_other_snapshots_are_compared_as_the_test_says() -> None:
    class Reversed(Accounts):
        def restore(self, source: BinaryIO) -> None:
            self.balances = dict(reversed(json.load(source).items()))

    with pytest.raises(NotDeterministic, match="restored"):
        dlog.testing.check_deterministic(Reversed, COMMANDS)
    dlog.testing.check_deterministic(
        Reversed, COMMANDS, state=lambda accounts: sorted(accounts.balances.items())
    )


def test_a_machine_without_snapshots_is_compared_by_its_digest() -> None:
    class Total(dlog.StateMachine):
        total = 0

        def apply(self, command: Command) -> object:
            self.total += len(command.payload)
            return object()  # no result that a request could have

        def digest(self) -> bytes:
            return b"%d" % self.total

    assert dlog.testing.check_deterministic(Total, COMMANDS)

    class Nothing(dlog.StateMachine):
        def apply(self, command: Command) -> object:
            return None

    with pytest.raises(InvalidTestCluster, match="Nothing defines neither"):
        dlog.testing.check_deterministic(Nothing, [])


def test_what_apply_raises_names_its_command() -> None:
    with pytest.raises(ValueError, match="unpack") as caught:
        dlog.testing.check_deterministic(Accounts, [b"alice 1", b"nonsense"])
    assert caught.value.__notes__ == ["raised by apply at commands[1], b'nonsense'"]


def test_long_states_are_shown_where_they_differ() -> None:
    class Long(Accounts):
        def snapshot(self, out: BinaryIO) -> None:
            out.write(b"x" * 10_000 + b"%d" % time.perf_counter_ns() + b"y" * 10_000)

        def restore(self, source: BinaryIO) -> None:
            BytesIO(source.read())

    with pytest.raises(NotDeterministic) as caught:
        dlog.testing.check_deterministic(Long, COMMANDS)
    assert len(str(caught.value)) < 1000
    assert "xxxx" in str(caught.value)
    assert "yyyy" in str(caught.value)
