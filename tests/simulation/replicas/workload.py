"""The scenario of replicas: a state machine on three processes, which crash, pause and sleep.

One log, its replicas, and clients that repeat what they have no answer to; below them the bookies,
network, metadata store and faults of the scenario of logs. Snapshots are in one store or in two,
directories or object storage with its faults. They are damaged at times, and the log is truncated
behind them, as far as both stores allow. Strangers take the log over. Safety is checked after every
step; once nothing is wrong any more each request gets its answer, and all replicas come to the same
state.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from random import Random
from typing import ClassVar, Final, TypeVar

from dlog import SnapshotPolicy
from dlog.aio import Replica, replica_registry
from dlog.aio.log import Log
from dlog.errors import DamagedSnapshot
from dlog.protocol.replica_record import replica_path
from dlog.protocol.snapshot import check_snapshot
from ledger.errors import LogError
from tests.simulation.invariants import check as check_ledgers
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.logs.faults import Doom
from tests.simulation.logs.invariants import check
from tests.simulation.logs.objects import STORAGE, Key
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.logs.profile import draw as draw_logs
from tests.simulation.logs.workload import OF_LEDGERS_ONLY, LogSimulation
from tests.simulation.replicas.coverage import REQUIRED_OF_REPLICAS
from tests.simulation.replicas.forward import forwarding
from tests.simulation.replicas.member import Counter, ReplicaMember, Stores
from tests.simulation.replicas.oracle import INVARIANTS, KEPT, SAME_STATE, Client, ReplicaOracle

R = TypeVar("R")

REPLICAS: Final = 3
CLIENTS: Final = 4
MEMBERS_MAX: Final = 20
LOG: Final = "log1"
REPORT_S: Final = 0.5
"""How often a replica reports what it has applied: a world lasts a few seconds."""
OF_LOGS_ONLY: Final = frozenset({
    "logs", "candidates", "readers", "reopen_timeout_s", "bursts", "thinks_s", "pauses_s",
    "reader_pauses_s", "flushes", "rolls", "truncates", "abandons", "txids", "standbys",
    "elections", "elects_itself", "consumers", "exclusive", "commits", "admin_truncates", "renames",
    "seals", "deletes", "queries", "sweeps", "manies", "expects", "updates", "consumer_resets",
    "consumer_deletes", "readers_away_s", "reader_wait_s", "rots",
})  # fmt: skip
"""What nobody looks at here who lives on its log; see `LogProfile`."""
NOT_OF_REPLICAS: Final = frozenset({"consumers_move_forward", "trimmed_records_are_not_needed"})
"""A store of snapshots commits where its oldest whole one is, though one before was damaged, and
truncates below it as far as consumers allow, which is no truncation that an operator of the world
asked for. A replica that needs more stops, which is found."""


def draw(random: Random) -> LogProfile:
    """Return a world of logs, with one log that nobody but its replicas and strangers write."""
    profile = draw_logs(random)
    settings = replace(
        profile.settings,
        roll_records=random.choice((0, 10, 50)),
        roll_bytes=0,
        retention_bytes=0,
        retention_age_s=0.0,
        retention_waits_for_consumers=False,
    )
    return replace(
        profile,
        floor=replace(profile.floor, disks_lost=0),
        logs=1,
        settings=settings,
        restarts=random.choice((0.0, 0.1, 1.0)),
        fates=random.choice(
            (("lives",), ("lives", "crashes"), ("lives", "pauses", "crashes"), ("pauses", "sleeps"))
        ),
        fate_calls=random.choice(((30,), (100,), (300,))),
    )


def with_objects(profile: LogProfile, random: Random) -> LogProfile:
    """Return *profile*, or one whose snapshots are in object storage (`archives`); *random* is of
    this alone, so that worlds without it are what they were."""
    if random.random() >= 0.3:
        return profile
    return replace(profile, archives=1, storage_faults=random.choice((0.0, 0.1, 0.3)))


class ReplicaSimulation(LogSimulation):
    name = "replicas"
    required = REQUIRED_OF_REPLICAS
    of_no_effect = OF_LEDGERS_ONLY | OF_LOGS_ONLY
    invariants: ClassVar = {**LogSimulation.invariants, **INVARIANTS}

    def __init__(
        self,
        seed: int,
        *,
        profile: LogProfile | None = None,
        changes: Changes = UNCHANGED,
        keep_trace: bool = False,
    ) -> None:
        profile = profile or with_objects(draw(Random(seed)), Random(f"{seed} objects"))
        super().__init__(seed, profile=profile, changes=changes, keep_trace=keep_trace)
        self.replicas = ReplicaOracle(LOG, self.scheduler.note)
        self._members: list[ReplicaMember] = []
        self._clients = [Client(f"client-{number}") for number in range(CLIENTS)]
        self._policy = SnapshotPolicy(
            every_records=self._random.choice((5, 5, 20, 100, 10**6)),
            keep=self._random.choice((1, 2, 3)),
            truncate=self._random.random() < 0.7,
        )
        self._directory = Path()
        self._stores = Stores(())
        self._shares = self._random.random() < 0.6
        """Whether all replicas share one store of snapshots; else some have another."""
        self._damages = self._random.random() < 0.3 and self._policy.keep > 1
        self._damaged: Path | None = None
        self._alone = self._random.choice((0.0, 0.4))
        """How probably a replica has no store."""
        self._held: dict[str, tuple[str, Replica[Counter]]] = {}
        """Name of each replica without a store that registered in time, and the replica; by the
        path of its node."""
        self._first = 0
        """Where the log began when it was looked at last."""

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        self._directory = Path(tempfile.mkdtemp(prefix="replicas-"))
        names = ("shared",) if self._shares else ("shared", "own")
        at = STORAGE if self.profile.archives else f"file://{self._directory}"
        self._stores = Stores([f"{at}/{name}" for name in names])
        threads, report_s = asyncio.to_thread, replica_registry.STATUS_S
        asyncio.to_thread = _later
        replica_registry.STATUS_S = REPORT_S  # type: ignore[misc]
        try:
            with super()._surroundings(), forwarding():
                yield
        finally:
            replica_registry.STATUS_S = report_s  # type: ignore[misc]
            asyncio.to_thread = threads
            shutil.rmtree(self._directory)

    def _run(self) -> None:
        self.scheduler.note("world", f"{self.profile} {self._policy}")
        if not self.profile.floor.begins_calm:
            self._faults.begin()
        for _ in range(REPLICAS):
            self._member()
        if self.profile.floor.begins_calm:
            self._step_until(self.scheduler.now + 0.3)
            self._faults.begin()
        until_s = self.scheduler.now + self.profile.floor.faults_s
        for _ in range(self._random.choice((0, 1, 4))):
            at_s = self._random.uniform(0.0, self.profile.floor.faults_s)
            self._while_faulty(at_s, self._take_over)
        if self._damages:
            for _ in range(3):
                at_s = self._random.uniform(0.0, self.profile.floor.faults_s)
                self._while_faulty(at_s, self._damage_newest)
        self._step_until(until_s)
        self._faults.heal()
        self._healed = True
        self._finish()
        if self._sleepers():
            self._wake_sleepers()

    def _member(self) -> None:
        process = self.world.process("replica")
        fates = self.profile.fates
        snapshots: str | None = self._random.choice(self._stores.uris)
        if self._random.random() < self._alone:
            fates, snapshots = ("pauses",), None  # it has to lag behind for the log to wait for it
        member = ReplicaMember(
            process,
            LOG,
            self.profile,
            self.replicas,
            self._clients,
            self._stores,
            snapshots,
            self._policy,
            self._opened,
        )
        self._members.append(member)
        process.on_call = Doom(
            process,
            self._random.choice(fates),
            1 + self._random.randrange(self._random.choice(self.profile.fate_calls)),
            self._port(),
            opening=lambda: not member.leads_now,
            between=lambda: member.leads_now,
            on_crash=self._replace_member,
        )
        process.run(member.run())

    def _opened(self, member: ReplicaMember, replica: Replica[Counter]) -> bool:
        registration = replica._registration
        if self._first > replica.applied:
            return False
        if member.snapshots is not None:
            self._stores.needed.add(member.snapshots)
        elif registration._is_held:
            path = replica_path(replica._incarnation, registration._id)
            self._held[path] = member.process.name, replica
        return True

    def _replace_member(self, _process: Process) -> None:
        if len(self._members) < MEMBERS_MAX:
            self._while_faulty(self._random.uniform(0.1, 2.0), self._member)

    def _take_over(self) -> None:
        """A stranger opens the log, appends nothing, and lets it go."""
        process = self.world.process("stranger")

        async def open_and_leave() -> None:
            try:
                log = await Log.open(LOG, create=False, client=process.ledgers)
                self.scheduler.mark("stranger_opened")
                await log.close()
            except LogError as error:
                if not (error.retryable or error.outcome_unknown):
                    process.note(f"fails: {error}")

        process.run(open_and_leave())

    def _damage_newest(self) -> None:
        """A disk returns less than was written, of a snapshot that has others before it."""
        if self.profile.archives:
            self._damage_newest_object()
            return
        files = sorted(self._directory.glob("shared/*/*.snapshot"))
        if len(files) > 1:
            whole = files[-1].read_bytes()
            files[-1].write_bytes(whole[: -self._random.choice((1, 30, 60))])
            self._damaged = files[-1]
            self._damages = False
            self.scheduler.mark("snapshot_damaged")

    def _damage_newest_object(self) -> None:
        whole = self._whole_objects(self._stores.uris[0])
        if len(set(whole.values())) > 1:
            newest, data = max(whole, key=lambda key: whole[key]), self.world.objects.data
            data[newest] = data[newest][: -self._random.choice((1, 30, 60))]
            self._damages = False
            self.scheduler.mark("snapshot_damaged")

    def _whole_objects(self, uri: str) -> dict[Key, int]:
        """Return the offset of each whole snapshot of the store *uri*."""
        whole: dict[Key, int] = {}
        for key, data in self.world.objects.data.items():
            with suppress(DamagedSnapshot):
                if key[0].startswith(f"{uri}/"):
                    whole[key] = check_snapshot(BytesIO(data), len(data)).offset
        return whole

    # The end.

    def _finish(self) -> None:
        self._step_until(self.scheduler.now + 1.0)
        for member in self._members:
            member.stopping = True
        if not any(self._awake(member) for member in self._members):
            self._member()
            self._members[-1].process.on_call = None
            self._members[-1].stopping = True
        self._step_until_idle("requests are not answered")
        first, *others = self._stores.usable
        late = self._late_state(first)
        for snapshots in others:
            if late != self._late_state(snapshots):
                raise self._error(f"{SAME_STATE}: {late} at the end, but not from {snapshots}")
        for payload in self.replicas.acknowledged:
            if payload not in self.replicas.effects:
                raise self._error(f"{KEPT}: {payload!r}")
        known = self.replicas.states[max(self.replicas.states)] if self.replicas.states else (0, 0)
        if late != known:
            raise self._error(f"{SAME_STATE}: {late} at the end, {known} was applied")

    def _late_state(self, snapshots: str) -> tuple[int, int]:
        """Return the state of a replica that begins now, from a snapshot or from the log."""
        states: list[tuple[int, int]] = []

        async def look(process: Process) -> bool:
            member = ReplicaMember(
                process,
                LOG,
                self.profile,
                self.replicas,
                (),
                self._stores,
                snapshots,
                self._policy,
                self._opened,
            )
            states.append(await member.look())
            return True

        self._must("read the state", look)
        return states[-1]

    def _awake(self, member: ReplicaMember) -> bool:
        return member.process.busy and not member.process.host.asleep

    def _wake_sleepers(self) -> None:
        self.world.calm()
        self.scheduler.after(3600.0, self.world.hurry)
        for process in self._sleepers():
            self.scheduler.after(3600.0 + self._random.random(), process.host.resume)
            self.scheduler.mark("replica_woke_after_an_hour")
        self._step_while(lambda: bool(self._sleepers()))
        self._finish()

    def _check(self) -> None:
        check(self.world.logs, without=NOT_OF_REPLICAS)
        check_ledgers(self.world.oracle)
        history = self.world.logs.current.get(LOG)
        if history is not None and history.manifest.trim_offset > self._first:
            self._first = history.manifest.trim_offset
            self._check_truncation()

    def _check_truncation(self) -> None:
        self.scheduler.mark("log_truncated")
        tree = self.world.metadata.tree
        self._held = {
            path: held for path, held in self._held.items() if tree.exists(path) is not None
        }
        if self._held:
            self.scheduler.mark("truncated_beside_a_replica_without_a_store")
        self.replicas.truncated(
            self._first,
            {name: replica.applied for name, replica in self._held.values()},
            {uri: self._newest_whole(uri) for uri in sorted(self._stores.needed)},
        )

    def _newest_whole(self, uri: str) -> int:
        if self.profile.archives:
            return max(self._whole_objects(uri).values(), default=0)
        files = Path(uri.removeprefix("file://")).glob("*/*.snapshot")
        return max((int(file.stem) for file in files if file != self._damaged), default=0)

    def _busy(self) -> list[str]:
        return [
            process.name
            for process in self.world.processes
            if process.busy and not process.host.asleep
        ]


async def _later(work: Callable[..., R], /, *args: object, **named: object) -> R:
    """Stands for a thread: a simulated process has none. What is done there is done at one moment,
    and before it the event loop goes on."""
    await asyncio.sleep(0.01)
    return partial(work, *args, **named)()
