"""The simulator of replicas finds nothing in production code, and what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.kernel.simulation import SimulationError
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.replicas.coverage import REQUIRED_OF_REPLICAS
from tests.simulation.replicas.workload import ReplicaSimulation

ROOT = Path(__file__).parents[3]
SEEDS = range(20)


@pytest.mark.slow
def test_replicas_keep_every_invariant_and_finish() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(ReplicaSimulation(seed).run().marks)
    assert len(ReplicaSimulation.missing(covered)) <= 7, f"too much never happened: {covered}"


@pytest.mark.integration
def test_a_seed_of_replicas_gives_the_same_trace_in_every_process() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--replicas", "--seed", "4"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        traces.append(done.stdout.splitlines()[0])
    assert traces[0].startswith("trace ")
    assert len(set(traces)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forgets_what_it_has_done", "reads_without_a_barrier"])
def test_a_known_bug_of_replicas_is_caught(name: str) -> None:
    for seed in range(20):
        with put_back(name):
            if isinstance(ReplicaSimulation.attempt(seed), SimulationError):
                return
    pytest.fail(f"nothing found {name}")


def test_the_table_of_bugs_of_replicas_is_long_enough() -> None:
    drawn = [each for each in MUTATIONS.values() if each.drawn]
    assert [each.scenario for each in drawn].count(ReplicaSimulation.name) >= 15


def test_what_never_happened_to_replicas_is_named() -> None:
    marks = dict.fromkeys(REQUIRED_OF_REPLICAS, 1)
    assert ReplicaSimulation.missing(marks) == []
    del marks["replica_restored"]
    assert ReplicaSimulation.missing(marks) == ["replica_restored"]
