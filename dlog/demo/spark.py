"""Spark Structured Streaming from the log into Parquet, exactly once, while the log grows.

Call: python -m dlog.demo.spark URI DIRECTORY; then, on the standard input, the offset
after the last record: it ends there.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import dlog.spark
from dlog.demo import LOG
from dlog.demo.roles import Role
from dlog.local.java import java_environment

_POLL_S: Final = 0.1
_CORES: Final = 2
_RECORDS_PER_TRIGGER: Final = 100_000
_CHECKPOINTS_ON_LOCAL_DISK: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Twice as fast as the default, which starts a process for each file."""


def session(directory: Path, name: str) -> SparkSession:
    """Start Spark on two cores, with all its files in *directory*, and the format registered."""
    os.environ.update(java_environment())
    os.environ["SPARK_LOCAL_DIRS"] = str(directory / "scratch")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    spark = (
        SparkSession.builder.master(f"local[{_CORES}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.checkpointFileManagerClass", _CHECKPOINTS_ON_LOCAL_DISK)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.shuffle.partitions", str(_CORES))
        .getOrCreate()
    )
    dlog.spark.register(spark)
    return spark


class Progress:
    """Sums up the micro-batches of a query, each once, from its progress reports.

    The first one with records is left out of the rate: Spark loads most of its code in it.
    """

    def __init__(self) -> None:
        self.records = 0
        self.timed_records = 0
        self.seconds = 0.0
        self.next_offset = 0
        self._batch = -1

    def take(self, query: StreamingQuery) -> bool:
        """Take in what is new; return whether anything was."""
        before = self.records
        for report in query.recentProgress:
            if report["batchId"] > self._batch and report["numInputRows"]:
                self._batch = report["batchId"]
                if self.records:
                    self.timed_records += report["numInputRows"]
                    self.seconds += report["batchDuration"] / 1000
                self.records += report["numInputRows"]
                end = json.loads(report["sources"][0]["endOffset"])
                self.next_offset = end["logs"][LOG][1]
        return self.records > before


def main() -> None:
    role = Role()
    uri, directory = sys.argv[1], Path(sys.argv[2])
    spark = session(directory, "flights")
    parquet = str(directory / "parquet")
    query = (
        spark.readStream.format("dlog")
        .option("uri", uri)
        .option("maxRecordsPerTrigger", _RECORDS_PER_TRIGGER)
        .option("minTaskRecords", _RECORDS_PER_TRIGGER // _CORES)
        .load(LOG)
        .writeStream.format("parquet")
        .option("path", parquet)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    end: list[int] = []
    threading.Thread(target=lambda: end.append(int(role.hear())), daemon=True).start()
    progress = Progress()
    while not end or progress.next_offset < end[0]:
        query.awaitTermination(_POLL_S)  # raises what the query died of
        if progress.take(query):
            role.say("progress", records=progress.records)
    query.stop()
    files = spark.read.parquet(parquet).inputFiles()
    role.say(
        "streamed",
        records=progress.timed_records,
        seconds=progress.seconds,
        files=[path.removeprefix("file://") for path in files],
    )
    spark.stop()


if __name__ == "__main__":
    main()
