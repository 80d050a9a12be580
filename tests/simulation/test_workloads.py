"""Each workload finds nothing in production code, and finds what is broken on purpose."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations.judging import judge_by_seeds
from tests.simulation.workloads import WORKLOADS

ROOT: Final = Path(__file__).parents[2]
BUG_SEEDS_MAX: Final = 300


class Sample(NamedTuple):
    """What `make test` runs of a workload; `make sim` and `make mutations` run more."""

    seeds: int
    missing_max: int
    """What is required of a long run and never happens in these seeds, at most."""
    traced: int
    """A seed whose trace is compared."""
    drawn_min: int
    """Known bugs that its seeds have to find, at least."""
    bugs: tuple[str, ...]
    """Of those that a few seeds find, one of each part."""


SAMPLES: Final = {
    "ledgers": Sample(
        seeds=60,
        missing_max=12,
        traced=7,
        drawn_min=50,
        bugs=(
            "confirms_with_one_ack_less",
            "keeps_acks_when_it_replaces",
            "begins_the_new_fragment_at_a_stale_lac",
            "closes_with_adds_pending",
            "takes_an_error_for_absence",
            "closes_without_write_back",
            "answers_adds_before_the_journal_is_synced",
            "loses_the_fence_at_a_checkpoint",
            "accepts_other_bytes_under_the_same_id",
            "reader_delivers_above_the_lac",
            "accepts_a_bookie_that_lost_its_disk",
            "takes_ids_without_compare_and_swap",
        ),
    ),
    "logs": Sample(
        seeds=40,
        missing_max=20,
        traced=12,
        drawn_min=50,
        bugs=(
            "fences_only_the_last_ledger",
            "swaps_before_it_recovers",
            "appends_before_the_swap",
            "trims_the_segment_of_the_trim_point",
            "reads_the_last_record_again_at_a_segment_boundary",
            "takes_the_next_offset_from_the_lac",
            "acknowledges_what_it_has_only_sent",
            "moves_a_consumer_back",
        ),
    ),
    "partitions": Sample(
        seeds=8,
        missing_max=4,
        traced=3,
        drawn_min=11,
        bugs=(
            "forgets_producers_at_a_takeover",
            "takes_what_is_sent_for_confirmed",
            "writes_the_offset_that_was_asked_for",
        ),
    ),
    "gateways": Sample(
        seeds=6,
        missing_max=4,
        traced=3,
        drawn_min=5,
        bugs=("leads_every_log", "takes_a_silent_gateway_for_dead", "registers_once"),
    ),
    "repair": Sample(
        seeds=16,
        missing_max=12,
        traced=3,
        drawn_min=15,
        bugs=(
            "swaps_before_the_last_copy_is_durable",
            "leaves_the_last_entry_out",
            "fences_without_grace",
        ),
    ),
    "replicas": Sample(
        seeds=20,
        missing_max=7,
        traced=4,
        drawn_min=15,
        bugs=("forgets_what_it_has_done", "reads_without_a_barrier"),
    ),
}
FIRST_SEEDS: Final = {
    "keeps_acks_when_it_replaces": 62,
    "moves_a_consumer_back": 15,
    "reader_delivers_above_the_lac": 69,
}
"""Where to begin: the first of the seeds that found it when this was written. Else 0."""

each_workload = pytest.mark.parametrize("name", SAMPLES)


def test_each_workload_is_tested() -> None:
    assert set(SAMPLES) == set(WORKLOADS)


@pytest.mark.slow
@each_workload
def test_every_invariant_holds_and_everything_finishes(name: str) -> None:
    workload, sample = WORKLOADS[name], SAMPLES[name]
    covered: Counter[str] = Counter()
    for seed in range(sample.seeds):
        covered.update(workload(seed).run().marks)
    missing = workload.missing(covered)
    assert len(missing) <= sample.missing_max, f"too much never happened: {missing}"


@pytest.mark.integration
@each_workload
def test_a_seed_gives_the_same_trace_in_another_process(name: str) -> None:
    """In which hashes differ; and whatever ran before in this one."""
    seed = SAMPLES[name].traced
    option = [] if name == "ledgers" else [f"--{name}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *option, "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1" if hash("a") % 2 else "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = WORKLOADS[name](seed).run().trace
    assert done.stdout.splitlines()[0] == f"trace {here}"


@each_workload
def test_a_failure_has_the_command_that_shows_it_again(name: str) -> None:
    option = {"ledgers": ""}.get(name, f"{name.upper()}=1 ")
    assert WORKLOADS[name].command(7) == f"make sim {option}SEED=7"


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for sample in SAMPLES.values() for bug in sample.bugs])
def test_a_known_bug_is_caught(bug: str) -> None:
    first = FIRST_SEEDS.get(bug, 0)
    verdict = judge_by_seeds(bug, range(first, first + BUG_SEEDS_MAX))
    assert verdict.seeds is not None, f"nothing found {bug} in {BUG_SEEDS_MAX} seeds"


@each_workload
def test_the_table_of_known_bugs_is_long_enough(name: str) -> None:
    drawn = {bug for bug, each in MUTATIONS.items() if each.drawn and each.scenario == name}
    assert len(drawn) >= SAMPLES[name].drawn_min
    assert drawn >= set(SAMPLES[name].bugs)


@each_workload
def test_what_never_happened_is_named(name: str) -> None:
    workload = WORKLOADS[name]
    first, *others = workload.required
    assert workload.missing(dict.fromkeys(workload.required, 1)) == []
    assert workload.missing(dict.fromkeys(others, 1)) == [first]
