"""Whom a new segment names that is away: the invariant of ledgers, for what production chooses."""

from tests.simulation.invariants.degraded_ensembles_suffice import story_of
from tests.simulation.logs.oracle import LogOracle


def broken(oracle: LogOracle) -> str | None:
    while oracle.degraded_choices:
        choice = oracle.degraded_choices.pop()
        story = story_of(choice)
        if story is not None:
            return story
    return None
