"""Work in slices: an add that came meanwhile waits for one slice, not for all of it."""

from collections import deque

from bookie.server.admission import SLICE_S, work_on


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_that_takes_long_is_left_for_the_next_passes() -> None:
    clock, waiting, done = Clock(), deque(range(10)), list[int]()

    def work(number: int) -> None:
        done.append(number)
        clock.now += 0.4 * SLICE_S

    assert not work_on(waiting, work, clock)
    assert done == [0, 1, 2]
    for _ in range(2):
        assert not work_on(waiting, work, clock)
    assert work_on(waiting, work, clock)
    assert done == list(range(10))


def test_one_thing_at_least_is_done_in_each_pass() -> None:
    clock, waiting, done = Clock(), deque(range(3)), list[int]()

    def work(number: int) -> None:
        done.append(number)
        clock.now += 10 * SLICE_S

    passes = 1
    while not work_on(waiting, work, clock):
        passes += 1
    assert (done, passes) == ([0, 1, 2], 3)


def test_work_that_takes_no_time_is_done_at_once() -> None:
    waiting, done = deque(range(2_000)), list[int]()
    assert work_on(waiting, done.append, Clock())
    assert done == list(range(2_000))


def test_where_nothing_waits_all_is_done() -> None:
    assert work_on(deque[int](), list[int]().append, Clock())
