"""JSON: a record's payload is one object in UTF-8, and the definition is a part of JSON Schema.

The part is what becomes columns, as pydantic's `model_json_schema` writes it of plain models:
objects with properties, arrays of one type, maps, null beside a type, references to `$defs`, dates
and times with `format`, bytes as Base64. A keyword that says more about values, as `minimum`, is
refused: rows would seem to be checked by it.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dlog.errors import InvalidLogSchema
from dlog.log_schema.columns import Budget, SchemaField, Widenings, arrow_schema_of, check_columns
from dlog.log_schema.value import BadPayload, Decoded, Payload, PayloadCodec, decoded

if TYPE_CHECKING:
    import pyarrow as pa

_ANNOTATIONS: Final = frozenset(
    {
        "$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated",
        "readOnly", "writeOnly",
    }
)  # fmt: skip
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items"}),
    "string": frozenset({"format", "contentEncoding", "enum"}),
    "integer": frozenset({"format"}),
    "number": frozenset({"format"}),
    "boolean": frozenset(),
}
_FORMATS: Final[Mapping[tuple[str, str], str]] = {
    ("string", "date-time"): "timestamp",
    ("string", "date"): "date",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", "float"): "float",
    ("number", "double"): "double",
}
_ANY_TEXT: Final = frozenset({"uuid", "email", "uri", "hostname", "ipv4", "ipv6", "time"})
"""Formats that say nothing about the column."""
_PLAIN: Final = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_Convert = Callable[[Any], Any]


class _Parser:
    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._budget = Budget()
        self._whole = whole
        self._open: list[str] = []

    def field(self, given: Any, name: str, depth: int) -> SchemaField:
        self._budget.take(depth, name)
        if not isinstance(given, dict):
            raise InvalidLogSchema(f"field {name!r}: {given!r} is no schema; use an object")
        given = {key: value for key, value in given.items() if key not in _ANNOTATIONS}
        if "$ref" in given:
            return self._reference(given, name, depth)
        for choice in ("anyOf", "oneOf"):
            if choice in given:
                return self._choice(given, choice, name, depth)
        kind, nullable = self._type(given, name)
        unknown = sorted(given.keys() - _KEYWORDS[kind] - {"type"} - {"$defs", "definitions"})
        if unknown:
            known = ", ".join(sorted(_KEYWORDS[kind])) or "no other"
            reason = f"a column does not keep it, so leave it out; {kind} has {known}"
            raise InvalidLogSchema(f"field {name!r}: keyword {unknown[0]!r}: {reason}")
        match kind:
            case "object":
                made = self._object(given, name, depth)
            case "array":
                made = SchemaField(
                    name=name,
                    kind="list",
                    children=(self.field(given.get("items"), "", depth + 1),),
                )
            case _:
                made = self._scalar(given, kind, name)
        return replace(made, nullable=nullable)

    def _type(self, given: Mapping[str, Any], name: str) -> tuple[str, bool]:
        types = given.get("type")
        listed = types if isinstance(types, list) else [types]
        others = [each for each in listed if each != "null"]
        if len(others) != 1 or not isinstance(others[0], str) or others[0] not in _KEYWORDS:
            reason = f"type {types!r}; use one of {', '.join(_KEYWORDS)}, and null beside it"
            raise InvalidLogSchema(f"field {name!r}: {reason}")
        return others[0], len(others) < len(listed)

    def _reference(self, given: Mapping[str, Any], name: str, depth: int) -> SchemaField:
        path = given["$ref"]
        parts = path.split("/") if isinstance(path, str) else []
        if (
            len(given) > 1
            or len(parts) != 3
            or parts[0] != "#"
            or parts[1] not in {"$defs", "definitions"}
        ):
            reason = "a reference is to '#/$defs/NAME', and stands alone"
            raise InvalidLogSchema(f"field {name!r}: {path!r}: {reason}")
        definitions = self._whole.get(parts[1])
        if not isinstance(definitions, dict) or parts[2] not in definitions:
            raise InvalidLogSchema(f"field {name!r}: there is no {path!r}")
        if path in self._open:
            raise InvalidLogSchema(f"field {name!r}: {path!r} holds itself; a column cannot")
        self._open.append(path)
        made = self.field(definitions[parts[2]], name, depth + 1)
        self._open.pop()
        return made

    def _choice(self, given: Mapping[str, Any], word: str, name: str, depth: int) -> SchemaField:
        choices = given[word]
        others = (
            [each for each in choices if each != {"type": "null"}]
            if isinstance(choices, list)
            else []
        )
        if len(given) > 1 or len(others) != 1 or len(choices) > 2:
            reason = f"{word} is of null and one other type; nothing else can be a column"
            raise InvalidLogSchema(f"field {name!r}: {reason}")
        made = self.field(others[0], name, depth + 1)
        return replace(made, nullable=made.nullable or len(choices) == 2)

    def _scalar(self, given: Mapping[str, Any], kind: str, name: str) -> SchemaField:
        form = given.get("format")
        if "contentEncoding" in given:
            if given["contentEncoding"] != "base64" or len(given) > 2:
                raise InvalidLogSchema(f"field {name!r}: bytes are contentEncoding base64, alone")
            return SchemaField(name=name, kind="binary")
        if "enum" in given:
            symbols = given["enum"]
            if (
                not isinstance(symbols, list)
                or not symbols
                or not all(isinstance(s, str) for s in symbols)
            ):
                raise InvalidLogSchema(f"field {name!r}: an enum is a list of texts")
            self._budget.take(0, name)
            return SchemaField(name=name, kind="enum", symbols=tuple(symbols))
        if form is not None and not isinstance(form, str):
            raise InvalidLogSchema(f"field {name!r}: format {form!r} is no text")
        if form is None or (kind == "string" and form in _ANY_TEXT):
            return SchemaField(name=name, kind=_PLAIN[kind])
        if (kind, form) not in _FORMATS:
            known = ", ".join(f for k, f in _FORMATS if k == kind)
            raise InvalidLogSchema(f"field {name!r}: format {form!r}; {kind} has {known}")
        return SchemaField(name=name, kind=_FORMATS[kind, form])

    def _object(self, given: Mapping[str, Any], name: str, depth: int) -> SchemaField:
        properties, others = given.get("properties"), given.get("additionalProperties", True)
        if properties is None and isinstance(others, dict):
            return SchemaField(name=name, kind="map", children=(self.field(others, "", depth + 1),))
        if not isinstance(properties, dict) or not properties or not isinstance(others, bool):
            reason = "an object has properties, or a type of all of them (additionalProperties)"
            raise InvalidLogSchema(f"field {name!r}: {reason}")
        required = given.get("required", [])
        if not isinstance(required, list) or any(each not in [*properties] for each in required):
            raise InvalidLogSchema(f"field {name!r}: required is a list of its properties")
        children = tuple(
            replace(self.field(each, own, depth + 1), optional=own not in required)
            for own, each in properties.items()
        )
        return SchemaField(name=name, kind="record", children=children, closed=not others)


class JsonCodec:
    """See `value.PayloadCodec`."""

    widenings: ClassVar[Widenings] = {
        "int32": frozenset({"int64", "double"}),
        "int64": frozenset({"double"}),
        "float": frozenset({"double"}),
        "enum": frozenset({"string"}),
    }

    def __init__(self, definition: bytes) -> None:
        try:
            given = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise InvalidLogSchema(f"it is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise InvalidLogSchema("it is no JSON Schema; use an object with properties")
        top = _Parser(given).field(given, "", 0)
        if top.kind != "record" or top.nullable:
            raise InvalidLogSchema("a row is of type object, with properties")
        check_columns(top.children)
        self.root = top
        self._columns = arrow_schema_of(top.children)
        self._read, self._write = _reader_of(top), _writer_of(top)

    def decode(self, payloads: Sequence[Payload], writer: PayloadCodec) -> Decoded:
        """An object says what it holds, so the version that wrote it makes no difference."""
        assert isinstance(writer, JsonCodec), "versions of one log have one format"
        values: list[Any] = []
        sources: list[int] = []
        bad: list[BadPayload] = []
        for index, payload in enumerate(payloads):
            try:
                values.append(self._read(json.loads(bytes(payload), parse_constant=_refuse)))
            except (ValueError, RecursionError, OverflowError) as error:
                bad.append(BadPayload(index, str(error)[:300]))
            else:
                sources.append(index)
        return decoded(values, sources, bad, self._columns)

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        try:
            texts = [
                json.dumps(
                    self._write(row), ensure_ascii=False, allow_nan=False, separators=(",", ":")
                )
                for row in rows.to_pylist(maps_as_pydicts="lossy")
            ]
        except ValueError as error:
            raise InvalidLogSchema(f"JSON: {error}") from error
        return [text.encode() for text in texts]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _reader_of(field: SchemaField) -> _Convert:
    """Return what checks a value of JSON, and makes of it what Arrow takes. Raises ValueError."""
    match field.kind:
        case "record":
            read = _object_reader(field)
        case "list":
            item = _reader_of(field.children[0])
            read = lambda value: [item(each) for each in _of_type(value, list, field)]  # noqa: E731
        case "map":
            item = _reader_of(field.children[0])
            read = lambda value: {  # noqa: E731
                name: item(each) for name, each in _of_type(value, dict, field).items()
            }
        case kind:
            scalar = _SCALARS[kind]
            read = lambda value: scalar(value, field)  # noqa: E731
    if not field.nullable:
        return read
    return lambda value: None if value is None else read(value)


def _object_reader(field: SchemaField) -> _Convert:
    readers = {child.name: _reader_of(child) for child in field.children}
    required = [child.name for child in field.children if not child.optional]
    is_closed = field.closed

    def read(value: Any) -> Any:
        _of_type(value, dict, field)
        for name in required:
            if name not in value:
                raise ValueError(f"property {name!r} is missing")
        if is_closed and (unknown := value.keys() - readers.keys()):
            raise ValueError(f"property {min(unknown)!r} is not in the schema")
        return {name: read(value[name]) for name, read in readers.items() if name in value}

    return read


def _of_type(value: Any, kind: type, field: SchemaField) -> Any:
    if type(value) is not kind:
        raise ValueError(f"field {field.name!r}: {str(value)[:80]!r} is no {field.type_name}")
    return value


def _integer(value: Any, field: SchemaField) -> int:
    if type(value) is float and value.is_integer():  # JSON Schema counts 1.0 as one
        return int(value)
    return int(_of_type(value, int, field))


def _number(value: Any, field: SchemaField) -> float:
    number = float(value) if type(value) is int else _of_type(value, float, field)
    if not math.isfinite(number):
        raise ValueError(f"field {field.name!r}: the number is too large")
    return number


def _timestamp(value: Any, field: SchemaField) -> int:
    moment = datetime.fromisoformat(_of_type(value, str, field))
    if moment.tzinfo is None:
        raise ValueError(f"field {field.name!r}: {value!r} has no offset from UTC, as Z")
    return (moment - _EPOCH) // _MICROSECOND


def _symbol(value: Any, field: SchemaField) -> str:
    if value not in field.symbols:
        raise ValueError(f"field {field.name!r}: {str(value)[:80]!r} is none of its texts")
    return str(value)


_SCALARS: Final[Mapping[str, Callable[[Any, SchemaField], Any]]] = {
    "bool": lambda value, field: _of_type(value, bool, field),
    "int32": _integer,
    "int64": _integer,
    "float": _number,
    "double": _number,
    "string": lambda value, field: _of_type(value, str, field),
    "enum": _symbol,
    "timestamp": _timestamp,
    "date": lambda value, field: date.fromisoformat(_of_type(value, str, field)),
    "binary": lambda value, field: base64.b64decode(_of_type(value, str, field), validate=True),
}


def _writer_of(field: SchemaField) -> _Convert:
    """Return what makes JSON of a value of Arrow. Raises ValueError."""
    match field.kind:
        case "record":
            writers = [(child, _writer_of(child)) for child in field.children]
            write: _Convert = lambda value: {  # noqa: E731
                child.name: convert(value.get(child.name))
                for child, convert in writers
                if value.get(child.name) is not None or not child.optional or child.nullable
            }
        case "list":
            item = _writer_of(field.children[0])
            write = lambda value: [item(each) for each in value]  # noqa: E731
        case "map":
            item = _writer_of(field.children[0])
            write = lambda value: {name: item(each) for name, each in value.items()}  # noqa: E731
        case "timestamp":
            write = lambda value: value.astimezone(UTC).isoformat().replace("+00:00", "Z")  # noqa: E731
        case "date":
            write = date.isoformat
        case "binary":
            write = lambda value: base64.b64encode(value).decode()  # noqa: E731
        case "enum":
            write = lambda value: _symbol(value, field)  # noqa: E731
        case _:
            write = lambda value: value  # noqa: E731

    def checked(value: Any) -> Any:
        if value is not None:
            return write(value)
        if not field.nullable:
            raise ValueError(f"field {field.name!r} is required, and null")
        return None

    return checked
