"""The simulator of gateways finds nothing in production code, and what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.gateways.coverage import REQUIRED_OF_GATEWAYS
from tests.simulation.gateways.workload import GatewaySimulation
from tests.simulation.kernel.simulation import SimulationError
from tests.simulation.mutations import MUTATIONS, put_back

ROOT = Path(__file__).parents[3]
SEEDS = range(6)


@pytest.mark.slow
def test_gateways_keep_every_invariant_and_come_to_rest() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(GatewaySimulation(seed).run().marks)
    assert len(GatewaySimulation.missing(covered)) <= 4, f"too much never happened: {covered}"


@pytest.mark.integration
def test_a_seed_of_gateways_gives_the_same_trace_in_every_process() -> None:
    traces = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--gateways", "--seed", "3"],
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
        "leads_every_log",
        "takes_a_silent_gateway_for_dead",
        "registers_once",
    ],
)
def test_a_known_bug_of_gateways_is_caught(name: str) -> None:
    for seed in range(10):
        with put_back(name):
            if isinstance(GatewaySimulation.attempt(seed), SimulationError):
                return
    pytest.fail(f"nothing found {name}")


def test_the_table_of_bugs_of_gateways_is_long_enough() -> None:
    """Of sequences and leadership; those of groups are found by tests."""
    scenarios = [each.scenario for each in MUTATIONS.values()]
    assert scenarios.count("partitions") + scenarios.count("gateways") >= 20
    assert sum(each.drawn and each.scenario == "gateways" for each in MUTATIONS.values()) >= 5


def test_what_never_happened_to_gateways_is_named() -> None:
    marks = dict.fromkeys(REQUIRED_OF_GATEWAYS, 1)
    assert GatewaySimulation.missing(marks) == []
    del marks["offsets_committed"]
    assert GatewaySimulation.missing(marks) == ["offsets_committed"]
