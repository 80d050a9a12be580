"""Arrow: a record's payload is one record batch of one row or several, as an IPC message without
its schema. The definition is the schema as an IPC message (`pyarrow.Schema.serialize`).

Bodies that are compressed are refused: a small payload could stand for a large one, and dlog
compresses whole batches of records itself.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dlog.errors import InvalidLogSchema
from dlog.log_schema.columns import (
    Budget,
    SchemaField,
    Widenings,
    arrow_schema_of,
    check_columns,
    check_times,
    need_pyarrow,
)
from dlog.log_schema.value import BadPayload, Decoded, Payload, PayloadCodec

if TYPE_CHECKING:
    import pyarrow as pa

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
"""In the union of headers of a message (format/Message.fbs), whose fields are version, type of the
header, header; those of a record batch are length, nodes, buffers, compression."""


class ArrowCodec:
    """See `value.PayloadCodec`."""

    widenings: ClassVar[Widenings] = {
        "int8": frozenset({"int16", "int32", "int64", "double"}),
        "int16": frozenset({"int32", "int64", "double"}),
        "int32": frozenset({"int64", "double"}),
        "float": frozenset({"double"}),
    }

    def __init__(self, definition: bytes) -> None:
        pa = need_pyarrow()
        try:
            self._written = pa.ipc.read_schema(pa.py_buffer(definition)).remove_metadata()
            budget = Budget()
            fields = [_field(pa, each, budget, 1) for each in self._written]
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            reason = f"it is no schema of Arrow as IPC message: {error}"
            raise InvalidLogSchema(reason[:500]) from error
        self._fields = check_columns(fields)
        self.root = SchemaField(name="", kind="record", children=self._fields)
        self._columns = arrow_schema_of(self._fields)

    def decode(self, payloads: Sequence[Payload], writer: PayloadCodec) -> Decoded:
        assert isinstance(writer, ArrowCodec), "versions of one log have one format"
        pa = need_pyarrow()
        batches: list[Any] = []
        sources: list[int] = []
        bad: list[BadPayload] = []
        for index, payload in enumerate(payloads):
            try:
                batch = self._projected(writer.batch_in(bytes(payload)))
            except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
                bad.append(BadPayload(index, f"{error}"[:300]))
                continue
            batches.append(batch)
            sources += [index] * batch.num_rows
        table = pa.Table.from_batches(batches, schema=self._columns).combine_chunks()
        arrays = [column.combine_chunks() for column in table.columns]
        arrays = [
            each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in arrays
        ]
        return Decoded(
            pa.RecordBatch.from_arrays(arrays, schema=self._columns), sources, tuple(bad)
        )

    def encode(self, rows: "pa.RecordBatch") -> list[bytes]:
        pa = need_pyarrow()
        arrays = []
        for field, kind in zip(self._fields, self._written, strict=True):
            if field.name in rows.schema.names:
                column = rows.column(field.name)
            else:
                column = pa.nulls(rows.num_rows, self._columns.field(field.name).type)
            if column.null_count and not field.nullable:
                raise InvalidLogSchema(f"field {field.name!r} is required, and null")
            arrays.append(column.cast(kind.type))
        written = pa.RecordBatch.from_arrays(arrays, schema=self._written)
        return [written.slice(at, 1).serialize().to_pybytes() for at in range(rows.num_rows)]

    def batch_in(self, payload: bytes) -> "pa.RecordBatch":
        """Return the rows of a payload of this version. Raises what Arrow raises, or ValueError."""
        pa = need_pyarrow()
        if _is_compressed(payload):
            raise ValueError("its body is compressed; write it without, as dlog compresses batches")
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload), self._written)
        batch.validate(full=True)
        for field, column in zip(self._fields, batch.columns, strict=True):
            if column.null_count and not field.nullable:
                raise ValueError(f"field {field.name!r} is required, and null")
            check_times(column)
        return batch

    def _projected(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return *batch*, of this version or an older one, with the columns of this one."""
        pa = need_pyarrow()
        names = batch.schema.names
        arrays = [
            batch.column(column.name).cast(column.type)
            if column.name in names
            else pa.nulls(batch.num_rows, column.type)
            for column in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)


def _field(pa: Any, given: "pa.SchemaField", budget: Budget, depth: int) -> SchemaField:
    name, kind, nullable = given.name, given.type, given.nullable
    budget.take(depth, name)
    usual = {str(t): k for k, t in _kinds(pa).items()}

    def field(kind: str, *children: SchemaField, precision: int = 0, scale: int = 0) -> SchemaField:
        return SchemaField(
            name=name,
            kind=kind,
            nullable=nullable,
            optional=nullable,
            children=children,
            precision=precision,
            scale=scale,
        )

    if str(kind) in usual:
        return field(usual[str(kind)])
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return field("decimal", precision=kind.precision, scale=kind.scale)
    if pa.types.is_list(kind):
        return field("list", _field(pa, kind.value_field.with_name(""), budget, depth + 1))
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return field("map", _field(pa, kind.item_field.with_name(""), budget, depth + 1))
    if pa.types.is_struct(kind) and kind.num_fields:
        return field("record", *(_field(pa, each, budget, depth + 1) for each in kind))
    known = ", ".join([*usual, "decimal128", "list", "map with string keys", "struct"])
    raise InvalidLogSchema(f"field {name!r} has type {kind}; use one of {known}")


def _kinds(pa: Any) -> dict[str, "pa.DataType"]:
    return {
        "bool": pa.bool_(),
        "int8": pa.int8(),
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


def _is_compressed(payload: bytes) -> bool:
    """Return whether the record batch in *payload* says that its body is compressed.

    Reads the flat buffer in front of it. Raises `struct.error` and ValueError if it is none."""
    mark, _ = struct.unpack_from("<Ii", payload)
    if mark != _CONTINUATION:
        raise ValueError("it does not begin as a message of Arrow's IPC")
    message = _Table(payload, 8 + struct.unpack_from("<I", payload, 8)[0])
    kind, header = message.field(1), message.field(2)
    if kind is None or header is None or payload[kind] != _RECORD_BATCH:
        raise ValueError("it is no record batch of Arrow")
    return (
        _Table(payload, header + struct.unpack_from("<I", payload, header)[0]).field(3) is not None
    )


class _Table:
    """A table of a flat buffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - struct.unpack_from("<i", data, at)[0]
        if self._fields < 0:
            raise ValueError("it is no message of Arrow's IPC")
        self._bytes = struct.unpack_from("<H", data, self._fields)[0]

    def field(self, number: int) -> int | None:
        """Return where the value of a field stands; None: it has none."""
        slot = 4 + 2 * number
        if slot + 2 > self._bytes:
            return None
        offset: int = struct.unpack_from("<H", self._data, self._fields + slot)[0]
        at = self._at + offset
        if offset and at >= len(self._data):
            raise ValueError("it is no message of Arrow's IPC")
        return at if offset else None
