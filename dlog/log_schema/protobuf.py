"""Protobuf: a record's payload is one message. The definition is a serialized FileDescriptorSet
that holds all files which it needs (`protoc --include_imports --descriptor_set_out`), and the name
of the message.

Fields are found again by their numbers, so a newer version may rename them. A field without
presence (proto3) is never null; unsigned integers of 64 bits are decimals, as Spark has them.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from dlog.errors import InvalidLogSchema
from dlog.log_schema.columns import Budget, SchemaField, Widenings, arrow_schema_of, check_columns
from dlog.log_schema.value import BadPayload, Decoded, Payload, PayloadCodec, decoded

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_Type = descriptor_pb2.FieldDescriptorProto
_KINDS: Final[Mapping[int, tuple[str, str]]] = {
    _Type.TYPE_DOUBLE: ("double", "double"),
    _Type.TYPE_FLOAT: ("float", "float"),
    _Type.TYPE_INT32: ("int32", "varint"),
    _Type.TYPE_INT64: ("int64", "varint"),
    _Type.TYPE_UINT32: ("int64", "uint32"),
    _Type.TYPE_UINT64: ("decimal", "uint64"),
    _Type.TYPE_SINT32: ("int32", "zigzag varint"),
    _Type.TYPE_SINT64: ("int64", "zigzag varint"),
    _Type.TYPE_FIXED32: ("int64", "fixed32"),
    _Type.TYPE_FIXED64: ("decimal", "fixed64"),
    _Type.TYPE_SFIXED32: ("int32", "sfixed32"),
    _Type.TYPE_SFIXED64: ("int64", "sfixed64"),
    _Type.TYPE_BOOL: ("bool", "bool"),
    _Type.TYPE_STRING: ("string", "string"),
    _Type.TYPE_BYTES: ("binary", "bytes"),
    _Type.TYPE_ENUM: ("enum", "enum"),
}
"""The column, and how values are written: what may be exchanged is written in one way."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_Get = Callable[[Any], Any]
_Set = Callable[[Any, Any], None]


class ProtobufCodec:
    """See `value.PayloadCodec`."""

    widenings: ClassVar[Widenings] = {"int32": frozenset({"int64"})}

    def __init__(self, definition: bytes, message: str) -> None:
        descriptor = _descriptor(definition, message)
        fields = check_columns(_fields(descriptor, Budget(), 1, (descriptor.full_name,)))
        self.root = SchemaField(name="", kind="record", children=fields)
        self._columns = arrow_schema_of(fields)
        self._class: Callable[[], Message] = message_factory.GetMessageClass(descriptor)
        self._get, self._set = _getter_of(descriptor), _setter_of(descriptor)

    def decode(self, payloads: Sequence[Payload], writer: PayloadCodec) -> Decoded:
        """A message says the number of each field, so the version that wrote it makes no
        difference."""
        assert isinstance(writer, ProtobufCodec), "versions of one log have one format"
        values: list[Any] = []
        sources: list[int] = []
        bad: list[BadPayload] = []
        for index, payload in enumerate(payloads):
            message = self._class()
            try:
                message.ParseFromString(bytes(payload))
                values.append(self._get(message))
            except (DecodeError, ValueError, OverflowError) as error:
                bad.append(BadPayload(index, f"{error}"[:300]))
            else:
                sources.append(index)
        return decoded(values, sources, bad, self._columns)

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        payloads = []
        for row in rows.to_pylist(maps_as_pydicts="lossy"):
            message = self._class()
            try:
                self._set(message, row)
                payloads.append(message.SerializeToString(deterministic=True))
            except (ValueError, TypeError, KeyError) as error:
                raise InvalidLogSchema(f"Protobuf: {type(error).__name__}: {error}") from error
        return payloads


def _descriptor(definition: bytes, message: str) -> "Descriptor":
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(definition)
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        names = ", ".join(
            f"{file.package}.{each.name}".lstrip(".")
            for file in files.file
            for each in file.message_type
        )
        raise InvalidLogSchema(
            f"there is no message {message!r}; there are {names[:500]}"
        ) from None
    except (DecodeError, TypeError, ValueError) as error:
        raise InvalidLogSchema(f"it is no set of file descriptors: {error}"[:500]) from error


def _fields(
    descriptor: "Descriptor", budget: Budget, depth: int, above: tuple[str, ...]
) -> tuple[SchemaField, ...]:
    if not descriptor.fields:
        raise InvalidLogSchema(f"message {descriptor.full_name!r} has no field; name one at least")
    return tuple(_field(each, budget, depth, above) for each in descriptor.fields)


def _field(
    given: "FieldDescriptor", budget: Budget, depth: int, above: tuple[str, ...]
) -> SchemaField:
    budget.take(depth, given.name)
    common: dict[str, Any] = {"name": given.name, "key": str(given.number)}
    if _is_map(given):
        key, value = _message(given).fields
        if key.type != _Type.TYPE_STRING:
            raise InvalidLogSchema(f"field {given.name!r}: keys of a map are string")
        return SchemaField(
            **common, kind="map", optional=True, children=(_inner(value, budget, depth, above),)
        )
    if given.is_repeated:
        return SchemaField(
            **common, kind="list", optional=True, children=(_inner(given, budget, depth, above),)
        )
    made = _inner(given, budget, depth, above)
    return SchemaField(
        **common,
        kind=made.kind,
        nullable=given.has_presence and not given.is_required,
        optional=not given.is_required,
        children=made.children,
        symbols=made.symbols,
        precision=made.precision,
        wire=made.wire,
    )


def _inner(
    given: "FieldDescriptor", budget: Budget, depth: int, above: tuple[str, ...]
) -> SchemaField:
    """Return the type of *given*, or of its items, without a name."""
    if given.type == _Type.TYPE_ENUM:
        symbols = tuple(name for name, _ in _symbols(given))
        return SchemaField(name="", kind="enum", symbols=symbols, wire="enum")
    if given.type in _KINDS:
        kind, wire = _KINDS[given.type]
        return SchemaField(name="", kind=kind, wire=wire, precision=20 if kind == "decimal" else 0)
    if given.type != _Type.TYPE_MESSAGE:
        raise InvalidLogSchema(f"field {given.name!r}: a group is no column; use a message")
    inner = _message(given)
    if inner.full_name == _TIMESTAMP:
        return SchemaField(name="", kind="timestamp", wire="message")
    if inner.full_name in above:
        raise InvalidLogSchema(
            f"field {given.name!r}: message {inner.full_name!r} holds itself; a column cannot"
        )
    children = _fields(inner, budget, depth + 1, (*above, inner.full_name))
    return SchemaField(name="", kind="record", children=children, wire="message")


def _is_map(given: "FieldDescriptor") -> bool:
    return given.type == _Type.TYPE_MESSAGE and bool(_message(given).GetOptions().map_entry)


def _message(given: "FieldDescriptor") -> "Descriptor":
    assert given.message_type is not None, "its type says so"
    return given.message_type


def _symbols(given: "FieldDescriptor") -> list[tuple[str, int]]:
    assert given.enum_type is not None, "its type says so"
    return [(value.name, value.number) for value in given.enum_type.values]


def _getter_of(descriptor: "Descriptor") -> _Get:
    getters = [(each.name, _field_getter(each)) for each in descriptor.fields]
    return lambda message: {name: get(message) for name, get in getters}


def _field_getter(given: "FieldDescriptor") -> _Get:
    name = given.name
    if _is_map(given):
        value = _value_getter(_message(given).fields[1])
        return lambda message: {key: value(each) for key, each in getattr(message, name).items()}
    item = _value_getter(given)
    if given.is_repeated:
        return lambda message: [item(each) for each in getattr(message, name)]
    if given.has_presence:
        return lambda message: item(getattr(message, name)) if message.HasField(name) else None
    return lambda message: item(getattr(message, name))


def _value_getter(given: "FieldDescriptor") -> _Get:
    match given.type:
        case _Type.TYPE_ENUM:
            names = {number: name for name, number in _symbols(given)}
            return lambda value: names.get(value, str(value))
        case _Type.TYPE_UINT64 | _Type.TYPE_FIXED64:
            return Decimal
        case _Type.TYPE_MESSAGE if _message(given).full_name == _TIMESTAMP:
            return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
        case _Type.TYPE_MESSAGE:
            return _getter_of(_message(given))
        case _:
            return lambda value: value


def _setter_of(descriptor: "Descriptor") -> _Set:
    setters = [(each.name, _field_setter(each)) for each in descriptor.fields]

    def fill(message: Any, row: Mapping[str, Any]) -> None:
        for name, put in setters:
            value = row.get(name)
            if value is not None:
                put(message, value)

    return fill


def _field_setter(given: "FieldDescriptor") -> _Set:
    name = given.name
    if _is_map(given):
        return _map_setter(name, _message(given).fields[1])
    if given.type == _Type.TYPE_MESSAGE:
        fill = _message_setter(given)
        if given.is_repeated:

            def add_all(message: Any, values: Any) -> None:
                for value in values:
                    fill(getattr(message, name).add(), value)

            return add_all

        def put_message(message: Any, value: Any) -> None:
            inner = getattr(message, name)
            inner.SetInParent()
            fill(inner, value)

        return put_message
    plain = _plain_of(given)
    if given.is_repeated:
        return lambda message, values: getattr(message, name).extend(map(plain, values))
    return lambda message, value: setattr(message, name, plain(value))


def _map_setter(name: str, value: "FieldDescriptor") -> _Set:
    if value.type == _Type.TYPE_MESSAGE:
        fill = _message_setter(value)

        def fill_all(message: Any, values: Mapping[str, Any]) -> None:
            for key, each in values.items():
                fill(getattr(message, name)[key], each)

        return fill_all
    plain = _plain_of(value)

    def put_all(message: Any, values: Mapping[str, Any]) -> None:
        for key, each in values.items():
            getattr(message, name)[key] = plain(each)

    return put_all


def _message_setter(given: "FieldDescriptor") -> _Set:
    if _message(given).full_name == _TIMESTAMP:
        return lambda message, value: message.FromDatetime(value)
    return _setter_of(_message(given))


def _plain_of(given: "FieldDescriptor") -> _Get:
    match given.type:
        case _Type.TYPE_ENUM:
            numbers = dict(_symbols(given))
            return lambda value: numbers[value] if value in numbers else int(value)
        case _Type.TYPE_UINT64 | _Type.TYPE_FIXED64:
            return int
        case _:
            return lambda value: value
