"""What a task does with its rows: they travel, or go to a ledger; one that ends is begun again."""

from typing import Any

import pyarrow as pa
import pytest

from dlog.aio.write.sink import Assignment, Staged
from dlog.manifest import Sealed
from dlog.receipts import Receipt
from dlog.recordbatch import decode_batch
from dlog.settings import LogSettings
from dlog.spark.errors import InvalidRow, TooManyRowsUnstaged
from dlog.spark.sink import rows
from dlog.spark.sink import rows as rows_module
from dlog.spark.sink.columns import SinkColumns
from dlog.spark.sink.rows import Part, StagedLedger, TaskRows
from dlog.sync.loop_thread import LoopThread
from ledger.errors import (
    AccessDenied,
    BookieUnavailable,
    LogError,
    MetadataDenied,
    with_unknown_outcome,
)
from tests.dlog.fake_ledgers import FakeCluster, FakeLedgers


def assignment(log: str, **settings: Any) -> Assignment:
    return Assignment(log, "i", 3, LogSettings(**settings), 0)


class Ledger:
    """A task's ledger in memory."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.payloads: list[bytes] = []
        self.abandoned = False

    def add(self, payloads: list[bytes]) -> None:
        self.payloads += payloads

    def seal(self) -> Staged:
        return Staged(len(self.payloads), self.assignment.epoch, Sealed.empty(0, 0))  # type: ignore[arg-type]

    def abandon(self) -> None:
        self.abandoned = True


class Task:
    def __init__(
        self, *assignments: Assignment, log: str | None = "a", bytes_max: int = 1000
    ) -> None:
        self.ledgers: list[Ledger] = []
        columns = SinkColumns(value=0) if log is not None else SinkColumns(value=0, log=1)
        self.rows = TaskRows(
            columns,
            log=log,
            assignments={assignment.log: assignment for assignment in assignments},
            inline_bytes_max=bytes_max,
            begin=self._begin,
            now_ms=lambda: 0,
        )

    def _begin(self, assignment: Assignment) -> Ledger:
        self.ledgers.append(Ledger(assignment))
        return self.ledgers[-1]

    def add(self, *values: bytes | None, logs: list[str | None] | None = None) -> None:
        columns = {"value": pa.array(values, pa.binary())}
        if logs is not None:
            columns["log"] = pa.array(logs, pa.string())
        self.rows.add(pa.RecordBatch.from_pydict(columns))

    def add_in_order(self, value: bytes, *, log: str | None) -> None:
        """Add a row, and all that waits to be put in order."""
        self.add(value, logs=[log])
        self.rows.parts()


def values(parts: list[Part] | list[bytes]) -> list[bytes]:
    return [
        value
        for part in parts
        if isinstance(part, bytes)
        for value in decode_batch(part).value_list()
    ]


def test_few_rows_travel() -> None:
    task = Task(assignment("a"))
    task.add(b"1", b"2")
    task.add(b"3")
    assert values(task.rows.parts()["a"]) == [b"1", b"2", b"3"]
    assert task.ledgers == []


def test_beyond_the_limit_all_is_staged_and_in_order() -> None:
    task = Task(assignment("a"))
    for number in range(30):
        task.add(b"%050d" % number)
    [ledger] = task.ledgers
    [staged] = task.rows.parts()["a"]
    assert isinstance(staged, Staged)
    assert staged.epoch == 3
    assert values(ledger.payloads) == [b"%050d" % number for number in range(30)]


def test_each_log_has_a_limit_and_a_ledger_of_its_own() -> None:
    task = Task(assignment("a"), assignment("b"), log=None)
    task.add(b"x" * 2000, b"1", b"2", logs=["a", "b", "b"])
    task.add(b"3", logs=["b"])
    parts = task.rows.parts()
    assert [ledger.assignment.log for ledger in task.ledgers] == ["a"]
    assert values(parts["b"]) == [b"1", b"2", b"3"]


def test_what_has_no_ticket_travels_up_to_a_larger_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "UNSTAGED_BYTES_MAX", 5000)
    task = Task(log=None)
    task.add(b"x" * 2000, b"x" * 2000, logs=["new", "new"])
    assert len(task.rows.parts()["new"]) == 1
    with pytest.raises(TooManyRowsUnstaged, match="name it in option logs"):
        task.add_in_order(b"x" * 2000, log="new")


@pytest.mark.parametrize("log", [None, "a//b", ""])
def test_a_row_that_names_no_log_is_refused(log: str | None) -> None:
    task = Task(log=None)
    with pytest.raises(InvalidRow, match="column 'log'"):
        task.add_in_order(b"1", log=log)


def test_a_task_that_gives_up_gives_up_its_ledgers() -> None:
    task = Task(assignment("a"), bytes_max=0)
    task.add(b"1")
    with pytest.raises(InvalidRow):
        task.add(b"2", None)
    task.rows.abandon()
    assert task.ledgers[0].abandoned


class NearAccess:
    """Access to ledgers in memory, on the loop of this process."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self._ledgers: FakeLedgers | None = None

    def run(self, work: Any) -> Any:
        return LoopThread.get().run(work)

    async def connected(self) -> FakeLedgers:
        if self._ledgers is None:
            self._ledgers = self.cluster.client()
        return self._ledgers


@pytest.fixture
def payloads() -> list[bytes]:
    task = Task(assignment("a"))
    for number in range(4):
        task.add(b"%d" % number)
    return [part for part in task.rows.parts()["a"] if isinstance(part, bytes)]


def staged_values(access: NearAccess, staged: Staged) -> list[bytes]:
    return values(list(access.cluster.ledgers[staged.ledger_id].entries))


@pytest.mark.parametrize("operation", ["create", "close"])
def test_a_ledger_that_ends_is_begun_again_with_what_it_held(
    payloads: list[bytes], operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BACKOFF_S", 0.001)
    access = NearAccess()
    trouble = BookieUnavailable("b1", "it is away")
    access.cluster.fail_next(operation, trouble, trouble)
    ledger = StagedLedger(access, assignment("a"), Receipt(b"q" * 16, 1))  # type: ignore[arg-type]
    ledger.add(payloads[:2])
    ledger.add(payloads[2:])
    assert staged_values(access, ledger.seal()) == [b"0", b"1", b"2", b"3"]


def test_rows_of_many_logs_keep_their_order_and_become_one_batch_for_each() -> None:
    task = Task(log=None)
    for row in range(0, 3000, 3):
        task.add(
            *(b"%d" % number for number in range(row, row + 3)),
            logs=[f"log {number % 97}" for number in range(row, row + 3)],
        )
    parts = task.rows.parts()
    assert sorted(parts) == sorted(f"log {number}" for number in range(97))
    assert all(len(each) == 1 for each in parts.values())
    for number in range(97):
        assert values(parts[f"log {number}"]) == [b"%d" % row for row in range(number, 3000, 97)]


def test_rows_of_many_logs_are_put_in_order_before_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "SORTED_BYTES", 50)
    task = Task(log=None)
    for row in range(20):
        task.add(bytes(30) + b"%d" % row, logs=["a" if row % 2 else "b"])
    parts = task.rows.parts()
    assert len(parts["a"]) > 1
    assert [value[30:] for value in values(parts["a"])] == [b"%d" % n for n in range(1, 20, 2)]


def test_what_was_too_much_to_keep_is_not_begun_again(
    payloads: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "REPEATED_BYTES_MAX", 100)
    access = NearAccess()
    ledger = StagedLedger(access, assignment("a"), Receipt(b"q" * 16, 1))  # type: ignore[arg-type]
    ledger.add(payloads[:2])
    ledger.add(payloads[2:])
    access.cluster.fail_next("close", BookieUnavailable("b1", "it is away"))
    with pytest.raises(BookieUnavailable):
        ledger.seal()


@pytest.mark.parametrize(
    "trouble",
    [
        MetadataDenied("zk://a", "create", "no"),
        with_unknown_outcome(AccessDenied("cn:reader", "writer", "append")),
    ],
)
def test_trouble_that_does_not_pass_fails_the_task_at_once(
    payloads: list[bytes], trouble: LogError
) -> None:
    access = NearAccess()
    access.cluster.fail_next("create", trouble)
    ledger = StagedLedger(access, assignment("a"), Receipt(b"q" * 16, 1))  # type: ignore[arg-type]
    with pytest.raises(type(trouble)):
        ledger.add(payloads)
    ledger.abandon()
