"""Runs seeds, or the test that is named, with a bug put back until something fails.

A module of its own: what other processes are to run must not be in `__main__`.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.simulation.kernel.simulation import Simulation, SimulationError
from tests.simulation.mutation_plugin import VARIABLE
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.workloads import WORKLOADS

SEEDS_MAX: Final = 2000
NOT_CAUGHT: Final = "NOT CAUGHT"

_ROOT: Final = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutation."""

    name: str
    seeds: int | None
    """How many seeds were run until one failed; None if none did, or none was run."""
    caught_by: str
    story: str
    took_s: float

    @property
    def caught(self) -> bool:
        return self.caught_by != NOT_CAUGHT


def judge(name: str, seeds_max: int = SEEDS_MAX) -> Verdict:
    """Run what has to find the bug *name*, with it: its test, and seeds until one fails."""
    began = time.monotonic()
    mutation = MUTATIONS[name]
    if mutation.test and not fails_its_test(name):
        return Verdict(name, None, NOT_CAUGHT, "", time.monotonic() - began)
    if mutation.drawn:
        return judge_by_seeds(name, range(seeds_max))
    return Verdict(name, None, mutation.test, "", time.monotonic() - began)


def fails_its_test(name: str) -> bool:
    """Run the test of the bug *name* with it, in a process of its own; whether it fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "tests.simulation.mutation_plugin", MUTATIONS[name].test],
        cwd=_ROOT,
        env={**os.environ, VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, f"pytest cannot run {MUTATIONS[name].test}: {done.stdout}"
    return done.returncode == 1


def judge_by_seeds(name: str, seeds: range) -> Verdict:
    """A seed that breaks without the bug as well says nothing about it."""
    began = time.monotonic()
    workload = WORKLOADS[MUTATIONS[name].scenario]
    run = workload.attempt
    for count, seed in enumerate(seeds, 1):
        with put_back(name):
            outcome = run(seed)
        if isinstance(outcome, SimulationError) and not isinstance(run(seed), SimulationError):
            took_s = time.monotonic() - began
            return Verdict(name, count, caught_by(outcome, workload), outcome.broken, took_s)
    return Verdict(name, None, NOT_CAUGHT, "", time.monotonic() - began)


def caught_by(error: SimulationError, workload: type[Simulation]) -> str:
    """Return the invariant that *error* is about, or what else found it."""
    first = error.broken.partition(":")[0]
    if first in workload.invariants:
        return first
    if first == "AssertionError":
        return "an assertion of production code"
    if first.isidentifier():
        return f"nobody handles {first}"
    if error.broken.startswith("at the end entry"):
        return "disks at the end"
    return "liveness"
