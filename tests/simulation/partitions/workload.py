"""The scenario of partitions: a log that gateways of Kafka lead, one after the other.

Gateways crash, pause and sleep at any call, and open the log while another believes to lead it;
native writers take it over now and then. Idempotent producers send each batch until they have an
answer, to whatever gateway they find; consumers fetch, native readers read. Below are the bookies,
network, metadata store and faults of the scenario of logs. Safety is checked after every step; once
nothing is wrong any more each batch gets its answer, and the log is read to its end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, Final

from dlog.aio.log import Log
from dlog.kafka import partition, recent_batches
from ledger.errors import LogError
from tests.simulation.invariants import check as check_ledgers
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.logs.faults import Doom
from tests.simulation.logs.invariants import check
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile
from tests.simulation.logs.profile import draw as draw_logs
from tests.simulation.logs.workload import LogSimulation
from tests.simulation.logs.writing import Leader
from tests.simulation.partitions.coverage import REQUIRED_OF_PARTITIONS
from tests.simulation.partitions.gateway import Gateway
from tests.simulation.partitions.oracle import INVARIANTS, PartitionOracle, Producer

LOG: Final = "log1"
GATEWAYS_MAX: Final = 16
PRODUCERS: Final = 3


def draw(random: Random) -> LogProfile:
    """Return a world of logs, with one log that gateways lead and hardly anybody else writes."""
    profile = draw_logs(random)
    settings = replace(
        profile.settings,
        retention_bytes=0,
        retention_age_s=0.0,
        retention_waits_for_consumers=False,
        roll_records=random.choice((0, 3, 20)),
        roll_bytes=0,
    )
    return replace(
        profile,
        floor=replace(profile.floor, disks_lost=0),
        logs=1,
        settings=settings,
        readers=random.choice((1, 2)),
        bursts=random.choice(((10,), (50,), (3, 30))),
        thinks_s=random.choice(((0.1,), (0.0, 0.5))),
        pauses_s=random.choice(((0.0, 0.01), (0.0, 0.05), (0.02,))),
        elections=0.0,
        standbys=0.0,
        elects_itself=0.0,
        consumers=0,
        admin_truncates=0,
        updates=0,
        seals=0,
        deletes=0,
        renames=0,
        queries=0,
        sweeps=random.choice((0, 2)),
        fates=random.choice(
            (
                ("lives", "crashes"),
                ("lives", "pauses", "crashes"),
                ("pauses",),
                ("sleeps", "crashes"),
            )
        ),
        fate_calls=random.choice(((12,), (40,), (150,))),
    )


class PartitionSimulation(LogSimulation):
    name = "partitions"
    required: ClassVar[tuple[str, ...]] = REQUIRED_OF_PARTITIONS
    invariants: ClassVar = {**LogSimulation.invariants, **INVARIANTS}

    def __init__(
        self,
        seed: int,
        *,
        profile: LogProfile | None = None,
        changes: Changes = UNCHANGED,
        keep_trace: bool = False,
    ) -> None:
        profile = profile or draw(Random(seed))
        super().__init__(seed, profile=profile, changes=changes, keep_trace=keep_trace)
        self.partitions = PartitionOracle(self.world.logs)
        self._gateways: list[Gateway] = []
        self._producers = [Producer(number) for number in range(1, PRODUCERS + 1)]
        self._snapshot_batches = self._random.choice((1, 2, 5, 20))
        self._recent_bytes = self._random.choice((0, 400, 10**6))

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        sizes = (
            (partition, "SNAPSHOT_BATCHES", self._snapshot_batches),
            (recent_batches, "LOG_BYTES_MIN", self._recent_bytes),
            (recent_batches, "PROCESS_BYTES_MAX", 0),
        )
        before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
        for module, name, size in sizes:
            setattr(module, name, size)
        try:
            with super()._surroundings():
                yield
        finally:
            for module, name, size in before:
                setattr(module, name, size)

    def _run(self) -> None:
        profile = self.profile
        self.scheduler.note("world", f"{profile}")
        self._must("make the log", self._make_log)
        self._faults.begin()
        for _ in range(self._random.choice((1, 2, 2))):
            self._gateway()
        faults_s = profile.floor.faults_s
        until_s = self.scheduler.now + faults_s
        for _ in range(profile.readers):
            self._while_faulty(self._random.uniform(0.0, faults_s), partial(self._begin_tail, LOG))
        for _ in range(self._random.choice((0, 0, 2, 4))):
            self._while_faulty(self._random.uniform(0.0, faults_s), self._write_natively)
        for _ in range(profile.sweeps):
            self._while_faulty(self._random.uniform(0.0, faults_s), self._sweep)
        self._step_until(until_s)
        self._faults.heal()
        self._healed = True
        self._answer_all()
        self._settle()
        if self._sleepers():
            self._wake_sleepers()

    async def _make_log(self, process: Process) -> bool:
        try:
            log = await Log.open(LOG, client=process.ledgers, settings=self.profile.settings)
        except LogError:
            return False
        await log.close()
        return True

    def _gateway(self) -> None:
        process = self.world.process("gateway")
        gateway = Gateway(process, LOG, self.profile, self.partitions, self._producers)
        self._gateways.append(gateway)
        process.on_call = Doom(
            process,
            self._random.choice(self.profile.fates),
            1 + self._random.randrange(self._random.choice(self.profile.fate_calls)),
            self._port(),
            opening=lambda: gateway.opening,
            between=lambda: gateway.partition is not None,
            on_crash=self._replace_gateway,
        )
        process.run(gateway.run())

    def _replace_gateway(self, _process: Process) -> None:
        if len(self._gateways) < GATEWAYS_MAX:
            self._while_faulty(self._random.uniform(0.1, 1.0), self._gateway)

    def _write_natively(self) -> None:
        """A native writer takes the log over, and lets it go."""
        process = self.world.process("leader-native")
        leader = Leader(process, LOG, replace(self.profile, truncates=0.0))
        self.scheduler.mark("written_natively")

        async def lead() -> None:
            await leader.lead(self._random.choice((0, 1, 3)), create=False)

        process.run(lead())

    # The end.

    def _answer_all(self) -> None:
        """Let each batch that was sent get its answer."""
        for gateway in self._gateways:
            gateway.stopping = True
        self._step_until_idle("batches are not answered")
        if any(producer.pending for producer in self._producers):  # who led has crashed, or sleeps
            self._gateway()
            self._gateways[-1].process.on_call = None
            self._gateways[-1].stopping = True
            self._step_until_idle("batches are not answered")
        left = [producer.producer_id for producer in self._producers if producer.pending]
        if left:
            raise self._error(f"producers {left} have no answer")

    def _check(self) -> None:
        history = self.world.logs.current.get(LOG)
        if history is not None and history.incarnation in self.world.logs.changed:
            self.partitions.check(history)
        check(self.world.logs)
        check_ledgers(self.world.oracle)
