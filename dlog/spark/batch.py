"""Batch reading of logs: what was acknowledged when the job is planned, or a part of it."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter

from dlog.position import Timestamp
from dlog.spark.access import Access
from dlog.spark.beginnings import starts_of, stops_of
from dlog.spark.errors import StreamBroken
from dlog.spark.filters import Narrowed, clamp, narrow
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import Position
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogTail
from dlog.spark.tasks import LogPartition, planned, read_partition
from ledger.log_events import get_logger

_log = get_logger(__name__)


class BatchReader(DataSourceReader):  # type: ignore[misc] # pyspark has no types here
    """Reads between two ends, which are found once, when the job is planned."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self._namespace, self._options = namespace, options
        self._narrowed = Narrowed()

    def partitions(self) -> list[LogPartition]:
        access = Access(self._namespace)
        try:
            tails = access.ends(self._options.selection)
            starts, stops = self._ends(access, tails)
        finally:
            access.close()
        # Of no partition at all Spark would make one of its own kind, and have us read that.
        return planned(starts, stops, self._options, tails) or [LogPartition(())]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._namespace, partition, self._options)

    def _ends(
        self, access: Access, tails: Mapping[str, LogTail]
    ) -> tuple[dict[str, Position], dict[str, Position]]:
        starts = starts_of(self._options, tails, access, on_loss=self._on_loss)
        stops = stops_of(self._options, tails, access)
        starts, stops = clamp(self._narrowed, starts, stops)
        if self._narrowed.time_ms is not None:
            for log, start in starts.items():
                reached = access.seek(log, start.incarnation, Timestamp(self._narrowed.time_ms))
                starts[log] = Position(start.incarnation, max(start.next_offset, reached))
        return starts, stops

    def _on_loss(self, loss: StreamBroken) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        _log.warning(
            "records_gone", log=loss.log, records=loss.records_gone, reason=type(loss).__name__
        )


class NarrowingBatchReader(BatchReader):
    """Skips what no filter lets through.

    A class of its own: Spark refuses every read of a reader that has `pushFilters`, as long as
    spark.sql.python.filterPushdown.enabled is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._narrowed = narrow(filters, by_time=self._options.timestamps_ascend)
        return filters
