"""Runs seeds with a bug put back until one of them fails.

A module of its own: what other processes are to run must not be in `__main__`.
"""

import time
from dataclasses import dataclass
from typing import Final

from tests.simulation.check import INVARIANTS
from tests.simulation.mutations import put_back
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
    with put_back(name):
        for seed in range(seeds_max):
            outcome = run_seed(seed)
            if isinstance(outcome, SimulationError):
                took_s = time.monotonic() - began
                return Verdict(name, seed + 1, caught_by(outcome), outcome.broken, took_s)
    return Verdict(name, None, "NOT CAUGHT", "", time.monotonic() - began)


def caught_by(error: SimulationError) -> str:
    """Return the invariant that *error* is about, or what else found it."""
    first = error.broken.partition(":")[0]
    if first in INVARIANTS:
        return first
    if first == "AssertionError":
        return "an assertion of production code"
    if first.isidentifier():
        return f"nobody handles {first}"
    if error.broken.startswith("at the end entry"):
        return "disks at the end"
    return "liveness"
