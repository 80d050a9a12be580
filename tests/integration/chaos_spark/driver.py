"""The Spark application that is killed: it copies log `events` to log `copies`, for ever."""

import sys

from pyspark.sql import SparkSession

import dlog.spark
from tests.integration.chaos_spark.plan import BATCH_RECORDS_MAX, COPIES, EVENTS, INLINE_BYTES_MAX


def main() -> None:
    uri, directory = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2,4]")  # a task is tried four times, as on a cluster
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", f"{directory}/spark")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config(
            "spark.sql.streaming.checkpointFileManagerClass",
            "org.apache.spark.sql.execution.streaming.checkpointing"
            ".FileSystemBasedCheckpointFileManager",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    dlog.spark.register(spark)
    events = (
        spark.readStream.format("dlog")
        .option("uri", uri)
        .option("maxRecordsPerTrigger", BATCH_RECORDS_MAX)
        .option("minTaskRecords", 500)
        .option("maxPartitions", 3)
        .load(EVENTS)
    )
    query = (
        events.select("value", "txid")
        .writeStream.format("dlog")
        .option("uri", uri)
        .option("inlineBytesMax", INLINE_BYTES_MAX)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start(COPIES)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
