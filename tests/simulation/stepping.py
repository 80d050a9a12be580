"""Runs one seed step by step: what the simulators of ledgers and of logs have in common.

Each step is one action of the scheduler; after each all invariants are checked. Whatever breaks,
an invariant or the code, ends the run with a `SimulationError` that has all that is needed to see
it again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Final

from ledger.protocol.common import CHECKS
from tests.simulation.scheduler import Scheduler

CHECKS.costly = True

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


class InvariantError(AssertionError):
    """An invariant does not hold; the simulation stops here."""

    def __init__(self, invariant: str, of: str, story: str) -> None:
        super().__init__(f"{invariant}: {of}: {story}")


class SimulationError(AssertionError):
    """A seed that broke something, with all that is needed to see it again."""

    def __init__(self, seed: int, step: int, broken: str, tail: list[str], command: str) -> None:
        super().__init__(seed, step, broken, tail, command)
        self.seed, self.step, self.broken, self.tail = seed, step, broken, tail
        self.command = command

    def __str__(self) -> str:
        events = "\n".join(f"    {line}" for line in self.tail[-50:])
        return (
            f"seed {self.seed} broke at step {self.step}: {self.broken}\n"
            f"  the last events:\n{events}\n"
            f"  reproduce: {self.command} SEED={self.seed}"
        )


class Stepped(ABC):
    """One seed of a simulator; `run` it once."""

    command: ClassVar[str]
    """Shows one seed again, given its number."""
    steps_max: ClassVar[int]
    healed_s_max: ClassVar[float]
    """Simulated time within which each part of the end must finish, once nothing is wrong."""
    steps_per_look: ClassVar[int] = 1
    """How many steps are done before it is asked again whether everything is finished."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.scheduler = Scheduler(seed, keep_trace=keep_trace)
        self._random = self.scheduler.random

    @classmethod
    def attempt(cls, seed: int) -> Outcome | SimulationError:
        """Run one seed; return its failure as a value, for it may come from another process."""
        try:
            return cls(seed).run()
        except SimulationError as error:
            return error

    def run(self) -> Outcome:
        """Run to the end. Raises `SimulationError`."""
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
        while left := (busy or self._busy)():
            for _ in range(self.steps_per_look):
                if not self._step() or self.scheduler.now > limit_s:
                    raise self._error(f"{otherwise}: {left}")

    def _step_while(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self._step()

    def _step(self) -> bool:
        stepped = self.scheduler.step()
        self._check()
        if self.scheduler.steps > self.steps_max:
            raise self._error(f"more than {self.steps_max} steps: {self._busy()}")
        return stepped

    def _error(self, broken: str) -> SimulationError:
        scheduler = self.scheduler
        tail = list(scheduler.trace.tail)
        return SimulationError(scheduler.seed, scheduler.steps, broken, tail, self.command)

    def _outcome(self) -> Outcome:
        scheduler = self.scheduler
        return Outcome(
            scheduler.seed,
            scheduler.steps,
            scheduler.now,
            scheduler.trace.digest(),
            dict(scheduler.trace.marks),
        )
