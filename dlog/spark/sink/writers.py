"""Spark's writers: what tasks do with rows, and what is done with their messages.

A writer of a streaming query is made twice for each batch: where the batch is planned, from where
it is pickled to the tasks, and where it is committed. The first one claims the log, so that tasks
can stage for it. Nothing is kept in these processes: what is open is with the keeper.

A batch is one unit of the query: its number is the batch's, so one that Spark runs again, because
it died between our commit and the note that it makes of it, is found to be in the log. Only the
last batch can come again so; a lower number is an error.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from dlog.aio.write.sink import Assignment
from dlog.arrow import gather
from dlog.errors import TxidOutOfOrder, UnitSuperseded
from dlog.receipts import Receipt
from dlog.spark.access import forget_shared_access, shared_access
from dlog.spark.errors import BatchSuperseded, InvalidOption, TxidsUnordered
from dlog.spark.namespaces import Namespace
from dlog.spark.sink.columns import SinkColumns
from dlog.spark.sink.keeper.client import KeeperClient, Starter
from dlog.spark.sink.keeper.place import own_driver, place_of
from dlog.spark.sink.options import SinkOptions, origin_of_write
from dlog.spark.sink.rows import Part, StagedLedger, TaskLedger, TaskRows
from ledger.errors import LogError

if TYPE_CHECKING:
    from dlog.spark.sink.payload import PayloadRows

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""Properties of a task that Spark sets for a streaming query."""
COMMITS_AT_ONCE_MAX: Final = 16
"""Logs of a batch that are committed at once, each by a connection to the keeper of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What tasks and commit need to know of a write; pickled to them."""

    namespace: Namespace
    options: SinkOptions
    columns: SinkColumns
    assignments: dict[str, Assignment]
    payload: "PayloadRows | None" = None
    """What makes records of rows that have the columns of a schema."""


class SinkMessage(WriterCommitMessage):  # type: ignore[misc] # pyspark has no types here
    """What one task wrote, in order."""

    def __init__(
        self, run: str, receipt: Receipt, partition: int, parts: dict[str, list[Part]]
    ) -> None:
        self.run, self.receipt, self.partition, self.parts = run, receipt, partition, parts


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        assert context is not None, "tasks write"
        facts = [context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY)]
        query, batch = facts
        run = context.getLocalProperty(RUN_PROPERTY) or query
        receipt = Receipt(UUID(query).bytes, int(batch))
        return _write(self._plan, run, receipt, iterator)

    def commit(self, messages: Sequence[SinkMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        _commit(self._plan, messages, final=False)

    def abort(self, messages: Sequence[SinkMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do: what was staged and not committed never becomes part of a log."""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    def __init__(self, plan: Plan, run: str, receipt: Receipt) -> None:
        self._plan, self._run, self._receipt = plan, run, receipt

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        return _write(self._plan, self._run, self._receipt, iterator)

    def commit(self, messages: Sequence[SinkMessage | None]) -> None:
        if not _commit(self._plan, messages, final=True):
            self.abort(messages)

    def abort(self, messages: Sequence[SinkMessage | None]) -> None:  # noqa: ARG002 - Spark names it
        """Let the logs go; what was staged and not committed never becomes part of one."""
        if self._plan.assignments and self._plan.options.log is not None:
            _keeper(self._plan.namespace).finish([self._plan.options.log], run=self._run)


def stream_writer(
    namespace: Namespace,
    options: SinkOptions,
    fields: Sequence[tuple[str, str]],
    *,
    planning: bool,
    payload: "PayloadRows | None" = None,
) -> StreamWriter:
    """Return the writer of a streaming query; where the batch is planned it claims the log."""
    columns = _columns(options, fields, payload)
    if options.write_id is not None:
        reason = "only a batch write has one; a query is known by its checkpoint"
        raise InvalidOption("writeid", options.write_id, reason)
    plan = Plan(namespace, options, columns, {}, payload)
    return StreamWriter(_claimed(plan, None) if planning else plan)


def batch_writer(
    namespace: Namespace,
    options: SinkOptions,
    fields: Sequence[tuple[str, str]],
    payload: "PayloadRows | None" = None,
) -> BatchWriter:
    """Return the writer of one job, which claims the log for it."""
    columns = _columns(options, fields, payload)
    run = str(uuid4())
    origin = uuid4() if options.write_id is None else origin_of_write(options.write_id)
    receipt = Receipt(origin.bytes, options.write_number)
    plan = Plan(namespace, options, columns, {}, payload)
    return BatchWriter(_claimed(plan, run), run, receipt)


def _columns(
    options: SinkOptions, fields: Sequence[tuple[str, str]], payload: "PayloadRows | None"
) -> SinkColumns:
    if options.into_table and payload is None:
        return SinkColumns.of_table(fields)
    return SinkColumns.of(fields, log=options.log)


def _claimed(plan: Plan, run: str | None) -> Plan:
    options = plan.options
    assignments = _keeper(plan.namespace).claim(
        options.logs if options.log is None else [options.log],
        run=run if options.log is not None else None,
        create=options.create_logs,
        settings=options.settings,
        all_held=options.log is None,
    )
    return replace(plan, assignments=assignments)


def _write(
    plan: Plan, run: str, receipt: Receipt, iterator: Iterator[pa.RecordBatch]
) -> SinkMessage:
    access = shared_access(plan.namespace)

    def begin(assignment: Assignment) -> TaskLedger:
        return StagedLedger(access, assignment, receipt)

    rows = TaskRows(
        plan.columns,
        log=plan.options.log,
        assignments=plan.assignments,
        inline_bytes_max=plan.options.inline_bytes_max,
        begin=begin,
    )
    try:
        for batch in gather(iterator):
            rows.add(batch if plan.payload is None else plan.payload.raw(batch))
        parts = rows.parts()
    except BaseException as error:
        rows.abandon()
        if isinstance(error, LogError):
            forget_shared_access(plan.namespace)
        raise
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    return SinkMessage(run, receipt, partition, parts)


def _commit(plan: Plan, messages: Sequence[SinkMessage | None], *, final: bool) -> bool:
    """Make what tasks wrote part of the logs; return whether there was anything."""
    written = sorted((m for m in messages if m is not None), key=lambda m: m.partition)
    assert len(written) == len(messages), "Spark commits what all tasks wrote"
    parts: dict[str, list[Part]] = {}
    for message in written:
        for log, its_parts in message.parts.items():
            parts.setdefault(log, []).extend(its_parts)
    logs = deque(sorted(log for log, its_parts in parts.items() if its_parts))

    def next_log() -> str | None:
        with suppress(IndexError):  # another thread took the last one
            return logs.popleft()
        return None

    def commit_some(connection: int) -> None:
        keeper = _keeper(plan.namespace, connection)
        while (log := next_log()) is not None:
            try:
                _commit_to(keeper, plan, log, written[0], parts[log], final=final)
            except BaseException:
                logs.clear()  # Spark runs the whole batch again
                raise

    if len(logs) <= 1:
        commit_some(0)
    else:
        at_once = min(len(logs), COMMITS_AT_ONCE_MAX)
        with ThreadPoolExecutor(at_once, "commits of logs") as pool:
            for committing in [pool.submit(commit_some, number) for number in range(at_once)]:
                committing.result()
    return any(parts.values())


def _commit_to(
    keeper: KeeperClient,
    plan: Plan,
    log: str,
    message: SinkMessage,
    parts: list[Part],
    *,
    final: bool,
) -> None:
    try:
        keeper.commit(
            log,
            message.receipt,
            parts,
            run=message.run,
            entry_bytes_max=plan.options.inline_bytes_max,
            create=plan.options.create_logs,
            settings=plan.options.settings,
            final=final,
        )
    except TxidOutOfOrder as error:
        reason = f"{error.txid} comes after {error.last_txid}"
        raise TxidsUnordered(log, reason) from error
    except UnitSuperseded as error:
        write_id = plan.options.write_id
        raise BatchSuperseded(log, error.number, error.last, write_id=write_id) from error


_keepers: dict[tuple[Namespace, int, int], KeeperClient] = {}


def _keeper(namespace: Namespace, connection: int = 0) -> KeeperClient:
    """Return this process's connection to the keeper with this number, each for one thread; a
    forked worker makes its own."""
    key = (namespace, os.getpid(), connection)
    if key not in _keepers:
        driver = own_driver()
        place = place_of(driver, namespace)
        _keepers[key] = KeeperClient(place, Starter(place, namespace, driver))
    return _keepers[key]
