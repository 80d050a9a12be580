"""Admission and partition planning of the Spark source, without Spark."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.spark.errors import InvalidOption, LogReplaced, RecordsTrimmed
from dlog.spark.offsets import Position, decode, encode
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogRange, LogTail, advance, plan_partitions

LOGS = st.sampled_from(["a", "b", "c", "d"])
BACKLOGS = st.dictionaries(LOGS, st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=4)


def at(next_offset: int, incarnation: str = "i") -> Position:
    return Position(incarnation, next_offset)


def test_equal_positions_give_equal_text_whatever_their_order() -> None:
    forward = encode({"a": at(1), "b": at(2)})
    backward = encode({"b": at(2), "a": at(1)})
    assert json.dumps(forward) == json.dumps(backward)
    assert json.dumps(forward) == '{"logs": {"a": ["i", 1], "b": ["i", 2]}, "v": 1}'


def test_an_offset_survives_the_way_through_json() -> None:
    positions = {"a": at(0), "b": at(2**62, "other")}
    assert decode(json.loads(json.dumps(encode(positions)))) == positions


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"v": 2, "logs": {}},
        {"v": 1},
        {"v": 1, "logs": {"a": 7}},
        {"v": 1, "logs": {"a": ["i", -1]}},
        {"v": 1, "logs": {"a": ["i", "7"]}},
    ],
)
def test_an_offset_of_another_form_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        decode(offset)


def test_without_a_limit_the_batch_ends_at_the_tails() -> None:
    tails = {"a": LogTail("i", 0, 10), "b": LogTail("i", 3, 7)}
    assert advance({"a": at(4), "b": at(7)}, tails) == {"a": at(10), "b": at(7)}


def test_a_tail_that_went_back_moves_nothing() -> None:
    assert advance({"a": at(9)}, {"a": LogTail("i", 0, 5)}) == {"a": at(9)}


def test_a_log_that_was_made_again_stops_the_stream() -> None:
    with pytest.raises(LogReplaced, match="new checkpoint"):
        advance({"a": at(9, "old")}, {"a": LogTail("new", 0, 100)})


def test_records_that_were_truncated_before_they_were_read_stop_the_stream() -> None:
    with pytest.raises(RecordsTrimmed) as caught:
        advance({"a": at(9)}, {"a": LogTail("i", 12, 100)})
    assert (caught.value.next_offset, caught.value.first_offset) == (9, 12)


def test_a_log_without_a_position_gets_its_first_one_and_is_read_from_the_next_batch_on() -> None:
    tails = {"a": LogTail("i", 5, 10)}
    end = advance({}, tails)
    assert end == {"a": at(5)}
    assert plan_partitions({}, end, partitions_max=4, task_records_min=1) == []
    assert advance(end, tails) == {"a": at(10)}


def test_a_log_that_vanished_from_the_tails_keeps_its_position() -> None:
    assert advance({"a": at(4), "gone": at(2)}, {"a": LogTail("i", 0, 5)})["gone"] == at(2)


def test_a_record_limit_is_shared_and_small_backlogs_are_served_whole() -> None:
    tails = {name: LogTail("i", 0, size) for name, size in (("big", 1000), ("mid", 50), ("s", 2))}
    end = advance({name: at(0) for name in tails}, tails, records_max=62)
    assert {name: end[name].next_offset for name in tails} == {"s": 2, "mid": 30, "big": 30}


def test_a_byte_limit_counts_records_by_their_average_size() -> None:
    tails = {"a": LogTail("i", 0, 1000, record_bytes=100.0)}
    assert advance({"a": at(0)}, tails, bytes_max=2_000) == {"a": at(20)}


def test_the_narrower_of_two_limits_decides() -> None:
    tails = {"a": LogTail("i", 0, 1000, record_bytes=100.0)}
    assert advance({"a": at(0)}, tails, bytes_max=2_000, records_max=7) == {"a": at(7)}


@given(BACKLOGS, st.integers(1, 300))
def test_every_batch_moves_every_waiting_log_and_keeps_to_its_limit(
    backlogs: dict[str, tuple[int, int]], records_max: int
) -> None:
    start = {log: at(first) for log, (first, _) in backlogs.items()}
    tails = {log: LogTail("i", 0, first + more) for log, (first, more) in backlogs.items()}
    end = advance(start, tails, records_max=records_max)
    moved = {log: end[log].next_offset - start[log].next_offset for log in start}
    assert all(moved[log] > 0 for log, (_, more) in backlogs.items() if more)
    assert all(0 <= moved[log] <= more for log, (_, more) in backlogs.items())
    assert sum(moved.values()) <= max(records_max, len(backlogs))
    if sum(more for _, more in backlogs.values()) >= records_max >= 4:
        assert sum(moved.values()) >= records_max - len(backlogs)


@given(BACKLOGS, st.integers(1, 6), st.integers(1, 200))
def test_tasks_cover_the_batch_once_in_order(
    backlogs: dict[str, tuple[int, int]], partitions_max: int, task_records_min: int
) -> None:
    start = {log: at(first) for log, (first, _) in backlogs.items()}
    end = {log: at(first + more) for log, (first, more) in backlogs.items()}
    tasks = plan_partitions(
        start, end, partitions_max=partitions_max, task_records_min=task_records_min
    )
    assert len(tasks) <= partitions_max
    assert all(tasks)
    read = [
        (piece.log, offset)
        for task in tasks
        for piece in task
        for offset in range(piece.first, piece.end)
    ]
    whole = [
        (log, offset)
        for log in sorted(start)
        for offset in range(start[log].next_offset, end[log].next_offset)
    ]
    assert read == whole


def test_many_small_logs_share_one_task() -> None:
    start = {f"log{n}": at(0) for n in range(100)}
    end = {f"log{n}": at(3) for n in range(100)}
    tasks = plan_partitions(start, end, partitions_max=8, task_records_min=65_536)
    assert len(tasks) == 1
    assert len(tasks[0]) == 100


def test_a_long_backlog_is_cut_into_equal_tasks() -> None:
    tasks = plan_partitions({"a": at(5)}, {"a": at(25)}, partitions_max=2, task_records_min=10)
    assert tasks == [(LogRange("a", "i", 5, 15),), (LogRange("a", "i", 15, 25),)]


def test_a_range_that_spans_two_incarnations_is_refused() -> None:
    with pytest.raises(LogReplaced):
        plan_partitions(
            {"a": at(1, "old")}, {"a": at(2, "new")}, partitions_max=1, task_records_min=1
        )


def test_a_planned_task_survives_pickling() -> None:
    tasks = plan_partitions({"a": at(5)}, {"a": at(25)}, partitions_max=2, task_records_min=10)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_options_are_read_without_regard_to_case() -> None:
    options = SourceOptions.parse(
        {"Logs": "b, a", "maxRecordsPerTrigger": "10", "startingOffsets": '{"a": 3}'}
    )
    assert options.logs == ("a", "b")
    assert options.records_per_trigger_max == 10
    assert options.starting("a") == 3
    assert options.starting("b") == "earliest"
    assert options.ending("a") == "latest"


def test_the_argument_of_load_names_the_log() -> None:
    assert SourceOptions.parse({"path": "flights"}).logs == ("flights",)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "logs"),
        ({"logs": " , "}, "logs"),
        ({"logs": "a", "maxRecordPerTrigger": "10"}, "maxrecordpertrigger"),
        ({"logs": "a", "maxRecordsPerTrigger": "0"}, "maxrecordspertrigger"),
        ({"logs": "a", "maxBytesPerTrigger": "1g"}, "maxbytespertrigger"),
        ({"logs": "a", "pollMs": "501"}, "pollms"),
        ({"logs": "a", "startingOffsets": "begin"}, "startingoffsets"),
        ({"logs": "a", "startingOffsets": '{"a": -1}'}, "startingoffsets"),
        ({"logs": "a", "startingOffsets": '{"a": true}'}, "startingoffsets"),
        ({"logs": "a", "endingOffsets": "earliest"}, "endingoffsets"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_in_the_error(
    options: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        SourceOptions.parse(options)
    assert caught.value.option == named
