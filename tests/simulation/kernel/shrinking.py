"""Makes a failing seed smaller: a simpler world, fewer faults, fewer steps, and the same breakage.

Greedy: each change is kept if what broke before breaks again, in hardly more steps. A change
moves all chance behind it, so one that seems to mend it is tried again with another source of
chance. Bounded in time; a candidate is stopped when it takes longer than the best run so far.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.kernel.changes import Changes, simplifications
from tests.simulation.kernel.simulation import Simulation, SimulationError

SHRINK_S: Final = 60.0
TRIES_MAX: Final = 2000
"""How many runs are tried, at most."""
LUCKS: Final = 4
"""With so many other sources of chance a simpler world is tried, if at first it does not break."""
LONGER: Final = 1.1
"""How many times the steps of the shortest run a simpler one may take."""
TOO_LONG: Final = "more than"
"""Begins what a run says that was stopped for its steps."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failing run, with all of its events."""

    workload: type[Simulation]
    changes: Changes
    error: SimulationError
    profile: object
    """Its world, with *changes*."""
    faults: int
    """How many were drawn."""
    tries: int = 0
    """Runs that it took to find it."""

    @property
    def events(self) -> list[str]:
        return self.error.tail


def shrink(
    workload: type[Simulation],
    error: SimulationError,
    changes: Changes,
    *,
    seconds: float,
    tries_max: int = TRIES_MAX,
) -> Failure:
    """Return the smallest run found in that time which breaks as *error*, of a run with *changes*.

    If the run does not break here, because something of it is not there any more, it is returned
    as it was reported."""
    until = time.monotonic() + seconds
    first = fail(workload, error.seed, changes)
    if first is None or first.error.kind != error.kind:
        return Failure(workload, changes, error, None, 0)
    search = _Search(first, until, tries_max)
    search.run()
    return replace(search.best, tries=search.tries)


def fail(
    workload: type[Simulation], seed: int, changes: Changes, *, steps_max: int | None = None
) -> Failure | None:
    """Run *seed* with *changes*; return how it fails, or None. Changes without sense make a world
    that cannot be, which fails in another way than any other."""
    try:
        simulation = workload(seed, changes=changes, keep_trace=True)
    except Exception:  # noqa: BLE001 - whatever such a world does not allow
        return None
    if steps_max is not None:
        simulation.limit_steps(steps_max)
    try:
        simulation.run()
    except SimulationError as error:
        drawn = simulation.scheduler.faults.drawn
        return Failure(workload, changes, error, simulation.profile_drawn, drawn)
    return None


class _Search:
    def __init__(self, first: Failure, until: float, tries_max: int) -> None:
        self.best = first
        self.tries = 0
        self._until, self._tries_max = until, tries_max
        self._kind = first.error.kind
        self._shortest = first.error.step
        self._is_bounded = not first.error.broken.startswith(TOO_LONG)
        self._tried: set[Changes] = set()

    def run(self) -> None:
        """Change one thing after the other until none helps, or the time is over."""
        for lucks in (1, LUCKS):
            before = None
            while self.best is not before and self._has_time():
                before = self.best
                self._simplify(lucks)
                self._leave_out_faults(lucks)

    def _leave_out_faults(self, lucks: int) -> None:
        """All at once, then in halves, down to one by one."""
        size = max(1, self.best.faults)
        while size and self._has_time():
            for start in range(1, self.best.faults + 1, size):
                numbers = range(start, start + size)
                changes = self.best.changes
                self._try(replace(changes, left_out=changes.left_out.union(numbers)), lucks)
            size //= 2

    def _simplify(self, lucks: int) -> None:
        but = self.best.workload.of_no_effect
        for key, value in list(simplifications(self.best.profile)):
            if key not in but:
                self._try(self.best.changes.with_value(key, value), lucks)

    def _try(self, changes: Changes, lucks: int) -> None:
        for each in self._with_luck(changes, lucks):
            if not self._has_time() or each in self._tried or each == self.best.changes:
                continue
            self._tried.add(each)
            self.tries += 1
            steps_max = int(self._shortest * LONGER) + 10 if self._is_bounded else None
            seed, workload = self.best.error.seed, self.best.workload
            found = fail(workload, seed, each, steps_max=steps_max)
            if found is not None and found.error.kind == self._kind:
                self.best = found
                self._shortest = min(self._shortest, found.error.step)
                return

    def _with_luck(self, changes: Changes, lucks: int) -> Iterator[Changes]:
        yield changes
        for number in range(1, lucks):
            yield replace(changes, luck=changes.luck + number)

    def _has_time(self) -> bool:
        return self.tries < self._tries_max and time.monotonic() < self._until
