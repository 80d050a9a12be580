"""Quorum arithmetic against a deliberately dumb second version."""

import itertools
from collections.abc import Iterable, Sequence

import pytest

from ledger.errors import InvalidQuorum
from ledger.ids import BookieId
from ledger.protocol.acks import AckTracker
from ledger.quorum import (
    Quorum,
    all_covered,
    covered,
    holds,
    write_set,
)

SMALL = [Quorum(e, w, a) for e in range(1, 8) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize(
    ("sizes", "what"),
    [
        ((3, 3, 0), "at least 1"),
        ((3, 2, 3), "write quorum is smaller"),
        ((2, 3, 2), "ensemble is smaller"),
        ((65, 3, 2), "larger than"),
    ],
)
def test_sizes_out_of_order_are_refused(sizes: tuple[int, int, int], what: str) -> None:
    with pytest.raises(InvalidQuorum, match=what) as caught:
        Quorum(*sizes)
    assert not caught.value.retryable


def test_write_set_is_round_robin_as_in_the_seed() -> None:
    quorum = Quorum(4, 3, 2)
    assert [write_set(e, quorum) for e in range(6)] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 0),
        (3, 0, 1),
        (0, 1, 2),
        (1, 2, 3),
    ]


def test_write_set_is_right_beyond_31_bits() -> None:
    assert write_set(2**31 + 1, Quorum(3, 2, 2)) == ((2**31 + 1) % 3, (2**31 + 2) % 3)
    assert write_set(2**62 + 1, Quorum(3, 2, 2)) == ((2**62 + 1) % 3, (2**62 + 2) % 3)


@pytest.mark.parametrize("quorum", SMALL, ids=str)
def test_holds_says_the_same_as_the_write_set(quorum: Quorum) -> None:
    for entry in range(2 * quorum.ensemble):
        for index in range(quorum.ensemble):
            assert holds(index, entry, quorum) == (index in write_set(entry, quorum))


def masks(indexes: Iterable[Sequence[int]]) -> list[int]:
    return [sum(1 << index for index in chosen) for chosen in indexes]


def ack_quorums(quorum: Quorum) -> list[list[int]]:
    """For each residue, every set of bookies that could have acknowledged its entries."""
    return [
        masks(
            itertools.combinations(
                [(e + i) % quorum.ensemble for i in range(quorum.write)], quorum.ack
            )
        )
        for e in range(quorum.ensemble)
    ]


@pytest.mark.parametrize("quorum", SMALL, ids=str)
def test_covered_iff_no_ack_quorum_can_avoid_those_who_answered(quorum: Quorum) -> None:
    """Brute force (rules 39, 43): every set of bookies that answered, every ack quorum of
    every write set. The others are those that failed, so this is all failure sets too."""
    possible = ack_quorums(quorum)
    for answered in range(1 << quorum.ensemble):
        members = [i for i in range(quorum.ensemble) if answered >> i & 1]
        met = [all(acked & answered for acked in possible[e]) for e in range(quorum.ensemble)]
        assert [covered(members, e, quorum) for e in range(quorum.ensemble)] == met
        assert all_covered(members, quorum) == all(met)


@pytest.mark.parametrize("quorum", SMALL, ids=str)
def test_writing_goes_on_iff_every_write_set_has_an_ack_quorum_left(quorum: Quorum) -> None:
    possible = ack_quorums(quorum)
    tracker = AckTracker(quorum, [BookieId(f"b{i}") for i in range(quorum.ensemble)], confirmed=-1)
    for failed in range(1 << quorum.ensemble):
        for index, slot in enumerate(tracker.slots):
            slot.down = bool(failed >> index & 1)
        up = all(any(not acked & failed for acked in every) for every in possible)
        assert tracker.quorum_is_up() == up


@pytest.mark.parametrize("quorum", SMALL, ids=str)
def test_what_was_acknowledged_is_found_whoever_covers_it(quorum: Quorum) -> None:
    """Whatever Qa bookies have an entry, among those that cover it one does; and one bookie
    fewer than that may miss it: the threshold is exact."""
    for entry in range(quorum.ensemble):
        indexes = write_set(entry, quorum)
        acked = masks(itertools.combinations(indexes, quorum.ack))
        enough = masks(itertools.combinations(indexes, quorum.coverage))
        assert all(one & other for one in acked for other in enough)
        short = masks(itertools.combinations(indexes, quorum.coverage - 1))
        assert all(any(not one & other for one in acked) for other in short)
