"""The simulator of repair finds nothing in the production code, and what is broken on purpose."""

from collections import Counter

import pytest

from bookie.autorecovery.protocol.repair_plan import Situation
from tests.simulation.__main__ import main
from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations.judging import judge
from tests.simulation.repair.coverage import REQUIRED_OF_REPAIR
from tests.simulation.repair.workload import RepairSimulation

SEEDS = range(16)
FAST = [
    "swaps_before_the_last_copy_is_durable",
    "leaves_the_last_entry_out",
    "fences_without_grace",
]
FAST_SEEDS_MAX = 100


@pytest.mark.slow
def test_everything_is_repaired_and_every_invariant_holds() -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        covered.update(RepairSimulation(seed).run().marks)
    assert len(RepairSimulation.missing(covered)) <= 12, RepairSimulation.missing(covered)


@pytest.mark.slow
def test_a_seed_gives_the_same_trace_again() -> None:
    first = RepairSimulation(3).run()
    assert RepairSimulation(3).run() == first


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_known_bug_of_repair_is_caught(name: str) -> None:
    verdict = judge(name, FAST_SEEDS_MAX)
    assert verdict.seeds is not None, f"nothing found {name} in {FAST_SEEDS_MAX} seeds"


def test_the_table_of_bugs_of_repair_is_long_enough() -> None:
    of_repair = [name for name, mutation in MUTATIONS.items() if mutation.scenario == "repair"]
    assert len(of_repair) >= 15
    assert set(FAST) <= set(of_repair)


def test_what_never_happened_to_repairs_is_named() -> None:
    marks = dict.fromkeys(REQUIRED_OF_REPAIR, 1)
    assert RepairSimulation.missing(marks) == []
    del marks["repair_done"]
    assert RepairSimulation.missing(marks) == ["repair_done"]


@pytest.mark.slow
def test_a_failure_tells_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Situation, "must_go", lambda *_: False)
    monkeypatch.setattr(RepairSimulation, "healed_s_max", 100.0)
    command = "--repair --seeds 0:40 --jobs 1 --failures-max 1 --shrink-s 1"
    assert main(command.split()) == 1
    printed = capsys.readouterr().out
    assert "reproduce: make sim REPAIR=1 SEED=" in printed
    assert "broke at step" in printed
