"""The stream and batch readers as Spark calls them, without Spark and without a cluster."""

import pickle
import threading
from collections.abc import Mapping, Sequence

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dlog.spark import source
from dlog.spark.errors import InvalidOption, LogReplaced, RecordsTrimmed
from dlog.spark.offsets import Position, encode
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogRange, LogTail
from dlog.spark.source import BatchReader, DlogSource, StreamReader
from ledger.errors import LogError, MetadataUnavailable, NoSuchLedger


class FakeAccess:
    """A namespace whose tails the test sets; holds a lock, as a real one, so it cannot pickle."""

    tails_now: dict[str, LogTail]
    error: LogError | None
    closed: int

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._lock = threading.Lock()

    def tails(
        self, logs: Sequence[str], *, after: Mapping[str, int], wait_s: float
    ) -> dict[str, LogTail]:
        if FakeAccess.error is not None:
            raise FakeAccess.error
        return {log: FakeAccess.tails_now[log] for log in logs}

    def close(self) -> None:
        FakeAccess.closed += 1


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "Access", FakeAccess)
    FakeAccess.tails_now = {"a": LogTail("i", 0, 100)}
    FakeAccess.error = None
    FakeAccess.closed = 0


def offset(next_offset: int, incarnation: str = "i") -> dict[str, object]:
    return encode({"a": Position(incarnation, next_offset)})


def stream_reader(**options: str) -> StreamReader:
    return StreamReader("file:///nowhere", SourceOptions.parse({"logs": "a", **options}))


def ranges(partitions: Sequence[source.LogPartition]) -> list[LogRange]:
    return [piece for partition in partitions for piece in partition.ranges]


def test_a_new_query_starts_at_the_first_record() -> None:
    FakeAccess.tails_now = {"a": LogTail("i", 7, 100)}
    assert stream_reader().initialOffset() == offset(7)


def test_a_new_query_can_start_at_the_end_and_stays_there_when_asked_again() -> None:
    reader = stream_reader(startingoffsets="latest")
    assert reader.initialOffset() == offset(100)
    FakeAccess.tails_now = {"a": LogTail("i", 0, 200)}
    assert reader.initialOffset() == offset(100)


def test_a_start_that_was_trimmed_away_is_refused() -> None:
    FakeAccess.tails_now = {"a": LogTail("i", 7, 100)}
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


def test_available_now_ends_where_the_log_was_when_it_began() -> None:
    reader = stream_reader(maxrecordspertrigger="60")
    reader.prepareForTriggerAvailableNow()
    FakeAccess.tails_now = {"a": LogTail("i", 0, 500)}
    assert reader.latestOffset(offset(0), ReadMaxRows(60)) == offset(60)
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
    return BatchReader("file:///nowhere", SourceOptions.parse({"logs": "a", **options}))


def test_a_batch_read_covers_what_is_committed_now() -> None:
    assert ranges(batch_reader().partitions()) == [LogRange("a", "i", 0, 100)]
    assert FakeAccess.closed == 1


def test_a_batch_read_can_begin_and_end_at_given_offsets() -> None:
    reader = batch_reader(startingoffsets='{"a": 10}', endingoffsets='{"a": 20}')
    assert ranges(reader.partitions()) == [LogRange("a", "i", 10, 20)]


def test_a_batch_read_beyond_the_end_is_refused() -> None:
    with pytest.raises(InvalidOption, match="ends at offset 100"):
        batch_reader(endingoffsets='{"a": 101}').partitions()


def test_a_batch_read_of_nothing_has_no_tasks() -> None:
    assert batch_reader(startingoffsets="latest").partitions() == []


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
    with pytest.raises(InvalidOption, match=r"includeheaders.*must be true or false"):
        SourceOptions.parse({"logs": "a", "includeHeaders": text})


def test_executors_learn_whether_headers_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    class Reading(FakeAccess):
        def read(self, piece: LogRange, *, include_headers: bool = False) -> list[object]:
            asked.append(include_headers)
            return []

    monkeypatch.setattr(source, "shared_access", Reading)
    partition = source.LogPartition([LogRange("a", "i", 0, 1)])
    for reader in (
        stream_reader(includeheaders="true"),
        batch_reader(includeheaders="true"),
        stream_reader(),
        batch_reader(),
    ):
        assert list(pickle.loads(pickle.dumps(reader)).read(partition)) == []
    assert asked == [True, True, False, False]
