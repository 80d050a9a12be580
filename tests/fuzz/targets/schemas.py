"""Schemas of logs, which users write, and payloads, which anybody writes."""

from collections.abc import Callable
from typing import Any, Final

from dlog.errors import InvalidLogSchema
from dlog.log_schema import LogSchema, LogSchemas, SchemaFormat
from ledger.errors import DamagedMetadata
from tests.fuzz.target import Target

AVRO: Final = (
    b'{"type":"record","name":"O","fields":[{"name":"a","type":["null","long"],"default":null},'
    b'{"name":"b","type":{"type":"array","items":"string"}},{"name":"c","type":{"type":"map",'
    b'"values":{"type":"bytes","logicalType":"decimal","precision":5,"scale":2}}},'
    b'{"name":"d","type":{"type":"record","name":"I","fields":[{"name":"e","type":{"type":"enum",'
    b'"name":"E","symbols":["x","y"]}},{"name":"f","type":{"type":"fixed","name":"F","size":2}}]}},'
    b'{"name":"g","type":"I"},{"name":"h","type":{"type":"long","logicalType":"timestamp-millis"}}]}'
)
JSON: Final = (
    b'{"type":"object","required":["a"],"additionalProperties":false,"$defs":{"D":{"type":"object",'
    b'"properties":{"e":{"type":"string","enum":["x"]}}}},"properties":{"a":{"type":["integer",'
    b'"null"]},"b":{"type":"array","items":{"$ref":"#/$defs/D"}},"c":{"anyOf":[{"type":"number"},'
    b'{"type":"null"}]},"d":{"type":"string","format":"date-time"},"f":{"type":"object",'
    b'"additionalProperties":{"type":"string","contentEncoding":"base64"}}}}'
)
JSON_ROW: Final = (
    b'{"a":1,"b":[{"e":"x"}],"c":0.5,"d":"2026-01-01T00:00:00Z","f":{"k":"AAE="}}',
    b'{"a":null,"f":{}}',
)
AVRO_ROW: Final = (
    b"\x02\x06\x04\x02x\x02y\x00\x02\x02k\x02\x05\x00\x00ab\x02cd\x80\xa0\xd5\xed\xeef",
)


def _definition(kind: SchemaFormat, message: str = "") -> Callable[[bytes], LogSchema]:
    return lambda data: LogSchema(format=kind, definition=data, message=message).check()


def _use(schema: LogSchema) -> object:
    return schema.compatible_with(schema), schema.arrow_schema(), schema.decode([b"", b"\0" * 40])


def _payload(schema: LogSchema) -> Callable[[bytes], Any]:
    def parse(data: bytes) -> Any:
        decoded = schema.decode([data])
        decoded.rows.validate(full=True)
        assert not decoded.bad or not decoded.rows.num_rows
        if decoded.bad:
            raise InvalidLogSchema(decoded.bad[0].reason)
        return decoded.rows

    return parse


def _arrow() -> tuple[LogSchema, bytes]:
    import pyarrow as pa

    rows = pa.RecordBatch.from_pylist([{"a": 1, "b": ["x"], "c": {"d": b"\0"}}] * 2)
    definition = rows.schema.serialize().to_pybytes()
    return LogSchema(format="arrow", definition=definition), rows.serialize().to_pybytes()


def _proto() -> tuple[LogSchema, bytes]:
    from google.protobuf import descriptor_pb2 as pb

    field = pb.FieldDescriptorProto
    message = pb.DescriptorProto(name="O")
    message.nested_type.add(name="I").field.add(name="d", number=1, type=field.TYPE_UINT64, label=1)
    message.field.add(name="a", number=1, type=field.TYPE_SINT64, label=1)
    message.field.add(name="b", number=2, type=field.TYPE_STRING, label=3)
    message.field.add(name="c", number=3, type=field.TYPE_MESSAGE, label=1, type_name=".O.I")
    file = pb.FileDescriptorProto(name="o.proto", syntax="proto3", message_type=[message])
    definition = pb.FileDescriptorSet(file=[file]).SerializeToString()
    schema = LogSchema(format="protobuf", definition=definition, message="O")
    return schema, b"\x08\x03\x12\x01x\x12\x00\x1a\x02\x08\x05"


def _targets() -> list[Target]:
    arrow, arrow_row = _arrow()
    proto, proto_row = _proto()
    avro = LogSchema(format="avro", definition=AVRO)
    json = LogSchema(format="json", definition=JSON)
    stored = LogSchemas().with_next("o", json, now_ms=1).with_next("o", json, now_ms=2).encode()
    written = {
        "avro": (avro, AVRO_ROW),
        "json": (json, JSON_ROW),
        "arrow": (arrow, (arrow_row,)),
        "protobuf": (proto, (proto_row,)),
    }
    targets = [
        Target(
            "node-schemas",
            lambda data: LogSchemas.decode(data, path="/schemas/x"),
            (stored,),
            refuses=DamagedMetadata,
        )
    ]
    for name, (schema, rows) in written.items():
        targets += [
            Target(
                f"schema-{name}",
                _definition(schema.format, schema.message),
                (schema.definition,),
                refuses=InvalidLogSchema,
                use=_use,
            ),
            Target(f"payload-{name}", _payload(schema), rows, refuses=InvalidLogSchema),
        ]
    return targets


SCHEMAS: Final = tuple(_targets())
