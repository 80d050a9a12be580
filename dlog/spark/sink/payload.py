"""Rows whose columns are those of a schema become payloads: the sink's `option("payload", ...)`.

Columns that begin with an underscore are of the record, as in the source: `_key`, `_timestamp`,
`_txid`, `_headers`, `_log`. All others are fields of the payload.
"""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from dlog.arrow import header_lists
from dlog.errors import InvalidLogSchema
from dlog.log_schema import SCHEMA_HEADER, LogSchema
from dlog.spark.access import Access
from dlog.spark.errors import InvalidColumns, InvalidOption, InvalidRow
from dlog.spark.namespaces import Namespace
from dlog.spark.payload import (
    CORRUPT,
    OWN,
    PayloadOptions,
    PayloadView,
    json_schema_of,
    schema_of_file,
    stored_schema,
)
from dlog.spark.sink.columns import HEADERS_TYPE
from dlog.spark.sink.options import SinkOptions

_GIVEN: Final = frozenset({"_key", "_timestamp", "_txid", "_headers", "_log"})
_GIVEN_TO_TABLE: Final = frozenset({"_key"})


@dataclass(frozen=True, slots=True)
class PayloadRows:
    """How rows become records; pickled to tasks."""

    schema: LogSchema
    fields: tuple[str, ...]
    """Columns of the payload."""
    own: tuple[str, ...]
    """Columns of the record."""
    nulls: tuple[str, ...]
    """Columns of a table that the log gives its records, and nobody else."""
    with_version: bool = False
    """Whether each record names the version of the schema in a header."""

    @classmethod
    def of(cls, options: SinkOptions, columns: StructType, namespace: Namespace) -> "PayloadRows":
        """Raises `InvalidColumns`, `InvalidOption`, and what finding the schema raises."""
        assert options.payload is not None
        schema = _schema_of(options, options.payload, columns, namespace)
        given = _GIVEN_TO_TABLE if options.into_table else _GIVEN
        own = tuple(name for name in columns.fieldNames() if name in given)
        others = [name for name in columns.fieldNames() if name in OWN or name == CORRUPT]
        nulls = tuple(name for name in others if name not in own)
        if nulls and not options.into_table:
            raise InvalidColumns(f"column {nulls[0]!r} is what a log gives its records; drop it")
        if options.schema_header and (not schema.version or "_headers" in own):
            reason = "it needs a schema that is set for the log, and no column _headers"
            raise InvalidOption("schemaheader", "true", reason)
        view = PayloadView(schema, (), "PERMISSIVE")
        fields = tuple(f for f in columns.fields if f.name not in {*own, *nulls})
        known = view.field_types
        for field in fields:
            if field.name not in known:
                there = ", ".join(known)
                raise InvalidColumns(f"the schema has no field {field.name!r}; it has {there}")
            wanted, found = known[field.name].simpleString(), field.dataType.simpleString()
            if wanted != found:
                raise InvalidColumns(
                    f"column {field.name!r} is {wanted} in the schema, and {found}"
                    f" here; cast it to {wanted}"
                )
        names = tuple(field.name for field in fields)
        return cls(schema, names, own, nulls, options.schema_header)

    def raw_fields(self, columns: StructType) -> list[tuple[str, str]]:
        """Return the columns of records that `raw` makes, by name and Spark's type."""
        raw = [("value", "binary")]
        raw += [(OWN[name], columns[name].dataType.simpleString()) for name in self.own]
        return [*raw, ("headers", HEADERS_TYPE)] if self.with_version else raw

    def raw(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return *rows* as records. Raises `InvalidRow`."""
        for name in self.nulls:
            if rows.column(name).null_count < rows.num_rows:
                raise InvalidRow(name, "is what the log gives a record; leave it out")
        wanted = self.schema.arrow_schema()
        columns = [rows.column(name).cast(wanted.field(name).type) for name in self.fields]
        typed = pa.RecordBatch.from_arrays(columns, names=list(self.fields))
        try:
            payloads = self.schema.encode(typed)
        except InvalidLogSchema as error:
            raise InvalidRow(",".join(self.fields), f"cannot be written: {error.reason}") from error
        arrays = [pa.array(payloads, pa.binary()), *(rows.column(name) for name in self.own)]
        names = ["value", *(OWN[name] for name in self.own)]
        if self.with_version:
            import numpy as np

            pairs = ((SCHEMA_HEADER, b"%d" % self.schema.version),)
            count = rows.num_rows
            arrays.append(header_lists(np.ones(count, dtype=np.int32), [pairs] * count))
            names.append("headers")
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _schema_of(
    options: SinkOptions, payload: PayloadOptions, columns: StructType, namespace: Namespace
) -> LogSchema:
    stored = stored_schema(columns) if options.into_table else None
    if stored is not None:
        return stored
    if payload.schema_file is not None:
        return payload.checked(schema_of_file(payload), f"file {payload.schema_file}")
    found = None
    if options.log is not None:
        access = Access(namespace)
        try:
            found = access.newest_schema(options.log)
        finally:
            access.close()
    if found is not None:
        return payload.checked(found, f"log {options.log!r}")
    if payload.kind == "json":
        return json_schema_of(columns)
    reason = "the log has no schema; set one (dlog log schema set), or give schemaFile"
    if options.log is None:
        reason = "rows name their logs, so give schemaFile"
    raise InvalidOption("payload", payload.kind, reason)
