"""What tests of queries share: frames of logs, sinks, waiting for what a query does."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

QUERY_TIMEOUT_S = 240


def stream(
    spark: SparkSession, uri: str, log: str | None = None, /, **options: object
) -> DataFrame:
    reader = spark.readStream.format("dlog").option("uri", uri)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(log) if log is not None else reader.load()


def batch(spark: SparkSession, uri: str, log: str | None = None, /, **options: object) -> DataFrame:
    reader = spark.read.format("dlog").option("uri", uri)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(log) if log is not None else reader.load()


def into_parquet(frame: DataFrame, directory: Path) -> DataStreamWriter:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "parquet"))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )


def parquet(spark: SparkSession, directory: Path) -> list[Any]:
    """Return the rows that queries into *directory* have written, by log and offset."""
    frame = spark.read.parquet(str(directory / "parquet"))
    rows: list[Any] = frame.orderBy("log", "offset").collect()
    return rows


def run_to_the_end(frame: DataFrame, directory: Path) -> StreamingQuery:
    """Run a query until it has read what there is, into Parquet in *directory*."""
    query = into_parquet(frame, directory).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_TIMEOUT_S), query.status
    return query


def wait_until(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + QUERY_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, query.status
        query.awaitTermination(0.05)  # raises what the query died of
