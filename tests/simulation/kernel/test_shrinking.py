"""A failing seed of every workload becomes a small world, and a story that names the culprit."""

import re
from dataclasses import dataclass

import pytest

from tests.simulation.kernel.changes import UNCHANGED, Changes, simplifications
from tests.simulation.kernel.shrinking import LONGER, Failure, fail, shrink
from tests.simulation.kernel.simulation import SimulationError
from tests.simulation.kernel.story import EVENTS_MAX, tell
from tests.simulation.mutations import MUTATIONS, put_back
from tests.simulation.workload import LedgerSimulation
from tests.simulation.workloads import WORKLOADS

SEEDS_MAX = 60
SHRINK_S = 600.0
"""Runs are counted here, so that a loaded machine tries as many as any other."""


@dataclass(frozen=True)
class Within:
    faults: int


@dataclass(frozen=True)
class World:
    entries: int = 10
    deletes: float = 0.3
    crashes: bool = True
    pauses_s: tuple[float, ...] = (0.1, 0.5)
    writer_fate: str = "sleeps"
    floor: Within = Within(3)


def test_changes_are_one_line_of_text_and_back() -> None:
    text = "entries=5,floor.faults=0,pauses_s=first,fault3=0,luck=2"
    changes = Changes.parse(text)
    assert str(changes) == text
    assert changes.left_out == {3}
    assert changes.luck == 2
    assert changes.applied_to(World()) == World(entries=5, pauses_s=(0.1,), floor=Within(0))
    assert not Changes.parse("")


def test_a_change_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="say for example entries=5"):
        Changes.parse("entries")


def test_everything_that_is_on_in_a_world_can_be_turned_down_and_nothing_that_is_off() -> None:
    simpler = dict(simplifications(World()))
    assert set(simpler) == {
        "entries", "deletes", "crashes", "pauses_s", "writer_fate", "floor.faults",
    }  # fmt: skip
    off = World(0, 0.0, False, (0.1,), "lives", Within(0))
    assert simplifications(off) == []


def test_a_world_without_sense_is_no_smaller_failure() -> None:
    assert fail(LedgerSimulation, 0, Changes.parse("quorum.write=9")) is None


def test_a_failure_that_does_not_come_again_is_told_as_it_was() -> None:
    error = SimulationError(3, 7, 1.5, "liveness", ["1.000000 b1 crashes"], "make sim SEED=3")
    told = tell(shrink(LedgerSimulation, error, UNCHANGED, seconds=60.0))
    assert "b1             crashes" in told
    assert "At 1.500 s, in step 7" in told


def _smallest(name: str, tries: int) -> tuple[Failure, Failure]:
    """Return the first run in which a mutation breaks an invariant, and the smallest one that
    *tries* runs find."""
    workload = WORKLOADS[MUTATIONS[name].scenario]
    with put_back(name):
        failures = (fail(workload, seed, UNCHANGED) for seed in range(SEEDS_MAX))
        first = next(each for each in failures if each and each.error.kind in workload.invariants)
        error = first.error
        smallest = shrink(workload, error, UNCHANGED, seconds=SHRINK_S, tries_max=tries)
        again = fail(workload, error.seed, Changes.parse(str(smallest.changes)))
    assert again is not None
    assert again.events == smallest.events, "the command shows another run"
    assert smallest.error.kind == first.error.kind
    return first, smallest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tries", "culprit"),
    [
        ("confirms_with_one_ack_less", 40, r"writer\d +acknowledges"),
        ("closes_without_write_back", 40, r"recoverer\d +reads at"),
        ("acknowledges_what_it_has_only_sent", 30, r"leader-log\d\.\d+ +acknowledges"),
        ("swaps_before_the_last_copy_is_durable", 6, r"worker\.\d+ +made ledger \d+"),
        ("reads_without_a_barrier", 10, r"replica\.\d+ +reads effect"),
    ],
)
def test_a_known_bug_becomes_a_short_story_that_names_the_culprit(
    name: str, tries: int, culprit: str
) -> None:
    first, smallest = _smallest(name, tries)
    assert smallest.error.step <= LONGER * first.error.step + 10
    assert len(smallest.changes.left_out) + len(smallest.changes.values) > 0
    told = tell(smallest)
    assert len(told.splitlines()) <= EVENTS_MAX + 30
    assert f"{smallest.error.kind} says: " in told
    assert f'SEED={smallest.error.seed} CHANGES="{smallest.changes}"' in told
    assert re.search(culprit, told), told
