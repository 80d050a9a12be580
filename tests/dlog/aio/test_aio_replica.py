"""Replicas of a state machine on real bookies in this process: who leads, what is applied, read and
done once, and what stops them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from enum import IntEnum
from typing import Any

import pytest

import dlog.testing
from dlog import (
    ApplyFailed,
    Command,
    CommandOutcomeUnknown,
    CommandTooNew,
    DamagedCommand,
    InvalidValue,
    LogClosed,
    LogSettings,
    LostOwnership,
    NotCaughtUp,
    NotLeader,
    RecordTooLarge,
    RequestId,
    StateDiverged,
    StateMachine,
)
from dlog.aio import Log, Replica, leader_term
from dlog.aio import replica as replicas
from dlog.aio.admin import rename_log
from dlog.aio.read.tails import acknowledged_end
from dlog.aio.standby import Standby
from dlog.aio.write.writer import LogWriter
from dlog.testing import AsyncCluster
from ledger.delays import Backoff
from ledger.errors import TooManyPending
from tests.waiting import PATIENCE_S, ended, settled, until

LOG = "accounts"


class Register(StateMachine):
    """Adds numbers to names, and keeps everything that was done to it."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self.history: list[bytes] = []

    def apply(self, command: Command) -> object:
        name, number = command.payload.decode().split()
        self.sums[name] = self.sums.get(name, 0) + int(number)
        self.history.append(command.payload)
        return self.sums[name]


@asynccontextmanager
async def opened(
    cluster: AsyncCluster, candidate: str = "a", machine: StateMachine | None = None, **how: Any
) -> AsyncIterator[Replica[Any]]:
    async with Replica.open(
        LOG,
        machine or Register(),
        uri=cluster.uri,
        candidate=candidate,
        address=f"http://{candidate}",
        lease_s=PATIENCE_S,
        **how,
    ) as replica:
        yield replica


@asynccontextmanager
async def leading(cluster: AsyncCluster, **how: Any) -> AsyncIterator[Replica[Any]]:
    async with opened(cluster, **how) as replica:
        assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
        yield replica


@asynccontextmanager
async def leading_on_threads(machine: StateMachine) -> AsyncIterator[Replica[Any]]:
    with ThreadPoolExecutor(4) as pool:
        async with (
            dlog.testing.cluster() as cluster,
            leading(cluster, machine=machine, executor=pool) as leader,
        ):
            yield leader


@asynccontextmanager
async def led(cluster: AsyncCluster, followers: int = 1) -> AsyncIterator[list[Replica[Any]]]:
    """A leader, and those that follow it."""
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(leading(cluster))
        names = [f"f{number}" for number in range(followers)]
        yield [leader, *[await stack.enter_async_context(opened(cluster, n)) for n in names]]


def history(register: Register) -> list[bytes]:
    return list(register.history)


async def test_the_leader_returns_what_apply_returned_and_all_apply_the_same() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster, 2) as [leader, *followers]:
        results = await asyncio.gather(*(leader.submit(b"x %d" % i) for i in range(100)))
        assert results == [sum(range(i + 1)) for i in range(100)]
        for follower in followers:
            assert await follower.read(history) == [b"x %d" % i for i in range(100)]
            assert follower.role == "standby"
            assert follower.epoch is None
            assert follower.leader == leader.leader
        assert leader.leader is not None
        assert leader.leader.epoch == leader.epoch


class Version(IntEnum):
    FIRST = 1


class Typed(Register):
    version = Version.FIRST

    def apply(self, command: Command) -> object:
        self.history.append(repr((command, type(command.version))).encode())
        return None


async def test_commands_are_the_same_everywhere_though_the_version_is_of_a_class_of_its_own() -> (
    None
):
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, machine=Typed()) as leader,
        opened(cluster, "b", Typed()) as follower,
    ):
        await leader.submit(b"x 1", request_id=("client", 1))
        await follower.submit(b"x 1", forward=True)
        assert await leader.read(history) == await follower.read(history)


async def test_a_follower_says_who_leads_and_nothing_was_done() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        await until(lambda: follower.leader is not None)
        with pytest.raises(NotLeader) as caught:
            await follower.submit(b"x 1")
        assert caught.value.address == "http://a"
        assert caught.value.leader == "a"
        assert caught.value.epoch == leader.epoch
        assert caught.value.retryable
        assert not caught.value.outcome_unknown
        assert await leader.read(history) == []


async def test_leadership_comes_and_goes_without_a_restart() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [first, second]:
        sent = 0
        epochs: list[int] = []
        for _ in range(4):
            leader, follower = (first, second) if first.role == "leader" else (second, first)
            assert leader.epoch is not None
            epochs.append(leader.epoch)
            for _ in range(5):
                sent += 1
                assert await leader.submit(b"x 1") == sent
            await leader.resign()
            assert leader.role == "standby"
            assert await follower.wait_role("leader", timeout_s=PATIENCE_S)
        assert epochs == sorted(set(epochs))
        assert await first.read(history) == await second.read(history) == [b"x 1"] * sent


async def test_roles_are_yielded_as_they_change_until_the_replica_is_closed() -> None:
    """Also a lead behind another one, if the caller did not look meanwhile."""
    async with dlog.testing.cluster() as cluster, opened(cluster, "a") as replica:
        roles = replica.roles()
        assert await anext(roles) == "standby"
        epochs: list[int] = []
        for _ in range(2):
            assert await anext(roles) == "leader"
            assert replica.epoch is not None
            epochs.append(replica.epoch)
            await replica.resign()
            await replica.wait_role("leader", timeout_s=PATIENCE_S)
        assert await anext(roles) == "leader"
        assert epochs[0] < epochs[1]
        following = asyncio.ensure_future(anext(roles, None))
        resigning = asyncio.create_task(replica.resign())
        assert await following == "standby"
        await resigning
        await replica.close()
        assert await anext(roles, None) is None


async def test_roles_of_a_replica_that_stops_end_with_what_stopped_it() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        roles = leader.roles()
        assert await anext(roles) == "leader"
        with pytest.raises(ApplyFailed):
            await leader.submit(b"x nothing")
        with pytest.raises(ApplyFailed):
            assert [role async for role in roles] == [], "it ends by itself, and not with them"


async def test_a_request_is_done_once_however_often_and_wherever_it_is_submitted() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [first, second]:
        request = RequestId("client", 1)
        together = (first.submit(b"x 5", request_id=request) for _ in range(3))
        assert await asyncio.gather(*together) == [5, 5, 5]
        assert await first.submit(b"x 2", request_id=("client", 2)) == 7
        await first.resign()
        assert await second.wait_role("leader", timeout_s=PATIENCE_S)
        assert await second.submit(b"x 5", request_id=("client", 1)) == 5
        assert await second.submit(b"x 1", request_id=("other", 1)) == 8
        assert await first.read(history) == [b"x 5", b"x 2", b"x 1"]


async def test_an_append_without_an_outcome_is_looked_for_in_the_log() -> None:
    """A stranger takes the log over: what was in flight is in the log, or never will be."""
    async with dlog.testing.cluster() as cluster, led(cluster) as replicas:
        assert await replicas[0].submit(b"x 0") == 0
        applied = 0
        for round_ in range(5):
            await until(lambda: any(each.role == "leader" for each in replicas))
            leader, follower = sorted(replicas, key=lambda each: each.role)
            submitting = [
                asyncio.create_task(leader.submit(b"x 1", request_id=("client", 10 * round_ + i)))
                for i in range(10)
            ]
            await settled()
            stranger = await Log.open(LOG, uri=cluster.uri)
            outcomes = await ended(asyncio.gather(*submitting, return_exceptions=True))
            await stranger.abandon()
            assert all(isinstance(each, int | NotLeader) for each in outcomes), outcomes
            results = [each for each in outcomes if isinstance(each, int)]
            assert results == list(range(applied + 1, applied + len(results) + 1))
            applied += len(results)
            done = [b"x 0", *[b"x 1"] * applied]
            assert await leader.read(history) == await follower.read(history) == done


async def test_what_was_in_flight_when_the_lead_was_lost_is_found_in_the_log() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as replica:
        done = 0
        for turns in range(12):
            submitting = [asyncio.create_task(replica.submit(b"x 1")) for _ in range(5)]
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            assert replica._term is not None
            replica._term.log.writer.lose(LostOwnership(LOG, "so says a test"))
            outcomes = await ended(asyncio.gather(*submitting, return_exceptions=True))
            results = [each for each in outcomes if isinstance(each, int)]
            assert results == list(range(done + 1, done + len(results) + 1))
            done += len(results)
            refused = [each for each in outcomes if isinstance(each, NotLeader)]
            assert len(results) + len(refused) == 5, outcomes
            assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
            assert await replica.read(history) == [b"x 1"] * done
        assert done > 0


async def test_what_is_read_again_is_not_applied_again() -> None:
    """A takeover that ended half way lets the standby read its last batch once more."""
    async with dlog.testing.cluster() as cluster, leading(cluster) as replica:
        await asyncio.gather(*(replica.submit(b"x 1") for _ in range(10)))
        async with await Log.tail(LOG, uri=cluster.uri, follow=False) as reader:
            await replica._follow([record async for record in reader])
        assert await replica.read(history) == [b"x 1"] * 10


async def test_a_read_sees_what_was_acknowledged_to_anybody_also_on_a_follower() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        for number in range(1, 30):
            await leader.submit(b"x 1")
            for replica in (leader, follower):
                assert await replica.read(lambda register: register.sums["x"]) == number


async def test_concurrent_reads_share_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    barriers = 0
    passing = acknowledged_end

    async def counted(*args: Any, **named: Any) -> int:
        nonlocal barriers
        barriers += 1
        return await passing(*args, **named)

    monkeypatch.setattr("dlog.aio.replica.acknowledged_end", counted)
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        await asyncio.gather(*(leader.read(history) for _ in range(50)))
    assert barriers == 1


async def test_a_read_that_began_during_a_barrier_waits_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The barrier that is under way may have looked before a command was acknowledged."""
    gate, barriers = asyncio.Event(), 0
    passing = acknowledged_end

    async def held(*args: Any, **named: Any) -> int:
        nonlocal barriers
        barriers += 1
        end = await passing(*args, **named)
        await gate.wait()
        return end

    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        monkeypatch.setattr("dlog.aio.replica.acknowledged_end", held)
        early = asyncio.create_task(follower.read(history))
        await until(lambda: barriers == 1)
        await leader.submit(b"x 1")
        late = asyncio.create_task(follower.read(history))
        await asyncio.sleep(0)
        gate.set()
        await early
        assert await late == [b"x 1"]
        assert barriers == 2


async def test_a_local_read_returns_at_once_and_says_how_old_it_is() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        assert follower.age_s() == float("inf")
        async with cluster.metadata_cut():
            assert await follower.read(history, consistency="local") == []
        await until(lambda: "leader" in (leader.role, follower.role))
        await follower.read(history)
        assert 0 <= follower.age_s() < PATIENCE_S
        with pytest.raises(InvalidValue):
            await follower.read(history, consistency="whatever")  # type: ignore[arg-type]


async def test_a_read_of_a_replica_that_lags_behind_fails_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        await follower.read(history)
        monkeypatch.setattr(follower._state, "apply", lambda *_, **__: [])
        await leader.submit(b"x 1")
        with pytest.raises(NotCaughtUp) as caught:
            await follower.read(history, timeout_s=0.2)
        assert caught.value.retryable


async def test_what_apply_raises_stops_every_replica_at_that_record() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        assert await leader.submit(b"x 1") == 1
        with pytest.raises(ApplyFailed, match="ValueError") as caught:
            await leader.submit(b"x nothing")
        offset = caught.value.offset
        assert isinstance(caught.value.__cause__, ValueError)
        for replica in (leader, follower):
            assert await replica.wait_role("stopped", timeout_s=PATIENCE_S)
            assert isinstance(replica.error, ApplyFailed)
            assert replica.error.offset == replica.applied == offset
            with pytest.raises(ApplyFailed):
                await replica.submit(b"x 1")
            with pytest.raises(ApplyFailed):
                await replica.read(history, consistency="local")
            with pytest.raises(ApplyFailed):
                await replica.wait_role("leader")


async def test_a_record_of_somebody_else_stops_the_replicas() -> None:
    async with dlog.testing.cluster() as cluster:
        async with await Log.open(LOG, uri=cluster.uri) as log:
            await log.append(b"by hand")
        async with opened(cluster) as replica:
            assert await replica.wait_role("stopped", timeout_s=PATIENCE_S)
            assert isinstance(replica.error, DamagedCommand)


async def test_a_replica_stops_at_a_command_of_a_later_version() -> None:
    class Later(Register):
        version = 2

    async with dlog.testing.cluster() as cluster, leading(cluster, machine=Later()) as later:
        async with opened(cluster, "old") as old:
            assert await later.submit(b"x 1") == 1
            assert await old.wait_role("stopped", timeout_s=PATIENCE_S)
            assert isinstance(old.error, CommandTooNew)
        async with opened(cluster, "new", Later()) as new:
            assert await new.read(history) == [b"x 1"]


async def test_a_replica_whose_state_differs_is_found_and_stops() -> None:
    class Digested(Register):
        digest_every = 100

        def digest(self) -> bytes | None:
            return b"%d" % self.sums.get("x", 0)

    class Another(Digested):
        def apply(self, command: Command) -> object:
            result = super().apply(command)
            if len(self.history) == 150:
                self.sums["x"] += 1
            return result

    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, machine=Digested()) as leader,
        opened(cluster, "same", Digested()) as same,
        opened(cluster, "another", Another()) as another,
    ):
        await asyncio.gather(*(leader.submit(b"x 1") for _ in range(250)))
        assert await another.wait_role("stopped", timeout_s=PATIENCE_S)
        assert isinstance(another.error, StateDiverged)
        assert another.error.offset == 200
        assert len(await same.read(history)) == 250
        assert leader.role == "leader"


async def test_what_is_no_command_is_refused_and_the_leader_continues() -> None:
    settings = LogSettings(record_bytes_max=1000)
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, settings=settings) as leader,
    ):
        with pytest.raises(RecordTooLarge):
            await leader.submit(bytes(1001))
        with pytest.raises(InvalidValue, match="payload"):
            await leader.submit(3)  # type: ignore[arg-type]
        leader._barrier._complete_at = later = asyncio.get_running_loop().time() + PATIENCE_S
        assert await leader.submit(bytearray(b"x 1")) == 1
        assert leader._barrier._complete_at == later, "a barrier proved more than that command"


async def test_each_submit_of_one_request_waits_as_long_as_it_says_for_one_effect() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        submits = [
            asyncio.ensure_future(leader.submit(b"x 1", request_id=("b", 1), timeout_s=wait_s))
            for wait_s in (0, PATIENCE_S, 2 * PATIENCE_S, PATIENCE_S)
        ]
        cancelled = submits.pop()
        await asyncio.sleep(0)
        cancelled.cancel()
        first, *others = await asyncio.gather(*submits, return_exceptions=True)
        assert isinstance(first, CommandOutcomeUnknown)
        assert others == [await leader.submit(b"x 1", request_id=("b", 1))] * 2
        assert len(await leader.read(history)) == 1


async def test_commands_that_wait_equally_long_share_a_timer() -> None:
    loop = asyncio.get_running_loop()
    deadlines = leader_term.Deadlines(loop, TimeoutError)
    waiters: list[leader_term.Waiter] = [loop.create_future() for _ in range(3)]
    for waiter in waiters:
        deadlines.watch(waiter, loop.time(), 0.001)
    waiters[0].set_result(leader_term.CommandOutcome())
    late: leader_term.Waiter = loop.create_future()
    deadlines.watch(late, loop.time(), 3584.0)
    assert len(deadlines._timers) == 2
    for waiter in waiters[1:]:
        with pytest.raises(TimeoutError):
            await waiter
    assert not late.done()
    assert list(deadlines._timers) == [3584.0]
    for _ in range(3):
        late.set_result(leader_term.CommandOutcome())
        late = loop.create_future()
        deadlines.watch(late, loop.time(), 3584.0)
    assert len(deadlines._waiters[3584.0]) == 1, "it keeps none that is done"
    for waited_s in range(100):
        late.set_result(leader_term.CommandOutcome())
        late = loop.create_future()
        deadlines.watch(late, loop.time(), 3584.0 - waited_s / 7)
    assert len(deadlines._timers) == 1, "what is left of a time counts as all of it"
    assert len(deadlines._waiters[3584.0]) == 1
    deadlines.close()


@pytest.mark.parametrize("wait_s", [0.0, 1e-9, 0.001, 0.1, 1.0, 29.9, 30.0, 1e9])
def test_nobody_waits_for_less_than_is_asked_or_for_much_more(wait_s: float) -> None:
    loop = asyncio.new_event_loop()
    deadlines = leader_term.Deadlines(loop, TimeoutError)
    deadlines.watch(loop.create_future(), 0.0, wait_s)
    (kept_s,) = deadlines._timers
    assert wait_s <= kept_s <= wait_s * 17 / 16
    deadlines.close()
    loop.close()


async def test_a_submit_that_is_not_waited_for_is_done_all_the_same() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        submitting = asyncio.create_task(leader.submit(b"x 1", request_id=("a", 1)))
        await asyncio.sleep(0)  # it is appended, and not confirmed yet
        assert len(leader._commands._proposals) == 1
        submitting.cancel()
        with pytest.raises(CommandOutcomeUnknown) as caught:
            await leader.submit(b"x 1", request_id=("b", 1), timeout_s=0)
        assert caught.value.outcome_unknown
        assert await leader.submit(b"x 1", request_id=("a", 1)) == 1
        assert await leader.submit(b"x 1", request_id=("b", 1)) == 2


async def test_one_that_gives_up_a_request_does_not_give_it_up_for_others() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        first, second = (
            asyncio.create_task(leader.submit(b"x 1", request_id=("a", 1))) for _ in range(2)
        )
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 1
        command = asyncio.create_task(leader.submit(b"x 1"))
        await asyncio.sleep(0)
        command.cancel()
        assert await leader.submit(b"x 1") == 3


async def test_closing_while_a_promotion_ends_ends_the_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, closing = Standby.promote, list[asyncio.Task[None]]()
    async with dlog.testing.cluster() as cluster:

        async def promote(self: Standby, *args: Any, **named: Any) -> Log:
            log = await honest(self, *args, **named)
            closing.append(asyncio.create_task(replica.close()))
            return log

        monkeypatch.setattr(Standby, "promote", promote)
        replica = await Replica.open(LOG, Register(), uri=cluster.uri, lease_s=PATIENCE_S)
        await until(lambda: bool(closing))
        async with asyncio.timeout(PATIENCE_S):
            await closing[0]
        assert replica.role == "stopped"


async def test_closing_settles_what_was_submitted_and_hands_over() -> None:
    async with dlog.testing.cluster() as cluster, led(cluster) as [leader, follower]:
        submitting = [asyncio.create_task(leader.submit(b"x 1")) for _ in range(20)]
        await asyncio.sleep(0)  # they are appended, and not confirmed yet
        assert len(leader._commands._proposals) == 20
        await leader.close()
        assert await asyncio.gather(*submitting) == list(range(1, 21))
        assert leader.role == "stopped"
        with pytest.raises(LogClosed):
            await leader.submit(b"x 1")
        with pytest.raises(LogClosed):
            await leader.read(history)
        assert await follower.wait_role("leader", timeout_s=PATIENCE_S)
        assert await follower.submit(b"x 1") == 21


@pytest.mark.parametrize("ends", [Replica.close, Replica.resign])
async def test_nothing_is_taken_once_a_term_ends_however_sure_its_leader_is(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[Replica[Any]], Awaitable[None]]
) -> None:
    monkeypatch.setattr(replicas, "SURE_S", PATIENCE_S)
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        pending = asyncio.create_task(leader.submit(b"x 1"))
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(ends(leader))
        assert await leader.wait_role("stopped" if ends is Replica.close else "standby")
        with pytest.raises(LogClosed if ends is Replica.close else NotLeader):
            await leader.submit(b"x 1")
        await ending
        assert await pending == 1


async def test_a_replica_is_closed_at_any_moment() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster):
        for turns in range(60):
            async with opened(cluster, "late"):
                for _ in range(turns):
                    await asyncio.sleep(0)


async def test_a_leader_that_loses_the_metadata_store_leads_again_with_all_that_was_done() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as replica:
        assert await replica.submit(b"x 1") == 1
        async with cluster.metadata_cut():
            # What is submitted within a millisecond of the loss may still be done.
            await until(lambda: replica.role == "standby" and replica._term is None)
            with pytest.raises(NotLeader) as caught:
                await replica.submit(b"x 1")
            assert caught.value.leader == "", "it is not sent to itself"
        assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
        assert await replica.submit(b"x 1") == 2


async def test_the_state_machine_is_used_by_one_call_at_a_time_on_an_executor() -> None:
    class Busy(Register):
        busy = False

        def apply(self, command: Command) -> object:
            assert not self.busy
            self.busy = True
            result = super().apply(command)
            self.busy = False
            return result

    def look(machine: Busy) -> int:
        assert not machine.busy
        return len(machine.history)

    async with leading_on_threads(Busy()) as leader:
        submitted = asyncio.gather(*(leader.submit(b"x 1") for _ in range(500)))
        looked = asyncio.gather(*(leader.read(look) for _ in range(20)))
        assert await submitted == list(range(1, 501))
        assert sorted(await looked) == await looked


# What is used by one call at a time, however its callers end.


async def test_a_query_that_raises_stop_iteration_ends_as_any_other() -> None:
    """A future does not take that error: it would stay pending, and the replica with it."""

    def ask(_: Register) -> object:
        return next(iter(()))

    async with leading_on_threads(Register()) as leader:
        with pytest.raises(RuntimeError):
            await ended(leader.read(ask))
        assert await leader.submit(b"x 1") == 1


async def test_a_query_that_is_cancelled_twice_is_still_alone_with_the_state() -> None:
    gate, entered = threading.Event(), threading.Event()

    def held(_: Register) -> None:
        entered.set()
        assert gate.wait(PATIENCE_S)

    async with leading_on_threads(Register()) as leader:
        query = asyncio.create_task(leader.read(held, consistency="local"))
        await until(entered.is_set)
        for _ in range(3):
            query.cancel()
            await settled()
        other = asyncio.create_task(leader.read(history, consistency="local"))
        await settled()
        assert not other.done()
        assert leader._turns._turn.locked()
        gate.set()
        assert await other == []
        with pytest.raises(asyncio.CancelledError):
            await query


async def test_a_state_that_failed_half_way_is_not_read() -> None:
    gate, entered = threading.Event(), threading.Event()

    class Half(Register):
        def apply(self, command: Command) -> object:
            if command.payload == b"half":
                self.history.append(command.payload)
                entered.set()
                assert gate.wait(PATIENCE_S)
                raise ValueError
            return super().apply(command)

    async with leading_on_threads(Half()) as leader:
        submitting = asyncio.create_task(leader.submit(b"half"))
        await until(entered.is_set)
        reading = asyncio.create_task(leader.read(history, consistency="local"))
        await settled()
        gate.set()
        with pytest.raises(ApplyFailed):
            await reading
        with pytest.raises(ApplyFailed):
            await submitting
        assert await leader.wait_role("stopped", timeout_s=PATIENCE_S)
        lengths = set[int]()
        for _ in range(5):
            with pytest.raises(ApplyFailed) as caught:
                await leader.submit(b"x 1")
            lengths.add(len(caught.traceback))
        assert len(lengths) == 1, "of one call, not of all before"


async def test_reads_that_wait_when_a_replica_is_closed_are_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hangs(*_: object, **__: object) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    async with dlog.testing.cluster() as cluster:
        async with leading(cluster) as leader:
            monkeypatch.setattr(replicas, "acknowledged_end", hangs)
            reads = []
            for _ in range(2):  # one of the barrier that is under way, and one of the next
                reads.append(asyncio.create_task(leader.read(history)))
                await settled()
            with pytest.raises(NotCaughtUp):
                await leader.read(history, timeout_s=0.001)
            assert len(leader._barrier._readers) == 1, "one that gave up is not kept"
        for read in reads:
            with pytest.raises(LogClosed):
                await ended(read)


async def test_a_leader_whose_term_ends_before_its_mark_is_applied_stands_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, waits = Backoff.next, list[float]()

    def waited(self: Backoff) -> float:
        waits.append(honest(self))
        return 0.0

    def refused(term: leader_term.Term, *_: object) -> None:
        term.ending.set()

    async with dlog.testing.cluster() as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(Backoff, "next", waited)
            patch.setattr(leader_term.Term, "append", refused)
            async with opened(cluster) as replica:
                await until(lambda: len(waits) >= 6)
                assert replica.role == "standby"
                assert waits[5] > 2 * replicas.BACKOFF_S, "longer each time"
                patch.undo()
                assert await replica.wait_role("leader", timeout_s=PATIENCE_S)
                assert replica._backoff.next() < 2 * replicas.BACKOFF_S


async def test_the_time_of_a_submit_covers_its_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        with monkeypatch.context() as patch:
            patch.setattr(leader_term, "PENDING_BYTES_ROOM", 0)
            patch.setattr(LogWriter, "has_room", property(lambda _: False))
            with pytest.raises(TooManyPending):
                await ended(leader.submit(b"x 1", timeout_s=0.01))
        assert await leader.read(history) == []


async def test_commands_that_apply_is_too_slow_for_are_refused_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_term, "PENDING_BYTES_ROOM", 0)
    monkeypatch.setattr(leader_term, "QUEUE_BYTES_MAX", 3 * leader_term.COMMAND_CHARGE)
    gate, entered = threading.Event(), threading.Event()

    class Held(Register):
        def apply(self, command: Command) -> object:
            entered.set()
            assert gate.wait(PATIENCE_S)
            return super().apply(command)

    async with leading_on_threads(Held()) as leader:
        first = asyncio.create_task(leader.submit(b"x 1"))
        await until(entered.is_set)
        for _ in range(2):
            with pytest.raises(CommandOutcomeUnknown):
                await leader.submit(b"x 1", timeout_s=0.001)
        with pytest.raises(TooManyPending):
            await leader.submit(b"x 1")
        gate.set()
        assert await first == 1
        assert await leader.read(lambda machine: machine.sums) == {"x": 3}
        assert await leader.submit(b"x 1") == 4


async def test_a_replica_follows_a_log_that_got_another_name() -> None:
    async with dlog.testing.cluster() as cluster, leading(cluster) as leader:
        assert await leader.submit(b"x 1") == 1
        await rename_log(LOG, "renamed", uri=cluster.uri)
        await leader.resign()
        assert await leader.wait_role("leader", timeout_s=PATIENCE_S)
        assert await leader.submit(b"x 1") == 2


async def test_a_digest_that_the_log_has_no_room_for_does_not_stop_the_leader() -> None:
    class Digested(Register):
        digest_every = 100

        def digest(self) -> bytes | None:
            return bytes(64)

    settings = LogSettings(record_bytes_max=60)
    async with (
        dlog.testing.cluster() as cluster,
        leading(cluster, machine=Digested(), settings=settings) as leader,
    ):
        for sent in range(1, 201):
            assert await leader.submit(b"x 1") == sent
