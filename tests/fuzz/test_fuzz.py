"""Parsers of what comes from outside refuse what they do not take, in words, and never else."""

import pytest

from tests.fuzz.mutating import mutants
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

MUTANTS = 1000


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_what_is_valid_is_taken(target: Target) -> None:
    assert target.seeds
    for seed in target.seeds:
        assert target.try_with(seed), seed.hex()


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_nothing_is_raised_but_what_the_parser_promises(target: Target) -> None:
    taken = 0
    for data in (b"", *target.kept, *mutants(target.seeds, target.name, MUTANTS)):
        try:
            taken += target.try_with(data)
        except BaseException as error:
            error.add_note(f"of {data.hex()}")
            raise
    assert taken < MUTANTS, "it takes everything: then it checks nothing"
