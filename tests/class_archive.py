"""An archive of the classes of Spark's JVMs: each starts with half of the processor time.

A run starts dozens of them, and each spends six seconds of a processor on loading and verifying
the same classes. The archive is made once, in `build/`, before the first test with a JVM of Spark.
A JVM with another class path, as ZooKeeper's, or of another version goes without it.
"""

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from dlog.local.errors import JavaMissing
from dlog.local.java import find_java
from tests.tiers import marks

ROOT: Final = Path(__file__).parents[1]
STARTS_SPARK: Final = frozenset({"spark", "integration"})
OPTIONS: Final = "JDK_JAVA_OPTIONS"
SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Else a JVM that cannot use an archive says so on its standard output."""
TIMEOUT_S: Final = 240.0
PROGRAM: Final = """
import sys
from pathlib import Path

from dlog import Log
from pyspark.sql import functions as fn
from tests.clusters import running
from tests.dlog.spark.running import run_to_the_end, stream
from tests.dlog.spark.sessions import session

archive, directory = sys.argv[1], Path(sys.argv[2])
with running(directory / "cluster") as cluster:
    with Log.open("source", uri=cluster.uri) as log:
        log.append_many([b"%d" % row for row in range(10)])
    options = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}"}
    spark = session("local[2]", directory / "scratch", options)
    jvm = spark.sparkContext._gateway.proc
    try:
        frame = stream(spark, cluster.uri, "source")
        run_to_the_end(frame, directory)
        late = frame.withWatermark("timestamp", "1 second")
        counted = late.groupBy(fn.window("timestamp", "10 seconds"), "key").count()
        query = counted.writeStream.format("memory").queryName("counts").outputMode("complete")
        query.start().processAllAvailable()
        copy = frame.select("value").writeStream.format("dlog").option("uri", cluster.uri)
        copy = copy.option("checkpointLocation", str(directory / "copied"))
        copy.trigger(availableNow=True).start("target").awaitTermination()
        assert spark.read.parquet(str(directory / "parquet")).count() == 10
        spark.sql("SELECT count(*), max(id) FROM range(10) WHERE id > 3").collect()
    finally:  # it writes the archive as it ends, and a part of the classes is better than none
        spark.stop()
        jvm.stdin.close()
        jvm.wait()
"""

_done = False


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _done  # noqa: PLW0603 - the environment of a process is one, too
    if _done or not marks(item) >= STARTS_SPARK:
        return
    _done = True
    if (archive := class_archive()) is not None:
        given = os.environ.get(OPTIONS, "")
        os.environ[OPTIONS] = f"{given} -XX:SharedArchiveFile={archive} {SILENT}".strip()


def class_archive() -> Path | None:
    """Return the archive, which is made if it is not there; None where it cannot be made."""
    spec = find_spec("pyspark")
    try:
        java = find_java()
    except JavaMissing:
        return None
    if spec is None or spec.origin is None:
        return None
    jars = sorted((Path(spec.origin).resolve().parent / "jars").glob("*.jar"))
    made_of = [str(java), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in jars)]
    name = sha256("\n".join(made_of).encode()).hexdigest()[:16]
    archive = ROOT / "build" / f"spark-{name}.jsa"
    archive.parent.mkdir(exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    return archive if archive.exists() else None


def _make(archive: Path) -> None:
    with TemporaryDirectory(dir=archive.parent) as directory:
        draft = Path(directory, archive.name)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", PROGRAM, str(draft), directory],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=False,
            )
        if draft.exists():
            draft.rename(archive)
