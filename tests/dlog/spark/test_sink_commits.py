"""How the logs of one batch are committed: at once, by the keeper's calls, without Spark."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import LogSealed, UnitSuperseded
from dlog.receipts import Receipt
from dlog.spark.errors import BatchSuperseded
from dlog.spark.namespaces import Namespace
from dlog.spark.sink import writers
from dlog.spark.sink.columns import SinkColumns
from dlog.spark.sink.options import SinkOptions
from dlog.spark.sink.writers import Plan, SinkMessage
from tests.waiting import PATIENCE_S

PLAN = Plan(Namespace("file:///nowhere"), SinkOptions(), SinkColumns(value=0, log=1), {})


class Keeper:
    """Its connections; each commit does what the test says."""

    def __init__(self, on_commit: Callable[[str], None]) -> None:
        self.on_commit = on_commit
        self.committed: list[str] = []
        self.connections: set[int] = set()

    def connection(self, namespace: Namespace, number: int = 0) -> "Keeper":
        assert namespace == PLAN.namespace
        self.connections.add(number)
        return self

    def commit(self, log: str, *_: object, **__: object) -> None:
        self.on_commit(log)
        self.committed.append(log)


def commit(monkeypatch: pytest.MonkeyPatch, keeper: Keeper, *logs: str) -> bool:
    monkeypatch.setattr(writers, "_keeper", keeper.connection)
    parts: dict[str, Any] = {log: [b"x"] for log in logs}
    message = SinkMessage("run", Receipt(bytes(16), 3), 0, parts)
    return writers._commit(PLAN, [message], final=False)


def test_logs_of_one_batch_are_committed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)
    keeper = Keeper(lambda _: [together.wait(PATIENCE_S)].clear())
    assert commit(monkeypatch, keeper, "a", "b", "c")
    assert sorted(keeper.committed) == ["a", "b", "c"]
    assert keeper.connections == {0, 1, 2}


def test_many_logs_share_a_bounded_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(lambda _: None)
    logs = [f"log {number}" for number in range(100)]
    assert commit(monkeypatch, keeper, *logs)
    assert sorted(keeper.committed) == sorted(logs)
    assert len(keeper.connections) <= writers.COMMITS_AT_ONCE_MAX


@pytest.mark.parametrize("error", [LogSealed("b"), IndexError("a bug of the keeper")])
def test_a_log_that_cannot_be_committed_fails_the_batch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(log: str) -> None:
        if log == "b":
            raise error

    with pytest.raises(type(error)):
        commit(monkeypatch, Keeper(refuse), "a", "b", "c")


def test_a_batch_that_went_back_says_so_in_the_words_of_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(log: str) -> None:
        raise UnitSuperseded(log, 3, 5)

    with pytest.raises(BatchSuperseded, match=r"batch 3 comes after batch 5.*newest checkpoint"):
        commit(monkeypatch, Keeper(refuse), "a")
