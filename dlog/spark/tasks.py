"""What a task of Spark is given, and how an executor reads it."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlog.arrow import gather
from dlog.errors import DamagedTable
from dlog.protocol.table import incarnation_of
from dlog.spark.access import Access, OnGone, forget_shared_access, shared_access
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.plan import FileRange, LogEnd, LogRange, cut_files, plan_partitions
from ledger.errors import LogError
from ledger.log_events import get_logger

_log = get_logger(__name__)


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark has no types here
    """One task: the ranges it reads, in order, of logs and of files of their tables."""

    def __init__(self, ranges: Sequence[LogRange | FileRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def planned(
    start: Mapping[str, StreamPosition],
    end: Mapping[str, StreamPosition],
    options: SourceOptions,
    tails: Mapping[str, LogEnd],
    files: Sequence[FileRange] = (),
) -> list[LogPartition]:
    """Return the tasks that read *files*, and what lies between *start* and *end*; see
    `plan_partitions`."""
    tasks = plan_partitions(
        start,
        end,
        partitions_min=options.partitions_min,
        partitions_max=options.partitions_max,
        task_records_min=options.task_records_min,
        task_bytes_max=options.task_bytes_max,
        tasks_max=options.tasks_max,
        tails=tails,
    )
    of_files = cut_files(
        files, partitions_max=options.partitions_max, task_bytes_max=options.task_bytes_max
    )
    ranges: list[Sequence[LogRange | FileRange]] = [*of_files, *tasks]
    while len(ranges) > options.tasks_max:
        last = ranges.pop()
        ranges[len(ranges) % options.tasks_max] = (*ranges[len(ranges) % options.tasks_max], *last)
    return [LogPartition(each) for each in ranges]


def read_partition(
    namespace: Namespace, partition: LogPartition, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the records of *partition*, exactly, unless *options* let go what is gone."""
    access = shared_access(namespace)
    on_gone = None if options.fail_on_data_loss else _skipped
    try:
        for piece in partition.ranges:
            yield from gather(_rows_of(access, piece, options, on_gone))
    except LogError:
        forget_shared_access(namespace)
        raise


def _rows_of_file(piece: FileRange, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    from dlog.archive import object_store
    from dlog.archive.table_files import RowFilter, rows_in

    folder, path = object_store.open_folder(piece.storage), piece.file.path

    def read(start: int, stop: int) -> bytes:
        data = folder.read_now(path, range(start, stop))
        if data is None or len(data) != stop - start:
            what = "it does not exist" if data is None else f"it ends before byte {stop}"
            raise DamagedTable(piece.log, f"{piece.storage}/{path}", what)
        return data

    wanted = RowFilter(piece.first, piece.end, piece.first_us, piece.last_us)
    try:
        yield from rows_in(piece.log, piece.file, read, wanted, columns)
    except (ValueError, OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedTable(piece.log, f"{piece.storage}/{path}", reason) from error


def _rows_of(
    access: Access, piece: LogRange | FileRange, options: SourceOptions, on_gone: OnGone | None
) -> Iterator[pa.RecordBatch]:
    view = options.view
    columns = options.columns if view is None else view.raw_columns
    if isinstance(piece, FileRange):
        records = _rows_of_file(piece, columns)
        incarnation = incarnation_of(piece.storage)
    else:
        records = access.read(piece, columns=columns, on_gone=on_gone)
        incarnation = piece.incarnation
    if view is None:
        return records
    from dlog.spark.payload import WriterSchemas

    versions = WriterSchemas(lambda: access.schemas(incarnation))
    return view.rows(gather(records), versions.find)


def _skipped(log: str, first: int, end: int) -> None:
    _log.warning("task_skips_records", log=log, first=first, end=end, records=end - first)
