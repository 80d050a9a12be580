"""The stream and batch readers as Spark calls them, without Spark and without a cluster."""

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from dlog.errors import NoSuchLog
from dlog.position import Timestamp, Txid
from dlog.row_schema import COLUMNS, COLUMNS_WITH_HEADERS
from dlog.spark import batch, micro_batch, tasks
from dlog.spark.batch import BatchReader, NarrowingBatchReader
from dlog.spark.errors import (
    InvalidOption,
    InvalidSchema,
    LogDeleted,
    LogReplaced,
    RecordsTrimmed,
)
from dlog.spark.micro_batch import StreamReader
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition, encode
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogEnd, LogRange
from dlog.spark.selection import Selection
from dlog.spark.source import DlogSource
from dlog.spark.tasks import LogPartition
from ledger.errors import LogError, MetadataUnavailable, NoSuchLedger

NOWHERE = Namespace("file:///nowhere")

Tails = dict[str, LogEnd]


class FakeAccess:
    """A namespace whose tails the test sets; holds a lock, as a real one, so it cannot pickle."""

    tails_now: Tails
    reached: dict[object, int]
    """At which offset a time or txid is reached."""
    moved: list[tuple[str, dict[str, int]]]
    moves: bool
    """Whether consumers can be moved."""
    waits: list[tuple[bool, float]]
    """Whether there was enough, and how long the reader would have waited."""
    error: LogError | None
    closed: int

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()

    def tails(
        self,
        selection: Selection,
        *,
        following: Mapping[str, str],
        enough: Callable[[Tails], bool],
        wait_s: float,
    ) -> Tails:
        if FakeAccess.error is not None:
            raise FakeAccess.error
        tails = self._chosen(selection)
        FakeAccess.waits.append((enough(tails), wait_s))
        return tails

    def ends(self, selection: Selection, *, following: Mapping[str, str] | None = None) -> Tails:
        if FakeAccess.error is not None:
            raise FakeAccess.error
        tails = self._chosen(selection)
        for log in selection.names:
            if following is None and log not in tails:
                raise NoSuchLog(log)
        return tails

    def _chosen(self, selection: Selection) -> Tails:
        return {log: tail for log, tail in FakeAccess.tails_now.items() if selection.chosen(log)}

    def seek(self, log: str, incarnation: str, place: Timestamp | Txid) -> int:
        return FakeAccess.reached[place]

    def move(self, consumer: str, positions: Mapping[str, StreamPosition]) -> bool:
        if FakeAccess.error is not None:
            raise FakeAccess.error
        offsets = {log: position.next_offset for log, position in positions.items()}
        FakeAccess.moved.append((consumer, offsets))
        return FakeAccess.moves

    def close(self) -> None:
        FakeAccess.closed += 1


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batch, "Access", FakeAccess)
    monkeypatch.setattr(batch, "Access", FakeAccess)
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 100)}
    FakeAccess.reached = {}
    FakeAccess.moved = []
    FakeAccess.moves = True
    FakeAccess.waits = []
    FakeAccess.error = None
    FakeAccess.closed = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the stream reader, which the test sets."""
    now = [1_000.0]
    monkeypatch.setattr("dlog.spark.micro_batch.time.monotonic", lambda: now[0])
    return now


def offset(next_offset: int, incarnation: str = "i") -> dict[str, object]:
    return encode({"a": StreamPosition(incarnation, next_offset)})


def stream_reader(**options: str) -> StreamReader:
    return StreamReader(NOWHERE, SourceOptions.parse({"logs": "a", **options}))


def ranges(partitions: Sequence[LogPartition]) -> list[LogRange]:
    pieces = [piece for partition in partitions for piece in partition.ranges]
    return [piece for piece in pieces if isinstance(piece, LogRange)]


def test_a_new_query_starts_at_the_first_record() -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 7, 100)}
    assert stream_reader().initialOffset() == offset(7)


def test_a_new_query_can_start_at_the_end_and_stays_there_when_asked_again() -> None:
    reader = stream_reader(startingoffsets="latest")
    assert reader.initialOffset() == offset(100)
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 200)}
    assert reader.initialOffset() == offset(100)


def test_a_start_that_was_trimmed_away_is_refused() -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 7, 100)}
    with pytest.raises(RecordsTrimmed):
        stream_reader(startingoffsets='{"a": 3}').initialOffset()


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxrecordspertrigger": "10"}, ReadMaxRows(10)),
        ({"maxbytespertrigger": "10"}, ReadMaxBytes(10)),
        ({"maxrecordspertrigger": "10", "maxbytespertrigger": "99"}, ReadMaxRows(10)),
    ],
)
def test_the_limit_of_the_options_is_the_one_that_spark_hears_of(
    options: dict[str, str], limit: object
) -> None:
    assert stream_reader(**options).getDefaultReadLimit() == limit


def test_a_minimum_is_a_limit_of_its_own_for_spark() -> None:
    # So that a trigger that runs once can be told from others: it asks for everything.
    assert stream_reader(minrecordspertrigger="10").getDefaultReadLimit() == ReadMinRows(10)


def test_a_batch_waits_for_enough_records_but_not_for_ever(clock: list[float]) -> None:
    reader = stream_reader(minrecordspertrigger="60", maxtriggerdelay="30s")
    limit = ReadMinRows(60)
    assert reader.latestOffset(offset(50), limit) == offset(50)
    assert FakeAccess.waits[-1] == (False, 2.0)
    clock[0] += 29.5
    assert reader.latestOffset(offset(50), limit) == offset(50)
    assert FakeAccess.waits[-1] == (False, 0.5)
    clock[0] += 0.5
    assert reader.latestOffset(offset(50), limit) == offset(100)
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 159)}
    assert reader.latestOffset(offset(100), limit) == offset(100)
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 160)}
    assert reader.latestOffset(offset(100), limit) == offset(160)
    assert FakeAccess.waits[-1][0]


def test_what_runs_once_holds_nothing_back() -> None:
    reader = stream_reader(minrecordspertrigger="60")
    assert reader.latestOffset(offset(50), ReadAllAvailable()) == offset(100)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(offset(50), ReadMinRows(60)) == offset(100)


def test_a_minimum_and_a_maximum_are_both_kept(clock: list[float]) -> None:
    reader = stream_reader(minrecordspertrigger="20", maxrecordspertrigger="30")
    assert reader.latestOffset(offset(0), ReadMaxRows(30)) == offset(30)
    assert reader.latestOffset(offset(90), ReadMaxRows(30)) == offset(90)


def test_a_limited_batch_ends_at_the_limit_and_an_unlimited_one_at_the_tail() -> None:
    reader = stream_reader(maxrecordspertrigger="10")
    assert reader.latestOffset(offset(50), ReadMaxRows(10)) == offset(60)
    assert reader.latestOffset(offset(50), ReadAllAvailable()) == offset(100)
    assert reader.reportLatestOffset() == offset(100)


def test_trouble_that_may_pass_means_nothing_new() -> None:
    reader = stream_reader()
    FakeAccess.error = MetadataUnavailable("zk://a", "get", 1.0)
    assert reader.latestOffset(offset(50), ReadAllAvailable()) == offset(50)
    FakeAccess.error = None
    assert reader.latestOffset(offset(50), ReadAllAvailable()) == offset(100)


def test_trouble_that_will_not_pass_fails_the_query() -> None:
    FakeAccess.error = NoSuchLedger(7)
    with pytest.raises(NoSuchLedger):
        stream_reader().latestOffset(offset(50), ReadAllAvailable())


def test_a_log_that_was_made_again_fails_the_query() -> None:
    with pytest.raises(LogReplaced):
        stream_reader().latestOffset(offset(50, "before"), ReadAllAvailable())


def losses_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of records that are gone, and forget it."""
    said = [text for text in caplog.messages if text.startswith("records_gone ")]
    caplog.clear()
    return said


def test_a_query_that_accepts_losses_goes_on_and_says_how_many_records_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = stream_reader(failondataloss="false")
    FakeAccess.tails_now = {"a": LogEnd("i", 80, 100)}
    assert reader.latestOffset(offset(50), ReadAllAvailable()) == offset(100)
    assert losses_in(caplog) == ["records_gone log='a' records=30 reason='RecordsTrimmed'"]
    FakeAccess.tails_now = {"a": LogEnd("again", 0, 5)}
    end = reader.latestOffset(offset(90), ReadAllAvailable())
    assert end == offset(0, "again")
    assert losses_in(caplog) == ["records_gone log='a' records=10 reason='LogReplaced'"]
    assert reader.partitions(offset(90), end) == []
    assert reader.latestOffset(end, ReadAllAvailable()) == offset(5, "again")
    FakeAccess.tails_now = {}
    end = reader.latestOffset(offset(3, "again"), ReadAllAvailable())
    assert end == encode({})
    assert losses_in(caplog) == ["records_gone log='a' records=2 reason='LogDeleted'"]
    FakeAccess.tails_now = {"a": LogEnd("third", 0, 5)}
    assert reader.latestOffset(end, ReadAllAvailable()) == offset(0, "third")


def test_a_log_that_was_deleted_fails_the_query() -> None:
    FakeAccess.tails_now = {}
    with pytest.raises(LogDeleted):
        stream_reader().latestOffset(offset(50), ReadAllAvailable())


def test_a_log_that_never_was_there_fails_the_query_at_its_start_and_after_it() -> None:
    with pytest.raises(NoSuchLog):
        stream_reader(logs="a,b").initialOffset()
    with pytest.raises(NoSuchLog):
        stream_reader(logs="a,b").latestOffset(offset(50), ReadAllAvailable())


def pattern_reader(**options: str) -> StreamReader:
    return StreamReader(NOWHERE, SourceOptions.parse({"logsPattern": "a.*", **options}))


def test_logs_that_appear_while_a_query_runs_begin_with_their_first_record() -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 100), "b": LogEnd("x", 0, 9)}
    reader = pattern_reader(startingoffsets="latest")
    start = reader.initialOffset()
    assert start == offset(100)
    FakeAccess.tails_now["a2"] = LogEnd("j", 3, 7)
    found = reader.latestOffset(start, ReadAllAvailable())
    assert FakeAccess.waits[-1][0]  # a new log is news, even without records
    assert found == encode({"a": StreamPosition("i", 100), "a2": StreamPosition("j", 3)})
    end = reader.latestOffset(found, ReadAllAvailable())
    assert ranges(reader.partitions(found, end)) == [LogRange("a2", "j", 3, 7)]


def test_a_batch_that_is_planned_again_by_a_new_process_is_cut_by_bytes_too() -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 100, record_bytes=float(64 << 20))}
    parts = stream_reader().partitions(offset(0), offset(100))
    assert len(parts) == 51  # 64 MiB and what a row costs beside
    assert len(stream_reader(maxpartitions="3").partitions(offset(0), offset(100))) == 3
    FakeAccess.error = MetadataUnavailable("zk://a", "get", 1.0)
    assert ranges(stream_reader().partitions(offset(0), offset(100))) == [
        LogRange("a", "i", 0, 100)
    ]


def test_a_pattern_may_match_nothing_yet() -> None:
    FakeAccess.tails_now = {}
    reader = pattern_reader()
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start


@pytest.mark.parametrize(
    ("option", "text", "place"),
    [
        ("startingtimestamp", "2026-05-01T12:00:00Z", Timestamp(1_777_636_800_000)),
        ("startingtxid", '{"a": 7}', Txid(7)),
    ],
)
def test_a_query_starts_where_a_time_or_a_txid_is_reached(
    option: str, text: str, place: object
) -> None:
    FakeAccess.reached = {place: 42}
    assert stream_reader(**{option: text}).initialOffset() == offset(42)


def test_the_consumer_follows_what_spark_has_committed() -> None:
    reader = stream_reader(consumer="spark", startingoffsets="latest")
    start = reader.initialOffset()
    assert FakeAccess.moved == [("spark", {"a": 100})]
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 120)}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == offset(120)
    assert len(FakeAccess.moved) == 1  # that batch is still to be written
    reader.latestOffset(end, ReadAllAvailable())
    assert FakeAccess.moved[1:] == [("spark", {"a": 120})]
    reader.commit(end)
    assert len(FakeAccess.moved) == 2


def test_a_consumer_that_was_not_moved_is_moved_later() -> None:
    reader = stream_reader(consumer="spark")
    FakeAccess.moves = False
    reader.latestOffset(offset(100), ReadAllAvailable())
    FakeAccess.moves = True
    reader.latestOffset(offset(100), ReadAllAvailable())
    reader.latestOffset(offset(100), ReadAllAvailable())
    assert FakeAccess.moved == [("spark", {"a": 100})] * 2


def test_without_the_option_no_consumer_is_moved() -> None:
    reader = stream_reader()
    reader.initialOffset()
    reader.commit(offset(120))
    assert FakeAccess.moved == []


def test_a_consumer_that_cannot_be_moved_is_no_reason_to_fail() -> None:
    reader = stream_reader(consumer="spark")
    FakeAccess.error = MetadataUnavailable("zk://a", "get", 1.0)
    reader.commit(offset(120))


def test_available_now_ends_where_the_log_was_when_it_began() -> None:
    reader = stream_reader(maxrecordspertrigger="60")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(offset(0), ReadMaxRows(60)) == offset(60)
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 500)}
    assert reader.latestOffset(offset(60), ReadMaxRows(60)) == offset(100)
    assert reader.latestOffset(offset(100), ReadMaxRows(60)) == offset(100)


def test_a_restarted_query_plans_its_last_batch_without_the_cluster() -> None:
    FakeAccess.error = MetadataUnavailable("zk://a", "get", 1.0)
    planned = stream_reader().partitions(offset(50), offset(60))
    assert ranges(planned) == [LogRange("a", "i", 50, 60)]


def test_a_used_reader_is_pickled_without_its_connections() -> None:
    reader = stream_reader()
    reader.latestOffset(offset(0), ReadAllAvailable())
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.latestOffset(offset(0), ReadAllAvailable()) == offset(100)


def test_a_partition_survives_pickling() -> None:
    planned = stream_reader(mintaskrecords="5").partitions(offset(50), offset(60))
    assert len(planned) == 2
    assert ranges(pickle.loads(pickle.dumps(planned))) == ranges(planned)


def test_a_stopped_reader_lets_go_of_its_connections() -> None:
    reader = stream_reader()
    reader.initialOffset()
    reader.stop()
    assert FakeAccess.closed == 1


def batch_reader(**options: str) -> BatchReader:
    return BatchReader(NOWHERE, SourceOptions.parse({"logs": "a", **options}))


def test_a_batch_read_covers_what_is_committed_now() -> None:
    assert ranges(batch_reader().partitions()) == [LogRange("a", "i", 0, 100)]
    assert FakeAccess.closed == 1


def test_a_batch_read_can_begin_and_end_at_given_offsets() -> None:
    reader = batch_reader(startingoffsets='{"a": 10}', endingoffsets='{"a": 20}')
    assert ranges(reader.partitions()) == [LogRange("a", "i", 10, 20)]


def test_a_batch_read_beyond_the_end_is_refused() -> None:
    with pytest.raises(InvalidOption, match="ends at offset 100"):
        batch_reader(endingoffsets='{"a": 101}').partitions()


def test_a_start_beyond_the_end_is_refused_and_skips_nothing_later() -> None:
    given = {"logs": "a", "startingOffsets": '{"a": 101}'}
    with pytest.raises(InvalidOption, match=r"startingOffsets=.*ends at offset 100 now"):
        BatchReader(NOWHERE, SourceOptions.parse(given)).partitions()
    with pytest.raises(InvalidOption, match=r"startingOffsets=.*ends at offset 100 now"):
        StreamReader(NOWHERE, SourceOptions.parse(given)).initialOffset()


def test_a_misspelt_log_in_a_streams_start_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"startingOffsets=.*'b' is none of the logs"):
        SourceOptions.parse({"logs": "a", "startingOffsets": '{"b": 1}'})
    given = {"logsPattern": "a.*", "startingOffsets": '{"a2": 7}'}
    with pytest.raises(InvalidOption, match=r"startingOffsets=.*no log 'a2'"):
        StreamReader(NOWHERE, SourceOptions.parse(given)).initialOffset()


def test_a_batch_read_can_lie_between_two_moments() -> None:
    FakeAccess.reached = {Timestamp(1000): 30, Timestamp(2000): 40, Txid(5): 50}
    reader = batch_reader(startingtimestamp="1000", endingtimestamp="2000")
    assert ranges(reader.partitions()) == [LogRange("a", "i", 30, 40)]
    assert ranges(batch_reader(endingtxid="5").partitions()) == [LogRange("a", "i", 0, 50)]


def test_a_batch_read_begins_below_the_trim_only_if_losses_are_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 60, 100)}
    with pytest.raises(RecordsTrimmed):
        batch_reader(startingoffsets='{"a": 10}').partitions()
    reader = batch_reader(startingoffsets='{"a": 10}', failondataloss="false")
    assert ranges(reader.partitions()) == [LogRange("a", "i", 60, 100)]
    assert losses_in(caplog) == ["records_gone log='a' records=50 reason='RecordsTrimmed'"]


def test_a_place_in_a_log_that_the_pattern_does_not_find_is_refused() -> None:
    options = {"logsPattern": "a.*", "startingOffsets": '{"a2": 7}'}
    with pytest.raises(InvalidOption, match="no log 'a2'"):
        BatchReader(NOWHERE, SourceOptions.parse(options)).partitions()


def test_only_who_asks_for_it_gets_a_reader_that_takes_filters() -> None:
    plain = DlogSource({"logs": "a", "uri": "file:///nowhere"}).reader(None)
    pushing = DlogSource({"logs": "a", "uri": "file:///nowhere", "pushdown": "true"}).reader(None)
    # Spark looks for an override, and refuses every read of one while its setting is off.
    overridden = ["pushFilters" in vars(type(made)) for made in (plain, pushing)]
    assert overridden == [False, True]


MOMENT = datetime(1970, 1, 1, 0, 0, 2, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ([], {"a": (0, 100), "b": (0, 50)}),
        ([EqualTo(("offset",), 7)], {"a": (7, 8), "b": (7, 8)}),
        ([EqualNullSafe(("offset",), 70)], {"a": (70, 71)}),
        ([GreaterThan(("offset",), 60), LessThan(("offset",), 70)], {"a": (61, 70)}),
        (
            [GreaterThanOrEqual(("offset",), 40), LessThanOrEqual(("offset",), 60)],
            {"a": (40, 61), "b": (40, 50)},
        ),
        ([In(("offset",), (3, 9, 5))], {"a": (3, 10), "b": (3, 10)}),
        ([EqualTo(("log",), "b")], {"b": (0, 50)}),
        ([In(("log",), ("a", "c"))], {"a": (0, 100)}),
        ([StringStartsWith(("log",), "b")], {"b": (0, 50)}),
        ([EqualTo(("log",), "a"), EqualTo(("log",), "b")], {}),
        ([GreaterThanOrEqual(("timestamp",), MOMENT)], {"a": (30, 100), "b": (30, 50)}),
        ([EqualTo(("timestamp",), MOMENT)], {"a": (30, 100), "b": (30, 50)}),
        # What says nothing, or is not understood, skips nothing.
        ([LessThan(("timestamp",), MOMENT)], {"a": (0, 100), "b": (0, 50)}),
        ([Not(EqualTo(("log",), "a"))], {"a": (0, 100), "b": (0, 50)}),
        ([IsNotNull(("offset",)), EqualTo(("txid",), 5)], {"a": (0, 100), "b": (0, 50)}),
        ([EqualTo(("offset",), None)], {"a": (0, 100), "b": (0, 50)}),
        ([EqualTo(("headers", "offset"), 5)], {"a": (0, 100), "b": (0, 50)}),
    ],
)
def test_filters_narrow_what_is_read_and_are_all_given_back(
    filters: list[Filter], left: dict[str, tuple[int, int]]
) -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 100), "b": LogEnd("j", 0, 50)}
    FakeAccess.reached = {Timestamp(2000): 30}
    options = SourceOptions.parse({"logs": "a,b", "pushdown": "true", "timestampsAscend": "true"})
    reader = NarrowingBatchReader(NOWHERE, options)
    given_back: Iterable[Filter] = reader.pushFilters(filters)
    assert list(given_back) == filters
    # Spark asks for the partitions in another process.
    planned = ranges(pickle.loads(pickle.dumps(reader)).partitions())
    assert {piece.log: (piece.first, piece.end) for piece in planned} == left


def test_a_filter_on_timestamps_skips_nothing_unless_they_are_said_to_ascend() -> None:
    FakeAccess.tails_now = {"a": LogEnd("i", 0, 100)}
    FakeAccess.reached = {Timestamp(2000): 30}
    options = SourceOptions.parse({"logs": "a", "pushdown": "true"})
    reader = NarrowingBatchReader(NOWHERE, options)
    reader.pushFilters([GreaterThanOrEqual(("timestamp",), MOMENT)])
    assert ranges(reader.partitions()) == [LogRange("a", "i", 0, 100)]


def test_a_batch_read_of_nothing_is_one_task_without_ranges() -> None:
    assert [each.ranges for each in batch_reader(startingoffsets="latest").partitions()] == [()]


def test_the_source_is_named_as_its_format_and_knows_its_schema() -> None:
    made = DlogSource({"logs": "a", "uri": "file:///nowhere"})
    assert made.name() == "dlog"
    assert made.schema().startswith("log string, offset bigint")
    assert pickle.loads(pickle.dumps(made)).schema() == made.schema()


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({}, False),
        ({"includeHeaders": "false"}, False),
        ({"includeHeaders": "true"}, True),
        ({"INCLUDEHEADERS": "True"}, True),
    ],
)
def test_headers_are_a_column_only_if_they_are_asked_for(
    options: dict[str, str], there: bool
) -> None:
    schema = DlogSource({"logs": "a", "uri": "file:///nowhere", **options}).schema()
    assert schema.endswith("headers array<struct<key: string, value: binary>>") is there


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_whether_headers_are_included_is_said_in_no_other_words(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"includeHeaders.*use true or false"):
        SourceOptions.parse({"logs": "a", "includeHeaders": text})


def test_executors_learn_which_columns_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    class Reading(FakeAccess):
        def read(
            self, piece: LogRange, *, columns: tuple[str, ...], on_gone: object
        ) -> list[object]:
            asked.append(columns)
            return []

    monkeypatch.setattr(tasks, "shared_access", Reading)
    partition = LogPartition([LogRange("a", "i", 0, 1)])
    for reader in (
        stream_reader(includeheaders="true"),
        batch_reader(includeheaders="true"),
        stream_reader(),
        batch_reader(columns="value, Offset"),
    ):
        assert list(pickle.loads(pickle.dumps(reader)).read(partition)) == []
    with_headers = COLUMNS_WITH_HEADERS
    assert asked == [with_headers, with_headers, COLUMNS, ("value", "offset")]


@pytest.mark.parametrize(
    ("text", "others", "reason"),
    [
        ("value,body", {}, "there is no column 'body'; known are log, offset"),
        (" , ", {}, "name one column at least"),
        ("value,value", {}, "name each column once"),
        ("value", {"includeHeaders": "true"}, "headers is not named"),
    ],
)
def test_columns_that_records_have_not_are_refused(
    text: str, others: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOption, match=f"columns=.*{reason}"):
        SourceOptions.parse({"logs": "a", "columns": text, **others})


def test_a_schema_that_is_declared_is_kept_to_or_refused_with_what_there_is() -> None:
    source = DlogSource({"logs": "a", "uri": "file:///nowhere"})
    part = StructType.fromJson(schema_json(value="binary", offset="long"))
    for reader in (source.reader(part), source.streamReader(part)):
        assert reader._options.columns == ("value", "offset")
    for wrong, reason in (
        (schema_json(id="integer"), r"no column 'id'; there are log string, .*from_json"),
        (schema_json(Value="binary"), "no column 'Value'"),
        (schema_json(offset="integer"), r"column 'offset' is bigint, not int"),
        (schema_json(value="string"), r"column 'value' is binary, not string"),
        ({"type": "struct", "fields": []}, "names no column"),
    ):
        for ask in (source.reader, source.streamReader):
            with pytest.raises(InvalidSchema, match=reason):
                ask(StructType.fromJson(wrong))
    strict = schema_json(value="binary")
    strict["fields"][0]["nullable"] = False
    with pytest.raises(InvalidSchema, match="NOT NULL"):
        source.reader(StructType.fromJson(strict))


def schema_json(**types: str) -> dict[str, Any]:
    """Return a schema as Spark hands it over."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in types.items()
    ]
    return {"type": "struct", "fields": fields}


def test_a_table_that_was_created_with_columns_says_how_to_create_it() -> None:
    named = StructType.fromJson(schema_json(id="integer", name="string"))
    for ask in (DlogSource({}).reader, DlogSource({}).streamReader):
        with pytest.raises(InvalidSchema, match=r"created with columns.*CREATE TABLE t USING dlog"):
            ask(named)


def test_a_table_keeps_which_columns_it_has() -> None:
    given = {"provider": "dlog", "logs": "a", "columns": "offset,value", "uri": "file:///nowhere"}
    stored = DlogSource(given).schema()
    assert isinstance(stored, StructType)
    assert [field.name for field in stored.fields] == ["offset", "value"]
    assert DlogSource({}).reader(stored)._options.columns == ("offset", "value")
    with pytest.raises(InvalidOption, match="all columns"):
        DlogSource({}).writer(stored, overwrite=False)
