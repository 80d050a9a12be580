"""Avro: a record's payload is one datum in binary encoding, without any header (as Spark's
`to_avro` writes it).

What Arrow has no column for is refused: recursive types, unions but those with null. So each field
takes one byte at least, and a payload cannot stand for more items than it has bytes.

Logical types are kept away from the library, which would make an object of Python of each value:
Arrow takes the integers, and only decimals are read by it.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dlog.errors import InvalidLogSchema, SchemaLibraryMissing
from dlog.log_schema.columns import (
    Budget,
    SchemaField,
    Widenings,
    arrow_schema_of,
    check_columns,
    need_pyarrow,
)
from dlog.log_schema.value import BadPayload, Decoded, Payload, PayloadCodec, decoded

if TYPE_CHECKING:
    import pyarrow as pa

_PRIMITIVES: Final = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
}
_TIMES: Final = {
    ("int", "date"): ("date", ""),
    ("long", "timestamp-millis"): ("timestamp", "milliseconds"),
    ("long", "timestamp-micros"): ("timestamp", "microseconds"),
    ("long", "local-timestamp-millis"): ("timestamp_ntz", "milliseconds"),
    ("long", "local-timestamp-micros"): ("timestamp_ntz", "microseconds"),
}
_SIZE_MAX: Final = 1 << 20


def _need_fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise SchemaLibraryMissing("fastavro") from None
    return fastavro


class _Reader:
    """Reads a definition: to fields, and to the same definition without logical types."""

    def __init__(self) -> None:
        self._budget = Budget()
        self._named: dict[str, Mapping[str, Any]] = {}
        self._open: set[str] = set()

    def field(self, given: Any, name: str, space: str, depth: int) -> tuple[SchemaField, Any]:
        """Return the field that *given* describes, and *given* as the library shall have it."""
        self._budget.take(depth, name)
        if isinstance(given, list):
            return self._union(given, name, space, depth)
        if isinstance(given, str):
            if given in _PRIMITIVES:
                return SchemaField(name=name, kind=_PRIMITIVES[given]), given
            return self._again(given, name, space, depth)
        if not isinstance(given, dict):
            raise InvalidLogSchema(f"field {name!r}: {given!r} is no type of Avro")
        kind = given.get("type")
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return self._primitive(given, kind, name)
        match kind:
            case "array" | "map":
                inside = "items" if kind == "array" else "values"
                item, cleaned = self.field(given.get(inside), "", space, depth + 1)
                made = SchemaField(
                    name=name, kind="list" if kind == "array" else "map", children=(item,)
                )
                return made, {"type": kind, inside: cleaned}
            case "record" | "enum" | "fixed":
                return self._definition(given, name, space, depth)
            case dict() | list():
                return self.field(kind, name, space, depth + 1)
            case str() if kind != "null":
                return self._again(kind, name, space, depth)
            case _:
                raise InvalidLogSchema(f"field {name!r}: {kind!r} is no type that a column has")

    def _primitive(self, given: Mapping[str, Any], kind: str, name: str) -> tuple[SchemaField, Any]:
        logical = given.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            return self._decimal(given, name), dict(given)
        if isinstance(logical, str) and (kind, logical) in _TIMES:
            column, unit = _TIMES[kind, logical]
            return SchemaField(name=name, kind=column, wire=unit), kind
        return SchemaField(name=name, kind=_PRIMITIVES[kind]), kind

    def _decimal(self, given: Mapping[str, Any], name: str) -> SchemaField:
        precision, scale = given.get("precision"), given.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int):
            raise InvalidLogSchema(
                f"field {name!r}: a decimal has a precision, and may have a scale"
            )
        if not 0 <= scale <= precision <= 38:
            reason = f"precision {precision!r} and scale {scale!r}: use a precision up to 38"
            raise InvalidLogSchema(f"field {name!r}: {reason}, and a scale not above it")
        if precision < 1:
            raise InvalidLogSchema(f"field {name!r}: a decimal has one digit at least")
        return SchemaField(name=name, kind="decimal", precision=precision, scale=scale)

    def _union(
        self, given: list[Any], name: str, space: str, depth: int
    ) -> tuple[SchemaField, Any]:
        others = [each for each in given if each not in ("null", {"type": "null"})]
        if len(others) != 1 or len(given) > 2:
            reason = "a union is of null and one other type; nothing else can be a column"
            raise InvalidLogSchema(f"field {name!r}: {reason}")
        if isinstance(others[0], list):
            raise InvalidLogSchema(f"field {name!r}: a union holds no union")
        made, cleaned = self.field(others[0], name, space, depth)
        nullable = len(given) == 2
        kept = [cleaned if each is others[0] else "null" for each in given]
        return replace(made, nullable=nullable), kept

    def _definition(
        self, given: Mapping[str, Any], name: str, space: str, depth: int
    ) -> tuple[SchemaField, Any]:
        kind = given["type"]
        full = _full_name(given.get("name"), given.get("namespace"), space)
        if full in self._named and self._named[full] is not given:
            raise InvalidLogSchema(f"type {full!r} is defined twice")
        first = full not in self._named
        self._named[full] = given
        self._open.add(full)
        made, cleaned = self._members(given, kind, name, full, depth)
        self._open.discard(full)
        return made, cleaned if first else full

    def _members(
        self, given: Mapping[str, Any], kind: str, name: str, full: str, depth: int
    ) -> tuple[SchemaField, Any]:
        plain: dict[str, Any] = {"type": kind, "name": full}
        if kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or not 1 <= size <= _SIZE_MAX:
                raise InvalidLogSchema(
                    f"type {full!r}: a size of {size!r} bytes; use 1 to {_SIZE_MAX}"
                )
            plain["size"] = size
            if given.get("logicalType") == "decimal":
                made = self._decimal(given, name)
                plain |= {
                    key: given[key] for key in ("logicalType", "precision", "scale") if key in given
                }
                return replace(made, size=size), plain
            return SchemaField(name=name, kind="fixed", size=size), plain
        if kind == "enum":
            symbols = given.get("symbols")
            if (
                not isinstance(symbols, list)
                or not symbols
                or not all(isinstance(s, str) for s in symbols)
            ):
                raise InvalidLogSchema(f"type {full!r}: symbols are a list of names")
            self._budget.take(depth, name)
            return SchemaField(name=name, kind="enum", symbols=tuple(symbols)), plain | {
                "symbols": symbols
            }
        fields = given.get("fields")
        if not isinstance(fields, list) or not fields:
            raise InvalidLogSchema(f"record {full!r} has no field; name one at least")
        space = full.rpartition(".")[0]
        children, kept = [], []
        for each in fields:
            child, cleaned = self._child(each, full, space, depth + 1)
            children.append(child)
            kept.append(cleaned)
        return SchemaField(name=name, kind="record", children=tuple(children)), plain | {
            "fields": kept
        }

    def _child(self, given: Any, full: str, space: str, depth: int) -> tuple[SchemaField, Any]:
        if not isinstance(given, dict) or not isinstance(given.get("name"), str):
            raise InvalidLogSchema(f"record {full!r}: each field has a name and a type")
        name = given["name"]
        made, cleaned = self.field(given.get("type"), name, space, depth)
        aliases = given.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise InvalidLogSchema(f"field {name!r}: aliases are a list of names")
        has_default = "default" in given
        kept = {"name": name, "type": cleaned}
        if has_default:
            kept["default"] = given["default"]
        if aliases:
            kept["aliases"] = aliases
        return replace(made, optional=has_default, aliases=tuple(aliases)), kept

    def _again(self, given: str, name: str, space: str, depth: int) -> tuple[SchemaField, Any]:
        full = given if "." in given or not space else f"{space}.{given}"
        full = full if full in self._named else given
        if full not in self._named:
            raise InvalidLogSchema(f"field {name!r}: there is no type {given!r}")
        if full in self._open:
            raise InvalidLogSchema(f"field {name!r}: type {full!r} holds itself; a column cannot")
        definition = self._named[full]
        self._open.add(full)
        made, _ = self._members(definition, definition["type"], name, full, depth)
        self._open.discard(full)
        return made, full


def _full_name(name: object, namespace: object, space: str) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidLogSchema("a record, an enum and a fixed have a name")
    if "." in name:
        return name
    inside = namespace if isinstance(namespace, str) else space
    return f"{inside}.{name}" if inside else name


class AvroCodec:
    """See `value.PayloadCodec`."""

    widenings: ClassVar[Widenings] = {
        "int32": frozenset({"int64", "float", "double"}),
        "int64": frozenset({"float", "double"}),
        "float": frozenset({"double"}),
        "string": frozenset({"binary"}),
        "binary": frozenset({"string"}),
    }

    def __init__(self, definition: bytes) -> None:
        fastavro = _need_fastavro()
        try:
            given = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise InvalidLogSchema(f"it is no JSON: {error}") from error
        if not isinstance(given, dict) or given.get("type") != "record":
            raise InvalidLogSchema("it is no record of Avro; a row is one: {'type': 'record', ...}")
        top, plain = _Reader().field(given, "", "", 0)
        self.root = top
        self._fields = check_columns(top.children)
        try:
            self.plain = fastavro.parse_schema(plain)
        except Exception as error:  # the library's own, and what it stumbles on
            raise InvalidLogSchema(f"Avro: {type(error).__name__}: {error}") from error
        self._columns = arrow_schema_of(self._fields)
        self._as_written = arrow_schema_of(self._fields, _as_written)

    def decode(self, payloads: Sequence[Payload], writer: PayloadCodec) -> Decoded:
        assert isinstance(writer, AvroCodec), "versions of one log have one format"
        read = _need_fastavro().schemaless_reader
        reader = None if writer is self else self.plain
        values: list[Any] = []
        sources: list[int] = []
        bad: list[BadPayload] = []
        for index, payload in enumerate(payloads):
            stream = io.BytesIO(payload)
            try:
                value = read(stream, writer.plain, reader)
            except Exception as error:  # noqa: BLE001 - hostile bytes
                bad.append(BadPayload(index, f"{type(error).__name__}: {error}"[:300]))
                continue
            if stream.tell() != len(payload):
                reason = f"{len(payload) - stream.tell()} bytes follow the datum"
                bad.append(BadPayload(index, reason))
                continue
            values.append(value)
            sources.append(index)
        written = None if self._as_written == self._columns else self._as_written
        return decoded(values, sources, bad, self._columns, written)

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        write = _need_fastavro().schemaless_writer
        fields = [field for field in self._fields if field.name in rows.schema.names]
        rows = rows.select([field.name for field in fields])
        for scalars in (_as_written, _as_integers):
            rows = rows.cast(arrow_schema_of(fields, scalars), safe=False)
        payloads = []
        for value in rows.to_pylist(maps_as_pydicts="lossy"):
            stream = io.BytesIO()
            try:
                write(stream, self.plain, value)
            except Exception as error:
                raise InvalidLogSchema(f"Avro: {type(error).__name__}: {error}") from error
            payloads.append(stream.getvalue())
        return payloads


def _as_written(field: SchemaField) -> "pa.DataType | None":
    if field.wire != "milliseconds":
        return None
    return need_pyarrow().timestamp("ms", tz="UTC" if field.kind == "timestamp" else None)


def _as_integers(field: SchemaField) -> "pa.DataType | None":
    pa = need_pyarrow()
    match field.kind:
        case "date":
            return pa.int32()
        case "timestamp" | "timestamp_ntz":
            return pa.int64()
        case _:
            return None
