"""Runs one seed step by step: what all workloads have in common.

Each step is one action of the scheduler; after each all invariants are checked. Whatever breaks,
an invariant or the code, ends the run with a `SimulationError` that has all that is needed to see
it again.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from ledger.protocol.common import CHECKS
from tests.simulation.kernel.changes import UNCHANGED, Changes
from tests.simulation.kernel.invariants import InvariantError
from tests.simulation.kernel.scheduler import Scheduler

P = TypeVar("P")

CHECKS.costly = True

LEDGERS: Final = "ledgers"
"""The workload that needs no option."""
SLEEP_S: Final = 1 * 3600.0, 8 * 3600.0
"""How long who sleeps is away: from and to."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed did."""

    seed: int
    steps: int
    seconds: float
    """Simulated time."""
    trace: str
    """Hash of all events."""
    marks: dict[str, int]


class SimulationError(AssertionError):
    """A seed that broke something, with all that is needed to see it again."""

    def __init__(
        self, seed: int, step: int, seconds: float, broken: str, tail: list[str], command: str
    ) -> None:
        super().__init__(seed, step, seconds, broken, tail, command)
        self.seed, self.step, self.seconds = seed, step, seconds
        self.broken, self.tail, self.command = broken, tail, command

    @property
    def kind(self) -> str:
        """What broke, without what is of this run only: an invariant's name, or a class of error
        and its first words."""
        first, _, rest = self.broken.partition(":")
        if first.isidentifier() and not first[0].isupper():
            return first
        return re.sub(r"[^A-Za-z ].*", "", f"{first} {rest.strip()}" if rest else first).strip()

    def __str__(self) -> str:
        events = "\n".join(f"    {line}" for line in self.tail[-50:])
        return (
            f"seed {self.seed} broke at step {self.step}: {self.broken}\n"
            f"  the last events:\n{events}\n"
            f"  reproduce: {self.command}"
        )


class Simulation(ABC):
    """One seed of a workload; `run` it once."""

    name: ClassVar[str]
    """Of the workload; the command line has an option for it."""
    required: ClassVar[tuple[str, ...]]
    """What must happen in a long run: a simulator that misses one of these proves less."""
    invariants: ClassVar[Mapping[str, str]]
    """What each invariant says, by name."""
    of_no_effect: ClassVar[frozenset[str]] = frozenset()
    """Values of a drawn world that this workload does not look at, by their path."""
    steps_max: ClassVar[int]
    healed_s_max: ClassVar[float]
    """Simulated time within which each part of the end must finish, once nothing is wrong."""
    steps_per_look: ClassVar[int] = 1
    """How many steps are done before it is asked again whether everything is finished."""

    def __init__(
        self, seed: int, *, changes: Changes = UNCHANGED, keep_trace: bool = False
    ) -> None:
        """*changes* are made to the world that the seed draws."""
        self.scheduler = Scheduler(seed, keep_trace=keep_trace)
        self.scheduler.faults.left_out = changes.left_out
        self.changes = changes
        self.profile_drawn: Any = None
        """The world, with *changes*."""
        self._random = self.scheduler.random
        self._steps_max = self.steps_max

    @classmethod
    def attempt(cls, seed: int, changes: Changes = UNCHANGED) -> Outcome | SimulationError:
        """Run one seed; return its failure as a value, for it may come from another process."""
        try:
            return cls(seed, changes=changes).run()
        except SimulationError as error:
            return error

    @classmethod
    def missing(cls, marks: Mapping[str, int]) -> list[str]:
        """Return what never happened although it must have."""
        return [thing for thing in cls.required if not marks.get(thing)]

    @classmethod
    def command(cls, seed: int, changes: Changes = UNCHANGED) -> str:
        """Return what shows this run again."""
        option = "" if cls.name == LEDGERS else f"{cls.name.upper()}=1 "
        changed = f' CHANGES="{changes}"' if changes else ""
        return f"make sim {option}SEED={seed}{changed}"

    def simpler(self, profile: P) -> P:
        """Return the world that was drawn, *profile*, with what is changed in it."""
        self.profile_drawn = profile = self.changes.applied_to(profile)
        return profile

    def limit_steps(self, steps_max: int) -> None:
        """Let the run end, as broken, after so many steps at most."""
        self._steps_max = min(self.steps_max, steps_max)

    def run(self) -> Outcome:
        """Run to the end. Raises `SimulationError`."""
        if self.changes.luck:
            self._random.seed(f"{self.scheduler.seed} {self.changes.luck}")
        with self._surroundings():
            try:
                self._run()
                return self._outcome()
            except SimulationError:
                raise
            except Exception as error:  # whatever broke is what this program looks for
                kind = "" if isinstance(error, InvariantError) else f"{type(error).__name__}: "
                raise self._error(f"{kind}{error}") from error

    @abstractmethod
    def _run(self) -> None:
        """Play the scenario, by the methods below."""

    @abstractmethod
    def _check(self) -> None:
        """Check all invariants of what changed in a step. Raises `InvariantError`."""

    @abstractmethod
    def _busy(self) -> list[str]:
        """Return what is still under way. Who sleeps keeps nobody waiting."""

    def _surroundings(self) -> AbstractContextManager[None]:
        """Return what holds around the whole run."""
        return nullcontext()

    def _step_until(self, time_s: float) -> None:
        while True:
            at_s = self.scheduler.next_time()
            if at_s is None or at_s > time_s:
                return
            self._step()

    def _step_until_idle(self, otherwise: str, busy: Callable[[], list[str]] | None = None) -> None:
        """Step until nothing is *busy*; say *otherwise* what is wrong."""
        limit_s = self.scheduler.now + self.healed_s_max
        busy = busy or self._busy
        while busy():
            for _ in range(self.steps_per_look):
                if not self._step() or self.scheduler.now > limit_s:
                    if left := busy():  # else the last one ended some steps ago
                        raise self._error(f"{otherwise}: {left}")
                    return

    def _step_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._step()

    def _step(self) -> bool:
        stepped = self.scheduler.step()
        self._check()
        if self.scheduler.steps > self._steps_max:
            raise self._error(f"more than {self._steps_max} steps: {self._busy()}")
        return stepped

    def _error(self, broken: str) -> SimulationError:
        scheduler = self.scheduler
        tail = list(scheduler.trace.tail)
        command = self.command(scheduler.seed, self.changes)
        return SimulationError(
            scheduler.seed, scheduler.steps, scheduler.now, broken, tail, command
        )

    def _outcome(self) -> Outcome:
        scheduler = self.scheduler
        return Outcome(
            scheduler.seed,
            scheduler.steps,
            scheduler.now,
            scheduler.trace.digest(),
            dict(scheduler.trace.marks),
        )
