"""The Spark application that is killed: it copies log `events` to log `copies`, for ever."""

import sys
from pathlib import Path

from tests.dlog.spark.sessions import session
from tests.integration.chaos_spark.plan import BATCH_RECORDS_MAX, COPIES, EVENTS, INLINE_BYTES_MAX


def main() -> None:
    uri, directory = sys.argv[1:]
    # A task is tried four times, as on a cluster.
    spark = session("local[2,4]", Path(directory) / "spark")
    spark.sparkContext.setLogLevel("ERROR")
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
