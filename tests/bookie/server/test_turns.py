"""Whose read is next, and for whom nothing is read."""

from hypothesis import given
from hypothesis import strategies as st

from bookie.server.admission import (
    ALL_BYTES_MAX,
    BACKLOG_BYTES_HIGH,
    BACKLOG_BYTES_MAX,
    SEEN_BYTES,
    SHARE_MAX,
    SLICE_S,
    UNSENT_BYTES_MAX,
    FairReadScheduler,
    may_read,
)


def test_who_has_taken_nothing_is_read_for_once() -> None:
    assert may_read(0, 0, 0)
    assert not may_read(1, 0, 1)


def test_a_window_grows_with_what_was_taken_up_to_its_bound() -> None:
    assert may_read(999, 2_000, 999)
    assert not may_read(1_000, 2_000, 1_000)
    much = 10 * UNSENT_BYTES_MAX
    assert may_read(UNSENT_BYTES_MAX - 1, much, 0)
    assert not may_read(UNSENT_BYTES_MAX, much, 0)


def test_the_more_is_due_to_all_the_fewer_are_read_for() -> None:
    much = 10 * SEEN_BYTES
    assert may_read(1, much, BACKLOG_BYTES_HIGH - 1)
    assert not may_read(1, much, BACKLOG_BYTES_HIGH)
    assert may_read(0, 0, BACKLOG_BYTES_MAX - 1)
    assert not may_read(0, SEEN_BYTES - 1, BACKLOG_BYTES_MAX)
    assert may_read(0, SEEN_BYTES, BACKLOG_BYTES_MAX)
    assert not may_read(0, much, ALL_BYTES_MAX)


def test_reads_of_a_pass_begin_until_its_slice_is_over() -> None:
    turns = FairReadScheduler[str]()
    assert turns.begin(10.0)
    assert turns.begin(10.0 + SLICE_S / 2)
    assert not turns.begin(10.0 + 2 * SLICE_S)
    turns.served(11.0)
    assert turns.begin(11.0)


def test_nobody_passes_those_who_wait() -> None:
    turns = FairReadScheduler[str]()
    turns.wait("a")
    assert not turns.begin(0.0)
    turns.leave("a")
    assert turns.begin(0.0)


def test_a_pass_that_took_long_has_fewer_reads_after_it_and_a_short_one_more() -> None:
    turns, now = FairReadScheduler[int](), 0.0
    for client in range(100):
        turns.wait(client)

    def served(took_s: float) -> int:
        nonlocal now
        count = len(turns.next(now))
        now += took_s
        turns.served(now)
        return count

    assert [served(0.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, SHARE_MAX, SHARE_MAX]
    assert [served(2 * SLICE_S) for _ in range(7)] == [32, 16, 8, 4, 2, 1, 1]
    assert [served(0.7 * SLICE_S) for _ in range(2)] == [1, 1]


@given(st.lists(st.floats(0.0, 0.01), min_size=50, max_size=80))
def test_nobody_is_served_twice_before_another_one_once(took: list[float]) -> None:
    turns, now = FairReadScheduler[int](), 0.0
    for client in range(20):
        turns.wait(client)
    order: list[int] = []
    for took_s in took:
        order += turns.next(now)
        now += took_s
        turns.served(now)
    assert order[:40] == [*range(20), *range(20)][: len(order)]
