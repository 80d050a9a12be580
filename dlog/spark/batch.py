"""Batch reading of logs: what was acknowledged when the job is planned, or a part of it.

Where users say that reading begins and ends becomes positions by looking at the logs once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter

from dlog.position import Timestamp, Txid
from dlog.spark.access import Access
from dlog.spark.errors import InvalidOption, StreamBroken
from dlog.spark.filters import Narrowed, clamp, narrow
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogEnd, OnLoss, continued, split_at_tables, with_history
from dlog.spark.selection import Bounds, Place
from dlog.spark.tasks import LogPartition, planned, read_partition
from ledger.log_events import get_logger

_log = get_logger(__name__)


def starts_of(
    options: SourceOptions, tails: Mapping[str, LogEnd], access: Access, *, on_loss: OnLoss
) -> dict[str, StreamPosition]:
    """Return where each log starts; *on_loss* is told of a start that was trimmed.

    Raises InvalidOption for a log that is not there, and beyond the end: a stream would skip what
    is appended up to there."""
    _check_found(options.starting, tails)
    starts: dict[str, StreamPosition] = {}
    for log, tail in tails.items():
        place = options.starting.of(log)
        offset = _offset(place, log, tail, access)
        _check_end(options.starting, log, place, tail)
        position = StreamPosition(tail.incarnation, offset)
        starts[log] = continued(log, position, tail, on_loss=on_loss)
    return starts


def stops_of(
    options: SourceOptions, tails: Mapping[str, LogEnd], access: Access
) -> dict[str, StreamPosition]:
    """Return where each log ends (exclusive). Raises InvalidOption beyond the end."""
    _check_found(options.ending, tails)
    stops: dict[str, StreamPosition] = {}
    for log, tail in tails.items():
        place = options.ending.of(log)
        offset = _offset(place, log, tail, access)
        _check_end(options.ending, log, place, tail)
        stops[log] = StreamPosition(tail.incarnation, min(offset, tail.next_offset))
    return stops


def _offset(place: Place, log: str, tail: LogEnd, access: Access) -> int:
    match place:
        case "start":
            return tail.first_offset
        case "end":
            return tail.next_offset
        case int():
            return place
        case Timestamp() | Txid():
            return access.seek(log, tail.incarnation, place)


def _check_end(bounds: Bounds, log: str, place: Place, tail: LogEnd) -> None:
    if isinstance(place, int) and place > tail.next_offset:
        reason = f"log {log!r} ends at offset {tail.next_offset} now"
        raise InvalidOption(bounds.option, json.dumps({log: place}), reason)


def _check_found(bounds: Bounds, tails: Mapping[str, LogEnd]) -> None:
    """Refuse a place in a log that matches the pattern and is not there."""
    for log in bounds.logs:
        if log not in tails:
            raise InvalidOption(bounds.option, log, f"there is no log {log!r}")


class BatchReader(DataSourceReader):  # type: ignore[misc] # pyspark has no types here
    """Reads between two ends, which are found once, when the job is planned."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self._namespace, self._options = namespace, options
        self._narrowed = Narrowed()

    def partitions(self) -> list[LogPartition]:
        access = Access(self._namespace)
        try:
            tails = access.ends(self._options.selection)
            tables = access.tables(tails) if self._options.table else {}
            tails = with_history(tails, tables)
            starts, stops = self._ends(access, tails)
            times = self._narrowed.first_us, self._narrowed.last_us
            files, starts = split_at_tables(
                starts, stops, tables, first_us=times[0], last_us=times[1]
            )
            self._skip_by_time(access, starts)
        finally:
            access.close()
        # Of no partition at all Spark would make one of its own kind, and have us read that.
        return planned(starts, stops, self._options, tails, files) or [LogPartition(())]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._namespace, partition, self._options)

    def _ends(
        self, access: Access, tails: Mapping[str, LogEnd]
    ) -> tuple[dict[str, StreamPosition], dict[str, StreamPosition]]:
        starts = starts_of(self._options, tails, access, on_loss=self._on_loss)
        stops = stops_of(self._options, tails, access)
        return clamp(self._narrowed, starts, stops)

    def _skip_by_time(self, access: Access, starts: dict[str, StreamPosition]) -> None:
        if self._narrowed.time_ms is None:
            return
        for log, start in starts.items():
            reached = access.seek(log, start.incarnation, Timestamp(self._narrowed.time_ms))
            starts[log] = StreamPosition(start.incarnation, max(start.next_offset, reached))

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
        self._narrowed = narrow(
            filters,
            by_time=self._options.timestamps_ascend,
            prefix="" if self._options.view is None else "_",
        )
        return filters
