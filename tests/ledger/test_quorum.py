"""Quorum arithmetic against a deliberately dumb second version."""

import itertools

import pytest

from ledger.errors import InvalidQuorum
from ledger.quorum import Quorum, all_covered, covered, holds, write_set

SMALL = [Quorum(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


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


@pytest.mark.parametrize("quorum", SMALL, ids=str)
def test_covered_iff_no_ack_quorum_can_avoid_those_who_answered(quorum: Quorum) -> None:
    """Brute force: every subset of the ensemble, every ack quorum of every write set."""
    indexes = range(quorum.ensemble)
    for size in range(quorum.ensemble + 1):
        for answered in itertools.combinations(indexes, size):
            every = True
            for entry in indexes:
                ack_quorums = itertools.combinations(write_set(entry, quorum), quorum.ack)
                met = all(set(q) & set(answered) for q in ack_quorums)
                assert covered(answered, entry, quorum) == met
                every = every and met
            assert all_covered(answered, quorum) == every
