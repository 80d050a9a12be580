"""So much per second and no more, whatever the clock does, and whoever changes the rate."""

import pytest

from ledger.delays import Throttle


def test_so_many_bytes_per_second_and_no_more() -> None:
    throttle = Throttle(1000.0, now=5.0)
    now = 5.0
    for _ in range(100):
        now += throttle.take(300, now)
    assert 29.5 <= now - 5.0 <= 30.0


def test_time_that_was_not_used_is_not_saved_up() -> None:
    throttle = Throttle(1000.0, now=0.0)
    throttle.take(100, 0.0)
    assert throttle.take(1100, 3600.0) == pytest.approx(1.0)


def test_a_clock_that_stands_still_or_goes_back_makes_nothing_faster() -> None:
    throttle = Throttle(1000.0, now=10.0)
    assert throttle.take(1100, 10.0) == pytest.approx(1.0)
    assert throttle.take(0, 3.0) == pytest.approx(1.0)
    assert throttle.take(0, 10.5) == pytest.approx(0.5)
    assert throttle.wait_s(3.0) == pytest.approx(0.5)


def test_a_rate_of_zero_is_no_limit() -> None:
    assert Throttle(0.0, now=0.0).take(10**12, 0.0) == 0.0


def test_a_new_rate_holds_for_what_is_done_from_then_on() -> None:
    throttle = Throttle(1000.0, now=0.0)
    assert throttle.take(1100, 0.0) == pytest.approx(1.0)
    throttle.set_rate(10.0)
    assert throttle.wait_s(0.0) == pytest.approx(1.0), "the debt was made at the old rate"
    assert throttle.take(10, 1.0) == pytest.approx(1.0)
    throttle.set_rate(1_000_000.0)
    assert throttle.take(1_000_000, 2.0) == pytest.approx(1.0)
    assert throttle.per_s == 1_000_000.0


def test_who_waits_may_go_on_at_once_when_there_is_no_limit_any_more() -> None:
    throttle = Throttle(10.0, now=0.0)
    assert throttle.take(10_000, 0.0) > 900
    throttle.set_rate(0.0)
    assert throttle.wait_s(0.0) == 0.0
    throttle.set_rate(10.0)
    assert throttle.take(10, 0.0) <= 1.0, "nothing is owed of before"
