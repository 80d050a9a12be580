"""Spark finds the format where `pyspark_dlog` can be imported, as it can where the wheel is."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import dlog.spark
from dlog import Log
from tests.dlog.spark.sessions import AS_INSTALLED, environment

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
}


def run(command: list[str], uri: str, scratch: Path) -> str:
    env = {
        **os.environ,
        **environment(),
        "PYTHONPATH": os.pathsep.join([AS_INSTALLED, *sys.path[1:]]),
        "DLOG_URI": uri,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, env=env, cwd=scratch, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def put(uri: str, log: str, count: int) -> None:
    with Log.open(log, uri=uri) as writer:
        for row in range(count):
            writer.append(b"%d" % row)


def test_the_jvms_own_shell_reads_a_log_without_a_word_of_python(uri: str, tmp_path: Path) -> None:
    put(uri, "discovered", 7)
    shell = Path(pyspark.__file__).parent / "bin" / "spark-sql"
    settings = [each for item in SETTINGS.items() for each in ("--conf", "=".join(item))]
    statements = (
        "CREATE TEMPORARY VIEW found USING dlog OPTIONS (logs 'discovered'); "
        "SELECT 'rows', count(*), max(offset) FROM found"
    )
    command = [str(shell), "--master", "local[1]", *settings, "-e", statements]
    assert "rows\t7\t6" in run(command, uri, tmp_path)


def test_a_session_that_found_the_format_may_register_it_too(spark: SparkSession, uri: str) -> None:
    put(uri, "found", 3)
    found = spark.newSession()  # what another session registered is not known to it
    reader = found.read.format("dlog").option("uri", uri)
    assert reader.load("found").count() == 3
    dlog.spark.register(found)
    dlog.spark.register(found)
    assert reader.load("found").count() == 3


CONNECTED = """
import dlog.spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.remote("local[1]")
for name, value in {settings!r}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
reader = spark.read.format("dlog")
print("rows", reader.load("far").count())
dlog.spark.register(spark)
reader.load("far").select("value").write.format("dlog").mode("append").save("near")
copying = (
    spark.readStream.format("dlog").load("far").select("value").writeStream.format("dlog")
    .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start("near")
)
copying.awaitTermination()
print("copied", reader.load("near").count())
spark.stop()
"""


def test_a_client_of_spark_connect_reads_and_writes(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc_status", reason="of pyspark[connect]")
    monkeypatch.setenv("SPARK_TESTING", "1")  # a port of its own, not the one that all have
    put(uri, "far", 5)
    shown = run([sys.executable, "-c", CONNECTED.format(settings=SETTINGS)], uri, tmp_path)
    assert "rows 5" in shown
    assert "copied 10" in shown
