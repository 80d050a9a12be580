"""Rates and times left, from what was done lately."""

import pytest

from bookie.autorecovery.worker import STEP_S, WINDOW_S, Estimate


def test_nothing_is_known_before_time_has_passed() -> None:
    estimate = Estimate()
    assert estimate.per_s == 0.0
    estimate.note(10.0, 5.0)
    assert estimate.per_s == 0.0
    assert estimate.left_s(100.0) is None
    assert estimate.left_s(0.0) == 0.0


def test_what_is_left_takes_as_long_as_at_the_rate_so_far() -> None:
    estimate = Estimate()
    estimate.note(0.0, 0.0)
    estimate.note(50.0, 10.0)
    assert estimate.per_s == pytest.approx(5.0)
    assert estimate.left_s(100.0) == pytest.approx(20.0)


def test_what_becomes_less_has_a_rate_too() -> None:
    estimate = Estimate()
    estimate.note(100.0, 0.0)
    estimate.note(80.0, 4.0)
    assert estimate.left_s(80.0) == pytest.approx(16.0)


def test_only_the_window_counts() -> None:
    estimate = Estimate()
    for second in range(1000):
        estimate.note(100.0 * second, float(second))
    for second in range(1000, 1000 + int(WINDOW_S) + 5):
        estimate.note(100_000.0 + (second - 1000), float(second))
    assert estimate.per_s == pytest.approx(1.0, rel=0.1)


def test_many_notes_keep_few_samples() -> None:
    estimate = Estimate()
    for number in range(100_000):
        estimate.note(float(number), number / 1000)
    assert len(estimate._samples) <= WINDOW_S / STEP_S + 3
