"""Job one: departures become rows of Parquet, and hours become records of the log `delays`.

Two streaming queries in one driver. Each goes on from its checkpoint, so that this program can be
killed and started again at any moment. Nothing in here knows of that.

Call: python -m examples.lakehouse.pipeline URI DIRECTORY RECORDS_PER_TRIGGER; then, on the
standard input, a line: every record is in the log, the pipeline ends when it is through.
"""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from dlog.demo.roles import Role
from dlog.demo.source import table
from dlog.demo.spark import session
from examples.lakehouse import DELAYS, FLIGHTS, QUERIES
from examples.lakehouse.source import LATE_MAX

_POLL_S: Final = 0.1
_TRIGGER: Final = "500 milliseconds"
_DEPARTURE: Final = (
    "year int, month int, day int, time_hour timestamp, origin string, dest string, "
    "tailnum string, dep_delay int"
)


def departures(spark: SparkSession, uri: str, per_trigger: int) -> DataFrame:
    """Read the log; each departure is an event of the hour it was planned for."""
    records = (
        spark.readStream.format("dlog")
        .option("uri", uri)
        .option("maxRecordsPerTrigger", per_trigger)
        .load(FLIGHTS)
    )
    given = f.from_json(f.col("value").cast("string"), _DEPARTURE)
    return (
        records.select("txid", given.alias("given"))
        .select("txid", "given.*")
        .withWatermark("time_hour", LATE_MAX)
    )


def clean(spark: SparkSession, events: DataFrame) -> DataFrame:
    """Leave out what was cancelled or left from nowhere; add airport and plane, if it is known."""
    airports = _table(spark, "airports", {"faa": "origin", "name": "airport"})
    planes = _table(
        spark,
        "planes",
        {"tailnum": "tailnum", "manufacturer": "manufacturer", "seats": "seats"},
    )
    return (
        events.where("dep_delay is not null")
        .join(f.broadcast(airports), "origin")
        .join(f.broadcast(planes), "tailnum", "left")
        .withColumn("day", f.make_date("year", "month", "day"))
    )


def rows(cleaned: DataFrame) -> DataFrame:
    """Return the rows of Parquet."""
    return cleaned.select(
        "txid", "day", "origin", "airport", "dest", "dep_delay", "manufacturer", "seats"
    )


def hours(cleaned: DataFrame) -> DataFrame:
    """Return the records of `delays`: one for each airport and hour, once it is complete."""
    totals = cleaned.groupBy(f.window("time_hour", "1 hour"), "origin", "airport").agg(
        f.count("*").alias("departures"),
        f.avg("dep_delay").alias("mean_delay"),
        f.max("dep_delay").alias("max_delay"),
        f.coalesce(f.sum("seats"), f.lit(0)).alias("seats"),
    )
    hour = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ssX").alias("hour")
    facts = ("origin", "airport", "departures", "mean_delay", "max_delay", "seats")
    return totals.select(
        f.col("origin").alias("key"), f.to_json(f.struct(hour, *facts)).alias("value")
    )


def _table(spark: SparkSession, name: str, columns: Mapping[str, str]) -> DataFrame:
    """Return columns of a small table, under new names; its rows travel in the plan."""
    options = csv.ConvertOptions(include_columns=list(columns))
    found = csv.read_csv(table(f"{name}.csv"), convert_options=options)
    return spark.createDataFrame(found.rename_columns(list(columns.values())))


def start(cleaned: DataFrame, uri: str, directory: Path) -> list[StreamingQuery]:
    """Start both queries, each from its checkpoint if there is one."""
    into_parquet = rows(cleaned).writeStream.format("parquet").partitionBy("day")
    into_log = hours(cleaned).writeStream.format("dlog").option("uri", uri)
    targets: list[tuple[DataStreamWriter, str]] = [
        (into_parquet, str(directory / "parquet")),
        (into_log, DELAYS),
    ]
    return [
        writer.queryName(name)
        .outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoints" / name))
        .trigger(processingTime=_TRIGGER)
        .start(target)
        for name, (writer, target) in zip(QUERIES, targets, strict=True)
    ]


def main() -> None:
    role = Role()
    uri, directory, per_trigger = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    spark = session(directory, "lakehouse")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    queries = start(clean(spark, departures(spark, uri, per_trigger)), uri, directory)
    role.say("started")
    through = threading.Event()

    def finish() -> None:
        role.hear()
        for query in queries:
            query.processAllAvailable()  # also the hours that the last record has completed
        through.set()

    threading.Thread(target=finish, daemon=True).start()
    while not through.is_set():
        spark.streams.awaitAnyTermination(_POLL_S)  # raises what a query died of
    for query in queries:
        query.stop()
    files = spark.read.parquet(str(directory / "parquet")).inputFiles()
    (directory / "files.txt").write_text("\n".join(files), encoding="utf-8")
    role.say("through", files=len(files))
    spark.stop()


if __name__ == "__main__":
    main()
