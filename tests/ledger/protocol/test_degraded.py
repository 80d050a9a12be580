"""Ensembles that name bookies which are away: who is there suffices, whoever never comes back."""

from functools import cache
from itertools import combinations, product
from random import Random

import pytest

from ledger.ids import BookieId
from ledger.protocol.placement import (
    PlacementPolicy,
    Pool,
    RackAwarePlacement,
    RandomPlacement,
    away_indexes,
    degraded_ensemble,
)
from ledger.quorum import Quorum

THERE = tuple(BookieId(f"b{i}") for i in range(7))
AWAY = tuple(BookieId(f"x{i}") for i in range(4))
QUORUMS = [
    Quorum(ensemble, write, ack)
    for ensemble in range(1, 7)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]
RACKS = {bookie: f"r{number % 2}" for number, bookie in enumerate((*THERE, *AWAY))}


@cache
def possible(missing: int, quorum: Quorum) -> bool:
    """Return whether *missing* indexes may be away, if they are chosen well: tried out."""
    return any(
        suffices(indexes, quorum) for indexes in combinations(range(quorum.ensemble), missing)
    )


def suffices(away: tuple[int, ...], quorum: Quorum) -> bool:
    """Return whether each write set has enough others, to acknowledge and to recover: by hand."""
    needed = max(quorum.ack, quorum.write - quorum.ack + 1)
    write_sets = [
        [(first + i) % quorum.ensemble for i in range(quorum.write)]
        for first in range(quorum.ensemble)
    ]
    return all(sum(index not in away for index in each) >= needed for each in write_sets)


@pytest.mark.parametrize("policy", [RandomPlacement(), RackAwarePlacement()])
def test_it_names_all_that_are_there_and_as_few_others_as_can_be(policy: PlacementPolicy) -> None:
    """All sizes of ensembles up to six, and all numbers of bookies that are there or away."""
    random = Random(1)
    for quorum in QUORUMS:
        for there, away in product(range(quorum.ensemble + 1), range(len(AWAY) + 1)):
            pool = Pool(THERE[:there], racks=RACKS, away=AWAY[:away])
            chosen = degraded_ensemble(policy, quorum, pool, random)
            missing = quorum.ensemble - there
            assert (chosen is not None) == (0 < missing <= away and possible(missing, quorum))
            if chosen is not None:
                assert len(set(chosen)) == quorum.ensemble
                assert set(pool.available) <= set(chosen) <= {*pool.available, *pool.away}
                absent = tuple(index for index, bookie in enumerate(chosen) if bookie in AWAY)
                assert suffices(absent, quorum)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 3), Quorum(3, 2, 2), Quorum(2, 2, 1)])
def test_nobody_who_is_away_is_named_where_every_member_is_needed(quorum: Quorum) -> None:
    """With Qa = Qw no entry could be acknowledged; with 2/2/1 none could be recovered."""
    pool = Pool(THERE[: quorum.ensemble - 1], away=AWAY)
    assert degraded_ensemble(RandomPlacement(), quorum, pool, Random(1)) is None


def test_quarantined_bookies_are_named_before_those_that_are_away() -> None:
    pool = Pool(THERE[:2], avoid=THERE[:2], away=AWAY[:1])
    chosen = degraded_ensemble(RackAwarePlacement(), Quorum(3, 3, 2), pool, Random(1))
    assert chosen is not None
    assert set(chosen) == {*THERE[:2], AWAY[0]}


def test_who_is_away_is_chosen_by_its_rack() -> None:
    """Where there is a choice, the third copy is for another rack than the two that are there."""
    racks = {THERE[0]: "r1", THERE[1]: "r1", AWAY[0]: "r1", AWAY[1]: "r2"}
    pool = Pool(THERE[:2], racks=racks, away=AWAY[:2])
    for seed in range(10):
        chosen = degraded_ensemble(RackAwarePlacement(), Quorum(3, 3, 2), pool, Random(seed))
        assert chosen is not None
        assert AWAY[1] in chosen


def test_indexes_that_are_away_lie_as_far_apart_as_can_be() -> None:
    assert away_indexes(Quorum(6, 3, 2), 2, Random(1)) in {(0, 3), (1, 4), (2, 5)}
