"""The replicated state machine for threads: the names of `dlog.aio.Replica`, calls that block.

with Replica.open("accounts", Accounts()) as replica:
    result = replica.submit(b"pay alice 5", request_id=("client-7", 42))
    balance = replica.read(lambda accounts: accounts.balance("alice"))
"""

from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar

from dlog import aio
from dlog.aio.replica import READ_S, SUBMIT_S, Consistency
from dlog.headers import Payload
from dlog.protocol.command import LeaderMark, RequestId
from dlog.protocol.replica_record import ReplicaRole
from dlog.protocol.replicated_state import StateMachine
from dlog.protocol.snapshot import SnapshotPolicy
from dlog.settings import LogSettings
from dlog.sync.loop_thread import BlockingHandle, LoopThread
from ledger.values import Duration

M = TypeVar("M", bound=StateMachine)
R = TypeVar("R")


class Replica(BlockingHandle[aio.Replica[M]], Generic[M]):
    """Made by `Replica.open`; a context manager. See `dlog.aio.Replica`.

    Any number of threads may use it. The state machine is used on one thread of its own, also by
    `read`, so it needs no locks. On that thread no call may wait for the replica, which would wait
    for itself (RuntimeError). Not to be used across a fork (`UsedAfterFork`)."""

    def __init__(
        self, replica: aio.Replica[M], pool: ThreadPoolExecutor, thread: LoopThread
    ) -> None:
        super().__init__(replica, thread, replica.name)
        self._pool = pool

    @classmethod
    def open(  # noqa: PLR0913 - as that of `dlog.aio`
        cls,
        name: str,
        machine: M,
        *,
        uri: str | None = None,
        address: str = "",
        candidate: str = "",
        create: bool = True,
        settings: LogSettings | None = None,
        lease_s: Duration | None = None,
        lifeline_host: str | None = "127.0.0.1",
        snapshots: str | None = None,
        policy: SnapshotPolicy | None = None,
    ) -> Self:
        """See `dlog.aio.Replica.open`."""
        thread = LoopThread.get()
        pool = ThreadPoolExecutor(1, f"dlog-replica-{name}")
        try:
            replica = thread.run(
                aio.Replica.open(
                    name,
                    machine,
                    uri=uri,
                    address=address,
                    candidate=candidate,
                    create=create,
                    settings=settings,
                    lease_s=lease_s,
                    lifeline_host=lifeline_host,
                    snapshots=snapshots,
                    policy=policy,
                    executor=pool,
                )
            )
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(replica, pool, thread)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def error(self) -> BaseException | None:
        """What stopped this replica; each later call raises it."""
        self._check_process()
        return self._inner.error

    @property
    def role(self) -> ReplicaRole:
        """What it is as far as is known here: "leader" while it takes commands."""
        self._check_process()
        return self._inner.role

    @property
    def leader(self) -> LeaderMark | None:
        """Who led the last epoch that was applied here; itself while it leads."""
        self._check_process()
        return self._inner.leader

    @property
    def applied(self) -> int:
        """Offset after the last record that was applied here."""
        self._check_process()
        return self._inner.applied

    @property
    def epoch(self) -> int | None:
        """The epoch of the log while this leads: usable as a fencing token."""
        self._check_process()
        return self._inner.epoch

    def age_s(self) -> float:
        """See `dlog.aio.Replica.age_s`."""
        self._check_process()
        return self._inner.age_s()

    def submit(
        self,
        payload: Payload,
        *,
        request_id: RequestId | tuple[str, int] | None = None,
        timeout_s: Duration = SUBMIT_S,
        forward: bool = False,
    ) -> object:
        """See `dlog.aio.Replica.submit`."""
        return self._run(
            self._inner.submit(payload, request_id=request_id, timeout_s=timeout_s, forward=forward)
        )

    def read(
        self,
        query: Callable[[M], R],
        *,
        consistency: Consistency = "linearizable",
        timeout_s: Duration = READ_S,
    ) -> R:
        """See `dlog.aio.Replica.read`. *query* runs on the thread of the state machine."""
        return self._run(self._inner.read(query, consistency=consistency, timeout_s=timeout_s))

    def snapshot(self) -> int:
        """See `dlog.aio.Replica.snapshot`."""
        return self._run(self._inner.snapshot())

    def wait_role(self, role: ReplicaRole, *, timeout_s: Duration | None = None) -> bool:
        """Wait until this has *role*; return False if it had not within *timeout_s*."""
        return self._run(self._inner.wait_role(role, timeout_s=timeout_s))

    def roles(self) -> Iterator[ReplicaRole]:
        """See `dlog.aio.Replica.roles`."""
        roles = self._inner.roles()

        async def following() -> ReplicaRole | None:
            return await anext(roles, None)

        while (role := self._run(following())) is not None:
            yield role

    def resign(self) -> None:
        """See `dlog.aio.Replica.resign`."""
        self._run(self._inner.resign())

    def abandon(self) -> None:
        """See `dlog.aio.Replica.abandon`. Idempotent."""
        self._run(self._inner.abandon())
        self.close()

    def close(self) -> None:
        """See `dlog.aio.Replica.close`. Idempotent."""
        self._check_process()  # before the pool, whose locks a fork may have left taken
        try:
            super().close()
        finally:
            if not self._inner.is_state_user():
                self._pool.shutdown(wait=False)

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        if self._inner.is_state_user():
            work.close()
            raise RuntimeError(
                f"replica {self.name!r} was called by its own state machine, or by a query of it, "
                "and would wait for itself"
            )
        return super()._run(work)
