"""The Spark data source `dlog`: streaming and batch reading and writing of logs."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dlog.config import resolve_uri
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
        headers = self._reading().include_headers
        if is_table(self._given):
            columns = ARROW_SCHEMA_WITH_HEADERS if headers else ARROW_SCHEMA
            return with_options(columns, options_of(self._given))
        return SPARK_SCHEMA_WITH_HEADERS if headers else SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        options = self._reading(schema)
        made = NarrowingBatchReader if options.pushdown else BatchReader
        return made(resolve_uri(options.uri), options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        options = self._reading(schema)
        options.check_streaming()
        return StreamReader(resolve_uri(options.uri), options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        options = self._writing(schema, overwrite)
        return batch_writer(resolve_uri(options.uri), options, _fields(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        # Where a batch is planned Spark makes the source anew; to where it is committed it hands
        # the one that it made when the query began.
        options = self._writing(schema, overwrite)
        return stream_writer(
            resolve_uri(options.uri), options, _fields(schema), planning=self._made_here
        )

    def _reading(self, schema: StructType | None = None) -> SourceOptions:
        """Return the options; those of a table may be given again where it is read."""
        return SourceOptions.parse({**table_options(schema), **options_of(self._given)})

    def _writing(self, schema: StructType, overwrite: bool) -> SinkOptions:  # noqa: FBT001 - as Spark says it
        if overwrite:
            reason = "a log is only appended to; use append, and 'dlog log truncate' to free space"
            raise InvalidOption("mode", "overwrite", reason)
        inserted = insertion_options(self._given, schema)
        if inserted is None:
            return SinkOptions.parse(self._given)
        return replace(SinkOptions.parse(inserted), into_table=True)


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
