"""Replicas of an application's state machine in the process of a test, some of which crash."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, TypeVar

from dlog import aio
from dlog.protocol.replicated_state import StateMachine
from dlog.protocol.snapshot import SnapshotPolicy
from dlog.sync.loop_thread import LoopThread
from dlog.sync.replica import Replica
from dlog.testing.cluster import InvalidTestCluster, cluster
from dlog.testing.determinism import State, difference, state_of

M = TypeVar("M", bound=StateMachine)

REPLICAS: Final = 3
REPLICAS_MAX: Final = 16
LOG: Final = "replicated"
WAIT_S: Final = 60.0
"""What is waited for takes milliseconds; on a machine that stands still, longer."""
LEASE_S: Final = 60.0
"""So nobody loses leadership because the machine stood still. It ends with a crash, at once."""


class StatesDiffer(AssertionError):
    """Two replicas applied the same commands, and do not have the same state."""

    def __init__(self, first: str, second: str, offset: int, states: str) -> None:
        super().__init__(
            f"{first} and {second} applied the same records, below offset {offset}, and differ: "
            f"{states}. dlog.testing.check_deterministic finds the first command that does it"
        )
        self.first, self.second, self.offset = first, second, offset


class AsyncReplicaGroup(Generic[M]):
    """Made by ``async with dlog.testing.replicas(...) as group``."""

    def __init__(
        self,
        machine: Callable[[], M],
        uri: str,
        *,
        snapshots: Path | None,
        policy: SnapshotPolicy | None,
    ) -> None:
        self.uri = uri
        self._machine, self._snapshots, self._policy = machine, snapshots, policy
        self._replicas: dict[aio.Replica[M], str] = {}
        """With their names."""
        self._started = 0

    @property
    def replicas(self) -> tuple[aio.Replica[M], ...]:
        """Those that run, in the order in which they were started."""
        return tuple(self._replicas)

    async def start(self, *, executor: Executor | None = None) -> aio.Replica[M]:
        """Start one more, with a new state machine, as a process does that was started again.

        It is ``replica-N`` at ``http://replica-N``. *executor*: see `dlog.aio.Replica.open`. Raises
        what that raises, and `InvalidTestCluster`."""
        if len(self._replicas) == REPLICAS_MAX:
            raise InvalidTestCluster(f"{REPLICAS_MAX} replicas run, which is the maximum")
        self._started += 1
        name = f"replica-{self._started}"
        replica = await aio.Replica.open(
            LOG,
            self._machine(),
            uri=self.uri,
            address=f"http://{name}",
            candidate=name,
            lease_s=LEASE_S,
            snapshots=None if self._snapshots is None else str(self._snapshots.absolute()),
            policy=self._policy,
            executor=executor,
        )
        self._replicas[replica] = name
        return replica

    async def leader(self) -> aio.Replica[M]:
        """Return the one that leads, once one does. Raises `AssertionError` if none will."""
        waiting = {
            asyncio.create_task(replica.wait_role("leader")): replica for replica in self.replicas
        }
        try:
            done, _ = await asyncio.wait(
                waiting, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        for task in done:
            await task  # raises what stopped the replica
            return waiting[task]
        raise AssertionError(f"none of {len(waiting)} replicas led within {WAIT_S:g} s")

    async def kill(self, replica: aio.Replica[M]) -> None:
        """End *replica* as SIGKILL would: what was submitted to it has no outcome there, and the
        next leader recovers the log. Idempotent."""
        self._replicas.pop(replica, None)
        await replica.abandon()

    async def kill_leader(self) -> aio.Replica[M]:
        """Kill the one that leads, and return it."""
        leader = await self.leader()
        await self.kill(leader)
        return leader

    async def same_state(self, state: State[M] | None = None) -> object:
        """Wait until all that run applied everything; return the state that they all have.

        It is their snapshot, else `digest`, or what *state* returns. Submit nothing meanwhile.
        Raises `StatesDiffer`, what stopped a replica, and `AssertionError` if they do not stop at
        the same offset."""
        try:
            async with asyncio.timeout(WAIT_S):
                offset, states = await self._states(state)
        except TimeoutError:
            applied = ", ".join(f"{name}: {each.applied}" for each, name in self._replicas.items())
            raise AssertionError(
                f"the replicas did not stop at one offset within {WAIT_S:g} s ({applied}); "
                "submit nothing meanwhile"
            ) from None
        [first, *others] = states.items()
        for name, other in others:
            if other != first[1]:
                raise StatesDiffer(first[0], name, offset, difference(first[1], other))
        return first[1]

    async def _states(self, state: State[M] | None) -> tuple[int, dict[str, object]]:
        """Return the states of all, by name, and the offset at which they are all."""
        if not self._replicas:
            raise InvalidTestCluster("no replica runs")
        while True:
            offsets, states = set(), {}
            for replica, name in self._replicas.items():

                def look(machine: M, replica: aio.Replica[M] = replica) -> tuple[int, object]:
                    return replica.applied, state_of(machine, state)

                offset, states[name] = await replica.read(look, timeout_s=WAIT_S)
                offsets.add(offset)
            if len(offsets) == 1:
                return offsets.pop(), states

    def tear_snapshot(self) -> Path:
        """Cut the newest snapshot off in the middle, as a failing disk might; return its path.

        Raises `InvalidTestCluster` if there is none."""
        files = () if self._snapshots is None else self._snapshots.glob("*/*.snapshot")
        newest = max(files, key=lambda path: path.name, default=None)
        if newest is None:
            raise InvalidTestCluster("there is no snapshot: give snapshots=, and write one")
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size // 2)
        return newest

    async def close(self) -> None:
        """Close those that run."""
        while self._replicas:
            replica, _ = self._replicas.popitem()
            await replica.close()


class ReplicaGroup(Generic[M]):
    """Made by ``with dlog.testing.replicas(...) as group``; see `AsyncReplicaGroup`."""

    def __init__(self, group: AsyncReplicaGroup[M], thread: LoopThread) -> None:
        self._group, self._thread = group, thread
        self._handles: dict[aio.Replica[M], Replica[M]] = {}

    @property
    def uri(self) -> str:
        return self._group.uri

    @property
    def replicas(self) -> tuple[Replica[M], ...]:
        """Those that run, in the order in which they were started."""
        return tuple(self._handles.values())

    def start(self) -> Replica[M]:
        """See `AsyncReplicaGroup.start`."""
        pool = ThreadPoolExecutor(1, "dlog-testing-replica")
        try:
            replica = self._thread.run(self._group.start(executor=pool))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        handle = self._handles[replica] = Replica(replica, pool, self._thread)
        return handle

    def leader(self) -> Replica[M]:
        """See `AsyncReplicaGroup.leader`."""
        return self._handles[self._thread.run(self._group.leader())]

    def kill(self, replica: Replica[M]) -> None:
        """See `AsyncReplicaGroup.kill`."""
        for inner, handle in tuple(self._handles.items()):
            if handle is replica:
                del self._handles[inner]
                self._thread.run(self._group.kill(inner))
        replica.close()

    def kill_leader(self) -> Replica[M]:
        """See `AsyncReplicaGroup.kill_leader`."""
        leader = self.leader()
        self.kill(leader)
        return leader

    def same_state(self, state: State[M] | None = None) -> object:
        """See `AsyncReplicaGroup.same_state`. *state* runs on the thread of the state machine."""
        return self._thread.run(self._group.same_state(state))

    def tear_snapshot(self) -> Path:
        """See `AsyncReplicaGroup.tear_snapshot`."""
        return self._group.tear_snapshot()

    def close(self) -> None:
        """Close those that run."""
        for handle in self.replicas:
            handle.close()
        self._handles.clear()
        self._thread.run(self._group.close())


class replicas(Generic[M]):  # noqa: N801 - as `cluster`
    """Replicas of a state machine in this process, for tests of applications.

        with dlog.testing.replicas(Accounts) as group:         # a `ReplicaGroup` of `dlog.Replica`
            ...
        async with dlog.testing.replicas(Accounts) as group:   # of `dlog.aio.Replica`
            ...

    *machine* creates a new state machine; *count*: 1 to 16 replicas. *snapshots*: a directory that
    they share, as pytest's ``tmp_path``; *policy* as for `dlog.Replica.open`. They run on the
    cluster at *uri*, or on one of their own. Used once. Raises `InvalidTestCluster`."""

    def __init__(
        self,
        machine: Callable[[], M],
        count: int = REPLICAS,
        *,
        snapshots: Path | None = None,
        policy: SnapshotPolicy | None = None,
        uri: str | None = None,
    ) -> None:
        if not 1 <= count <= REPLICAS_MAX:
            raise InvalidTestCluster(f"{count} replicas asked for, use 1 to {REPLICAS_MAX}")
        self._machine, self._count, self._uri = machine, count, uri
        self._snapshots, self._policy = snapshots, policy
        self._stack, self._async_stack = ExitStack(), AsyncExitStack()

    def __enter__(self) -> ReplicaGroup[M]:
        with ExitStack() as stack:
            uri = self._uri or stack.enter_context(cluster()).uri
            group = ReplicaGroup(self._group(uri), LoopThread.get())
            stack.callback(group.close)
            for _ in range(self._count):
                group.start()
            self._stack = stack.pop_all()
        return group

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    async def __aenter__(self) -> AsyncReplicaGroup[M]:
        async with AsyncExitStack() as stack:
            uri = self._uri or (await stack.enter_async_context(cluster())).uri
            group = self._group(uri)
            stack.push_async_callback(group.close)
            for _ in range(self._count):
                await group.start()
            self._async_stack = stack.pop_all()
        return group

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._async_stack.aclose()

    def _group(self, uri: str) -> AsyncReplicaGroup[M]:
        return AsyncReplicaGroup(self._machine, uri, snapshots=self._snapshots, policy=self._policy)
