"""A simulated process with a replica, and the clients that it serves."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final
from zlib import crc32

from dlog import (
    ApplyFailed,
    Command,
    NotLeader,
    RequestForgotten,
    RequestId,
    SnapshotPolicy,
    StateMachine,
    Trimmed,
)
from dlog.aio import Replica
from dlog.errors import ForwardRefused
from ledger.errors import LogError
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.logs.writing import LEASE_S
from tests.simulation.replicas.oracle import Client, ReplicaOracle

RETRY_S: Final = 0.2
CLOCK_RATE_MIN: Final = 0.95
"""Of the slowest clock that a host has: an age is as long as the machine's clock counts it."""
PATIENCE_S: Final = 3.0
"""How long a client waits for an answer before it asks elsewhere."""


class Counter(StateMachine):
    """Counts what was done to it, with a checksum of it all."""

    def __init__(self, who: str, oracle: ReplicaOracle) -> None:
        self.state = (0, 0)
        self._who, self._oracle = who, oracle
        self.was_restored = False

    def apply(self, command: Command) -> object:
        count, checksum = self.state
        self.state = count + 1, crc32(command.payload, checksum)
        self._oracle.applied(self._who, command.offset, command.payload, self.state)
        return self.state[0]

    def snapshot(self, out: BinaryIO) -> None:
        out.write(json.dumps(self.state).encode())

    def restore(self, source: BinaryIO) -> None:
        count, checksum = json.loads(source.read())
        self.state = count, checksum
        self.was_restored = True


class Stores:
    """Stores of snapshots, and which of them the log has to wait for."""

    def __init__(self, uris: Sequence[str]) -> None:
        self.uris = uris
        self.needed: set[str] = set()
        """Those that a replica was opened with in time: a new one that has them finds all it
        needs."""

    @property
    def usable(self) -> list[str]:
        """Those to begin with now."""
        return [uri for uri in self.uris if uri in self.needed] or list(self.uris[:1])


class ReplicaMember:
    def __init__(
        self,
        process: Process,
        log: str,
        profile: LogProfile,
        oracle: ReplicaOracle,
        clients: Sequence[Client],
        stores: Stores,
        snapshots: str | None,
        policy: SnapshotPolicy,
        on_open: Callable[["ReplicaMember", Replica[Counter]], bool],
    ) -> None:
        """*on_open* is called with a replica that was opened; it returns whether all that it needs
        is there."""
        self.process, self.log = process, log
        self.stopping = False
        """Set once nothing is wrong any more: clients get their answers, then no more."""
        self.replica: Replica[Counter] | None = None
        self.snapshots = snapshots
        self._profile, self._oracle, self._clients = profile, oracle, clients
        self._stores, self._policy, self._on_open = stores, policy, on_open
        self._random = process.world.scheduler.random
        self._anonymous = 0

    @property
    def _now(self) -> float:
        return self.process.world.scheduler.now

    @property
    def leads_now(self) -> bool:
        return self.replica is not None and self.replica.role == "leader"

    async def run(self) -> None:
        while not self.stopping:
            machine = Counter(self.process.name, self._oracle)
            is_needed = self.snapshots in self._stores.needed
            try:
                replica = await Replica.open(
                    self.log,
                    machine,
                    candidate=self.process.name,
                    address=self.process.name,
                    settings=self._profile.settings,
                    lease_s=LEASE_S,
                    lifeline_host=self.process.lifeline_host,
                    snapshots=self.snapshots,
                    policy=self._policy,
                    client=self.process.ledgers,
                )
            except LogError as error:
                if not (error.retryable or error.outcome_unknown):
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            self.process.mark("replica_opened")
            if machine.was_restored:
                self._oracle.restored(self.process.name, replica.applied, machine.state)
                self.process.mark("replica_restored")
                if self._profile.archives:
                    self.process.mark("replica_restored_from_an_object")
            self.replica = replica
            in_time = self._on_open(self, replica)
            self.process.note(f"is a {replica.role} that has applied up to {replica.applied}")
            try:
                await self._serve(replica)
            except Trimmed:
                if self.snapshots is None:
                    mark = "replica_was_not_waited_for" if in_time else "replica_came_too_late"
                    self.process.mark(mark)
                elif in_time or is_needed:
                    raise
                else:
                    self.process.mark("store_came_too_late")
                self.snapshots = self._stores.usable[0]
            finally:
                self.replica = None
                await replica.close()

    async def look(self) -> tuple[int, int]:
        """Return the state of a replica that begins now and has applied everything."""
        machine = Counter(self.process.name, self._oracle)
        async with Replica.open(
            self.log,
            machine,
            lease_s=LEASE_S,
            lifeline_host=None,
            snapshots=self.snapshots,
            policy=self._policy,
            client=self.process.ledgers,
        ) as replica:
            return await replica.read(lambda counter: counter.state, timeout_s=60)

    async def _serve(self, replica: Replica[Counter]) -> None:
        serving = [asyncio.ensure_future(self._serve_clients(replica)) for _ in range(3)]
        while not all(each.done() for each in serving):
            await asyncio.sleep(RETRY_S)
            if isinstance(replica.error, ApplyFailed):
                raise replica.error.error  # of the oracle
            if replica.error is not None:
                raise replica.error
            if self._random.random() < self._profile.restarts / 20:
                self.process.mark("replica_restarted")
                break
            if replica.role == "leader" and self._random.random() < 0.02:
                self.process.mark("replica_resigned")
                await replica.resign()
        await replica.close()
        for each in serving:
            await each

    async def _serve_clients(self, replica: Replica[Counter]) -> None:
        while replica.role != "stopped":
            waiting = [each for each in self._clients if self._may_ask(each)]
            if self.stopping and not waiting:
                if all(each.began_at is None for each in self._clients):
                    return
            elif self._random.random() < 0.3:
                await self._read_locally(replica)
                await self._read(replica)
            elif waiting and self._random.random() < 0.7:
                await self._request(replica, self._random.choice(waiting))
            elif not self.stopping:
                client = self._random.choice(self._clients)
                if client.results and self._random.random() < 0.4:
                    await self._repeat(replica, client)
                else:
                    await self._command(replica)
            await asyncio.sleep(self._random.choice((0.0, 0.01, 0.1)))

    def _may_ask(self, client: Client) -> bool:
        if self.stopping and client.began_at is None:
            return False
        return client.asked_until <= self.process.world.scheduler.now

    async def _request(self, replica: Replica[Counter], client: Client) -> None:
        """Submit the next request of *client*, or the one that it has no answer to, again."""
        if client.began_at is None:
            client.number += 1
            client.began_at = self._oracle.acknowledged_count
        else:
            self.process.mark("request_repeated")
        number = client.number
        if replica.role == "leader":
            self.process.note(f"is asked as the leader for request {number} of {client.name}")
        client.asked_until = self.process.world.scheduler.now + PATIENCE_S
        payload = f"{client.name} {number}".encode()
        request = RequestId(client.name, number)
        try:
            result = await replica.submit(
                payload, request_id=request, timeout_s=PATIENCE_S, forward=self._forwards()
            )
        except LogError as error:
            self._failed(error)
            if client.number == number:
                client.asked_until = 0.0
            return
        assert isinstance(result, int)
        if client.number != number or client.began_at is None:
            known = client.results[number]  # answered elsewhere, meanwhile
            assert known == result, f"{request} has the results {known} and {result}"
            self.process.mark("request_answered_twice")
            return
        self.process.note(f"answers request {number} of {client.name}: effect {result}")
        self._oracle.answered(client, request, payload, result, self._now, client.began_at)
        self.process.mark("request_answered")
        client.began_at, client.asked_until = None, 0.0

    async def _repeat(self, replica: Replica[Counter], client: Client) -> None:
        """Submit again what *client* has an answer to, as a network that doubles messages does."""
        number = self._random.choice(list(client.results))
        request = RequestId(client.name, number)
        payload = f"{client.name} {number}".encode()
        if replica.role == "leader":
            self.process.note(f"is asked again for the answered request {number} of {client.name}")
        try:
            result = await replica.submit(
                payload, request_id=request, timeout_s=PATIENCE_S, forward=self._forwards()
            )
        except LogError as error:
            self._failed(error)
            return
        assert isinstance(result, int)
        self._oracle.answered(client, request, payload, result, self._now)
        self.process.mark("request_answered_twice")

    async def _command(self, replica: Replica[Counter]) -> None:
        """Submit a command without a request, once."""
        self._anonymous += 1
        payload = f"{self.process.name} {self._anonymous}".encode()
        began_at = self._oracle.acknowledged_count
        try:
            result = await replica.submit(payload, timeout_s=PATIENCE_S, forward=self._forwards())
        except NotLeader:
            self._oracle.refuse(payload)
            self.process.mark("command_refused")
        except LogError as error:
            self._failed(error)
        else:
            assert isinstance(result, int)
            self.process.note(f"answers {payload.decode()!r}: effect {result}")
            self._oracle.acknowledge(payload, result, began_at, self._now)
            self.process.mark("command_answered")

    async def _read_locally(self, replica: Replica[Counter]) -> None:
        complete_at = self._now - replica.age_s() / CLOCK_RATE_MIN
        try:
            count = await replica.read(lambda counter: counter.state[0], consistency="local")
        except LogError as error:
            self._failed(error)
            return
        self._oracle.read_locally(self.process.name, count, complete_at)

    async def _read(self, replica: Replica[Counter]) -> None:
        began_at = self._oracle.acknowledged_count
        try:
            count = await replica.read(lambda counter: counter.state[0], timeout_s=PATIENCE_S)
        except LogError as error:
            self._failed(error)
            return
        self._oracle.read(self.process.name, count, began_at, self._now)
        self.process.mark("replica_read" if self.leads_now else "follower_read")

    def _forwards(self) -> bool:
        return self._random.random() < 0.4

    def _failed(self, error: LogError) -> None:
        self.process.mark(type(error).__name__)
        if not isinstance(error, NotLeader):
            self.process.note(f"fails what it was asked for: {type(error).__name__}")
        is_stopped = self.replica is None or self.replica.role == "stopped"
        if not (
            error.retryable or is_stopped or isinstance(error, RequestForgotten | ForwardRefused)
        ):
            raise error
