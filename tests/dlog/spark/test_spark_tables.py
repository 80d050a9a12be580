"""Logs in object storage as Spark reads them: their segments, and tables with the log's end."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    LessThan,
)

from dlog import Log, LogSettings
from dlog.admin import (
    archive_log,
    create_log,
    delete_log,
    rebuild_table,
    table_info,
    truncate_log,
    update_settings,
)
from dlog.archive import object_format, object_tail, table_files
from dlog.errors import DamagedTable, NoSuchTable
from dlog.protocol import archive
from dlog.spark.access import forget_shared_access
from dlog.spark.batch import NarrowingBatchReader
from dlog.spark.errors import InvalidOption
from dlog.spark.namespaces import Namespace
from dlog.spark.options import SourceOptions
from dlog.spark.plan import FileRange, LogRange
from dlog.spark.tasks import LogPartition
from tests.dlog.archive.s3_server import BUCKET, FaultyS3, s3
from tests.dlog.spark.running import batch

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(360)]

SEGMENTS, RECORDS = 4, 100
TOTAL = SEGMENTS * RECORDS
NOON_MS = 1_777_636_800_000
STEP_MS = 500_000
"""So that the records are of three days."""
EVERYTHING = "log,offset,dlsn,timestamp,txid,key,value,headers"


def append(log: Log, first: int, count: int) -> None:
    for index in range(first, first + count):
        log.append_async(
            b"%06d" % index * 50,
            txid=index,
            key=b"key" if index % 2 else None,
            timestamp_ms=NOON_MS + index * STEP_MS,
            headers={"number": b"%d" % index} if index % 3 == 0 else None,
        )
    log.flush()


def write(uri: str, name: str, first: int, count: int) -> None:
    with Log.open(name, uri=uri) as log:
        append(log, first, count)


def written(uri: str, name: str, storage: str, table: str = "parquet") -> None:
    """Write segments, archive all but the last one, and leave that on bookies alone."""
    create_log(name, settings=LogSettings(archive=storage, archive_table=table), uri=uri)
    with Log.open(name, uri=uri) as log:
        for segment in range(SEGMENTS):
            append(log, segment * RECORDS, RECORDS)
            if segment < SEGMENTS - 1:
                log.roll()
            if segment == SEGMENTS - 2:
                archive_log(name, at_once=True, uri=uri)


def reader_of(
    uri: str, name: str, filters: Sequence[Filter] = (), **options: object
) -> NarrowingBatchReader:
    given = {"logs": name, "columns": EVERYTHING, "pushdown": "true"}
    given |= {option.lower(): str(value) for option, value in options.items()}
    reader = NarrowingBatchReader(Namespace(uri), SourceOptions.parse(given))
    list(reader.pushFilters(list(filters)))
    return reader


def rows_of(reader: NarrowingBatchReader, parts: Sequence[LogPartition]) -> list[dict[str, Any]]:
    """Return the rows that the tasks read, by offset."""
    batches = [rows for part in parts for rows in reader.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return sorted(rows, key=lambda row: row["offset"])


def read(uri: str, name: str, *filters: Filter, **options: object) -> list[dict[str, Any]]:
    reader = reader_of(uri, name, filters, **options)
    return rows_of(reader, reader.partitions())


def pieces(parts: Sequence[LogPartition]) -> tuple[list[FileRange], list[LogRange]]:
    all_of_them = [piece for part in parts for piece in part.ranges]
    return (
        [piece for piece in all_of_them if isinstance(piece, FileRange)],
        [piece for piece in all_of_them if isinstance(piece, LogRange)],
    )


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, uri: str) -> Iterator[None]:
    monkeypatch.setattr(archive, "SMALL_BYTES", -1)
    monkeypatch.setattr(table_files, "GROUP_ROWS", 40)
    yield
    forget_shared_access(Namespace(uri))


def test_rows_of_table_and_log_are_those_of_the_log_alone(uri: str, tmp_path: Path) -> None:
    written(uri, "both", f"file://{tmp_path}/objects")
    parts = reader_of(uri, "both", table="parquet").partitions()
    files, logs = pieces(parts)
    end = (SEGMENTS - 1) * RECORDS
    assert {piece.first for piece in files} >= {0}
    assert [(piece.first, piece.end) for piece in logs] == [(end, TOTAL)]
    plain = read(uri, "both")
    assert [row["offset"] for row in plain] == list(range(TOTAL))
    assert read(uri, "both", table="parquet") == plain
    assert read(uri, "both", table="parquet", maxPartitions=1) == plain
    few = read(uri, "both", table="parquet", columns="value,offset")
    assert few == [{"value": row["value"], "offset": row["offset"]} for row in plain]
    for first, stop in ((0, 10), (95, 205), (290, 310), (300, 400), (399, 400), (10, 10)):
        options = {
            "startingOffsets": f'{{"both": {first}}}',
            "endingOffsets": f'{{"both": {stop}}}',
        }
        assert read(uri, "both", table="parquet", **options) == plain[first:stop]
    no_offset = read(uri, "both", table="parquet", endingTxid=150, columns="txid,offset")
    assert [row["txid"] for row in no_offset] == list(range(150))


def test_filters_on_offset_and_time_leave_files_and_row_groups_out(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3(monkeypatch, seed=1) as storage:
        written(uri, "filtered", f"s3://{BUCKET}/filtered")
        plain = read(uri, "filtered")
        day = datetime(2026, 5, 2, tzinfo=UTC)
        later = datetime(2026, 5, 3, tzinfo=UTC)

        def cost(*filters: Filter) -> tuple[int, list[dict[str, Any]]]:
            reader = reader_of(uri, "filtered", filters, table="parquet")
            parts = reader.partitions()
            storage.read.clear()
            rows = rows_of(reader, parts)
            return sum(size for path, size in storage.read if path.endswith(".parquet")), rows

        whole, rows = cost()
        assert rows == plain
        by_day, rows = cost(
            GreaterThanOrEqual(("timestamp",), day), LessThan(("timestamp",), later)
        )
        assert by_day < whole * 0.7
        wanted = [row for row in plain if day <= row["timestamp"] < later]
        assert [row for row in rows if day <= row["timestamp"] < later] == wanted
        few, rows = cost(EqualTo(("offset",), 7))
        assert rows == plain[7:8]
        assert few < whole * 0.4
        values, rows = cost(EqualTo(("timestamp",), plain[350]["timestamp"]))
        assert plain[350] in rows, "the log has it, and the table has not"
        assert values == 0


def test_history_stays_readable_after_the_log_has_truncated_it(uri: str, tmp_path: Path) -> None:
    written(uri, "history", f"file://{tmp_path}/objects")
    plain = read(uri, "history")
    truncate_log("history", before=2 * RECORDS + 50, uri=uri)
    assert read(uri, "history") == plain[2 * RECORDS + 50 :]
    assert read(uri, "history", table="parquet") == plain
    some = read(uri, "history", table="parquet", startingOffsets='{"history": 10}')
    assert some == plain[10:]
    rebuild_table("history", uri=uri)
    assert read(uri, "history", table="parquet") == plain[2 * RECORDS + 50 :]


def test_a_lost_or_damaged_file_is_an_error_that_says_what_to_do(uri: str, tmp_path: Path) -> None:
    written(uri, "damaged", f"file://{tmp_path}/objects")
    reader = reader_of(uri, "damaged", table="parquet")
    parts = reader.partitions()
    info = table_info("damaged", uri=uri)
    path = Path(info.storage.removeprefix("file://"), info.table.files[0].path)
    data = path.read_bytes()
    for damaged in (data[:100] + bytes([data[100] ^ 1]) + data[101:], data[:-9], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(DamagedTable, match="dlog table rebuild damaged"):
            rows_of(reader, parts)
    assert len(read(uri, "damaged")) == TOTAL, "the log has all of it"


def test_a_table_that_is_not_there_yet_is_empty_and_one_that_will_not_be_is_an_error(
    uri: str, tmp_path: Path
) -> None:
    settings = LogSettings(archive=f"file://{tmp_path}/objects", archive_table="parquet")
    create_log("young", settings=settings, uri=uri)
    write(uri, "young", 0, 10)
    assert len(read(uri, "young", table="parquet")) == 10
    update_settings("young", {"archive_table": ""}, uri=uri)
    with pytest.raises(NoSuchTable, match="set archive_table"):
        read(uri, "young", table="parquet")
    with pytest.raises(InvalidOption, match="use parquet"):
        read(uri, "young", table="orc")
    with pytest.raises(InvalidOption, match="a stream reads the log"):
        SourceOptions.parse({"logs": "young", "table": "parquet"}).check_streaming()


def test_a_log_that_was_created_again_has_a_table_of_its_own(uri: str, tmp_path: Path) -> None:
    written(uri, "again", f"file://{tmp_path}/objects")
    delete_log("again", uri=uri)
    settings = LogSettings(archive=f"file://{tmp_path}/objects", archive_table="parquet")
    create_log("again", settings=settings, uri=uri)
    write(uri, "again", 0, 7)
    archive_log("again", at_once=True, uri=uri)
    assert [row["offset"] for row in read(uri, "again", table="parquet")] == list(range(7))


def test_each_row_is_read_once_while_the_archiver_extends_the_table(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    written(uri, "moving", f"file://{tmp_path}/objects")
    done = threading.Event()
    ends: list[int] = []

    def archive_on() -> None:
        first = TOTAL
        while not done.is_set():
            write(uri, "moving", first, 20)
            first += 20
            archive_log("moving", at_once=True, uri=uri)
            ends.append(table_info("moving", uri=uri).table.end)

    archiver = threading.Thread(target=archive_on)
    archiver.start()
    try:
        counts: list[int] = []
        while len(counts) < 3 or len(ends) < 4:
            frame = batch(spark, uri, "moving", table="parquet", minTaskRecords=50)
            rows = frame.select("offset", "txid", "value").collect()
            offsets = sorted(row.offset for row in rows)
            assert offsets == list(range(len(offsets)))
            assert all(row.value == b"%06d" % row.offset * 50 for row in rows)
            counts.append(len(offsets))
    finally:
        done.set()
        archiver.join()
    assert counts[-1] > counts[0] >= TOTAL
    assert ends[-1] > ends[0]


# What is in object storage is read there, by the tasks: table or not.


@pytest.fixture
def archived(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], FaultyS3]]:
    """Makes a log whose records are in object storage alone, in segments of 300 KB or more."""
    monkeypatch.setattr(object_format, "BLOCK_BYTES", 64 << 10)
    monkeypatch.setattr(object_tail, "AHEAD_BLOCKS", 2)
    with s3(monkeypatch, seed=1) as storage:

        def made(name: str) -> FaultyS3:
            settings = LogSettings(archive=f"s3://{BUCKET}/direct")
            create_log(name, settings=settings, uri=uri)
            with Log.open(name, uri=uri) as log:
                for index in range(TOTAL):
                    if index and index % RECORDS == 0:
                        log.flush()
                        log.roll()
                    log.append_async(
                        b"%08d" % index * 2000, txid=index, timestamp_ms=NOON_MS + index * STEP_MS
                    )
            archive_log(name, at_once=True, uri=uri)
            storage.read.clear()
            return storage

        yield made


def bytes_of(storage: FaultyS3) -> int:
    return sum(size for _, size in storage.read)


def test_tasks_read_archived_segments_from_the_storage_in_parallel_by_bytes(
    uri: str, archived: Callable[[str], FaultyS3]
) -> None:
    storage = archived("direct")
    reader = reader_of(uri, "direct", maxBytesPerTask="2M")
    parts = reader.partitions()
    planning = bytes_of(storage)
    assert planning < 500_000, "a plan reads no records"
    stored = TOTAL * 16_000
    assert len(parts) >= stored // (2 << 20)
    sizes: list[int] = []
    for part in parts:
        forget_shared_access(Namespace(uri))
        storage.read.clear()
        assert rows_of(reader, [part])
        sizes.append(bytes_of(storage))
    assert max(sizes) < 2 * (2 << 20), "a task reads its share, whole blocks and the footers"
    assert sum(sizes) < 2 * stored
    assert len(read(uri, "direct")) == TOTAL


@pytest.mark.parametrize(
    "bounds",
    [
        {"startingOffsets": '{"pruned": 150}', "endingOffsets": '{"pruned": 160}'},
        {"startingTxid": 150, "endingTxid": 160},
        {"startingTimestamp": NOON_MS + 150 * STEP_MS, "endingTimestamp": NOON_MS + 160 * STEP_MS},
    ],
    ids=["offset", "txid", "time"],
)
def test_offset_txid_and_time_leave_segments_unread_but_the_next_one(
    uri: str, archived: Callable[[str], FaultyS3], bounds: dict[str, object]
) -> None:
    storage = archived("pruned")
    try:
        rows = read(uri, "pruned", **bounds)
        assert [row["offset"] for row in rows] == list(range(150, 160))
        segments = Counter[str]()
        for path, size in storage.read:
            segments[path.rpartition("/")[2].partition("-")[0]] += size
        assert segments["2"] >= 16_000
        assert max(segments["1"], segments["4"]) < RECORDS * 16_000 / 2, "not their records"
    finally:
        delete_log("pruned", uri=uri)
