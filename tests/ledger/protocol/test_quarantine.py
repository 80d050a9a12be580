"""Quarantine of failing bookies: counts that decay, times that grow, memory that is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ids import BookieId
from ledger.protocol.placement import ERRORS, Quarantine, QuarantineConfig
from ledger.requests import Status

A, B = BookieId("a"), BookieId("b")


def failed(quarantine: Quarantine, *times: float, bookie: BookieId = A) -> None:
    for now in times:
        quarantine.reported(bookie, Status.UNREACHABLE, now=now)


def until(quarantine: Quarantine, start: float) -> float:
    """Return the whole second from which on A may be picked again."""
    now = start
    while A in quarantine.quarantined(now=now):
        now += 1
    return now


def test_a_bookie_that_failed_is_avoided_for_a_while() -> None:
    quarantine = Quarantine()
    failed(quarantine, 100.0)
    assert quarantine.quarantined(now=100.0) == (A,)
    assert quarantine.quarantined(now=129.9) == (A,)
    assert quarantine.quarantined(now=130.0) == ()


def test_errors_of_one_burst_count_once() -> None:
    quarantine = Quarantine()
    failed(quarantine, *(100.0 + i / 1000 for i in range(400)))
    assert until(quarantine, 101) == 130


def test_a_bookie_that_keeps_failing_is_avoided_longer_and_at_most_so_long() -> None:
    quarantine = Quarantine()
    failed(quarantine, 0.0, 1.0, 2.0)
    assert 110 < until(quarantine, 2) < 122  # nearly 30 s doubled twice
    failed(quarantine, *(3.0 + i for i in range(50)))
    assert until(quarantine, 52) == 52 + 1800


def test_old_errors_are_forgotten() -> None:
    quarantine = Quarantine()
    failed(quarantine, 0.0, 1.0, 2.0, 1000.0)
    assert until(quarantine, 1000) == 1031


def test_a_threshold_allows_some_errors() -> None:
    quarantine = Quarantine(QuarantineConfig(errors_min=2.5))
    failed(quarantine, 0.0, 1.0)
    assert quarantine.quarantined(now=1.0) == ()
    failed(quarantine, 2.0)
    assert quarantine.quarantined(now=2.0) == (A,)


@pytest.mark.parametrize("status", list(Status))
def test_only_what_speaks_against_the_bookie_counts(status: Status) -> None:
    """A refusal is the protocol's word, and being busy passes."""
    quarantine = Quarantine()
    quarantine.reported(A, status, now=0.0)
    assert (quarantine.quarantined(now=0.0) == (A,)) == (status in ERRORS)
    assert Status.FENCED not in ERRORS
    assert Status.TOO_MANY_REQUESTS not in ERRORS


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 100)), max_size=30))
def test_memory_is_bounded_and_the_latest_error_is_remembered(
    errors: list[tuple[str, float]],
) -> None:
    quarantine = Quarantine(QuarantineConfig(bookies_max=3))
    now = 0.0
    for name, later in errors:
        now += later
        failed(quarantine, now, bookie=BookieId(name))
        found = quarantine.quarantined(now=now)
        assert len(found) <= 3
        assert name in found
        assert list(found) == sorted(found)
