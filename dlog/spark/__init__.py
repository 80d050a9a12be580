"""Logs in Spark: `spark.readStream.format("dlog").load("orders")`.

Where dlog is installed as a package, Spark finds the format by itself (`pyspark_dlog`); where it is
on a path only, after `register(spark)`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the format `dlog` known to *spark*, and *spark* the active session of this thread.

    Once per session, and once in each thread but the main one that begins a read or a write: Spark
    looks for formats in the session that is active in the thread of its JVM, finds none in a thread
    that Python began, and then says `DATA_SOURCE_NOT_FOUND`."""
    from pyspark.errors import AnalysisException

    from dlog.spark.source import DlogSource

    try:
        spark.dataSource.register(DlogSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark has found it by itself
            raise
    jvm = getattr(spark, "_jvm", None)  # none in Spark Connect, whose server knows the session
    if jvm is not None:
        sessions = spark._get_j_spark_session_class(jvm)  # noqa: SLF001 - Spark has no other way
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
