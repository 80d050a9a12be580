"""The rows of one task, by log: they travel in its message, or go to a ledger of its own.

A few rows travel: a ledger for each would be a segment for each. From a limit on a task stages.
What has no assignment cannot be staged (its log was not known when the batch was planned), so it
travels up to a larger limit. Order is kept: what was kept back goes to the ledger first.

Bookies may be away for a while, and a task of Spark's local mode has one attempt. So a ledger
that ends is begun again, as long as what it holds is still at hand; a task that has staged more
fails instead, and Spark runs it again, or the query is started again.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from dlog.aio.write.sink import Assignment, Staged, Stager
from dlog.arrow import integers, numbers
from dlog.errors import InvalidName
from dlog.names import check_name
from dlog.receipts import Receipt
from dlog.settings import RECORD_BYTES_LIMIT
from dlog.spark.access import Access
from dlog.spark.errors import InvalidRow, TooManyRowsUnstaged, may_pass
from dlog.spark.sink.columns import SinkColumns
from dlog.spark.sink.encode import Encoder
from ledger.delays import Backoff
from ledger.errors import LogError

REPEATED_BYTES_MAX: Final = 32 << 20
"""What a task keeps to stage it again."""
PATIENCE_S: Final = 120.0
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 5.0
UNSTAGED_BYTES_MAX: Final = 64 << 20
"""What travels of one task to one log that it has no assignment for."""
LOGS_MAX: Final = 1000
"""Logs that one batch writes to."""
SORTED_BYTES: Final = 8 << 20
"""Rows that name their logs are put in order so many at once, so that each log gets few batches."""
Part = bytes | Staged
T = TypeVar("T")


class StagedLedger:
    """Used by the one thread of a task."""

    def __init__(
        self,
        access: Access,
        assignment: Assignment,
        receipt: Receipt,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._access, self._assignment, self._receipt = access, assignment, receipt
        self._patience_s = patience_s
        self._stager: Stager | None = None
        self._again: list[bytes] | None = []
        """What was added so far; None: it was too much to keep."""
        self._again_bytes = 0

    def add(self, payloads: list[bytes]) -> None:
        """Add batches; waits while too many are under way."""
        kept = self._again
        if kept is not None:
            self._again_bytes += sum(map(len, payloads))
            self._again = None if self._again_bytes > REPEATED_BYTES_MAX else [*kept, *payloads]
        before = kept or []

        async def add() -> None:
            stager = self._stager
            if stager is None:
                stager = self._stager = await self._begin(before)
            for payload in payloads:
                await stager.add(payload)

        self._patiently(add, repeatable=kept is not None)

    def seal(self) -> Staged:
        """Confirm and close."""
        kept = self._again

        async def seal() -> Staged:
            stager = self._stager
            if stager is None:
                stager = self._stager = await self._begin(kept or [])
            return await stager.seal()

        return self._patiently(seal, repeatable=kept is not None)

    def abandon(self) -> None:
        """The janitor deletes it."""
        self._access.run(self._abandon())

    async def _begin(self, payloads: list[bytes]) -> Stager:
        stager = await Stager.begin(await self._access.connected(), self._assignment, self._receipt)
        try:
            for payload in payloads:
                await stager.add(payload)
        except BaseException:
            await stager.abandon()
            raise
        return stager

    async def _abandon(self) -> None:
        stager, self._stager = self._stager, None
        if stager is not None:
            await stager.abandon()

    def _patiently(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        deadline = time.monotonic() + self._patience_s
        backoff = Backoff(BACKOFF_S, BACKOFF_S_MAX)

        async def once() -> T:
            return await attempt()

        while True:
            try:
                return self._access.run(once())
            except LogError as error:
                self._access.run(self._abandon())
                if not (repeatable and may_pass(error) and time.monotonic() < deadline):
                    raise
            time.sleep(backoff.next())


class TaskLedger(Protocol):
    """A ledger that a task stages."""

    def add(self, payloads: list[bytes]) -> None: ...
    def seal(self) -> Staged: ...
    def abandon(self) -> None: ...


Begin = Callable[[Assignment], TaskLedger]


class TaskRows:
    """Takes the rows of one task; `parts` is what they became. Else `abandon`."""

    def __init__(
        self,
        columns: SinkColumns,
        *,
        log: str | None,
        assignments: Mapping[str, Assignment],
        inline_bytes_max: int,
        begin: Begin,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._columns, self._log, self._assignments = columns, log, assignments
        self._inline_bytes_max = inline_bytes_max
        self._begin, self._now_ms = begin, now_ms
        self._logs: dict[str, _LogRows] = {}
        self._unsorted: list[pa.RecordBatch] = []
        self._unsorted_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Raises what `Encoder.encode` and staging do, `InvalidRow`, `TooManyRowsUnstaged`."""
        if self._columns.log is None:
            assert self._log is not None, "a log is named for all rows, or by each"
            self._rows_of(self._log).add(rows, self._now_ms())
            return
        if rows.column(self._columns.log).null_count:
            raise InvalidRow("log", "is null; each row needs the name of a log")
        self._unsorted.append(rows)
        self._unsorted_bytes += rows.nbytes
        if self._unsorted_bytes >= SORTED_BYTES:
            self._sort()

    def parts(self) -> dict[str, list[Part]]:
        """Seal what was staged; return what each log is to be given, in order. Raises as `add`."""
        self._sort()
        return {log: rows.parts() for log, rows in self._logs.items()}

    def abandon(self) -> None:
        for rows in self._logs.values():
            rows.abandon()

    def _sort(self) -> None:
        if not self._unsorted:
            return
        unsorted, self._unsorted, self._unsorted_bytes = self._unsorted, [], 0
        now_ms = self._now_ms()
        for log, its_rows in self._by_log(pa.concat_batches(unsorted)):
            self._rows_of(log).add(its_rows, now_ms)

    def _by_log(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        assert self._columns.log is not None, "rows name their logs"
        names = rows.column(self._columns.log)
        # Sorted once, by names as they come: to filter for each name costs rows times names.
        coded = names.dictionary_encode()
        codes = integers(coded.indices.cast(pa.int64()))
        order = np.argsort(codes, kind="stable")
        ordered = rows.take(numbers(order))
        ends = np.searchsorted(codes[order], np.arange(len(coded.dictionary)), side="right")
        begin = 0
        for name, end in zip(coded.dictionary.to_pylist(), ends.tolist(), strict=True):
            yield name, ordered.slice(begin, end - begin)
            begin = end

    def _rows_of(self, log: str) -> "_LogRows":
        if log in self._logs:
            return self._logs[log]
        try:
            check_name(log)
        except InvalidName as error:
            raise InvalidRow("log", f"names {log!r}: {error.reason}") from error
        if len(self._logs) >= LOGS_MAX:
            raise InvalidRow("log", f"names more than {LOGS_MAX} logs in one task")
        assignment = self._assignments.get(log)
        made = self._logs[log] = _LogRows(
            Encoder(
                log,
                self._columns,
                record_bytes_max=(
                    RECORD_BYTES_LIMIT
                    if assignment is None
                    else assignment.settings.record_bytes_max
                ),
            ),
            log,
            assignment,
            self._inline_bytes_max,
            self._begin,
        )
        return made


class _LogRows:
    def __init__(
        self,
        encoder: Encoder,
        log: str,
        assignment: Assignment | None,
        inline_bytes_max: int,
        begin: Begin,
    ) -> None:
        self._encoder, self._log, self._assignment, self._begin = encoder, log, assignment, begin
        self._bytes_max = UNSTAGED_BYTES_MAX if assignment is None else inline_bytes_max
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._ledger: TaskLedger | None = None

    def add(self, rows: pa.RecordBatch, now_ms: int) -> None:
        for encoded in self._encoder.encode(rows, now_ms=now_ms):
            self._kept.append(encoded.payload)
            self._kept_bytes += len(encoded.payload)
            if self._kept_bytes > self._bytes_max or self._ledger is not None:
                self._stage()

    def parts(self) -> list[Part]:
        return list(self._kept) if self._ledger is None else [self._ledger.seal()]

    def abandon(self) -> None:
        if self._ledger is not None:
            self._ledger.abandon()

    def _stage(self) -> None:
        if self._ledger is None:
            if self._assignment is None:
                raise TooManyRowsUnstaged(self._log, UNSTAGED_BYTES_MAX)
            self._ledger = self._begin(self._assignment)
        self._ledger.add(self._kept)
        self._kept, self._kept_bytes = [], 0
