"""Streaming from logs: what the runner of a query asks for, micro-batch after micro-batch.

Which process runs what decides the shape of this file. A stream reader is made twice: once in
the long-lived runner of the query, which asks it for offsets and partitions, and once more in
a planning process, from where it is pickled to the executors. So it reaches the cluster
lazily, drops that when pickled, and an executor learns all it needs from the partition.

Spark forgives no regression: whatever `latestOffset` returns is checkpointed and read. So a
tail that is older than the start is taken as "nothing new", and trouble that may pass as well.
"""

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from dlog.errors import NoSuchLog
from dlog.spark.access import Access
from dlog.spark.batch import starts_of
from dlog.spark.errors import StreamBroken
from dlog.spark.namespaces import Namespace
from dlog.spark.offsets import StreamPosition, decode, encode, name_of
from dlog.spark.options import SourceOptions
from dlog.spark.plan import LogEnd, TriggerDelay, advance, is_current, waiting
from dlog.spark.tasks import LogPartition, planned, read_partition
from ledger.errors import LogError
from ledger.log_events import get_logger

Offset = dict[str, object]

_log = get_logger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans micro-batches in the runner, and reads ranges on the executors."""

    def __init__(self, namespace: Namespace, options: SourceOptions) -> None:
        self._namespace, self._options = namespace, options
        self._forget()

    def _forget(self) -> None:
        self._access: Access | None = None
        self._initial: Offset | None = None
        self._tails: dict[str, LogEnd] = {}
        self._tails_before: dict[str, LogEnd] = {}
        self._moved: dict[str, StreamPosition] | None = None
        """Where the consumers are, as far as this process knows."""
        self._ends_where_it_is = False
        self._frozen = False
        least = self._options.records_per_trigger_min or 1
        self._trigger_delay = TriggerDelay(least, self._options.trigger_delay_s)

    def __getstate__(self) -> tuple[Namespace, SourceOptions]:
        return self._namespace, self._options

    def __setstate__(self, state: tuple[Namespace, SourceOptions]) -> None:
        self._namespace, self._options = state
        self._forget()

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        # Spark asks twice; "latest" must not move in between.
        if self._initial is None:
            access = self._connected()
            tails = access.ends(self._options.selection)
            self._tails = tails
            starts = starts_of(self._options, tails, access, on_loss=self._on_loss)
            self._move_consumer(starts)  # so that retention waits for the query from here on
            self._initial = encode(starts)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        # Spark knows one limit; `latestOffset` keeps to both.
        if self._options.records_per_trigger_max is not None:
            return ReadMaxRows(self._options.records_per_trigger_max)
        if self._options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger_max)
        if self._options.records_per_trigger_min is not None:
            return ReadMinRows(self._options.records_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return where the batch from *start* ends; equal to *start* if there is nothing new."""
        before = decode(start)
        # Of a trigger that runs once Spark asks for everything, whatever our default is.
        unlimited = isinstance(limit, ReadAllAvailable)
        holds = not (unlimited or self._ends_where_it_is)
        try:
            self._look(before, holds=holds)
        except LogError as error:
            if self._ends_where_it_is or not error.retryable:
                raise
            _log.warning("tails_unavailable", error=str(error))
            return start
        # Spark asks for the next batch once it has written down that this one is done. It calls
        # `commit` as well, but only if there is a next batch: an idle query would seem to lag.
        self._move_consumer(before)
        self._check_named(before)
        if holds and self._is_held(before):
            return start
        end = advance(
            before,
            self._tails,
            records_max=None if unlimited else self._options.records_per_trigger_max,
            bytes_max=None if unlimited else self._options.bytes_per_trigger_max,
            wanted=self._options.selection.chosen,
            on_loss=self._on_loss,
        )
        return encode(end)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Report the true tails to Spark, for the lag in its progress reports."""
        return encode(_ends(self._tails)) if self._tails else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the query where the logs end when it is asked for its first batch."""
        self._ends_where_it_is = True

    def partitions(self, start: Offset, end: Offset) -> list[LogPartition]:
        before = decode(start)
        if not self._tails:
            self._learn_sizes(before)
        return planned(before, decode(end), self._options, self._tails)

    def read(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._namespace, partition, self._options)

    def commit(self, end: Offset) -> None:
        """Move the named consumers, if there are any: Spark's checkpoint is all the state."""
        self._move_consumer(decode(end))

    def stop(self) -> None:
        if self._access is not None:
            self._access.close()
            self._access = None

    def _connected(self) -> Access:
        if self._access is None:
            self._access = Access(self._namespace)
        return self._access

    def _learn_sizes(self, before: Mapping[str, StreamPosition]) -> None:
        """Look at the logs for a batch that was planned before this process began."""
        following = {log: position.incarnation for log, position in before.items()}
        try:
            self._tails = self._connected().ends(self._options.selection, following=following)
        except LogError as error:  # tasks are cut by records alone then
            _log.warning("tails_unavailable", error=str(error))

    def _look(self, before: Mapping[str, StreamPosition], *, holds: bool) -> None:
        """Find out where the logs end; wait a moment for a batch if there is none."""
        if self._frozen:
            return
        following = {log: position.incarnation for log, position in before.items()}
        if self._ends_where_it_is:
            tails = self._connected().ends(self._options.selection, following=following)
            self._frozen = True
        else:
            wait_s = self._options.poll_ms / 1000
            if holds:
                wait_s = min(wait_s, self._trigger_delay.left_s(time.monotonic()))
            tails = self._connected().tails(
                self._options.selection,
                following=following,
                enough=lambda tails: self._is_news(before, tails, holds=holds),
                wait_s=wait_s,
            )
        self._tails_before, self._tails = self._tails, tails

    def _is_news(
        self, before: Mapping[str, StreamPosition], tails: Mapping[str, LogEnd], *, holds: bool
    ) -> bool:
        """Return whether there is a batch: enough records, or a log that came or went."""
        if not self._goes_on(before, tails):
            return True
        count = waiting(before, tails)
        return self._trigger_delay.enough(count) if holds else count > 0

    def _is_held(self, before: Mapping[str, StreamPosition]) -> bool:
        if not self._goes_on(before, self._tails):
            return False
        return self._trigger_delay.holds(waiting(before, self._tails), time.monotonic())

    def _goes_on(self, before: Mapping[str, StreamPosition], tails: Mapping[str, LogEnd]) -> bool:
        chosen = self._options.selection.chosen
        wanted = (log for log in before if chosen(name_of(log)))
        return is_current(before, tails) and all(log in tails for log in wanted)

    def _check_named(self, before: Mapping[str, StreamPosition]) -> None:
        """Refuse a log that was named and never was there, unless losses are accepted."""
        for log in self._options.selection.names:
            if log not in before and log not in self._tails and self._options.fail_on_data_loss:
                raise NoSuchLog(log)

    def _on_loss(self, loss: StreamBroken) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        records = loss.records_gone
        seen = self._tails_before.get(loss.log)
        if records is None and seen is not None and loss.next_offset is not None:
            records = max(0, seen.next_offset - loss.next_offset)
        _log.warning("records_gone", log=loss.log, records=records, reason=type(loss).__name__)

    def _move_consumer(self, positions: Mapping[str, StreamPosition]) -> None:
        if self._options.consumer is None or positions == self._moved:
            return
        try:
            is_there = self._connected().move(self._options.consumer, positions)
            self._moved = dict(positions) if is_there else None
        except LogError as error:
            _log.warning("consumers_not_moved", error=str(error))


def _ends(tails: Mapping[str, LogEnd]) -> dict[str, StreamPosition]:
    return {log: StreamPosition(tail.incarnation, tail.next_offset) for log, tail in tails.items()}
