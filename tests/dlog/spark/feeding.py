"""A source of numbers for streaming queries that write logs."""

import os
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from tests.dlog.spark.running import QUERY_TIMEOUT_S


class Feed:
    """A directory of files of numbers, one row each; a streaming query reads a file per batch."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.session = spark
        self.files = directory / "files"
        self.files.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.rows = 0

    def put(self, count: int) -> None:
        """One file more, with the next *count* numbers."""
        lines = "".join(f"{row}\n" for row in range(self.rows, self.rows + count))
        fresh = self.files / f".{self.rows:012}"
        fresh.write_text(lines)
        moment = 1_600_000_000 + self.rows
        os.utime(fresh, (moment, moment))  # files are read in the order of their times
        fresh.rename(self.files / f"{self.rows:012}.txt")
        self.rows += count

    def frame(self) -> DataFrame:
        reader = self.session.readStream.format("text").option("maxFilesPerTrigger", 1)
        return reader.load(str(self.files))

    def writer(
        self, uri: str, checkpoint: Path | None = None, **options: object
    ) -> DataStreamWriter:
        writer = self.frame().writeStream.format("dlog").option("uri", uri)
        for name, value in options.items():
            writer = writer.option(name, str(value))
        return writer.option("checkpointLocation", str(checkpoint or self.checkpoint))

    def run(
        self, uri: str, log: str, *, timeout_s: int = QUERY_TIMEOUT_S, **options: Any
    ) -> StreamingQuery:
        """Write what there is to *log*."""
        query = self.writer(uri, **options).trigger(availableNow=True).start(log)
        assert query.awaitTermination(timeout_s), query.status
        return query

    def all(self) -> list[bytes]:
        return [b"%d" % row for row in range(self.rows)]
