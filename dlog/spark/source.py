"""The Spark data source `dlog`: streaming and batch reading and writing of logs."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dlog.spark.arrow import (
    ARROW_SCHEMA,
    ARROW_SCHEMA_WITH_HEADERS,
    SPARK_SCHEMA,
    SPARK_SCHEMA_WITH_HEADERS,
)
from dlog.spark.batch import BatchReader, NarrowingBatchReader
from dlog.spark.catalog import (
    insertion_options,
    is_table,
    options_of,
    table_options,
    with_options,
)
from dlog.spark.errors import InvalidOption
from dlog.spark.namespaces import Namespace, refuse_contents
from dlog.spark.options import SourceOptions
from dlog.spark.sink.options import SinkOptions
from dlog.spark.sink.writers import BatchWriter, StreamWriter, batch_writer, stream_writer
from dlog.spark.streaming import StreamReader


class DlogSource(DataSource):  # type: ignore[misc] # pyspark has no types here
    """Format `dlog`; see `dlog.spark.options` for what can be said about it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # What may be said differs between reading and writing, so it is looked at when Spark
        # has asked for one of them.
        super().__init__(options)
        self._given = dict(options)
        self._made_here = True

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_made_here": False}

    @classmethod
    def name(cls) -> str:
        return "dlog"

    def schema(self) -> str | StructType:
        headers = SourceOptions.parse(self._reading()).include_headers
        if is_table(self._given):
            refuse_contents(options_of(self._given))
            columns = ARROW_SCHEMA_WITH_HEADERS if headers else ARROW_SCHEMA
            return with_options(columns, options_of(self._given))
        return SPARK_SCHEMA_WITH_HEADERS if headers else SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        given = self._reading(schema)
        options = SourceOptions.parse(given)
        made = NarrowingBatchReader if options.pushdown else BatchReader
        return made(Namespace.of(given), options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        given = self._reading(schema)
        options = SourceOptions.parse(given)
        options.check_streaming()
        return StreamReader(Namespace.of(given), options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        namespace, options = self._writing(schema, overwrite)
        return batch_writer(namespace, options, _fields(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        # Where a batch is planned Spark makes the source anew; to where it is committed it hands
        # the one that it made when the query began.
        namespace, options = self._writing(schema, overwrite)
        return stream_writer(namespace, options, _fields(schema), planning=self._made_here)

    def _reading(self, schema: StructType | None = None) -> dict[str, str]:
        """Return the options; those of a table may be given again where it is read."""
        return {**table_options(schema), **options_of(self._given)}

    def _writing(
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - as Spark says it
    ) -> tuple[Namespace, SinkOptions]:
        if overwrite:
            reason = "a log is only appended to; use append, and 'dlog log truncate' to free space"
            raise InvalidOption("mode", "overwrite", reason)
        inserted = insertion_options(self._given, schema)
        given = {name.lower(): value for name, value in (inserted or self._given).items()}
        options = SinkOptions.parse(given)
        if inserted is not None:
            options = replace(options, into_table=True)
        return Namespace.of(given), options


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
