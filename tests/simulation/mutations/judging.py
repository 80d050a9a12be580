"""Runs seeds with a bug put back until one of them fails.

A module of its own: what other processes are to run must not be in `__main__`.
"""

import time
from dataclasses import dataclass
from typing import Final

from tests.simulation.check import INVARIANTS
from tests.simulation.logs.check import INVARIANTS as INVARIANTS_OF_LOGS
from tests.simulation.logs.workload import run_log_seed
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.workload import SimulationError, run_seed

SEEDS_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutation."""

    name: str
    seeds: int | None
    """How many seeds were run until one failed; None if none did."""
    caught_by: str
    story: str
    took_s: float


def judge(name: str, seeds_max: int = SEEDS_MAX) -> Verdict:
    """Run seeds with the bug *name* until one fails."""
    began = time.monotonic()
    run = run_log_seed if MUTATIONS[name].logs else run_seed
    with put_back(name):
        for seed in range(seeds_max):
            outcome = run(seed)
            if isinstance(outcome, SimulationError):
                took_s = time.monotonic() - began
                return Verdict(name, seed + 1, caught_by(outcome), outcome.broken, took_s)
    return Verdict(name, None, "NOT CAUGHT", "", time.monotonic() - began)


def caught_by(error: SimulationError) -> str:
    """Return the invariant that *error* is about, or what else found it."""
    first = error.broken.partition(":")[0]
    if first in INVARIANTS or first in INVARIANTS_OF_LOGS or first == "no_ledger_leaks_for_ever":
        return first
    if first == "AssertionError":
        return "an assertion of production code"
    if first.isidentifier():
        return f"nobody handles {first}"
    if error.broken.startswith("at the end entry"):
        return "disks at the end"
    return "liveness"
