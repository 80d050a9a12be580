"""The Spark data source `dlog`: streaming and batch reading and writing of logs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dlog.arrow import schema_of
from dlog.log_schema import LogSchema
from dlog.row_schema import COLUMNS_WITH_HEADERS, SPARK_SCHEMA_WITH_HEADERS
from dlog.spark.batch import BatchReader, NarrowingBatchReader
from dlog.spark.catalog import (
    insertion_options,
    is_table,
    options_of,
    table_options,
    with_options,
)
from dlog.spark.errors import InvalidOption, InvalidSchema
from dlog.spark.micro_batch import StreamReader
from dlog.spark.namespaces import Namespace, refuse_contents
from dlog.spark.options import SourceOptions
from dlog.spark.payload import PayloadView, find_schema
from dlog.spark.sink.options import SinkOptions
from dlog.spark.sink.payload import PayloadRows
from dlog.spark.sink.writers import BatchWriter, StreamWriter, batch_writer, stream_writer

_TYPES: Final = dict(
    zip(
        COLUMNS_WITH_HEADERS,
        (column.split(" ", 1)[1] for column in SPARK_SCHEMA_WITH_HEADERS.split(", ", 7)),
        strict=True,
    )
)
_KINDS: Final = {name: kind.replace(": ", ":").replace(", ", ",") for name, kind in _TYPES.items()}
"""As Spark writes types itself."""
_SELECTIONS: Final = frozenset({"logs", "logspattern", "path"})
_NO_LOG: Final = (
    "no log is named; name it: load('orders'). If this is a table, it was created with columns, "
    "and of such a table Spark hands no options to a Python source: drop it, and create it "
    "without: CREATE TABLE t USING dlog OPTIONS (logs 'orders'). Option columns='offset,value' "
    "leaves columns out, and payload='schema' makes those of the log's schema; others are made by "
    "a view over it, as by from_json(CAST(value AS STRING), 'id INT, name STRING')"
)


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
        given = self._reading()
        options = SourceOptions.parse(given)
        if options.payload is not None:
            view = PayloadView.of(options.payload, self._schema_of(given, options))
            if not is_table(self._given):
                return view.struct()
            refuse_contents(options_of(self._given))
            return with_options(view.struct(), options_of(self._given))
        columns = options.columns
        if is_table(self._given):
            refuse_contents(options_of(self._given))
            # As text it would need the JVM.
            return with_options(from_arrow_schema(schema_of(columns)), options_of(self._given))
        return ", ".join(f"{name} {_TYPES[name]}" for name in columns)

    def reader(self, schema: StructType) -> BatchReader:
        given, options = self._options(schema)
        made = NarrowingBatchReader if options.pushdown else BatchReader
        return made(Namespace.of(given), options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        given, options = self._options(schema)
        options.check_streaming()
        return StreamReader(Namespace.of(given), options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 - Spark's
        namespace, options = self._writing(schema, overwrite)
        payload, fields = _payload(namespace, options, schema)
        return batch_writer(namespace, options, fields, payload)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        # Where a batch is planned Spark makes the source anew; to where it is committed it hands
        # the one that it made when the query began.
        namespace, options = self._writing(schema, overwrite)
        payload, fields = _payload(namespace, options, schema)
        return stream_writer(namespace, options, fields, planning=self._made_here, payload=payload)

    def _options(self, schema: StructType) -> tuple[dict[str, str], SourceOptions]:
        given = self._reading(schema)
        if isinstance(schema, StructType) and not given.keys() & _SELECTIONS:
            raise InvalidSchema(_NO_LOG)
        options = SourceOptions.parse(given)
        if options.payload is not None:
            find = partial(self._schema_of, given, options)
            view = PayloadView.declared(options.payload, schema, find)
            return given, replace(options, view=view)
        if isinstance(schema, StructType):
            options = replace(options, columns=_declared(schema))
        return given, options

    def _schema_of(self, given: Mapping[str, str], options: SourceOptions) -> LogSchema:
        assert options.payload is not None
        return find_schema(options.payload, Namespace.of(given), options.selection)

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


def _declared(schema: StructType) -> tuple[str, ...]:
    """Return the columns that *schema* names. Raises `InvalidSchema` if it has others."""
    hint = (
        "leave the schema out, or declare some of these; make other columns of value, as by "
        "from_json(CAST(value AS STRING), 'id INT, name STRING')"
    )
    known = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
    for field in schema.fields:
        kind = _TYPES.get(field.name)
        if kind is None:
            raise InvalidSchema(f"there is no column {field.name!r}; there are {known}. So {hint}")
        if _KINDS[field.name] != field.dataType.simpleString():
            given = field.dataType.simpleString()
            raise InvalidSchema(f"column {field.name!r} is {kind}, not {given}. So {hint}")
        if not field.nullable:
            raise InvalidSchema(f"column {field.name!r} is declared NOT NULL; leave that out")
    names = tuple(field.name for field in schema.fields)
    if not names or len(set(names)) < len(names):
        raise InvalidSchema(f"it names no column, or one twice; there are {known}. So {hint}")
    return names


def _payload(
    namespace: Namespace, options: SinkOptions, schema: StructType
) -> tuple[PayloadRows | None, list[tuple[str, str]]]:
    """Return what makes records of rows that have the columns of a schema; columns of records."""
    if options.payload is None:
        return None, _fields(schema)
    payload = PayloadRows.of(options, schema, namespace)
    return payload, payload.raw_fields(schema)


def _fields(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]
