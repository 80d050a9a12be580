"""What every placement policy promises, and how far the rack-aware one spreads."""

import itertools
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import BookieId
from ledger.protocol.placement import (
    PlacementPolicy,
    Pool,
    RackAwarePlacement,
    RandomPlacement,
    rack_score,
    spread_over_racks,
)
from ledger.quorum import Quorum

NAMES = tuple(BookieId(f"b{i}") for i in range(7))
POLICIES = st.sampled_from([RandomPlacement(), RackAwarePlacement()])
QUORUMS = st.integers(1, 4).flatmap(
    lambda e: st.integers(1, e).flatmap(lambda w: st.integers(1, w).map(lambda a: Quorum(e, w, a)))
)
RACKS = st.fixed_dictionaries({name: st.sampled_from(["", "r1", "r2", "r3"]) for name in NAMES})


@st.composite
def pools(draw: st.DrawFn, count_min: int = 0) -> Pool:
    available = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=count_min))
    avoid = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return Pool(tuple(sorted(available)), tuple(avoid), draw(RACKS))


def avoided(chosen: Sequence[BookieId], pool: Pool) -> int:
    return sum(bookie in pool.avoid for bookie in chosen)


def score(quorum: Quorum, ensemble: Mapping[int, BookieId], pool: Pool) -> tuple[int, int]:
    return rack_score(quorum, {index: pool.racks[b] for index, b in ensemble.items()})


@given(POLICIES, QUORUMS, pools(), st.integers())
def test_an_ensemble_is_of_different_available_bookies_or_there_are_too_few(
    policy: PlacementPolicy, quorum: Quorum, pool: Pool, seed: int
) -> None:
    chosen = policy.ensemble(quorum, pool, Random(seed))
    assert (chosen is None) == (len(pool.available) < quorum.ensemble)
    if chosen is not None:
        assert len(set(chosen)) == len(chosen) == quorum.ensemble
        assert set(chosen) <= set(pool.available)
        good = len(pool.available) - avoided(pool.available, pool)
        assert avoided(chosen, pool) == max(0, quorum.ensemble - good)
        assert chosen == policy.ensemble(quorum, pool, Random(seed))


@pytest.mark.slow
@given(POLICIES, QUORUMS, pools(), st.data())
def test_replacements_are_of_other_available_bookies_as_many_as_there_are(
    policy: PlacementPolicy, quorum: Quorum, pool: Pool, data: st.DataObject
) -> None:
    ensemble = NAMES[: quorum.ensemble]
    indexes = data.draw(
        st.lists(st.integers(0, quorum.ensemble - 1), unique=True, min_size=1).map(sorted)
    )
    exclude = data.draw(st.lists(st.sampled_from(NAMES), unique=True))
    seed = data.draw(st.integers())
    chosen = policy.replacements(quorum, ensemble, indexes, pool, Random(seed), exclude=exclude)
    allowed = [b for b in pool.available if b not in exclude and b not in ensemble]
    bookies = [bookie for _, bookie in chosen]
    assert [index for index, _ in chosen] == indexes[: len(allowed)]
    assert len(set(bookies)) == len(bookies)
    assert set(bookies) <= set(allowed)
    good = len(allowed) - avoided(allowed, pool)
    assert avoided(bookies, pool) == max(0, len(bookies) - good)


@pytest.mark.slow
@given(QUORUMS, pools(count_min=4), st.integers())
def test_no_ensemble_spreads_its_write_sets_further(quorum: Quorum, pool: Pool, seed: int) -> None:
    pool = Pool(pool.available, (), pool.racks)
    chosen = RackAwarePlacement().ensemble(quorum, pool, Random(seed))
    assert chosen is not None
    best = max(
        score(quorum, dict(enumerate(other)), pool)
        for other in itertools.permutations(pool.available, quorum.ensemble)
    )
    assert score(quorum, dict(enumerate(chosen)), pool) == best


@pytest.mark.slow
@given(QUORUMS, RACKS, st.data())
def test_no_replacement_spreads_the_write_sets_further(
    quorum: Quorum, racks: Mapping[BookieId, str], data: st.DataObject
) -> None:
    ensemble, spare = NAMES[: quorum.ensemble], NAMES[quorum.ensemble :]
    pool = Pool(NAMES, (), racks)
    indexes = data.draw(
        st.lists(
            st.integers(0, quorum.ensemble - 1), unique=True, min_size=1, max_size=len(spare)
        ).map(sorted)
    )
    placed = RackAwarePlacement().replacements(
        quorum, ensemble, indexes, pool, Random(data.draw(st.integers())), exclude=()
    )
    old = dict(enumerate(ensemble))
    best = max(
        score(quorum, old | dict(zip(indexes, other, strict=True)), pool)
        for other in itertools.permutations(spare, len(indexes))
    )
    assert score(quorum, old | dict(placed), pool) == best


def test_each_of_three_copies_is_in_its_own_rack() -> None:
    racks = {name: f"r{i % 3}" for i, name in enumerate(NAMES)}
    for seed in range(50):
        chosen = RackAwarePlacement().ensemble(
            Quorum(3, 3, 2), Pool(NAMES, (), racks), Random(seed)
        )
        assert chosen is not None
        assert {racks[bookie] for bookie in chosen} == {"r0", "r1", "r2"}


def test_a_replacement_comes_from_the_rack_that_is_missing() -> None:
    b0, b1, b2, b3, b4, *_ = NAMES
    racks = {b0: "r0", b1: "r1", b2: "r2", b3: "r1", b4: "r2"}
    pool = Pool((b0, b1, b3, b4), (), racks)
    for seed in range(20):
        assert RackAwarePlacement().replacements(
            Quorum(3, 3, 2), (b0, b1, b2), (2,), pool, Random(seed), exclude=()
        ) == ((2, b4),)


def test_a_quarantined_bookie_does_not_return_for_its_rack() -> None:
    b0, b1, b2, b3, b4, *_ = NAMES
    racks = {b0: "r0", b1: "r1", b2: "r2", b3: "r1", b4: "r2"}
    pool = Pool((b3, b4), (b4,), racks)
    assert RackAwarePlacement().replacements(
        Quorum(3, 3, 2), (b0, b1, b2), (2,), pool, Random(0), exclude=()
    ) == ((2, b3),)


def test_as_many_are_replaced_as_there_are_others() -> None:
    b0, b1, b2, b3, *_ = NAMES
    for policy in (RandomPlacement(), RackAwarePlacement()):
        assert policy.replacements(
            Quorum(3, 3, 2), (b0, b1, b2), (0, 2), Pool((b1, b3)), Random(0), exclude=()
        ) == ((0, b3),)


def test_an_ensemble_is_better_only_if_its_write_sets_span_more_racks() -> None:
    b0, b1, b2, b3, b4, b5, b6 = NAMES
    racks = {b0: "r0", b1: "r0", b2: "r0", b3: "r0", b4: "r1", b5: "r1", b6: "r2"}
    quorum, policy = Quorum(3, 3, 2), RackAwarePlacement()

    def better(
        *ensemble: BookieId, pool: Pool, exclude: tuple[BookieId, ...] = ()
    ) -> dict[int, BookieId]:
        return dict(policy.better(quorum, ensemble, pool, random, exclude=exclude))

    exchanges: set[BookieId] = set()
    for seed in range(30):
        random, pool = Random(seed), Pool(NAMES, (), racks)
        exchanged = better(b0, b1, b2, pool=pool)
        assert len(exchanged) == 2, "one stays: fewer copies move"
        assert {racks[bookie] for bookie in exchanged.values()} == {"r1", "r2"}
        exchanges.update(exchanged.values())
        (exchanged_once,) = better(b0, b1, b4, pool=pool).items()
        assert exchanged_once in [(0, b6), (1, b6)]
        assert better(b0, b4, b6, pool=pool) == {}
        assert better(b0, b1, b4, pool=pool, exclude=(b6,)) == {}
        assert better(b0, b1, b4, pool=Pool(NAMES, (b6,), racks)) == {}, "it is not urgent"
        assert better(b0, b1, b2, pool=Pool(NAMES[:4], (), racks)) == {}
        assert list(better(b0, b1, b2, pool=Pool((b3, b4), (), racks)).values()) == [b4]
        assert RandomPlacement().better(quorum, (b0, b1, b2), pool, random, exclude=()) == ()
    assert exchanges == {b4, b5, b6}, "any bookie of a rack"


def test_without_racks_every_bookie_is_chosen_about_as_often() -> None:
    random, counts = Random(7), dict.fromkeys(NAMES, 0)
    for _ in range(700):
        for bookie in RackAwarePlacement().ensemble(Quorum(3, 3, 2), Pool(NAMES), random) or ():
            counts[bookie] += 1
    assert all(220 < count < 380 for count in counts.values()), counts


@pytest.mark.parametrize("size", [16, 64])
def test_a_large_striped_ensemble_is_spread_within_the_steps_allowed(size: int) -> None:
    quorum = Quorum(size, 3, 2)
    stock = {f"r{i}": size // 2 for i in range(4)}
    racks = spread_over_racks(quorum, {}, range(size), stock)
    assert rack_score(quorum, dict(enumerate(racks))) == (3, 3 * size)


def test_a_search_that_cannot_reach_the_bound_ends() -> None:
    quorum = Quorum(64, 5, 3)
    racks = spread_over_racks(quorum, {}, range(64), {"big": 60, "r1": 2, "r2": 1, "r3": 1})
    assert sorted(racks) == ["big"] * 60 + ["r1", "r1", "r2", "r3"]


def test_the_search_goes_on_where_the_first_choice_was_not_the_best() -> None:
    """One rack has four bookies, two have one: those must not stand side by side."""
    quorum = Quorum(6, 4, 2)
    racks = spread_over_racks(quorum, {}, range(6), {"r0": 1, "r1": 1, "r2": 4})
    assert rack_score(quorum, dict(enumerate(racks))) == (2, 14)


@given(st.data())
def test_no_choice_of_racks_is_better(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 5))
    quorum = Quorum(size, data.draw(st.integers(1, size)), 1)
    indexes = data.draw(st.lists(st.integers(0, size - 1), unique=True, min_size=1).map(sorted))
    staying = {
        index: data.draw(st.sampled_from(["r0", "r1", "x"]))
        for index in range(size)
        if index not in indexes
    }
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    stock = {f"r{i}": count for i, count in enumerate(counts)}
    stock["r0"] += max(0, len(indexes) - sum(counts))
    best = max(
        rack_score(quorum, staying | dict(zip(indexes, racks, strict=True)))
        for racks in itertools.product(stock, repeat=len(indexes))
        if all(racks.count(rack) <= count for rack, count in stock.items())
    )
    chosen = spread_over_racks(quorum, staying, indexes, stock)
    assert rack_score(quorum, staying | dict(zip(indexes, chosen, strict=True))) == best
    assert all(chosen.count(rack) <= count for rack, count in stock.items())
