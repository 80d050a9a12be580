"""Which process of a parallel run gets which tests, and in what order.

The tests of one file share what they start, so they stay together. All that start Spark stay
together too: two JVMs of Spark on two cores leave its Python workers less than the ten seconds
that Spark gives them to start, which no setting changes. What takes longest comes first, so that
no process still works through one long file when the others have ended.
"""

from pathlib import PurePosixPath
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.tiers import SPARK, marks

_SPARK: Final = "Spark"
_SPARK_ELSEWHERE: Final = frozenset({"test_lakehouse.py", "test_spark.py", "test_spark_chaos.py"})
"""Of other directories than Spark's own."""


class FilesAndSpark(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(super()._split_scope(nodeid))
        return _SPARK if _starts_spark(file) else str(file)

    def schedule(self) -> None:
        """A process that takes the place of another may be given a file with one test left, and
        begins none before it knows what comes next."""
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Hand on what *node* had left, without the test that ended it: one that hangs until its
        time-out ends its process, and would end a dozen of them. Nor are files handed on that are
        done, as xdist does: a process that is given one has nothing to run, and waits for ever."""
        units: dict[str, dict[str, bool]] = self.assigned_work[node]
        left = [test for unit in units.values() for test, is_done in unit.items() if not is_done]
        for unit in units.values():
            if left and left[0] in unit:
                unit[left[0]] = True
        for file in [file for file, unit in units.items() if all(unit.values())]:
            del units[file]
        super().remove_node(node)
        return left[0] if left else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndSpark | None:
    return FilesAndSpark(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files: Spark's, others that start a process, others that compute, the rest."""
    files = {item: item.nodeid.partition("::")[0] for item in items}
    of_spark = {file for file in set(files.values()) if _starts_spark(PurePosixPath(file))}
    rank: dict[str, int] = {}
    for item, file in files.items():
        its = 0 if file in of_spark else _rank(item)
        rank[file] = min(its, rank.get(file, len(_RANKS)))
    items.sort(key=lambda item: rank[files[item]])


_RANKS: Final = ("spark", "zookeeper", "integration", "slow")


def _rank(item: pytest.Item) -> int:
    its = marks(item)
    return next((rank for rank, mark in enumerate(_RANKS) if rank and mark in its), len(_RANKS))


def _starts_spark(file: PurePosixPath) -> bool:
    return file.is_relative_to(SPARK) or file.name in _SPARK_ELSEWHERE
