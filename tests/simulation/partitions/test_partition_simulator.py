"""The simulator of partitions finds nothing in production code, and what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.kernel.simulation import SimulationError
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.partitions.coverage import REQUIRED_OF_PARTITIONS
from tests.simulation.partitions.workload import PartitionSimulation

ROOT = Path(__file__).parents[3]
SEEDS = range(8)


@pytest.mark.slow
def test_partitions_keep_every_invariant_and_finish() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(PartitionSimulation(seed).run().marks)
    assert len(PartitionSimulation.missing(covered)) <= 4, f"too much never happened: {covered}"


@pytest.mark.integration
def test_a_seed_of_partitions_gives_the_same_trace_in_every_process() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--partitions", "--seed", "3"],
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
@pytest.mark.parametrize(
    "name",
    [
        "forgets_producers_at_a_takeover",
        "takes_what_is_sent_for_confirmed",
        "writes_the_offset_that_was_asked_for",
    ],
)
def test_a_known_bug_of_partitions_is_caught(name: str) -> None:
    for seed in range(10):
        with put_back(name):
            if isinstance(PartitionSimulation.attempt(seed), SimulationError):
                return
    pytest.fail(f"nothing found {name}")


def test_the_table_of_bugs_of_partitions_is_long_enough() -> None:
    drawn = [each for each in MUTATIONS.values() if each.drawn]
    assert [each.scenario for each in drawn].count(PartitionSimulation.name) >= 11


def test_what_never_happened_to_partitions_is_named() -> None:
    marks = dict.fromkeys(REQUIRED_OF_PARTITIONS, 1)
    assert PartitionSimulation.missing(marks) == []
    del marks["batch_sent_again"]
    assert PartitionSimulation.missing(marks) == ["batch_sent_again"]
