"""What a task of Spark is given, and how an executor reads it."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlog.arrow import gather
from dlog.spark.access import forget_shared_access, shared_access
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogEnd, LogRange, plan_partitions
from ledger.errors import LogError
from ledger.log_events import get_logger

_log = get_logger(__name__)


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark has no types here
    """One task: the ranges it reads, in order."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def planned(
    start: Mapping[str, StreamPosition],
    end: Mapping[str, StreamPosition],
    options: SourceOptions,
    tails: Mapping[str, LogEnd],
) -> list[LogPartition]:
    """Return the tasks that read what lies between *start* and *end*; see `plan_partitions`."""
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
    return [LogPartition(ranges) for ranges in tasks]


def read_partition(
    namespace: Namespace, partition: LogPartition, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the records of *partition*, exactly, unless *options* let go what is gone."""
    access = shared_access(namespace)
    on_gone = None if options.fail_on_data_loss else _skipped
    try:
        for piece in partition.ranges:
            yield from gather(access.read(piece, columns=options.columns, on_gone=on_gone))
    except LogError:
        forget_shared_access(namespace)
        raise


def _skipped(log: str, first: int, end: int) -> None:
    _log.warning("task_skips_records", log=log, first=first, end=end, records=end - first)
