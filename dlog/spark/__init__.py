"""Logs in Spark: `register(spark)`, then `spark.readStream.format("dlog").load("orders")`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the format `dlog` known to *spark*; once per session."""
    from dlog.spark.source import DlogSource

    spark.dataSource.register(DlogSource)
