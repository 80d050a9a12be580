"""Admission and partition planning of the Spark source, without Spark."""

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.aio.read.tails import LogTail as CommittedTail
from dlog.manifest import Sealed, Segment
from dlog.position import NO_TXID, Timestamp, Txid
from dlog.protocol.table import Table, TableFile
from dlog.spark.errors import (
    InvalidOption,
    LogDeleted,
    LogReplaced,
    RecordsTrimmed,
    StreamBroken,
)
from dlog.spark.offsets import StreamPosition, decode, encode, namesake
from dlog.spark.options import SourceOptions
from dlog.spark.plan import (
    FILE_PIECE_BYTES,
    LogEnd,
    LogRange,
    TableSnapshot,
    TriggerDelay,
    advance,
    cut_files,
    is_current,
    plan_partitions,
    split_at_tables,
    waiting,
    with_history,
)
from ledger.ids import EntryId, LedgerId

LOGS = st.sampled_from(["a", "b", "c", "d"])
BACKLOGS = st.dictionaries(LOGS, st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=4)


def at(next_offset: int, incarnation: str = "i") -> StreamPosition:
    return StreamPosition(incarnation, next_offset)


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
        {"v": 3, "logs": {}},
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
    tails = {"a": LogEnd("i", 0, 10), "b": LogEnd("i", 3, 7)}
    assert advance({"a": at(4), "b": at(7)}, tails) == {"a": at(10), "b": at(7)}


def test_a_tail_that_went_back_moves_nothing() -> None:
    assert advance({"a": at(9)}, {"a": LogEnd("i", 0, 5)}) == {"a": at(9)}


def test_a_log_that_was_made_again_stops_the_stream() -> None:
    with pytest.raises(LogReplaced, match="new checkpoint"):
        advance({"a": at(9, "old")}, {"a": LogEnd("new", 0, 100)})


def test_records_that_were_truncated_before_they_were_read_stop_the_stream() -> None:
    with pytest.raises(RecordsTrimmed) as caught:
        advance({"a": at(9)}, {"a": LogEnd("i", 12, 100)})
    assert (caught.value.next_offset, caught.value.first_offset) == (9, 12)


def test_a_log_without_a_position_gets_its_first_one_and_is_read_from_the_next_batch_on() -> None:
    tails = {"a": LogEnd("i", 5, 10)}
    end = advance({}, tails)
    assert end == {"a": at(5)}
    assert plan_partitions({}, end, partitions_max=4, task_records_min=1) == []
    assert advance(end, tails) == {"a": at(10)}


def test_a_log_that_vanished_from_the_tails_keeps_its_position() -> None:
    assert advance({"a": at(4), "gone": at(2)}, {"a": LogEnd("i", 0, 5)})["gone"] == at(2)


def test_a_record_limit_is_shared_and_small_backlogs_are_served_whole() -> None:
    tails = {name: LogEnd("i", 0, size) for name, size in (("big", 1000), ("mid", 50), ("s", 2))}
    end = advance({name: at(0) for name in tails}, tails, records_max=62)
    assert {name: end[name].next_offset for name in tails} == {"s": 2, "mid": 30, "big": 30}


def test_a_byte_limit_counts_records_by_their_average_size() -> None:
    tails = {"a": LogEnd("i", 0, 1000, record_bytes=100.0)}
    assert advance({"a": at(0)}, tails, bytes_max=2_000) == {"a": at(20)}


def test_the_narrower_of_two_limits_decides() -> None:
    tails = {"a": LogEnd("i", 0, 1000, record_bytes=100.0)}
    assert advance({"a": at(0)}, tails, bytes_max=2_000, records_max=7) == {"a": at(7)}


@given(BACKLOGS, st.integers(1, 300))
def test_every_batch_moves_every_waiting_log_and_keeps_to_its_limit(
    backlogs: dict[str, tuple[int, int]], records_max: int
) -> None:
    start = {log: at(first) for log, (first, _) in backlogs.items()}
    tails = {log: LogEnd("i", 0, first + more) for log, (first, more) in backlogs.items()}
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


def test_nothing_is_read_of_a_log_that_was_made_again_within_a_batch() -> None:
    start, end = {"a": at(1, "old"), "b": at(0)}, {"a": at(2, "new"), "b": at(3)}
    tasks = plan_partitions(start, end, partitions_max=1, task_records_min=1)
    assert tasks == [(LogRange("b", "i", 0, 3),)]


def test_as_many_tasks_as_are_asked_for_are_planned_if_there_are_records() -> None:
    def count(records: int) -> int:
        return len(
            plan_partitions(
                {"a": at(0)},
                {"a": at(records)},
                partitions_min=4,
                partitions_max=8,
                task_records_min=10,
            )
        )

    assert [count(records) for records in (1, 3, 4, 39, 50, 1000)] == [1, 3, 4, 4, 5, 8]


MIB = 1 << 20


def sized(*segments: tuple[int, int], incarnation: str = "i") -> LogEnd:
    """Return the tail of a log whose sealed segments have so many records of so many bytes."""
    end, listed = 0, []
    for number, (records, size) in enumerate(segments, 1):
        seal = Sealed(EntryId(0), records, records * size, NO_TXID, NO_TXID, 0, 0)
        listed.append(Segment(number, LedgerId(number), 0, end, seal))
        end += records
    committed = CommittedTail("a", incarnation, 0, end, None, tuple(listed))
    return LogEnd(incarnation, 0, end, committed.record_bytes, committed)


def bytes_of(
    tasks: list[tuple[LogRange, ...]], sizes: dict[str, list[tuple[int, int]]]
) -> list[int]:
    """Return what each task reads, of logs that have records of these sizes up to these offsets."""
    return [
        sum(
            (min(piece.end, end) - max(piece.first, begin)) * size
            for piece in task
            for begin, (end, size) in zip(
                [0, *(end for end, _ in sizes[piece.log])], sizes[piece.log], strict=False
            )
            if max(piece.first, begin) < min(piece.end, end)
        )
        for task in tasks
    ]


def test_no_task_reads_more_bytes_than_it_may() -> None:
    tails = {"a": sized((60_000, MIB))}
    tasks = plan_partitions(
        {"a": at(0)},
        {"a": at(60_000)},
        partitions_max=8,
        task_records_min=65_536,
        task_bytes_max=128 * MIB,
        tails=tails,
    )
    assert len(tasks) == 469
    assert max(bytes_of(tasks, {"a": [(60_000, MIB)]})) <= 128 * MIB
    few = plan_partitions(
        {"a": at(0)},
        {"a": at(60_000)},
        partitions_max=8,
        task_records_min=65_536,
        task_bytes_max=128 * MIB,
        tasks_max=8,
        tails=tails,
    )
    assert len(few) == 8


def test_tasks_of_large_and_small_records_read_as_many_bytes() -> None:
    tails = {"big": sized((20_000, MIB)), "small": sized((10_000_000, 100), incarnation="j")}
    tasks = plan_partitions(
        {"big": at(0), "small": at(0, "j")},
        {"big": at(20_000), "small": at(10_000_000, "j")},
        partitions_max=8,
        task_records_min=65_536,
        task_bytes_max=128 * MIB,
        tails=tails,
    )
    read = bytes_of(tasks, {"big": [(20_000, MIB)], "small": [(10_000_000, 100)]})
    assert max(read) <= 128 * MIB
    assert len(tasks) == 167
    mixed = {"a": sized((1000, 10), (10, MIB), (1000, 10))}
    tasks = plan_partitions(
        {"a": at(500)},
        {"a": at(1500)},
        partitions_max=8,
        task_records_min=1,
        task_bytes_max=2 * MIB,
        tails=mixed,
    )
    assert (
        max(bytes_of(tasks, {"a": [(1000, 10), (1010, MIB), (2010, 10)]})) < 3 * MIB
    )  # by one record
    assert tasks[0][0].first == 500


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5000)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(1, 5000),
    st.integers(0, 40),
)
def test_tasks_by_bytes_cover_the_batch_once_and_pass_their_share_by_one_record_at_most(
    segments: list[tuple[int, int]], partitions_min: int, task_bytes_max: int, first: int
) -> None:
    tail = sized(*segments)
    first = min(first, tail.next_offset - 1)
    tasks = plan_partitions(
        {"a": at(first)},
        {"a": at(tail.next_offset)},
        partitions_min=partitions_min,
        partitions_max=8,
        task_records_min=10,
        task_bytes_max=task_bytes_max,
        tails={"a": tail},
    )
    read = [n for task in tasks for piece in task for n in range(piece.first, piece.end)]
    assert read == list(range(first, tail.next_offset))
    assert all(tasks)
    assert len(tasks) >= min(partitions_min, len(read))


def test_a_planned_task_survives_pickling() -> None:
    tasks = plan_partitions({"a": at(5)}, {"a": at(25)}, partitions_max=2, task_records_min=10)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_a_loss_that_is_accepted_is_told_and_the_stream_goes_on_behind_it() -> None:
    losses: list[StreamBroken] = []
    start = {"again": at(9, "old"), "deleted": at(4), "trimmed": at(9), "whole": at(1)}
    tails = {
        "again": LogEnd("new", 3, 100),
        "trimmed": LogEnd("i", 12, 100),
        "whole": LogEnd("i", 0, 5),
    }
    end = advance(start, tails, wanted=lambda log: log != "whole", on_loss=losses.append)
    assert end == {"again": at(3, "new"), "trimmed": at(100), "whole": at(5)}
    assert [(type(loss), loss.log, loss.records_gone) for loss in losses] == [
        (LogDeleted, "deleted", None),
        (LogReplaced, "again", None),
        (RecordsTrimmed, "trimmed", 3),
    ]
    after = advance(end, tails)
    assert after["again"] == at(100, "new")


def test_records_that_are_gone_count_for_no_limit() -> None:
    tails = {"a": LogEnd("i", 1_000, 2_000)}
    end = advance({"a": at(0)}, tails, records_max=10, on_loss=lambda _: None)
    assert end == {"a": at(1_010)}


def test_a_log_that_was_deleted_stops_a_stream_that_wants_it() -> None:
    with pytest.raises(LogDeleted, match="failOnDataLoss=false") as caught:
        advance({"a": at(9)}, {}, wanted=lambda _: True)
    assert (caught.value.log, caught.value.next_offset) == ("a", 9)


def test_a_log_that_was_renamed_is_not_read_again_under_its_new_name() -> None:
    tails = {"old": LogEnd("i", 0, 10), "new": LogEnd("i", 0, 10), "other": LogEnd("j", 2, 3)}
    end = advance({"old": at(4)}, tails)
    assert end == {"old": at(10), "other": at(2, "j")}


def test_a_log_that_took_the_name_of_a_renamed_one_is_read_beside_it() -> None:
    tails = {"a": LogEnd("old", 0, 12), namesake("a", "new"): LogEnd("new", 0, 3)}
    start = {"a": at(9, "old")}
    first = advance(start, tails)
    assert first == {"a": at(12, "old"), namesake("a", "new"): at(0, "new")}
    second = advance(first, tails, wanted=lambda log: log == "a")
    ranges = [
        piece
        for task in plan_partitions(first, second, partitions_max=1, task_records_min=1)
        for piece in task
    ]
    assert ranges == [LogRange("a", "new", 0, 3)]


def test_an_offset_with_two_logs_of_one_name_is_refused_by_programs_that_know_one() -> None:
    positions = {"a": at(12, "old"), namesake("a", "new"): at(3, "new")}
    offset = json.loads(json.dumps(encode(positions)))
    assert offset["v"] == 2
    assert decode(offset) == positions


def test_a_renamed_log_that_was_deleted_is_not_mistaken_for_the_one_that_has_its_name() -> None:
    start = {"a": at(12, "old"), namesake("a", "new"): at(3, "new")}
    tails = {"a": LogEnd("new", 0, 5), namesake("a", "new"): LogEnd("new", 0, 5)}
    with pytest.raises(LogDeleted, match="'a' was deleted"):
        advance(start, tails, wanted=lambda log: log == "a")
    end = advance(start, tails, wanted=lambda log: log == "a", on_loss=lambda _: None)
    assert end == {namesake("a", "new"): at(5, "new")}
    assert advance(end, tails, wanted=lambda log: log == "a") == end


@given(BACKLOGS, st.lists(st.sampled_from(["gone", "again", "trimmed"]), max_size=4))
def test_what_waits_is_what_a_batch_without_limits_reads(
    backlogs: dict[str, tuple[int, int]], changes: list[str]
) -> None:
    start = {log: at(first) for log, (first, _) in backlogs.items()}
    tails = {log: LogEnd("i", 0, first + more) for log, (first, more) in backlogs.items()}
    for log, change in zip(backlogs, changes, strict=False):
        if change == "gone":
            del tails[log]
        elif change == "again":
            tails[log] = LogEnd("j", 0, 7)
        else:
            tails[log] = replace(tails[log], first_offset=tails[log].next_offset)
    end = advance(start, tails, wanted=lambda _: True, on_loss=lambda _: None)
    read = sum(
        end[log].next_offset - max(start[log].next_offset, tails[log].first_offset)
        for log in tails
        if end[log].incarnation == "i"
    )
    assert waiting(start, tails) == max(0, read)
    assert is_current(start, tails) is ("j" not in {tail.incarnation for tail in tails.values()})


def test_a_batch_is_held_back_until_enough_records_wait_or_one_has_waited_long_enough() -> None:
    delay = TriggerDelay(records_min=10, delay_s=60.0)
    assert not delay.holds(0, 0.0)
    assert delay.left_s(50.0) == 60.0  # nothing waits yet
    assert delay.holds(3, 100.0)
    assert delay.left_s(140.0) == 20.0
    assert delay.holds(9, 159.0)
    assert not delay.holds(9, 160.0)
    assert delay.holds(9, 161.0)  # the next batch, which waits anew
    assert not delay.holds(10, 162.0)


def test_options_are_read_without_regard_to_case() -> None:
    options = SourceOptions.parse(
        {"Logs": "b, a", "maxRecordsPerTrigger": "10", "startingOffsets": '{"a": 3}'}
    )
    assert options.selection.names == ("a", "b")
    assert options.records_per_trigger_max == 10
    assert options.starting.of("a") == 3
    assert options.starting.of("b") == "start"
    assert options.ending.of("a") == "end"


def test_the_argument_of_load_names_the_log() -> None:
    assert SourceOptions.parse({"path": "flights"}).selection.names == ("flights",)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("1777636800000", Timestamp(1_777_636_800_000)),
        ("2026-05-01T12:00:00Z", Timestamp(1_777_636_800_000)),
        ("2026-05-01T12:00:00", Timestamp(1_777_636_800_000)),
        ("2026-05-01T14:00:00+02:00", Timestamp(1_777_636_800_000)),
        ("2026-05-01T12:00:00.000001Z", Timestamp(1_777_636_800_001)),
    ],
)
def test_a_moment_is_milliseconds_or_iso_8601(text: str, place: Timestamp) -> None:
    for side in ("starting", "ending"):
        options = SourceOptions.parse({"logs": "a,b", f"{side}Timestamp": text})
        assert getattr(options, side).of("b") == place
        by_log = json.dumps({"a": text})
        options = SourceOptions.parse({"logs": "a,b", f"{side}Timestamp": by_log})
        assert getattr(options, side).of("a") == place
        assert getattr(options, side).of("b") == ("start" if side == "starting" else "end")


def test_each_log_may_have_its_own_place() -> None:
    offsets = '{"a": "latest", "b": 3, "c": "earliest", "d": "7"}'
    options = SourceOptions.parse({"logs": "a,b,c,d,e", "startingOffsets": offsets})
    assert [options.starting.of(log) for log in "abcde"] == ["end", 3, "start", 7, "start"]
    options = SourceOptions.parse({"logs": "a,b", "startingTxid": '{"a": -5}', "endingTxid": "9"})
    assert (options.starting.of("a"), options.starting.of("b")) == (Txid(-5), "start")
    assert (options.ending.of("a"), options.ending.of("b")) == (Txid(9), Txid(9))


def test_a_pattern_matches_whole_names() -> None:
    selection = SourceOptions.parse({"logsPattern": "eu/.*|us"}).selection
    names = ["eu/a", "us", "us2", "plus", "eu/", "neu/a"]
    assert selection.among(names) == ["eu/a", "us", "eu/"]


def test_a_pattern_that_matches_too_many_logs_says_so() -> None:
    selection = SourceOptions.parse({"logsPattern": ".*"}).selection
    with pytest.raises(InvalidOption, match="1001 logs match, 1000 are allowed"):
        selection.among(f"log{n}" for n in range(1001))


def test_who_asks_for_many_partitions_at_least_gets_them() -> None:
    options = SourceOptions.parse({"logs": "a", "minPartitions": "20"})
    assert (options.partitions_min, options.partitions_max) == (20, 20)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("30s", 30), ("250ms", 0.25), ("2 h", 7200), ("1d", 86400)]
)
def test_a_delay_has_a_unit(text: str, seconds: float) -> None:
    given = {"logs": "a", "minRecordsPerTrigger": "5", "maxTriggerDelay": text}
    assert SourceOptions.parse(given).trigger_delay_s == seconds


def test_an_option_of_the_kafka_source_is_told_its_name_here() -> None:
    with pytest.raises(InvalidOption, match="called maxRecordsPerTrigger here"):
        SourceOptions.parse({"logs": "a", "maxOffsetsPerTrigger": "10"})


def test_a_stream_has_no_end() -> None:
    SourceOptions.parse({"logs": "a"}).check_streaming()
    with pytest.raises(InvalidOption, match="a stream has no end") as caught:
        SourceOptions.parse({"logs": "a", "endingTimestamp": "5"}).check_streaming()
    assert caught.value.option == "endingTimestamp"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "logs"),
        ({"logs": " , "}, "logs"),
        ({"logs": "a", "maxRecordPerTrigger": "10"}, "maxrecordpertrigger"),
        ({"logs": "a", "maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger"),
        ({"logs": "a", "maxBytesPerTrigger": "1x"}, "maxBytesPerTrigger"),
        ({"logs": "a", "pollMs": "5001"}, "pollMs"),
        ({"logs": "a", "path": "b"}, "path"),
        ({"logs": "a", "logsPattern": "b"}, "logsPattern"),
        ({"logsPattern": "("}, "logsPattern"),
        ({"logsPattern": ""}, "logsPattern"),
        ({"logs": "a//b"}, "logs"),
        ({"path": "/a"}, "path"),
        ({"logs": ",".join(f"log{n}" for n in range(1001))}, "logs"),
        ({"logs": "a", "minRecordsPerTrigger": "0"}, "minRecordsPerTrigger"),
        (
            {"logs": "a", "minRecordsPerTrigger": "9", "maxRecordsPerTrigger": "8"},
            "minRecordsPerTrigger",
        ),
        ({"logs": "a", "maxTriggerDelay": "5m"}, "maxTriggerDelay"),
        (
            {"logs": "a", "minRecordsPerTrigger": "9", "maxTriggerDelay": "soon"},
            "maxTriggerDelay",
        ),
        ({"logs": "a", "minPartitions": "9", "maxPartitions": "8"}, "minPartitions"),
        ({"logs": "a", "failOnDataLoss": "no"}, "failOnDataLoss"),
        ({"logs": "a", "consumer": "/a"}, "consumer"),
        ({"logs": "a", "pushdown": "offset"}, "pushdown"),
        ({"logs": "a", "startingTimestamp": "today"}, "startingTimestamp"),
        ({"logs": "a", "startingTimestamp": "-5"}, "startingTimestamp"),
        ({"logs": "a", "startingTimestamp": '{"a": null}'}, "startingTimestamp"),
        ({"logs": "a", "startingTimestamp": "{"}, "startingTimestamp"),
        ({"logs": "a", "startingTxid": "first"}, "startingTxid"),
        ({"logs": "a", "startingTxid": '{"a": 9223372036854775808}'}, "startingTxid"),
        ({"logs": "a", "startingTxid": "5", "startingOffsets": "latest"}, "startingTxid"),
        ({"logs": "a", "startingOffsets": '{"b": 5}'}, "startingOffsets"),
        ({"logsPattern": "a.*", "endingOffsets": '{"b": 5}'}, "endingOffsets"),
        ({"logs": "a", "startingOffsets": '{"a": -2}'}, "startingOffsets"),
        ({"logs": "a", "startingOffsets": "5"}, "startingOffsets"),
        ({"logs": "a", "endingOffsets": '{"a": "earliest"}'}, "endingOffsets"),
        ({"logs": "a", "startingOffsets": "begin"}, "startingOffsets"),
        ({"logs": "a", "startingOffsets": '{"a": -1}'}, "startingOffsets"),
        ({"logs": "a", "startingOffsets": '{"a": true}'}, "startingOffsets"),
        ({"logs": "a", "endingOffsets": "earliest"}, "endingOffsets"),
    ],
)
def test_an_option_that_cannot_be_used_is_named_in_the_error(
    options: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        SourceOptions.parse(options)
    assert caught.value.option == named


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Return a table whose files lie side by side, or one within the other."""
    first = draw(st.integers(0, 50))
    files: list[TableFile] = []
    end = first
    for number in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(2, 40))
        size = draw(st.integers(1, 5)) * FILE_PIECE_BYTES
        halves = (range(end, end + rows, 2), range(end + 1, end + rows, 2))
        for half in halves:
            name = f"{number}-{len(files)}.parquet"
            files.append(
                TableFile(path=name, rows=len(half), bytes=size, first=half[0], last=half[-1])
            )
        end += rows
    return Table(incarnation="i", first=first, end=end, files=tuple(files))


@given(tables(), st.data())
def test_of_table_and_log_each_offset_is_read_once(table: Table, data: st.DataObject) -> None:
    end = data.draw(st.integers(table.first, table.end + 30))
    start = data.draw(st.integers(table.first, end))
    snapshot = TableSnapshot("s3://b/c.table", table)
    files, rest = split_at_tables({"a": at(start)}, {"a": at(end)}, {"a": snapshot})
    tasks = cut_files(
        files,
        partitions_max=data.draw(st.integers(1, 8)),
        task_bytes_max=data.draw(st.integers(1, 4)) * FILE_PIECE_BYTES,
    )
    rows = {file.path: range(file.first, file.last + 1, 2) for file in table.files}
    read = [
        offset
        for task in tasks
        for piece in task
        for offset in rows[piece.file.path]
        if piece.first <= offset < piece.end
    ]
    assert sorted([*read, *range(rest["a"].next_offset, end)]) == list(range(start, end))
    assert all(tasks)


def test_a_log_begins_where_its_table_does_if_that_joins_it() -> None:
    def begins(trim: int, table: Table) -> int:
        tails = {"a": LogEnd("i", trim, 100)}
        return with_history(tails, {"a": TableSnapshot("s", table)})["a"].first_offset

    table = Table(
        incarnation="i",
        first=10,
        end=30,
        files=(TableFile(path="1-a-1.parquet", rows=20, bytes=1, first=10, last=29),),
    )
    assert begins(20, table) == 10
    assert begins(30, table) == 10
    assert begins(31, table) == 31, "there is a gap"
    assert begins(5, table) == 5
    start = {"a": at(5)}
    files, rest = split_at_tables(start, {"a": at(50)}, {"a": TableSnapshot("s", table)})
    assert (files, rest) == ([], start), "the table begins later: the log has all"
