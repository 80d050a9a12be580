"""What Spark's Python sources and sinks can do at most: rows out of memory, and rows thrown away.

Format `memory-rows` gives rows of the columns of a log, all from one batch that is made once per
task; format `discard` takes rows and does nothing with them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from dlog.arrow import to_arrow
from dlog.columns import Columns
from dlog.recordbatch import decode_batch, encode_batch
from dlog.row_schema import SPARK_SCHEMA

ROWS_AT_ONCE: Final = 50_000
BYTES_AT_ONCE: Final = 5_000_000


class MemorySource(DataSource):  # type: ignore[misc] # pyspark has no types here
    """Options: rows, valueBytes, partitions; rowsPerTrigger, or rowsPerSecond of a stream."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in dict(options).items()}
        self._rows = int(given.get("rows", "0"))
        self._value_bytes = int(given.get("valuebytes", "100"))
        self._partitions = int(given.get("partitions", "2"))
        self._per_trigger = int(given.get("rowspertrigger", "0"))
        self._per_second = int(given.get("rowspersecond", "0"))

    @classmethod
    def name(cls) -> str:
        return "memory-rows"

    def schema(self) -> str:
        return SPARK_SCHEMA

    def reader(self, schema: object) -> "MemoryReader":  # noqa: ARG002 - Spark names it
        return MemoryReader(self._rows, self._value_bytes, self._partitions)

    def streamReader(self, schema: object) -> "MemoryStream":  # noqa: ARG002, N802 - Spark's name
        return MemoryStream(
            self._rows, self._value_bytes, self._partitions, self._per_trigger, self._per_second
        )


class Rows(InputPartition):  # type: ignore[misc] # pyspark has no types here
    def __init__(self, count: int, born_ns: tuple[int, ...] = ()) -> None:
        super().__init__(None)
        self.count, self.born_ns = count, born_ns


class MemoryReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, rows: int, value_bytes: int, partitions: int) -> None:
        self._rows, self._value_bytes, self._partitions = rows, value_bytes, partitions

    def partitions(self) -> list[Rows]:
        return _shares(self._rows, self._partitions)

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._value_bytes)


class MemoryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(
        self, rows: int, value_bytes: int, partitions: int, per_trigger: int, per_second: int
    ) -> None:
        self._rows, self._value_bytes, self._partitions = rows, value_bytes, partitions
        self._per_trigger, self._per_second = per_trigger, per_second

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"at": time.time_ns() if self._per_second else 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._per_trigger) if self._per_trigger else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's name
        if self._per_second:
            return {"at": time.time_ns()}
        step = self._per_trigger or self._rows
        return {"at": min(self._rows, start["at"] + step)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        if not self._per_second:
            return _shares(end["at"] - start["at"], self._partitions)
        step = 1_000_000_000 // self._per_second
        first = -(-start["at"] // step) * step
        return [Rows(0, tuple(range(first, end["at"], step)))]

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._value_bytes)


class DiscardSink(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: object, overwrite: bool) -> "Discard":  # noqa: ARG002, FBT001 - Spark's
        return Discard()

    def streamWriter(self, schema: object, overwrite: bool) -> "StreamDiscard":  # noqa: ARG002, FBT001, N802 - Spark's
        return StreamDiscard()


class Discard(DataSourceArrowWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _discard(iterator)


class StreamDiscard(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _discard(iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass


def _discard(iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in iterator:
        pass
    return WriterCommitMessage()


def _shares(rows: int, partitions: int) -> list[Rows]:
    cuts = [rows * number // partitions for number in range(partitions + 1)]
    return [Rows(end - start) for start, end in pairwise(cuts) if end > start]


def _rows(partition: Rows, value_bytes: int) -> Iterator[pa.RecordBatch]:
    if partition.born_ns:
        yield _batch([b"%d" % born for born in partition.born_ns])
        return
    at_once = max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // value_bytes))
    whole = _batch([bytes(value_bytes)] * min(at_once, max(1, partition.count)))
    left = partition.count
    while left:
        yield whole.slice(0, min(left, whole.num_rows))
        left -= min(left, whole.num_rows)


def _batch(values: list[bytes]) -> pa.RecordBatch:
    payload = encode_batch(Columns(values), base_index=0, base_timestamp_ms=0)
    return to_arrow("memory", decode_batch(payload), first_offset=0, segment=1, entry=0)
