"""What a collector decides: which logs, when, how fast, and which ledgers are garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.collector import store_memory
from bookie.collector.garbage import PERIOD_S, StoreMemory, candidates, judge, verified
from bookie.collector.plan import CollectorConfig, LogFacts, Plan, RunKind, Timetable, plan
from bookie.errors import InvalidSetting

CONFIG = CollectorConfig(log_bytes_max=100, run_bytes_max=1000, reserve_bytes=50)


def planned(
    *logs: LogFacts, share: float = 0.8, free_bytes: int = 10_000, budget_bytes: int = 1000
) -> Plan:
    return plan(logs, share=share, free_bytes=free_bytes, budget_bytes=budget_bytes, config=CONFIG)


def ids(decided: Plan) -> list[list[int]]:
    return [[log.log_id for log in group] for group in decided.groups]


def log(log_id: int, live_bytes: int, frames_bytes: int = 100) -> LogFacts:
    return LogFacts(log_id, frames_bytes, live_bytes)


# Which logs.


def test_logs_below_the_share_are_taken_least_live_first() -> None:
    assert ids(planned(log(1, 79), log(2, 80), log(3, 10), log(4, 100))) == [[3, 1]]
    assert ids(planned(log(1, 19), log(2, 20), share=0.2)) == [[1]]
    assert ids(planned(log(1, 1), share=0.0)) == []


def test_what_is_put_together_fits_into_one_log_or_is_one_log() -> None:
    assert ids(planned(log(1, 60), log(2, 60), log(3, 40))) == [[3, 1], [2]]
    assert ids(planned(log(7, 500, 1000))) == [[7]]


def test_a_run_copies_no_more_than_its_budget_and_one_log() -> None:
    logs = [log(n, 50) for n in range(1, 9)]
    assert sum(map(len, ids(planned(*logs, budget_bytes=120)))) == 3
    assert ids(planned(*logs, budget_bytes=0)) == []


def test_without_room_for_a_group_and_the_reserve_it_is_left_and_told() -> None:
    decided = planned(log(1, 70), log(2, 60), free_bytes=115)
    assert ids(decided) == [[2]]
    assert "120 bytes are needed and 115 are free" in decided.suspended
    assert not planned(log(1, 70), log(2, 60), free_bytes=120).suspended


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 200)), max_size=12),
    st.integers(0, 400),
    st.integers(0, 400),
)
def test_every_group_gains_something_fits_and_has_each_log_once(
    sizes: list[tuple[int, int]], free_bytes: int, budget_bytes: int
) -> None:
    logs = [log(n, min(sizes[n]), sizes[n][1]) for n in range(len(sizes))]
    decided = planned(*logs, free_bytes=free_bytes, budget_bytes=budget_bytes)
    taken = [one for group in decided.groups for one in group]
    assert len({one.log_id for one in taken}) == len(taken)
    assert all(one.share < 0.8 for one in taken)
    for group in decided.groups:
        live_bytes = sum(one.live_bytes for one in group)
        assert live_bytes + CONFIG.reserve_bytes <= free_bytes
        assert len(group) == 1 or live_bytes <= CONFIG.log_bytes_max


# When.


def test_each_kind_comes_when_its_interval_is_over_and_gc_before_the_others() -> None:
    config = CollectorConfig(gc_interval_s=10, minor_interval_s=20, major_interval_s=60)
    timetable = Timetable(config, now=100.0)
    assert timetable.due(109.9) is None
    assert timetable.next_at() == 110.0
    assert timetable.due(130.0) is RunKind.GC
    timetable.ran(RunKind.GC, 130.0)
    assert timetable.due(130.0) is RunKind.MINOR
    timetable.ran(RunKind.MINOR, 131.0)
    assert timetable.next_at() == 140.0
    assert [timetable.due_at(kind) for kind in RunKind] == [140.0, 151.0, 160.0]


def test_a_major_compaction_makes_the_minor_one_of_that_time_needless() -> None:
    config = CollectorConfig(gc_interval_s=0, minor_interval_s=20, major_interval_s=20)
    timetable = Timetable(config, now=0.0)
    assert timetable.due(20.0) is RunKind.MAJOR
    timetable.ran(RunKind.MAJOR, 20.0)
    assert timetable.due(39.9) is None


@pytest.mark.parametrize(
    "off",
    [
        CollectorConfig(gc_interval_s=0, minor_interval_s=0, major_interval_s=-1),
        CollectorConfig(gc_interval_s=-1, minor_share=0, major_share=-0.5),
    ],
)
def test_a_share_or_an_interval_of_zero_or_less_switches_it_off(off: CollectorConfig) -> None:
    timetable = Timetable(off, now=0.0)
    assert timetable.next_at() is None
    assert timetable.due(1e9) is None


def test_a_share_of_one_is_refused_because_a_log_could_never_shrink() -> None:
    with pytest.raises(InvalidSetting, match=r"major_share cannot be 1.0: .* give less than 1"):
        CollectorConfig(major_share=1.0)


# How fast.


# Which ledgers.


def test_only_what_was_here_before_is_not_listed_and_was_read_as_gone_is_garbage() -> None:
    chosen = candidates([1, 2, 3, 4], [2, 9])
    assert chosen == (1, 3, 4)
    assert verified(chosen, [3, 1]) == (1, 3)
    assert verified(chosen, []) == ()
    with pytest.raises(AssertionError):
        verified(chosen, [2])


def test_one_collection_verifies_a_bounded_number_of_ledgers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookie.collector.garbage.CANDIDATES_MAX", 2)
    assert candidates([1, 2, 3], []) == (1, 2)


IDS = st.lists(st.integers(0, 40), unique=True)


@given(gone=IDS, waiting=IDS, counted=st.integers(-3, 50), room=st.integers(0, 50))
def test_no_more_go_than_were_counted_or_have_room(
    gone: list[int], waiting: list[int], counted: int, room: int
) -> None:
    verdict = judge(gone, counted=counted, waiting=waiting, room=room)
    assert sorted((*verdict.doomed, *verdict.waiting)) == sorted(gone)
    assert verdict.untraced <= room
    assert len(verdict.doomed) - verdict.untraced <= max(0, counted)
    new = [one for one in gone if one not in waiting]
    if len(new) <= counted:
        assert set(new) <= set(verdict.doomed)


@given(
    held=st.integers(1, 10_000),
    collections=st.lists(st.tuples(st.integers(0, 3 * PERIOD_S), st.integers(0, 5000)), max_size=8),
)
def test_a_period_sees_no_more_than_the_share_go_however_often_it_is_tried(
    held: int, collections: list[tuple[int, int]]
) -> None:
    seen, left, now = StoreMemory(0, 0), held, PERIOD_S
    went: list[tuple[int, int]] = []
    for later, wanted in collections:
        now += later
        taken = min(wanted, left, seen.room(left, 0.1, now))
        seen = seen.taking(taken, now)
        left -= taken
        went.append((now, taken))
        assert seen.untraced <= max(1, held // 10)
    # Two periods may meet within one day, never three.
    for start, _ in went:
        within = sum(count for at, count in went if start <= at < start + PERIOD_S)
        assert within <= 2 * max(1, held // 10)


def test_a_bookie_with_few_ledgers_can_still_lose_one() -> None:
    assert StoreMemory(0, 0).room(3, 0.1, PERIOD_S) == 1
    assert StoreMemory(0, 0).room(3, 0.0, PERIOD_S) == 0
    assert StoreMemory(0, 0).taking(1, PERIOD_S).room(2, 0.1, PERIOD_S + 5) == 0


@given(
    numbers=st.tuples(*[st.integers(0, 2**62)] * 4),
    older=st.booleans(),
    at=st.integers(0, 48),
    flip=st.integers(0, 255),
)
def test_what_a_collector_remembers_comes_back_or_is_known_to_be_damaged(
    numbers: tuple[int, int, int, int], older: bool, at: int, flip: int
) -> None:
    seen = StoreMemory(*numbers, older=older)
    data = bytearray(store_memory.encode(seen))
    assert store_memory.decode(bytes(data)) == seen
    assert store_memory.decode(bytes(data[:at])) is None
    data[at] ^= flip
    assert store_memory.decode(bytes(data)) == (None if flip else seen)
