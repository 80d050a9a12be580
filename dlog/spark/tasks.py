"""What a task of Spark is given, and how an executor reads it."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from dlog.spark.access import forget_shared_access, shared_access
from dlog.spark.arrow import gather
from dlog.spark.namespaces import Namespace
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogRange
from ledger.errors import LogError
from ledger.log_events import get_logger

_log = get_logger(__name__)


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark has no types here
    """One task: the ranges it reads, in order."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


def read_partition(
    namespace: Namespace, partition: LogPartition, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the records of *partition*, exactly, unless *options* let go what is gone."""
    access = shared_access(namespace)
    on_gone = None if options.fail_on_data_loss else _skipped
    try:
        for piece in partition.ranges:
            yield from gather(
                access.read(piece, include_headers=options.include_headers, on_gone=on_gone)
            )
    except LogError:
        forget_shared_access(namespace)
        raise


def _skipped(log: str, first: int, end: int) -> None:
    _log.warning("task_skips_records", log=log, first=first, end=end, records=end - first)
