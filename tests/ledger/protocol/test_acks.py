"""Confirmation by ranges against a model that looks at every entry and every bookie."""

from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import BookieId
from ledger.protocol.acks import AckTracker
from ledger.quorum import Quorum, write_set

QUORUMS = st.sampled_from(
    [Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(3, 2, 2), Quorum(5, 3, 2), Quorum(4, 4, 4)]
)
ACKS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(1, 8)), max_size=30)
PUSHED = 20


def bookies(count: int) -> list[BookieId]:
    return [BookieId(f"b{i}") for i in range(count)]


@given(QUORUMS, ACKS)
def test_an_entry_is_confirmed_iff_it_and_all_below_have_an_ack_quorum(
    quorum: Quorum, acks: list[tuple[int, int, int]]
) -> None:
    tracker = AckTracker(quorum, bookies(quorum.ensemble), confirmed=-1)
    stored: dict[int, set[int]] = {i: set() for i in range(quorum.ensemble)}
    for bookie, first, count in acks:
        index = bookie % quorum.ensemble
        last = min(first + count - 1, PUSHED)
        tracker.stored(index, 0, first, last)
        stored[index].update(range(first, last + 1))
        confirmed = -1
        while confirmed < PUSHED and (
            sum(confirmed + 1 in stored[i] for i in write_set(confirmed + 1, quorum)) >= quorum.ack
        ):
            confirmed += 1
        assert tracker.advance(PUSHED) == confirmed


def test_an_ack_of_a_replaced_bookie_does_not_count() -> None:
    """Rule 8."""
    tracker = AckTracker(Quorum(3, 3, 2), bookies(3), confirmed=-1)
    tracker.stored(0, 0, 0, 5)
    tracker.replace(0, BookieId("new"))
    tracker.stored(0, 0, 0, 5)
    tracker.stored(1, 0, 0, 5)
    assert tracker.advance(5) == -1
    tracker.stored(0, 1, 0, 3)
    assert tracker.advance(5) == 3


def test_a_range_outside_the_stripe_counts_as_stored_without_being_sent() -> None:
    tracker = AckTracker(Quorum(3, 1, 1), bookies(3), confirmed=-1)
    assert not tracker.wants(1, 0, 0)
    assert tracker.wants(0, 0, 0)
    tracker.stored(0, 0, 0, 0)
    assert tracker.advance(0) == 0


def test_what_one_bookie_does_not_hold_does_not_stop_the_others() -> None:
    tracker = AckTracker(Quorum(3, 1, 1), bookies(3), confirmed=-1)
    for entry in range(9):
        takers = [index for index, _ in tracker.takers(range(3), entry, entry)]
        assert takers == [entry % 3]
        tracker.stored(entry % 3, 0, entry, entry)
    assert tracker.advance(8) == 8


def test_an_empty_range_is_wanted_by_nobody_and_a_long_one_by_all() -> None:
    for quorum in (Quorum(3, 1, 1), Quorum(3, 3, 2)):
        tracker = AckTracker(quorum, bookies(3), confirmed=-1)
        assert not tracker.wants(0, 1, 0)
        assert tracker.wants(1, 0, 2)


def test_what_is_confirmed_takes_no_memory() -> None:
    tracker = AckTracker(Quorum(3, 2, 2), bookies(3), confirmed=-1)
    for entry in range(30):
        for index in write_set(entry, tracker.quorum):
            tracker.stored(index, 0, entry, entry)
        assert tracker.advance(entry) == entry
        for slot in tracker.slots:
            assert list(slot.stored.between(0, entry)) == []


def test_quorum_is_up_as_long_as_each_write_set_has_an_ack_quorum() -> None:
    tracker = AckTracker(Quorum(3, 3, 2), bookies(3), confirmed=-1)
    tracker.slots[0].down = True
    assert tracker.quorum_is_up()
    tracker.slots[1].down = True
    assert not tracker.quorum_is_up()
