"""By this package every session of Spark knows the format `dlog`, without a word of Python.

Spark looks for modules whose names begin with `pyspark_`, and registers the `DefaultSource` of
each: so `spark-sql`, Spark Connect, Scala and Java read and write logs, too. The wheel has it as a
package of its own beside `dlog`.
"""

from dlog.spark.source import DlogSource as DefaultSource

__all__ = ["DefaultSource"]
