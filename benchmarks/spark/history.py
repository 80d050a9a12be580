"""Spark over the history of a log: its table, the log in object storage, and plain Parquet.

    python -m benchmarks.spark.history [--megabytes 300] [--rounds 3]

The same rows by three ways in turns, in one session: `option("table", "parquet")`, the log without
it, and `spark.read.parquet` of the files that the table names. A job sums the lengths of values and
the offsets of all rows. Three bookies and a directory as object storage, on this machine.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from pyspark.sql import DataFrame

from dlog import Log, LogSettings
from dlog.admin import archive_log, create_log, table_info
from tests.clusters import running
from tests.dlog.spark import sessions

RECORD_BYTES: Final = 1000
COLUMNS: Final = ("offset", "value")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ |= sessions.environment()
    with (
        tempfile.TemporaryDirectory() as directory,
        running(Path(directory, "cluster")) as cluster,
    ):
        write(cluster.uri, f"file://{directory}/objects", options.megabytes * 1000)
        spark = sessions.session("local[2]", Path(directory, "spark"))
        info = table_info("history", uri=cluster.uri)
        files = [f"{info.storage}/{file.path}" for file in info.table.files]

        def of_log(**given: str) -> DataFrame:
            reader = spark.read.format("dlog").option("uri", cluster.uri)
            for name, value in {"columns": ",".join(COLUMNS), **given}.items():
                reader = reader.option(name, value)
            return reader.load("history")

        ways: dict[str, Callable[[], DataFrame]] = {
            "table": lambda: of_log(table="parquet"),
            "log": of_log,
            "plain Parquet": lambda: spark.read.parquet(*files).select(*COLUMNS),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        answers = set()
        for number in range(options.rounds + 1):
            for way, frame in ways.items():
                began = time.perf_counter()
                row = frame().selectExpr("sum(length(value))", "sum(offset)").first()
                answers.add(tuple(row or ()))
                if number:
                    times[way].append(time.perf_counter() - began)
        assert len(answers) == 1, "all ways have the same rows"
        plain = median(times["plain Parquet"])
        stored = sum(file.bytes for file in info.table.files)
        print(f"{options.megabytes} MB of records, {stored / 1e6:.0f} MB in {len(files)} files")
        for way, taken in times.items():
            rate = options.megabytes / median(taken)
            print(f"{way:14} {rate:8.0f} MB/s {plain / median(taken):6.2f} of plain Parquet")
        spark.stop()


def write(uri: str, storage: str, records: int) -> None:
    """Write records whose values compress by half, and archive them with their table."""
    settings = LogSettings(
        archive=storage, archive_table="parquet", roll_bytes=64 << 20, record_bytes_max=1 << 20
    )
    create_log("history", settings=settings, uri=uri)
    source = random.Random(1)
    values = [source.randbytes(RECORD_BYTES // 2) * 2 for _ in range(1000)]
    with Log.open("history", uri=uri) as log:
        for first in range(0, records, 1000):
            log.append_many(values, timestamps_ms=[1_777_636_800_000 + first] * len(values))
    archive_log("history", at_once=True, uri=uri)


if __name__ == "__main__":
    main()
