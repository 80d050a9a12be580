"""Reads requests of Kafka's protocol into kio's entities.

kio has a reader of its own, in Rust. It reserves memory for as many elements as an array says that
it has, so thirty bytes end the process; and it refuses tagged fields that it does not know, which
newer clients may send. Here an array has at most as many elements as bytes are left, all arrays of
a request have at most `ELEMENTS_MAX`, and unknown tagged fields are passed over, as the protocol
wants it.
"""

import dataclasses
import struct
import types
import typing
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

VARINT_BYTES_MAX: Final = 5
ELEMENTS_MAX: Final = 200_000
"""Each takes a hundred times the memory of the three bytes that may say it."""
_UUID_BYTES: Final = 16

Reading = tuple[Any, int]
"""A value, and the offset after it."""
Room = list[int]
"""How many more elements the arrays of the request may have."""
Reader = Callable[[bytes, int, Room], Reading]


class UnreadableRequest(ValueError):
    """The bytes are no request of this version."""


def _number(letter: str) -> Reader:
    layout = struct.Struct(f">{letter}")

    def read(data: bytes, at: int, _room: Room) -> Reading:
        return layout.unpack_from(data, at)[0], at + layout.size

    return read


_int16, _int32 = _number("h"), _number("i")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number of up to 32 bits."""
    value = 0
    for shift in range(VARINT_BYTES_MAX):
        byte = data[at + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    raise UnreadableRequest("a number has too many bytes")


def read_client_id(data: bytes, at: int, *, flexible: bool) -> tuple[str, int]:
    """Return the client's name, the last field of a request's header; flexible ones have tagged
    fields behind it."""
    size, at = _int16(data, at, [])
    raw, at = _piece(data, at, max(size, 0))
    if flexible:
        at = _skip_tagged(data, at)
    return raw.decode(), at


def _piece(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise UnreadableRequest(f"{size} bytes at {at} are more than there are")
    return data[at:end], end


def _skip_tagged(data: bytes, at: int) -> int:
    count, at = read_varint(data, at)
    for _ in range(min(count, len(data))):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        _, at = _piece(data, at, size)
    return at


def _sized(*, flexible: bool, optional: bool, layout: Reader) -> Reader:
    """Return what reads the bytes of a string or of bytes; None: there are none."""

    def read(data: bytes, at: int, room: Room) -> Reading:
        if flexible:
            size, at = read_varint(data, at)
            size -= 1
        else:
            size, at = layout(data, at, room)
        if size == -1:
            if not optional:
                raise UnreadableRequest("a field is null that must not be")
            return None, at
        return _piece(data, at, size)

    return read


def _text(read: Reader) -> Reader:
    def decoded(data: bytes, at: int, room: Room) -> Reading:
        raw, at = read(data, at, room)
        return None if raw is None else raw.decode(), at

    return decoded


def _uuid(data: bytes, at: int, _room: Room) -> Reading:
    raw, at = _piece(data, at, _UUID_BYTES)
    return UUID(bytes=raw) if any(raw) else None, at


def _made(read: Reader, make: Callable[[Any], Any]) -> Reader:
    def made(data: bytes, at: int, room: Room) -> Reading:
        value, at = read(data, at, room)
        return make(value), at

    return made


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


_FIXED: Final[dict[str, Reader]] = {
    "int8": _number("b"),
    "int16": _int16,
    "int32": _int32,
    "int64": _number("q"),
    "uint8": _number("B"),
    "uint16": _number("H"),
    "uint32": _number("I"),
    "uint64": _number("Q"),
    "float64": _number("d"),
    "bool": _number("?"),
    "uuid": _uuid,
    "error_code": _made(_int16, ErrorCode),
    "timedelta_i32": _made(_int32, _duration),
    "timedelta_i64": _made(_number("q"), _duration),
}


def _value_reader(kind: Any, kafka_type: str, *, flexible: bool, optional: bool) -> Reader:
    if dataclasses.is_dataclass(kind):
        nested: Any = kind
        return entity_reader(nested)
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if kafka_type == "string":
        return _text(_sized(flexible=flexible, optional=optional, layout=_int16))
    assert kafka_type in ("bytes", "records"), kafka_type
    return _sized(flexible=flexible, optional=optional, layout=_int32)


def _array(element: Reader, *, flexible: bool, optional: bool) -> Reader:
    def read(data: bytes, at: int, room: Room) -> Reading:
        if flexible:
            count, at = read_varint(data, at)
            count -= 1
        else:
            count, at = _int32(data, at, room)
        if count == -1:
            if not optional:
                raise UnreadableRequest("an array is null that must not be")
            return None, at
        if not 0 <= count <= len(data) - at:
            raise UnreadableRequest(f"{count} elements in {len(data) - at} bytes")
        room[0] -= count
        if room[0] < 0:
            raise UnreadableRequest(f"more than {ELEMENTS_MAX} elements")
        values = []
        for _ in range(count):
            value, at = element(data, at, room)
            values.append(value)
        return tuple(values), at

    return read


def _field_reader(hint: Any, field: dataclasses.Field[Any], *, flexible: bool) -> Reader:
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        optional = True
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    kafka_type = field.metadata.get("kafka_type", "")
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        element = _value_reader(inner, kafka_type, flexible=flexible, optional=False)
        return _array(element, flexible=flexible, optional=optional)
    return _value_reader(hint, kafka_type, flexible=flexible, optional=optional)


@cache
def entity_reader(kind: Any) -> Reader:
    """Return what reads an entity of *kind*. It raises `UnreadableRequest` and other ValueErrors,
    IndexError, OverflowError and `struct.error` if the bytes are none."""
    hints, flexible = typing.get_type_hints(kind), kind.__flexible__
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for field in dataclasses.fields(kind):
        reader = _field_reader(hints[field.name], field, flexible=flexible)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, reader))
        else:
            tagged[tag] = field.name, reader

    def read(data: bytes, at: int, room: Room) -> Reading:
        values = {}
        for name, reader in plain:
            values[name], at = reader(data, at, room)
        if flexible:
            count, at = read_varint(data, at)
            for _ in range(min(count, len(data))):
                tag, at = read_varint(data, at)
                size, at = read_varint(data, at)
                piece, at = _piece(data, at, size)
                if tag in tagged:
                    name, reader = tagged[tag]
                    values[name], _ = reader(piece, 0, room)
        return kind(**values), at

    return read


def read_entity(kind: Any, data: bytes, at: int) -> Any:
    """Return the entity of *kind* that begins at *at*. Raises as `entity_reader` says."""
    value, _ = entity_reader(kind)(data, at, [ELEMENTS_MAX])
    return value
