"""Payloads of records as columns: `option("payload", "avro")` and the like.

Whose schema it is is decided once, when the frame is made: that of a file, of the user's own
columns (JSON), or the newest one of the logs. It travels in the metadata of the first column, so
that each batch of a query, and each query of a table, reads with the same one. A record that names
another version in its header is read with that one first.

Columns that dlog adds begin with an underscore, which no field of a schema does.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from dlog.arrow import ARROW_SCHEMA_WITH_HEADERS
from dlog.errors import InvalidLogSchema, NoSuchSchema
from dlog.log_schema import FORMATS, SCHEMA_HEADER, LogSchema, LogSchemas, version_in
from dlog.schema_file import read_schema
from dlog.spark.access import Access
from dlog.spark.errors import BadRecord, InvalidOption, InvalidSchema
from dlog.spark.namespaces import Namespace
from dlog.spark.selection import Selection

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
KINDS: Final = ("schema", *FORMATS)
"""What a payload can be read as, beside raw."""
OWN: Final[Mapping[str, str]] = {
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_log": "log",
    "_key": "key",
    "_txid": "txid",
    "_dlsn": "dlsn",
    "_headers": "headers",
}
"""Columns beside those of the payload, and what they are without one."""
CORRUPT: Final = "_corrupt_record"
"""Has the payload of a record that could not be read, where such rows are kept."""
_METADATA: Final = "dlog.payload"
_NAMED_VERSION: Final = frozenset({"avro", "arrow"})
"""Formats whose payloads are read by what the writer had."""
_JSON_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "format": "int32"},
    "bigint": {"type": "integer"},
    "float": {"type": "number", "format": "float"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
}
FindVersion = Callable[[int], LogSchema | None]
"""Returns the version of the log's schema with this number, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadOptions:
    """What the user says about payloads."""

    kind: str
    """One of `KINDS`."""
    schema_file: str | None = None
    message: str = ""
    mode: Mode = "PERMISSIVE"
    columns: tuple[str, ...] | None = None
    """None: all fields, and the first three of `OWN`."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "PayloadOptions | None":
        """Return what *given*, under lower-case names, says; None: payloads stay bytes.

        Raises `InvalidOption`."""
        kind = given.get("payload", "raw").strip().lower()
        if kind == "raw":
            for name in ("schemafile", "schemamessage", "mode"):
                if name in given:
                    reason = (
                        f"it is about payloads as columns; give payload too: {', '.join(KINDS)}"
                    )
                    raise InvalidOption(name, given[name], reason)
            return None
        if kind not in KINDS:
            known = ", ".join(("raw", *KINDS))
            raise InvalidOption("payload", given["payload"], f"known are {known}")
        mode = given.get("mode", "PERMISSIVE").strip().upper()
        if mode not in MODES:
            raise InvalidOption("mode", given["mode"], f"known are {', '.join(MODES)}")
        if "includeheaders" in given:
            reason = "with payload, name _headers among the columns"
            raise InvalidOption("includeheaders", given["includeheaders"], reason)
        named = tuple(each.strip() for each in given.get("columns", "").split(",") if each.strip())
        if "columns" in given and not named:
            raise InvalidOption("columns", given["columns"], "name one column at least")
        return cls(
            kind=kind,
            schema_file=given.get("schemafile"),
            message=given.get("schemamessage", ""),
            mode=mode,
            columns=named or None,
        )

    def checked(self, schema: LogSchema, whose: str) -> LogSchema:
        """Return *schema* if it is of the format that the user says. Raises `InvalidOption`."""
        if self.kind not in {"schema", schema.format}:
            reason = f"the schema of {whose} is {schema.format}"
            raise InvalidOption("payload", self.kind, reason)
        return schema.check()


def find_schema(options: PayloadOptions, namespace: Namespace, selection: Selection) -> LogSchema:
    """Return the schema of the file that is named, or the newest one of the logs.

    Raises `InvalidOption`, `InvalidLogSchema`, `SchemaLibraryMissing`, `NoSuchSchema`,
    `InvalidSchema` if the logs have different ones, and what reading the metadata store does."""
    if options.schema_file is not None:
        schema = schema_of_file(options)
        return options.checked(schema, f"file {options.schema_file}")
    access = Access(namespace)
    try:
        found = access.newest_schemas(selection)
    finally:
        access.close()
    if not found:
        reason = "no log is there whose schema it could be; give schemaFile"
        raise InvalidOption("payload", options.kind, reason)
    first, *others = found.items()
    for log, schema in others:
        if (schema.format, schema.definition) != (first[1].format, first[1].definition):
            reason = f"logs {first[0]!r} and {log!r} have different schemas; give schemaFile"
            raise InvalidSchema(reason)
    return options.checked(first[1], f"log {first[0]!r}")


def schema_of_file(options: PayloadOptions) -> LogSchema:
    assert options.schema_file is not None
    return read_schema(Path(options.schema_file.removeprefix("file://")), options.message)


@dataclass(frozen=True)
class PayloadView:
    """The rows of a frame: which columns, in which order, by which schema. Pickled to tasks."""

    schema: LogSchema
    columns: tuple[str, ...]
    mode: Mode

    @classmethod
    def of(cls, options: PayloadOptions, schema: LogSchema) -> "PayloadView":
        """Raises `InvalidOption` for a column that there is not."""
        fields = tuple(schema.arrow_schema().names)
        corrupt = (CORRUPT,) if options.mode == "PERMISSIVE" else ()
        if options.columns is None:
            return cls(schema, (*fields, *list(OWN)[:3], *corrupt), options.mode)
        known = {name.lower(): name for name in (*fields, *OWN, *corrupt)}
        text = ",".join(options.columns)
        for name in options.columns:
            if name.lower() not in known:
                there = ", ".join(known.values())
                raise InvalidOption(
                    "columns", text, f"there is no column {name!r}; there are {there}"
                )
        columns = tuple(known[name.lower()] for name in options.columns)
        if len({*columns}) < len(columns):
            raise InvalidOption("columns", text, "name each column once")
        return cls(schema, columns, options.mode)

    @classmethod
    def declared(
        cls, options: PayloadOptions, declared: StructType, find: Callable[[], LogSchema]
    ) -> "PayloadView":
        """Return the view whose columns are *declared*: by Spark, which was given them by
        `struct`, or by the user. *find* returns the schema, where the columns do not say it.

        Raises `InvalidSchema`, `InvalidOption`, and what *find* raises."""
        stored = stored_schema(declared)
        if stored is not None:
            schema = stored
        elif options.kind == "json" and options.schema_file is None:
            schema = json_schema_of(declared)
        else:
            schema = find()
        view = cls(schema, tuple(declared.fieldNames()), options.mode)
        known = view.all_types
        for field in declared.fields:
            kind = known.get(field.name)
            if kind is None:
                there = ", ".join(known)
                raise InvalidSchema(f"there is no column {field.name!r}; there are {there}")
            if kind.simpleString() != field.dataType.simpleString():
                given = field.dataType.simpleString()
                wanted = kind.simpleString()
                raise InvalidSchema(f"column {field.name!r} is {wanted}, not {given}")
            if not field.nullable:
                raise InvalidSchema(f"column {field.name!r} is declared NOT NULL; leave that out")
        return view

    @property
    def all_types(self) -> dict[str, DataType]:
        """All columns that a view by this schema can have, and their types in Spark."""
        raw = from_arrow_schema(ARROW_SCHEMA_WITH_HEADERS)
        own = {name: raw[column].dataType for name, column in OWN.items()}
        return self.field_types | own | {CORRUPT: BinaryType()}

    @property
    def field_types(self) -> dict[str, DataType]:
        """The fields of the payload, and their types in Spark."""
        fields = from_arrow_schema(self.schema.arrow_schema(), prefer_timestamp_ntz=True)
        return {field.name: field.dataType for field in fields.fields}

    def struct(self) -> StructType:
        """Return the columns as Spark has them, with the schema beside the first one."""
        types = self.all_types
        stored = {
            "format": self.schema.format,
            "definition": base64.b64encode(self.schema.definition).decode(),
            "message": self.schema.message,
            "version": self.schema.version,
        }
        metadata = {_METADATA: json.dumps(stored)}
        return StructType(
            [
                StructField(name, types[name], nullable=True, metadata=None if at else metadata)
                for at, name in enumerate(self.columns)
            ]
        )

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns of records that rows are made of."""
        wanted = {OWN[name] for name in self.columns if name in OWN} | {"value"}
        if self.schema.format in _NAMED_VERSION:
            wanted.add("headers")
        if self.mode == "FAILFAST":
            wanted |= {"log", "offset"}
        return tuple(sorted(wanted))

    def rows(
        self, batches: Iterable[pa.RecordBatch], find: FindVersion
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of *batches*, which have `raw_columns`. Raises `BadRecord` (FAILFAST)."""
        for batch in batches:
            if batch.num_rows:
                yield self._rows_of(batch, find)

    @cached_property
    def _target(self) -> pa.Schema:
        return to_arrow_schema(self.struct(), timezone="UTC")

    def _rows_of(self, batch: pa.RecordBatch, find: FindVersion) -> pa.RecordBatch:
        payloads = batch.column("value").to_pylist()
        decoded, sources, bad = self._decoded(payloads, _versions(batch), find)
        if bad and self.mode == "FAILFAST":
            at = min(bad)
            log, offset = (batch.column(name)[at].as_py() for name in ("log", "offset"))
            raise BadRecord(log, offset, bad[at])
        corrupt: Sequence[bytes | None] = [None] * len(sources)
        places: Sequence[int] = sources
        if bad and self.mode == "PERMISSIVE":
            merged = sorted([*((s, at) for at, s in enumerate(sources)), *((b, -1) for b in bad)])
            places = [place for place, _ in merged]
            taken = pa.array([None if at < 0 else at for _, at in merged], pa.int64())
            decoded = decoded.take(taken)
            corrupt = [payloads[place] if at < 0 else None for place, at in merged]
        if places != [*range(batch.num_rows)]:
            batch = batch.take(pa.array(places, pa.int64()))
        arrays = []
        for name in self.columns:
            if name in OWN:
                arrays.append(batch.column(OWN[name]))
            elif name == CORRUPT:
                arrays.append(pa.array(corrupt, pa.binary()))
            else:
                arrays.append(decoded.column(name))
        typed = [a.cast(f.type) for a, f in zip(arrays, self._target, strict=True)]
        return pa.RecordBatch.from_arrays(typed, schema=self._target)

    def _decoded(
        self, payloads: list[bytes], versions: list[int | None] | None, find: FindVersion
    ) -> tuple[pa.RecordBatch, list[int], dict[int, str]]:
        """Return the rows in the order of *payloads*, which payload each is of, and what is bad."""
        if versions is None:
            done = self.schema.decode(payloads)
            return done.rows, [*done.sources], {each.index: each.reason for each in done.bad}
        bad: dict[int, str] = {}
        sources: list[int] = []
        parts: list[pa.RecordBatch] = []
        for version in dict.fromkeys(versions):
            where = [at for at, each in enumerate(versions) if each == version]
            writer = self.schema if version is None else find(version)
            if writer is None or writer.format != self.schema.format:
                bad |= dict.fromkeys(where, f"the log has no version {version} of its schema")
                continue
            done = self.schema.decode([payloads[at] for at in where], writer=writer)
            parts.append(done.rows)
            sources += [where[each] for each in done.sources]
            bad |= {where[each.index]: each.reason for each in done.bad}
        if not parts:
            parts.append(self.schema.decode([]).rows)
        rows = pa.concat_batches(parts)
        order = sorted(range(len(sources)), key=sources.__getitem__)
        rows = rows.take(pa.array(order, pa.int64()))
        return rows, [sources[at] for at in order], bad


def _versions(batch: pa.RecordBatch) -> list[int | None] | None:
    """Return which version each record names; None: none of them names one."""
    if "headers" not in batch.schema.names:
        return None
    headers = batch.column("headers")
    pairs = headers.flatten()
    if not len(pairs) or SCHEMA_HEADER not in pairs.field("key").to_pylist():
        return None
    return [_version(each or []) for each in headers.to_pylist()]


def _version(headers: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number in the last header of this name; -1 if that is none."""
    for header in reversed(headers):
        if header["key"] == SCHEMA_HEADER:
            return version_in(header["value"])
    return None


def stored_schema(declared: StructType) -> LogSchema | None:
    """Return the schema that `PayloadView.struct` put beside the columns; None: there is none."""
    text = next((f.metadata[_METADATA] for f in declared.fields if _METADATA in f.metadata), None)
    if text is None:
        return None
    stored = json.loads(text)
    return LogSchema(
        format=stored["format"],
        definition=base64.b64decode(stored["definition"]),
        message=stored["message"],
        version=stored["version"],
    )


def json_schema_of(declared: StructType) -> LogSchema:
    """Return the schema of JSON whose columns are those that the user declared. Raises
    `InvalidSchema`."""
    fields = [field for field in declared.fields if field.name not in {*OWN, CORRUPT}]
    definition = json.dumps(_json_object(fields)).encode()
    try:
        return LogSchema(format="json", definition=definition).check()
    except InvalidLogSchema as error:
        raise InvalidSchema(error.reason) from error


def _json_object(fields: Sequence[StructField]) -> dict[str, Any]:
    return {"type": "object", "properties": {f.name: _json_type(f.dataType) for f in fields}}


def _json_type(kind: DataType) -> dict[str, Any]:
    made: dict[str, Any]
    match kind:
        case StructType():
            made = _json_object(kind.fields)
        case ArrayType():
            made = {"type": "array", "items": _json_type(kind.elementType)}
        case MapType() if isinstance(kind.keyType, StringType):
            made = {"type": "object", "additionalProperties": _json_type(kind.valueType)}
        case _:
            name = kind.simpleString()
            if name not in _JSON_TYPES:
                known = ", ".join([*_JSON_TYPES, "array", "map with string keys", "struct"])
                raise InvalidSchema(f"JSON has no {name}; use one of {known}")
            made = dict(_JSON_TYPES[name])
    return made | {"type": [made["type"], "null"]}


class WriterSchemas:
    """The versions of one log's schema, for a task: read when a record names one."""

    READS_MAX: Final = 16
    """A number that no version has must not cost a read for each record."""

    def __init__(self, read: Callable[[], LogSchemas]) -> None:
        self._read = read
        self._known: LogSchemas = LogSchemas()
        self._left = self.READS_MAX

    def find(self, version: int) -> LogSchema | None:
        found = self._found(version)
        if found is None and version >= self._known.next_number and self._left:
            self._left -= 1
            self._known = self._read()
            found = self._found(version)
        return found

    def _found(self, version: int) -> LogSchema | None:
        try:
            return self._known.find("", version)
        except NoSuchSchema:
            return None
