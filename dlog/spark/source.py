"""The Spark data source `dlog`: streaming and batch reading of logs.

Which process runs what decides the shape of this file. A stream reader is made twice: once in
the long-lived runner of the query, which asks it for offsets and partitions, and once more in
a planning process, from where it is pickled to the executors. So it reaches the cluster
lazily, drops that when pickled, and an executor learns all it needs from the partition.

Spark forgives no regression: whatever `latestOffset` returns is checkpointed and read. So a
tail that is older than the start is taken as "nothing new", and trouble that may pass as well.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dlog.config import resolve_uri
from dlog.spark.access import Access, forget_shared_access, shared_access
from dlog.spark.arrow import SPARK_SCHEMA, SPARK_SCHEMA_WITH_HEADERS, gather
from dlog.spark.errors import InvalidOption
from dlog.spark.offsets import Position, decode, encode
from dlog.spark.options import EARLIEST, LATEST, SourceOptions
from dlog.spark.plan import LogRange, LogTail, advance, check_continues, plan_partitions
from dlog.spark.sink.options import SinkOptions
from dlog.spark.sink.writers import BatchWriter, StreamWriter, batch_writer, stream_writer
from ledger.errors import LogError
from ledger.log_events import get_logger

Offset = dict[str, object]

_log = get_logger(__name__)


class DlogSource(DataSource):  # type: ignore[misc] # pyspark has no types here
    """Format `dlog`; see `dlog.spark.options` for what can be said about it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # What may be said differs between reading and writing, so it is looked at when Spark
        # has asked for one of them.
        super().__init__(options)
        self._given = dict(options)
        self._pickled = False

    def __getstate__(self) -> dict[str, str]:
        return self._given

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state)  # type: ignore[misc] # as if made anew
        self._pickled = True

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> str:
        return SPARK_SCHEMA_WITH_HEADERS if self._reading().include_headers else SPARK_SCHEMA

    def reader(self, schema: object) -> "BatchReader":  # noqa: ARG002 - Spark names it
        options = self._reading()
        return BatchReader(resolve_uri(options.uri), options)

    def streamReader(self, schema: object) -> "StreamReader":  # noqa: ARG002, N802 - Spark's name
        options = self._reading()
        return StreamReader(resolve_uri(options.uri), options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        options = self._writing(overwrite)
        return batch_writer(resolve_uri(options.uri), options, _fields(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        # Where a batch is committed Spark hands us the source as it was when the query began.
        options = self._writing(overwrite)
        return stream_writer(
            resolve_uri(options.uri), options, _fields(schema), planning=not self._pickled
        )

    def _reading(self) -> SourceOptions:
        return SourceOptions.parse(self._given)

    def _writing(self, overwrite: bool) -> SinkOptions:  # noqa: FBT001 - as Spark says it
        if overwrite:
            reason = "a log is only appended to; use append, and 'dlog log truncate' to free space"
            raise InvalidOption("mode", "overwrite", reason)
        return SinkOptions.parse(self._given)


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class LogPartition(InputPartition):  # type: ignore[misc] # pyspark has no types here
    """One task: the ranges it reads, in order."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches in the runner, and reads ranges on the executors."""

    def __init__(self, uri: str, options: SourceOptions) -> None:
        self._uri, self._options = uri, options
        self._forget()

    def _forget(self) -> None:
        self._access: Access | None = None
        self._initial: Offset | None = None
        self._tails: dict[str, LogTail] = {}
        self._frozen = False

    def __getstate__(self) -> tuple[str, SourceOptions]:
        return self._uri, self._options

    def __setstate__(self, state: tuple[str, SourceOptions]) -> None:
        self._uri, self._options = state
        self._forget()

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        # Spark asks twice; "latest" must not move in between.
        if self._initial is None:
            tails = self._newest_tails()
            self._initial = encode(_starts(self._options, tails))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Spark knows one limit; `latestOffset` keeps to both.
        if self._options.records_per_trigger_max is not None:
            return ReadMaxRows(self._options.records_per_trigger_max)
        if self._options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return where the batch from *start* ends; equal to *start* if there is nothing new."""
        before = decode(start)
        unlimited = isinstance(limit, ReadAllAvailable)
        try:
            if not self._frozen:
                self._newest_tails(after=before)
        except LogError as error:
            if not error.retryable:
                raise
            _log.warning("tails_unavailable", error=str(error))
            return start
        end = advance(
            before,
            self._tails,
            records_max=None if unlimited else self._options.records_per_trigger_max,
            bytes_max=None if unlimited else self._options.bytes_per_trigger_max,
        )
        return encode(end)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Report the true tails to Spark, for the lag in its progress reports."""
        return encode(_ends(self._tails)) if self._tails else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze the tails: the query ends where they are now."""
        self._newest_tails()
        self._frozen = True

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        tasks = plan_partitions(
            decode(start),
            decode(end),
            partitions_max=self._options.partitions_max,
            task_records_min=self._options.task_records_min,
        )
        return [LogPartition(ranges) for ranges in tasks]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._uri, partition, self._options)

    def commit(self, end: Offset) -> None:
        """Nothing to do: Spark's checkpoint is the only state of a query."""

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None

    def _newest_tails(self, after: Mapping[str, Position] | None = None) -> dict[str, LogTail]:
        """Ask for the tails; with *after*, wait a moment for one beyond it."""
        if self._access is None:
            self._access = Access(self._uri)
        known = {log: position.next_offset for log, position in (after or {}).items()}
        wait_s = 0.0 if after is None else self._options.poll_ms / 1000
        self._tails = self._access.tails(self._options.logs, after=known, wait_s=wait_s)
        return self._tails


class BatchReader(DataSourceReader):  # type: ignore[misc] # pyspark has no types here
    """Reads what is committed when the job is planned, or between two given offsets."""

    def __init__(self, uri: str, options: SourceOptions) -> None:
        self._uri, self._options = uri, options

    def partitions(self) -> list[LogPartition]:
        access = Access(self._uri)
        try:
            tails = access.tails(self._options.logs, after={}, wait_s=0.0)
        finally:
            access.close()
        tasks = plan_partitions(
            _starts(self._options, tails),
            _stops(self._options, tails),
            partitions_max=self._options.partitions_max,
            task_records_min=self._options.task_records_min,
        )
        return [LogPartition(ranges) for ranges in tasks]

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._uri, partition, self._options)


def _read(uri: str, partition: LogPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    access = shared_access(uri)
    try:
        for piece in partition.ranges:
            yield from gather(access.read(piece, include_headers=options.include_headers))
    except LogError:
        forget_shared_access(uri)
        raise


def _starts(options: SourceOptions, tails: Mapping[str, LogTail]) -> dict[str, Position]:
    starts: dict[str, Position] = {}
    for log, tail in tails.items():
        match options.starting(log):
            case int(offset):
                position = Position(tail.incarnation, offset)
                check_continues(log, position, tail)
                starts[log] = position
            case chosen:
                assert chosen in (EARLIEST, LATEST)
                first = tail.first_offset if chosen == EARLIEST else tail.next_offset
                starts[log] = Position(tail.incarnation, first)
    return starts


def _stops(options: SourceOptions, tails: Mapping[str, LogTail]) -> dict[str, Position]:
    stops = _ends(tails)
    for log, tail in tails.items():
        match options.ending(log):
            case int(offset):
                if offset > tail.next_offset:
                    text = json.dumps({log: offset})
                    reason = f"log {log!r} ends at offset {tail.next_offset} now"
                    raise InvalidOption("endingoffsets", text, reason)
                stops[log] = Position(tail.incarnation, offset)
            case chosen:
                assert chosen == LATEST
    return stops


def _ends(tails: Mapping[str, LogTail]) -> dict[str, Position]:
    return {log: Position(tail.incarnation, tail.next_offset) for log, tail in tails.items()}
