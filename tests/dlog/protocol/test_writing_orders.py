"""A log's writer, whatever happens in whatever order."""

from collections.abc import Sequence
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.protocol.log_writer import TRANSITIONS
from tests.dlog.protocol.writing_world import Transition, World

SEEDS_MAX: Final = 10_000
"""A third of them are enough."""


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([0.0, 2.0, 30.0]), st.integers(1, 12), st.integers(1, 80))
def test_each_group_has_one_outcome_and_that_is_true_whatever_happens(
    data: st.DataObject, reopen_timeout_s: float, calm: int, steps: int
) -> None:
    """Confirmed is below sent is below next, nothing is sent while it holds or heals: the world
    and the machine check it after each step."""

    def choose(options: Sequence[object]) -> object:
        return options[data.draw(st.integers(0, len(options) - 1))]

    world = World(choose, reopen_timeout_s=reopen_timeout_s, calm=calm)
    for _ in range(steps):
        world.step()
    world.finish()


@pytest.mark.slow
def test_every_way_through_the_table_happens_and_no_other() -> None:
    table = {
        (event, before, after)
        for (event, before), phases in TRANSITIONS.items()
        for after in phases
    }
    seen: set[Transition] = set()
    for seed in range(SEEDS_MAX):
        random = Random(seed)
        world = World(
            random.choice, reopen_timeout_s=random.choice([0.0, 2.0, 30.0]), calm=1 + seed % 25
        )
        for _ in range(60):
            world.step()
            if world.closed and random.random() < 0.3:
                break
        world.finish()
        seen |= world.seen
        if seen == table:
            return
    assert seen == table
