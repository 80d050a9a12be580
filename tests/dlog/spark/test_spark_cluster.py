"""A Spark cluster of processes: its executors are killed in the middle of a query, and they get
dlog from the application alone."""

import json
import os
import shutil
import signal
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import pyspark
import pytest

from dlog import Log, NoSuchLog
from tests.dlog.spark.application import HELD, TASKS, application
from tests.dlog.spark.processes import below, children, workers_below
from tests.dlog.spark.sessions import ROOT, environment
from tests.dlog.spark.standalone import standalone
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

ROWS: Final = [b"%d" % row for row in range(1000)]
PER_TRIGGER: Final = 100
STEP_S: Final = 300.0
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
LONG: Final = pytest.mark.long("chaos-spark")
LOCAL_CLUSTER: Final = "local-cluster[2,1,1024]"


def values(uri: str, log: str) -> list[bytes]:
    with Log.tail(log, uri=uri, stop="end") as reader:
        return [record.value for record in reader]


def has_more(copying: Future[str | None], uri: str, log: str, rows: int) -> bool:
    try:
        return copying.done() or len(values(uri, log)) > rows
    except NoSuchLog:
        return False


def kill_executors() -> None:
    for pid in below(os.getpid(), EXECUTOR):
        os.kill(pid, signal.SIGKILL)


def kill_python_workers() -> None:
    for executor in below(os.getpid(), EXECUTOR):
        for pid in workers_below(executor):
            os.kill(pid, signal.SIGKILL)


def kill_a_machine() -> None:
    """One of two workers with its executor and all that this started: it never comes back."""
    worker = next(
        each for each in below(os.getpid(), b"deploy.worker.Worker") if children(each, EXECUTOR)
    )
    executors = children(worker, EXECUTOR)
    python = [pid for each in executors for pid in below(each, b"pyspark.daemon")]
    for pid in (worker, *executors, *python):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("master", "trouble"),
    [
        pytest.param(None, (kill_executors, kill_python_workers, kill_a_machine), marks=LONG),
        pytest.param(LOCAL_CLUSTER, (kill_python_workers, kill_executors), marks=LONG),
    ],
    ids=["standalone", "local-cluster"],
)
def test_a_query_whose_executors_are_killed_has_each_row_once(
    uri: str, tmp_path: Path, master: str | None, trouble: tuple[Callable[[], None], ...]
) -> None:
    source, target = f"source of {tmp_path.name}", f"target of {tmp_path.name}"
    with Log.open(source, uri=uri) as log:
        log.append_many(ROWS)
    hold = tmp_path / "hold"
    cluster = standalone(tmp_path / "cluster") if master is None else nullcontext(master)
    with (
        cluster as url,
        application(url, tmp_path) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        hold.touch()
        copying: Future[str | None] = pool.submit(
            lambda: running.copy(uri, source, target, HELD, tmp_path, per_trigger=PER_TRIGGER)
        )
        try:
            for number, kill in enumerate(trouble):
                wait_until(
                    lambda: copying.done() or len(list(tmp_path.glob("held *"))) >= TASKS,
                    "tasks have staged and not sealed",
                    timeout_s=STEP_S,
                )
                assert not copying.done(), copying.result()
                kill()
                hold.unlink()
                so_far = number * PER_TRIGGER
                wait_until(
                    partial(has_more, copying, uri, target, so_far),
                    "a batch is written",
                    timeout_s=STEP_S,
                )
                for each in tmp_path.glob("held *"):
                    each.unlink()
                hold.touch()
        finally:
            hold.unlink(missing_ok=True)
        assert copying.result(STEP_S) is None
    assert values(uri, target) == ROWS
    said = (tmp_path / "application.log").read_text(encoding="utf-8", errors="replace")
    assert "ExecutorLostFailure" in said


SHIPPED: Final = """
import json

import dlog.spark
import pyarrow as pa
from pyspark.sql import SparkSession


def where(batches):
    import dlog

    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"place": dlog.__file__}])


spark = SparkSession.builder.getOrCreate()
target = "target of " + spark.sparkContext.applicationId
dlog.spark.register(spark)
places = spark.range(0, 4, 1, 4).mapInArrow(where, "place string").collect()
print("places", json.dumps([place for (place,) in places]))
reader = spark.read.format("dlog").option("minPartitions", 2)
rows = reader.load("shipped").select("value")
rows.write.format("dlog").option("inlineBytesMax", 0).mode("append").save(target)
copying = (
    spark.readStream.format("dlog").option("minPartitions", 2).load("shipped").select("value")
    .writeStream.format("dlog").option("checkpointLocation", "checkpoint")
    .option("inlineBytesMax", 0).trigger(availableNow=True).start(target)
)
copying.awaitTermination()
print("rows", reader.load(target).count())
spark.stop()
"""


@pytest.fixture(scope="module")
def without_dlog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has what dlog needs, and not dlog itself."""
    directory = tmp_path_factory.mktemp("environment") / "environment"
    venv.create(directory, with_pip=False, symlinks=True)
    # Directories that a file of paths names are not searched for such files themselves, as the
    # one that has dlog in a clone.
    others = Path(pyspark.__file__).parents[1]
    (library_of(directory) / "others.pth").write_text(f"{others}\n")
    python = directory / "bin" / "python"
    imported = subprocess.run(
        [python, "-c", "import kazoo, pyarrow; import dlog"],
        env=without_path(),
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'dlog'" in imported.stderr
    return directory


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("bare") / "cluster", without_path()) as master:
        yield master


@pytest.fixture(scope="module")
def shipped(uri: str) -> str:
    with Log.open("shipped", uri=uri) as log:
        log.append_many(ROWS)
    return uri


def library_of(environment: Path) -> Path:
    return next(environment.glob("lib/*/site-packages"))


def without_path() -> dict[str, str]:
    """Return variables of processes that find dlog only where it is installed."""
    found = {**os.environ, **environment(), "SPARK_LOCAL_IP": "127.0.0.1"}
    del found["PYTHONPATH"]
    return found


def files_of_the_wheel() -> Iterator[tuple[Path, Path]]:
    """Yield modules, and their places in it."""
    discovery = ROOT / "dlog" / "spark" / "discovery"
    for base, name in (
        *((ROOT, each) for each in ("dlog", "ledger", "bookie", "leader")),
        (discovery, "pyspark_dlog"),
    ):
        for file in (base / name).rglob("*.py"):
            if base == discovery or discovery not in file.parents:
                yield file, file.relative_to(base)


def submitted(master: str, uri: str, scratch: Path, *arguments: str, **variables: str) -> str:
    """Submit `SHIPPED` as a user does, in *scratch*; return what it printed."""
    program = scratch / "shipped.py"
    program.write_text(SHIPPED)
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin" / "spark-submit"), "--master", master,
        "--conf", "spark.ui.enabled=false", "--conf", "spark.executor.memory=512m",
        *arguments, str(program),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={**without_path(), "DLOG_URI": uri, "SPARK_HOME": str(home), **variables},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_executors_get_dlog_by_py_files(
    shipped: str, bare_cluster: str, without_dlog: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "dlog.zip"
    with zipfile.ZipFile(archive, "w") as wheel:
        for file, place in files_of_the_wheel():
            wheel.write(file, place)
    python = str(without_dlog / "bin" / "python")
    shown = submitted(
        bare_cluster, shipped, tmp_path, "--py-files", str(archive),
        PYSPARK_PYTHON=python, PYTHONPATH=str(archive),
    )  # fmt: skip
    places = json.loads(shown.partition("places ")[2].splitlines()[0])
    assert places
    assert [each for each in places if not each.endswith("/dlog.zip/dlog/__init__.py")] == []
    assert not [each for each in places if each.startswith(str(archive))], "the driver's"
    assert f"rows {2 * len(ROWS)}" in shown


@LONG
def test_executors_get_all_by_a_packed_environment(
    shipped: str, bare_cluster: str, without_dlog: Path, tmp_path: Path
) -> None:
    unpacked = tmp_path / "environment"  # for the driver, whose directory this is
    shutil.copytree(without_dlog, unpacked, symlinks=True)
    library = library_of(unpacked)
    for file, place in files_of_the_wheel():
        (library / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, library / place)
    packed = tmp_path / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(unpacked, ".")
    shown = submitted(
        bare_cluster, shipped, tmp_path, "--archives", f"{packed}#environment",
        PYSPARK_PYTHON="./environment/bin/python",
        PYSPARK_DRIVER_PYTHON=str(unpacked / "bin" / "python"),
    )  # fmt: skip
    places = json.loads(shown.partition("places ")[2].splitlines()[0])
    assert places
    assert [each for each in places if "/environment/lib/" not in each] == []
    assert not [each for each in places if each.startswith(str(unpacked))], "the driver's"
    assert f"rows {2 * len(ROWS)}" in shown
