"""Columns of a record in Spark, by name and by Spark's type; for `dlog.arrow` has Arrow's.

Nothing is imported for it: options are checked where there is neither Arrow nor numpy.
"""

from typing import Final

SPARK_SCHEMA: Final = (
    "log string, offset bigint, dlsn string, timestamp timestamp, txid bigint, "
    "key binary, value binary"
)
SPARK_SCHEMA_WITH_HEADERS: Final = (
    SPARK_SCHEMA + ", headers array<struct<key: string, value: binary>>"
)
COLUMNS: Final = tuple(column.split(" ")[0] for column in SPARK_SCHEMA.split(", "))
COLUMNS_WITH_HEADERS: Final = (*COLUMNS, "headers")
