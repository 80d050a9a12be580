"""Full is full until there is clearly space again."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.port import DiskUsage
from bookie.disk.watch import RESERVE_BYTES, DiskLimits, DiskWatch, Level, LevelChanged, level_of
from bookie.errors import InvalidSetting

LIMITS = DiskLimits(reserve_bytes=10)
USAGES = st.builds(
    lambda total, free: DiskUsage(total, min(total, free)),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)


def used(share: float, total_bytes: int = 10_000) -> DiskUsage:
    return DiskUsage(total_bytes, total_bytes - round(share * total_bytes))


@pytest.mark.parametrize(
    ("before", "share", "now"),
    [
        (Level.FINE, 0.0, Level.FINE),
        (Level.FINE, 0.8999, Level.FINE),
        (Level.FINE, 0.90, Level.WARN),
        (Level.WARN, 0.9499, Level.WARN),
        (Level.WARN, 0.95, Level.FULL),
        (Level.FULL, 0.9499, Level.FULL),
        (Level.FULL, 0.90, Level.FULL),
        (Level.FULL, 0.8999, Level.FINE),
        (Level.UNKNOWN, 0.92, Level.FULL),
        (Level.UNKNOWN, 0.5, Level.FINE),
        (Level.FINE, 1.0, Level.EXHAUSTED),
    ],
)
def test_a_disk_is_full_from_the_high_mark_until_it_is_below_the_low_mark(
    before: Level, share: float, now: Level
) -> None:
    assert level_of(before, used(share), LIMITS) is now


def test_a_reserve_is_kept_however_large_the_disk_is() -> None:
    limits = DiskLimits(reserve_bytes=100)
    assert level_of(Level.FINE, DiskUsage(1_000, 99), DiskLimits(reserve_bytes=0)) is Level.WARN
    assert level_of(Level.FINE, DiskUsage(1_000, 600), limits) is Level.FINE
    assert level_of(Level.FINE, DiskUsage(150, 99), limits) is Level.FULL
    assert level_of(Level.FINE, DiskUsage(150, 50), limits) is Level.FULL
    assert level_of(Level.FINE, DiskUsage(150, 49), limits) is Level.EXHAUSTED
    assert level_of(Level.EXHAUSTED, DiskUsage(150, 50), limits) is Level.FULL
    assert level_of(Level.FULL, DiskUsage(1_000, 199), limits) is Level.FULL
    assert level_of(Level.FULL, DiskUsage(1_000, 200), limits) is Level.FINE


def test_a_disk_that_gives_no_answer_is_taken_for_full() -> None:
    assert level_of(Level.FINE, None, LIMITS) is Level.UNKNOWN
    watch = DiskWatch(LIMITS, ["/a"])
    watch.observe(0, None)
    assert list(watch.reasons) == ["/a cannot be asked for its space"]


def test_each_directory_that_is_full_is_a_reason_and_each_change_is_told_once() -> None:
    watch = DiskWatch(LIMITS, ["/a", "/b"])
    assert watch.observe(0, used(0.5)) is None
    assert not watch.reasons
    assert not watch.warnings
    told = watch.observe(1, used(0.96))
    assert told == LevelChanged("/b", Level.FINE, Level.FULL, "/b is 96.0% full, 0 MiB are free")
    assert watch.observe(1, used(0.97)) is None
    assert list(watch.reasons) == ["/b is 97.0% full, 0 MiB are free"]
    assert watch.observe(0, used(0.91)) is not None
    assert list(watch.warnings) == ["/a is 91.0% full, 0 MiB are free"]
    assert watch.observe(1, used(0.1)) is not None
    assert not watch.reasons


def test_what_a_start_was_given_is_no_space_for_adds_until_all_of_it_can_be_kept_again() -> None:
    little, enough = (DiskUsage(1 << 30, 2 * RESERVE_BYTES - less) for less in (1, 0))
    limits = DiskLimits(warn_share=1.0, high_share=1.0, low_share=1.0, reserve_bytes=10)
    watch = DiskWatch(limits, ["/a", "/b"], given_up={1})
    levels = []
    for usage in (little, None, DiskUsage(1 << 30, 4), little, enough, little):
        for at in range(2):
            watch.observe(at, usage)
        levels.append((len(watch.reasons), watch.is_exhausted))
    assert levels == [(1, False), (2, False), (2, True), (1, False), (0, False), (0, False)]


@given(st.lists(USAGES, max_size=20))
def test_whatever_was_measured_above_the_high_mark_is_full_and_below_both_low_ones_is_not(
    usages: list[DiskUsage],
) -> None:
    level = Level.FINE
    for usage in usages:
        level = level_of(level, usage, LIMITS)
        if usage.used_share >= 0.95 or usage.free_bytes < 10:
            assert level in (Level.FULL, Level.EXHAUSTED)
        assert (level is Level.EXHAUSTED) == (usage.free_bytes < 5)
        if usage.used_share < 0.90 and usage.free_bytes >= 20:
            assert level is Level.FINE


def test_marks_that_make_no_sense_are_refused() -> None:
    for make in (
        partial(DiskLimits, low_share=0.96),
        partial(DiskLimits, high_share=1.1),
        partial(DiskLimits, warn_share=0.0),
        partial(DiskLimits, reserve_bytes=-1),
    ):
        with pytest.raises(InvalidSetting, match=r"cannot be .*: give "):
            make()
