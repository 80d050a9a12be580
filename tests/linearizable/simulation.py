"""The simulator of logs with observers who keep asking where a log ends, and read it whole.

Its own invariants are off: the checker judges alone what leaders and observers were told. Nothing
is truncated, deleted or renamed here, and no query commits units, as the model has none of that.
"""

import asyncio
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from dlog.aio.log import Log
from dlog.aio.read.tails import END_GRACE_S
from ledger.errors import LogError
from tests.linearizable import history
from tests.linearizable.history import Operation, call_in, name_of, return_in
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.simulation import SimulationError
from tests.simulation.logs.process import Process
from tests.simulation.logs.profile import LogProfile, draw
from tests.simulation.logs.workload import LogSimulation

OBSERVERS_MAX: Final = 3
BARRIER_S: Final = 5.0
READ_S: Final = 20.0
"""How long a read goes on. What a barrier found confirmed may be confirmed to nobody else until
the log is opened again: its writer died, and the bookies that had heard of it restarted."""
PAUSES_S: Final = (0.0, 0.01, 0.1, 0.5)


def profile_of(seed: int) -> LogProfile:
    """Return a world of the simulator of logs without what the model does not have."""
    random = Random(f"observed {seed}")
    drawn = draw(random)
    settings = replace(
        drawn.settings,
        retention_bytes=0,
        retention_age_s=0.0,
        retention_waits_for_consumers=False,
    )
    return replace(
        drawn,
        floor=replace(drawn.floor, faults=drawn.floor.faults + random.choice((0, 3, 6))),
        logs=min(drawn.logs, 2),
        settings=settings,
        candidates=max(drawn.candidates, random.choice((1, 2))),
        readers=0,
        consumers=0,
        consumer_resets=0,
        consumer_deletes=0,
        expects=random.choice((0.0, 0.2, 0.5)),
        queries=0,
        truncates=0.0,
        admin_truncates=0,
        deletes=0,
        renames=0,
        updates=0,
    )


class ObservedLogs(LogSimulation):
    @classmethod
    def command(cls, seed: int, changes: Changes = UNCHANGED) -> str:
        assert not changes, "these worlds are not made smaller"
        return f"python -m tests.linearizable --only simulator --seeds {seed}:{seed + 1}"

    def __init__(self, seed: int, *, profile: LogProfile | None = None) -> None:
        super().__init__(seed, profile=profile or profile_of(seed))
        self._observing = True
        self._observed: dict[str, list[Operation]] = {}
        """By incarnation of the log."""

    def histories(self) -> dict[str, list[Operation]]:
        """Return what was asked and answered, by log; also where the run ended early."""
        return {
            f"seed-{self.scheduler.seed}-{log.name}": [
                *history.of_simulation(log),
                *self._observed.get(log.incarnation, []),
            ]
            for log in self.world.logs.histories.values()
        }

    def _check(self) -> None:
        """Nothing: see the docstring of the module."""

    def _candidate(self, name: str) -> None:
        super()._candidate(name)
        if len([p for p in self.world.processes if p.name.startswith("observer-")]) < OBSERVERS_MAX:
            process = self.world.process(f"observer-{name}")
            process.run(self._observe(process, name))

    def _settle(self) -> None:
        self._observing = False
        super()._settle()
        for name in self._names:
            self._must(f"read all of {name}", partial(self._read_all, name))

    async def _observe(self, process: Process, name: str) -> None:
        while self._observing:
            await asyncio.sleep(self._random.choice(PAUSES_S))
            if name not in self.world.logs.current:
                continue
            try:
                if self._random.random() < 0.5:
                    await self._ask_for_the_end(process, name)
                else:
                    await self._read_all(name, process)
            except LogError as error:
                if not error.retryable:
                    raise
                process.note(f"{name}: {error}")
            except TimeoutError:
                process.note(f"{name}: not read within {READ_S} s")

    async def _ask_for_the_end(self, process: Process, name: str) -> None:
        asked = self.scheduler.steps
        end = await Log.end_of(name, timeout_s=BARRIER_S, client=process.ledgers)
        told = history.end(process.name, call_in(asked), return_in(self.scheduler.steps), end)
        self._observations(name).append(told)

    async def _read_all(self, name: str, process: Process) -> bool:
        """Read up to a barrier, or as far as the log goes now; return True."""
        asked = self.scheduler.steps
        began = asyncio.get_running_loop().time()
        by_barrier = not self._observing or self._random.random() < 0.5
        values = []
        async with (
            asyncio.timeout(READ_S),
            await Log.tail(name, follow=by_barrier, client=process.ledgers) as reader,
        ):
            certain = asyncio.get_running_loop().time() - began < END_GRACE_S
            if by_barrier:
                end = await reader.barrier(timeout_s=BARRIER_S)
                values = [name_of(record.value) async for record in reader.read_until(end)]
            else:
                values = [name_of(record.value) async for record in reader]
        told = history.read(
            process.name,
            call_in(asked),
            return_in(self.scheduler.steps),
            values,
            certain=by_barrier or certain,
        )
        self._observations(name).append(told)
        return True

    def _observations(self, name: str) -> list[Operation]:
        return self._observed.setdefault(self.world.logs.current[name].incarnation, [])


def simulate(seed: int) -> tuple[list[str], str]:
    """Return the histories of a seed as lines, and why it ended early, if it did."""
    simulation = ObservedLogs(seed)
    broken = ""
    try:
        simulation.run()
    except SimulationError as error:
        broken = str(error)
    lines = [
        operation.line(name)
        for name, operations in simulation.histories().items()
        for operation in operations
    ]
    return lines, broken
