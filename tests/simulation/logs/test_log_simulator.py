"""The simulator of logs finds nothing in production code, and finds what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dlog.aio.write.writer import LogWriter
from tests.simulation.__main__ import main
from tests.simulation.logs.coverage import REQUIRED_OF_LOGS
from tests.simulation.logs.workload import LogSimulation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations.judging import judge

ROOT = Path(__file__).parents[3]
SEEDS = range(30)
FAST_SEEDS_MAX = 200
FIRST_SEEDS = {"moves_a_consumer_back": 15}
"""Where to begin: the first of the seeds that found it when this was written. Else 0."""
FAST = [
    "fences_only_the_last_ledger",
    "swaps_before_it_recovers",
    "appends_before_the_swap",
    "trims_the_segment_of_the_trim_point",
    "reads_the_last_record_again_at_a_segment_boundary",
    "takes_the_next_offset_from_the_lac",
    "acknowledges_what_it_has_only_sent",
    "moves_a_consumer_back",
]
"""Of the mutations that a few seeds find, one of each part; `make mutations` runs all."""


@pytest.mark.slow
def test_logs_keep_every_invariant_and_finish() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(LogSimulation(seed).run().marks)
    assert len(LogSimulation.missing(covered)) <= 20, f"too much never happened: {covered}"


@pytest.mark.integration
def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    traces = []
    for hash_seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--logs", "--seed", "12"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        traces.append(done.stdout.splitlines()[0])
    assert traces[0].startswith("trace ")
    assert len(set(traces)) == 1


def test_seeds_do_not_depend_on_what_ran_before_in_the_same_process() -> None:
    first = LogSimulation(3).run()
    LogSimulation(4).run()
    assert LogSimulation(3).run() == first


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_known_bug_of_logs_is_caught(name: str) -> None:
    verdict = judge(name, FAST_SEEDS_MAX, FIRST_SEEDS.get(name, 0))
    assert verdict.seeds is not None, f"nothing found {name} in {FAST_SEEDS_MAX} seeds"


def test_the_table_of_bugs_of_logs_is_long_enough() -> None:
    of_logs = [name for name, mutation in MUTATIONS.items() if mutation.scenario == "logs"]
    assert len(of_logs) >= 12
    assert set(FAST) <= set(of_logs)


def test_what_never_happened_to_logs_is_named() -> None:
    marks = dict.fromkeys(REQUIRED_OF_LOGS, 1)
    assert LogSimulation.missing(marks) == []
    del marks["log_opened"]
    assert LogSimulation.missing(marks) == ["log_opened"]


def test_a_failure_tells_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LogWriter, "last_offset", 7)
    command = "--logs --seeds 0:9 --jobs 1 --failures-max 1 --shrink-s 1"
    assert main(command.split()) == 1
    printed = capsys.readouterr().out
    assert "reproduce: make sim LOGS=1 SEED=" in printed
    assert "broke at step" in printed
