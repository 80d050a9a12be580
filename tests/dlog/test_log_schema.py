"""Schemas of logs: definitions, payloads as rows and back, and what may change between versions."""

import datetime as dt
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from dlog.errors import (
    IncompatibleSchema,
    InvalidLogSchema,
    NoSuchSchema,
    SchemaLibraryMissing,
    TooManySchemas,
)
from dlog.log_schema import LogSchema, LogSchemas
from dlog.log_schema import value as value_module
from ledger.errors import DamagedMetadata

pytestmark = pytest.mark.spark  # pyarrow and fastavro come with it
pa: Any = pytest.importorskip("pyarrow")
descriptors: Any = pytest.importorskip("google.protobuf.descriptor_pb2")
PROTO = descriptors.FieldDescriptorProto


def avro(*fields: Any, **more: Any) -> LogSchema:
    given = {"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields), **more}
    return LogSchema(format="avro", definition=json.dumps(given).encode())


def json_(properties: Any, **more: Any) -> LogSchema:
    given = {"type": "object", "properties": properties, **more}
    return LogSchema(format="json", definition=json.dumps(given).encode())


def arrow(*fields: Any) -> LogSchema:
    definition = pa.schema(list(fields)).serialize().to_pybytes()
    return LogSchema(format="arrow", definition=definition)


def proto(*fields: tuple[str, int, int] | Any, nested: Any = ()) -> LogSchema:
    message = descriptors.DescriptorProto(name="Order", nested_type=list(nested))
    for given in fields:
        if isinstance(given, tuple):
            name, number, kind = given
            message.field.add(name=name, number=number, type=kind, label=PROTO.LABEL_OPTIONAL)
        else:
            message.field.append(given)
    file = descriptors.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.append(message)
    files = descriptors.FileDescriptorSet(file=[file])
    return LogSchema(format="protobuf", definition=files.SerializeToString(), message="shop.Order")


def repeated(name: str, number: int, kind: int, type_name: str = "") -> Any:
    return PROTO(
        name=name,
        number=number,
        type=kind,
        label=PROTO.LABEL_REPEATED,
        type_name=type_name or None,
    )


LONG = {"name": "id", "type": "long"}
AVRO_ALL = avro(
    LONG,
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "at_us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    },
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {}},
    {
        "name": "lines",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Line",
                "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "float"}],
            },
        },
    },
    {"name": "first", "type": ["null", "Line"], "default": None},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["new", "paid"]}},
    {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 2}},
    {"name": "big", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "yes", "type": "boolean"},
)
JSON_ALL = json_(
    {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "name": {"type": ["string", "null"], "title": "Name"},
        "nick": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "raw": {"type": "string", "contentEncoding": "base64"},
        "price": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "state": {"enum": ["new", "paid"], "type": "string"},
        "yes": {"type": "boolean"},
    },
    required=["id", "lines"],
    **{"$defs": {"Line": {"type": "object", "properties": {"sku": {"type": "string"}}}}},
)
ARROW_ALL = arrow(
    pa.field("id", pa.int64(), nullable=False),
    ("tiny", pa.int8()),
    ("name", pa.string()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("day", pa.date32()),
    ("price", pa.decimal128(10, 2)),
    ("tags", pa.list_(pa.string())),
    ("counts", pa.map_(pa.string(), pa.int32())),
    ("first", pa.struct([("sku", pa.string())])),
    ("raw", pa.binary()),
    ("yes", pa.bool_()),
    ("half", pa.float32()),
)
LINE = descriptors.DescriptorProto(name="Line")
LINE.field.append(PROTO(name="sku", number=1, type=PROTO.TYPE_STRING, label=PROTO.LABEL_OPTIONAL))
PROTO_ALL = proto(
    ("id", 1, PROTO.TYPE_INT64),
    ("small", 2, PROTO.TYPE_UINT32),
    ("huge", 3, PROTO.TYPE_UINT64),
    ("name", 4, PROTO.TYPE_STRING),
    ("raw", 5, PROTO.TYPE_BYTES),
    ("price", 6, PROTO.TYPE_DOUBLE),
    repeated("tags", 7, PROTO.TYPE_STRING),
    repeated("lines", 8, PROTO.TYPE_MESSAGE, ".shop.Order.Line"),
    PROTO(
        name="first",
        number=9,
        type=PROTO.TYPE_MESSAGE,
        label=PROTO.LABEL_OPTIONAL,
        type_name=".shop.Order.Line",
    ),
    nested=[LINE],
)
NOON = dt.datetime(2026, 11, 28, 12, 0, 0, 125_000, tzinfo=dt.UTC)
COMMON = {"id": 7, "name": "ab", "tags": ["x", "y"]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "avro": [
        COMMON
        | {
            "at": NOON,
            "at_us": NOON,
            "local": dt.datetime(1969, 1, 1, 1),  # noqa: DTZ001 - of no zone
            "day": dt.date(1, 1, 1),
            "price": Decimal("-12.50"),
            "counts": [("a", 1)],
            "lines": [{"sku": "s", "n": 0.5}],
            "first": {"sku": "t", "n": 1.0},
            "state": "paid",
            "mac": b"\0\1",
            "big": 2.5,
            "raw": b"\xff",
            "yes": True,
        },
        {
            "id": -1,
            "name": None,
            "at": NOON,
            "at_us": None,
            "local": dt.datetime(9999, 1, 1),  # noqa: DTZ001
            "day": dt.date(9999, 12, 31),
            "price": Decimal("0.00"),
            "tags": [],
            "counts": [],
            "lines": [],
            "first": None,
            "state": "new",
            "mac": b"\2\3",
            "big": -1.0,
            "raw": b"",
            "yes": False,
        },
    ],
    "json": [
        COMMON
        | {
            "small": 3,
            "nick": None,
            "at": NOON,
            "day": dt.date(2026, 2, 28),
            "raw": b"\0\xff",
            "price": 0.1,
            "counts": [("k", 2)],
            "lines": [{"sku": "s"}, {"sku": None}],
            "state": "new",
            "yes": False,
        },
        dict.fromkeys(JSON_ALL.arrow_schema().names) | {"id": 2**62, "lines": []},
    ],
    "arrow": [
        COMMON
        | {
            "tiny": 1,
            "at": NOON,
            "day": dt.date(2026, 2, 28),
            "price": Decimal("1.25"),
            "counts": [("k", 2)],
            "first": {"sku": "s"},
            "raw": b"\0",
            "yes": True,
            "half": 0.5,
        },
        dict.fromkeys(ARROW_ALL.arrow_schema().names) | {"id": 1},
    ],
    "protobuf": [
        COMMON
        | {
            "small": 2**32 - 1,
            "huge": Decimal(2**64 - 1),
            "raw": b"\xff",
            "price": 0.5,
            "lines": [{"sku": "s"}],
            "first": {"sku": "t"},
        },
        {
            "id": 0,
            "small": 0,
            "huge": Decimal(0),
            "name": "",
            "raw": b"",
            "price": 0.0,
            "tags": [],
            "lines": [],
            "first": None,
        },
    ],
}
ALL = {"avro": AVRO_ALL, "json": JSON_ALL, "arrow": ARROW_ALL, "protobuf": PROTO_ALL}


@pytest.mark.parametrize("form", sorted(ALL))
def test_rows_of_all_types_become_payloads_and_rows_again(form: str) -> None:
    schema = ALL[form].check()
    rows = pa.RecordBatch.from_pylist(ROWS[form], schema=schema.arrow_schema())
    payloads = schema.encode(rows)
    assert len(payloads) == 2
    decoded = schema.decode(payloads)
    assert not decoded.bad
    assert decoded.rows.schema == schema.arrow_schema()
    assert decoded.rows.to_pylist() == rows.to_pylist()
    assert list(decoded.sources) == [0, 1]


@pytest.mark.parametrize("form", sorted(ALL))
def test_a_bad_payload_costs_its_own_row_and_says_why(form: str) -> None:
    schema = ALL[form]
    rows = pa.RecordBatch.from_pylist(ROWS[form], schema=schema.arrow_schema())
    first, second = schema.encode(rows)
    decoded = schema.decode([b"\x0b", first, b"\x07\x01\x00", memoryview(second), first[:-1]])
    assert [bad.index for bad in decoded.bad] == [0, 2, 4]
    assert all(bad.reason for bad in decoded.bad)
    assert list(decoded.sources) == [1, 3]
    assert decoded.rows.to_pylist() == rows.to_pylist()
    assert schema.decode([]).rows.schema == schema.arrow_schema()
    nothing = schema.decode([b"\x0b"])
    assert nothing.rows.num_rows == 0
    assert nothing.rows.schema == schema.arrow_schema()


@pytest.mark.parametrize("form", sorted(ALL))
def test_payloads_of_chance_are_bad_and_nothing_else_happens(form: str) -> None:
    import random

    dice = random.Random(36)
    schema = ALL[form]
    rows = pa.RecordBatch.from_pylist(ROWS[form], schema=schema.arrow_schema())
    good = schema.encode(rows)
    payloads = []
    for _ in range(1500):
        payload = bytearray(dice.choice(good) or b"?")
        for _ in range(dice.randrange(1, 4)):
            payload[dice.randrange(len(payload))] = dice.randrange(256)
        payloads.append(bytes(payload[: dice.randrange(len(payload) + 1)]))
    decoded = schema.decode(payloads)
    decoded.rows.validate(full=True)
    assert {*decoded.sources, *(bad.index for bad in decoded.bad)} <= {*range(len(payloads))}
    assert len({*decoded.sources}) + len(decoded.bad) >= len(payloads) * 0.99


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"id": 1}', "'lines' is missing"),
        (b'{"id": "1", "lines": []}', "no int64"),
        (b'{"id": true, "lines": []}', "no int64"),
        (b'{"id": 1, "lines": {}}', "no list"),
        (b'{"id": 9223372036854775808, "lines": []}', ""),
        (b'{"id": 1, "lines": [], "price": 1e999}', "too large"),
        (b'{"id": 1, "lines": [], "price": NaN}', "NaN is no JSON"),
        (b'{"id": 1, "lines": [], "at": "2026-01-01T00:00:00"}', "no offset"),
        (b'{"id": 1, "lines": [], "at": "yesterday"}', ""),
        (b'{"id": 1, "lines": [], "state": "lost"}', "none of its texts"),
        (b'{"id": 1, "lines": [], "raw": "*"}', ""),
        (b'{"id": 1, "lines": [], "name": "\\ud800"}', ""),
        (b'{"id": 1, "lines": [], "name": "\xff"}', ""),
        (b'{"id": 1, "lines": []} {}', ""),
        (b"[" * 100_000, ""),
        (b"[]", "no record"),
    ],
    ids=str,
)
def test_json_that_the_schema_does_not_have_is_bad(text: bytes, reason: str) -> None:
    decoded = JSON_ALL.decode([b'{"id": 1.0, "lines": [], "other": [1]}', text])
    assert [bad.index for bad in decoded.bad] == [1]
    assert reason in decoded.bad[0].reason
    assert decoded.rows.num_rows == 1


def test_bytes_behind_a_datum_of_avro_are_of_another_schema() -> None:
    (payload,) = avro(LONG).encode(pa.RecordBatch.from_pylist([{"id": 1}]))
    (bad,) = avro(LONG).decode([payload, payload + b"\x00"]).bad
    assert (bad.index, bad.reason) == (1, "1 bytes follow the datum")


def test_a_text_of_arrow_that_is_no_utf8_is_bad() -> None:
    """Arrow reads it as it is, and what gets the column would believe it."""
    schema = arrow(("text", pa.string()))
    payload = pa.RecordBatch.from_pylist([{"text": "abcd"}]).serialize().to_pybytes()
    assert payload.count(b"abcd") == 1
    decoded = schema.decode([payload, payload.replace(b"abcd", b"\xff\xfe\xfd\xfc")])
    assert [bad.index for bad in decoded.bad] == [1]


def test_a_closed_object_has_no_other_property() -> None:
    closed = json_({"id": {"type": "integer"}}, additionalProperties=False)
    assert not closed.decode([b'{"id": 1}']).bad
    assert "'more'" in closed.decode([b'{"id": 1, "more": 2}']).bad[0].reason


def test_a_payload_of_arrow_may_have_several_rows() -> None:
    schema = arrow(("id", pa.int64()))
    batch = pa.RecordBatch.from_pylist([{"id": 1}, {"id": 2}])
    decoded = schema.decode(
        [
            batch.serialize().to_pybytes(),
            batch.slice(0, 0).serialize().to_pybytes(),
            batch.slice(1).serialize().to_pybytes(),
        ]
    )
    assert decoded.rows.to_pydict() == {"id": [1, 2, 2]}
    assert list(decoded.sources) == [0, 0, 2]
    assert not decoded.bad


def test_a_time_that_no_calendar_has_is_bad_wherever_it_stands() -> None:
    """Python has no such time, so one row of it would end a query that collects rows."""
    time = {"type": "long", "logicalType": "timestamp-micros"}
    flat = avro({"name": "t", "type": time})
    inner = {"type": "record", "name": "I", "fields": [{"name": "t", "type": time}]}
    deep = avro({"name": "l", "type": {"type": "array", "items": {"type": "map", "values": inner}}})
    last = 253_402_300_800_000_000
    raw = pa.schema([("t", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"t": [0, last - 1, last]}, schema=raw)
    micros = rows.column("t").cast(pa.timestamp("us", tz="UTC"))
    payloads = flat.encode(pa.RecordBatch.from_arrays([micros], names=["t"]))
    assert [bad.index for bad in flat.decode(payloads).bad] == [2]
    nested = [b"\x02\x02\x02k" + payload + b"\x00\x00" for payload in payloads]
    assert [bad.index for bad in deep.decode(nested).bad] == [2]
    of_arrow = arrow(("t", pa.timestamp("us", tz="UTC")), ("d", pa.date32()))
    days = pa.array([-719_162, 2_932_896, -719_163], pa.int32()).cast(pa.date32())
    early = pa.RecordBatch.from_arrays([micros.take(pa.array([0, 1, 0])), days], names=["t", "d"])
    batches = [early.slice(at, 1).serialize().to_pybytes() for at in range(3)]
    (bad,) = of_arrow.decode(batches).bad
    assert (bad.index, bad.reason) == (2, "a date is outside of the years 1 to 9999")


def test_a_compressed_body_of_arrow_is_refused() -> None:
    schema = arrow(("text", pa.string()))
    batch = pa.RecordBatch.from_pylist([{"text": "a" * 10_000}])
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()
    head = 8 + struct.unpack_from("<i", stream, 4)[0]
    decoded = schema.decode([stream[head:], batch.serialize().to_pybytes()])
    assert "compressed" in decoded.bad[0].reason
    assert decoded.rows.num_rows == 1


def test_what_cannot_be_written_says_why() -> None:
    schema = avro(LONG)
    with pytest.raises(InvalidLogSchema, match="no field 'other'"):
        schema.encode(pa.RecordBatch.from_pylist([{"other": 1}]))
    with pytest.raises(InvalidLogSchema, match="'id' is int64, not string"):
        schema.encode(pa.RecordBatch.from_pylist([{"id": "1"}]))
    nothing = pa.RecordBatch.from_pylist([{"id": None}], schema=schema.arrow_schema())
    for required in (
        schema,
        json_({"id": {"type": "integer"}}, required=["id"]),
        arrow(pa.field("id", pa.int64(), nullable=False)),
    ):
        with pytest.raises(InvalidLogSchema):
            required.encode(nothing)


DECIMAL_99 = {"type": "bytes", "logicalType": "decimal", "precision": 99}
DEEP: Any = "long"
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}
MANY = [
    {"name": f"t{n}", "type": {"type": "record", "name": f"T{n}", "fields": [
        {"name": side, "type": f"shop.T{n - 1}" if n else "int"} for side in "ab"]}}
    for n in range(14)
]  # fmt: skip
SELF = {"type": "record", "name": "Node", "fields": [
    {"name": "next", "type": ["null", "Node"], "default": None}]}  # fmt: skip
INVALID: list[tuple[Callable[[], LogSchema], str]] = [
    (lambda: LogSchema(format="avro", definition=b"{"), "no JSON"),
    (lambda: LogSchema(format="avro", definition=b'"long"'), "no record"),
    (lambda: LogSchema(format="avro", definition=b"[" * 200_000), "no JSON"),
    (lambda: LogSchema(format="avro", definition=b" " * (300 << 10)), "use 1 to 262144"),
    (avro, "no field"),
    (lambda: avro({"name": "x", "type": "null"}), "no type"),
    (lambda: avro({"name": "x", "type": ["int", "string"]}), "a union is of null"),
    (lambda: avro({"name": "x", "type": "Nowhere"}), "there is no type 'Nowhere'"),
    (lambda: avro({"name": "x", "type": SELF}), "holds itself"),
    (lambda: avro({"name": "x", "type": DEEP}), "levels deep"),
    (lambda: avro(*MANY), "more than 2000 fields"),
    (lambda: avro({"name": "x", "type": {"type": "fixed", "name": "F", "size": 0}}), "size of 0"),
    (lambda: avro({"name": "_offset", "type": "int"}), "underscore"),
    (lambda: avro(LONG, {"name": "ID", "type": "int"}), "but for case"),
    (lambda: avro(LONG, {"name": "x", "type": 1}), "1 is no type"),
    (
        lambda: avro({"name": "d", "type": DECIMAL_99}),
        "up to 38",
    ),
    (lambda: avro({"name": "x", "type": {"type": {"type": {"type": []}}}}), "a union is of null"),
    (lambda: avro({"name": "x", "type": {"type": {"symbols": 1}}}), "no type"),
    (lambda: json_({"n": {"type": "string", "format": {}}}), "is no text"),
    (lambda: json_({"n": {"type": {}}}), "use one of"),
    (lambda: json_({"n": {"type": "string"}}, required=[{}]), "required"),
    (lambda: json_({"n": {"type": "array", "items": [{}]}}), "is no schema"),
    (lambda: LogSchema(format="json", definition=b"[]"), "no JSON Schema"),
    (lambda: json_({}), "has properties"),
    (lambda: json_({"n": {"type": "integer", "minimum": 1}}), "keyword 'minimum'"),
    (lambda: json_({"n": {"type": ["integer", "string"]}}), "use one of"),
    (lambda: json_({"n": {"$ref": "#/$defs/Nothing"}}), "there is no"),
    (lambda: json_({"n": {"$ref": "other.json"}}), "a reference is to"),
    (
        lambda: json_({"n": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": {
            "type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}}}),
        "holds itself",
    ),
    (lambda: json_({"n": {"type": "string", "format": "duration"}}), "format 'duration'"),
    (lambda: json_({"n": {"type": "string"}}, required=["m"]), "required"),
    (lambda: LogSchema(format="arrow", definition=b"\xff" * 64), "no schema of Arrow"),
    (lambda: arrow(("n", pa.uint64())), "use one of"),
    (lambda: arrow(("n", pa.dictionary(pa.int32(), pa.string()))), "use one of"),
    (lambda: arrow(("n", pa.null())), "use one of"),
    (lambda: LogSchema(format="protobuf", definition=b"\xff\xff", message="a.B"), "no set"),
    (lambda: replace(proto(("n", 1, PROTO.TYPE_INT32)), message="a.B"), "there are shop.Order"),
    (lambda: replace(proto(("n", 1, PROTO.TYPE_INT32)), message=""), "a message is named"),
    (lambda: replace(avro(LONG), message="a.B"), "a message is named"),
    (
        lambda: proto(PROTO(name="self", number=1, type=PROTO.TYPE_MESSAGE, label=1,
                            type_name=".shop.Order")),
        "holds itself",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "reason"), INVALID, ids=[f"{n}-{reason[:20]}" for n, (_, reason) in enumerate(INVALID)]
)
def test_definitions_that_no_rows_can_have_are_refused(
    make: Callable[[], LogSchema], reason: str
) -> None:
    with pytest.raises(InvalidLogSchema, match=reason):
        make().check()


NAME = {"name": "name", "type": "string"}
NULLABLE = {"name": "name", "type": ["null", "string"], "default": None}
CHANGES: list[tuple[str, LogSchema, LogSchema, str]] = [
    ("avro adds a default", avro(LONG), avro(LONG, NULLABLE), ""),
    ("avro adds without", avro(LONG), avro(LONG, NAME), "'name' is new and required"),
    ("avro null without default", avro(LONG), avro(LONG, NULLABLE | {"default": None}), ""),
    ("avro drops required", avro(LONG, NAME), avro(LONG), "'name' is required before and gone"),
    ("avro drops optional", avro(LONG, NULLABLE), avro(LONG), ""),
    ("avro widens", avro({"name": "id", "type": "int"}), avro(LONG), ""),
    ("avro narrows", avro(LONG), avro({"name": "id", "type": "int"}), "was int64 and is int32"),
    ("avro retypes", avro(LONG), avro({"name": "id", "type": "string"}), "was int64"),
    ("avro allows null", avro(NAME), avro({"name": "name", "type": ["null", "string"]}), ""),
    ("avro refuses null", avro(NULLABLE), avro(NAME | {"default": ""}), "may be null in older"),
    (
        "avro changes the unit",
        avro({"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}}),
        avro({"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}}),
        "was written as milliseconds",
    ),
    (
        "avro renames by alias",
        avro({"name": "old", "type": "int"}),
        avro({"name": "new", "type": "int", "aliases": ["old"]}),
        "",
    ),
    (
        "avro loses a symbol",
        avro({"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["a", "b"]}}),
        avro({"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["a"]}}),
        "symbols b",
    ),
    ("json adds", json_({"a": {"type": "integer"}}),
     json_({"a": {"type": "number"}, "b": {"type": "string"}}), ""),
    ("json requires more", json_({"a": {"type": "integer"}}),
     json_({"a": {"type": "integer"}}, required=["a"]), "may be absent in older"),
    ("json closes", json_({"a": {"type": "integer"}}),
     json_({"a": {"type": "integer"}}, additionalProperties=False), "other properties"),
    ("json nested", json_({"a": {"type": "array", "items": {"type": "string"}}}),
     json_({"a": {"type": "array", "items": {"type": "integer"}}}), r"'a\[\]' was string"),
    ("arrow adds null", arrow(("a", pa.int32())), arrow(("b", pa.string()), ("a", pa.int64())), ""),
    ("arrow adds required", arrow(("a", pa.int32())),
     arrow(("a", pa.int32()), pa.field("b", pa.string(), nullable=False)), "new and required"),
    ("proto renames", proto(("a", 1, PROTO.TYPE_INT32)), proto(("b", 1, PROTO.TYPE_INT64)), ""),
    ("proto reuses a number", proto(("a", 1, PROTO.TYPE_INT32)), proto(("a", 1, PROTO.TYPE_SINT32)),
     "was written as varint"),
    ("another format", avro(LONG), json_({"id": {"type": "integer"}}), "its format is json"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("older", "newer", "reason"),
    [change[1:] for change in CHANGES],
    ids=[change[0] for change in CHANGES],
)
def test_a_version_follows_another_if_it_reads_its_records(
    older: LogSchema, newer: LogSchema, reason: str
) -> None:
    import re

    problems = newer.compatible_with(older)
    assert bool(problems) == bool(reason), problems
    assert re.search(reason, "; ".join(problems))


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        change[1:3]
        for change in CHANGES
        if not change[3] and change[1].format in {"avro", "arrow", "protobuf", "json"}
    ],
    ids=[change[0] for change in CHANGES if not change[3]],
)
def test_what_may_follow_reads_older_payloads(older: LogSchema, newer: LogSchema) -> None:
    values = {"id": 1, "name": "n", "old": 2, "a": 3}
    row = {name: values[name] for name in older.arrow_schema().names}
    payloads = older.encode(pa.RecordBatch.from_pylist([row], schema=older.arrow_schema()))
    decoded = newer.decode(payloads, writer=older)
    assert not decoded.bad
    (read,) = decoded.rows.to_pylist()
    for name, value in row.items():
        if name in read:
            assert read[name] == value


def test_versions_are_numbered_and_never_again() -> None:
    first = LogSchemas().with_next("orders", avro(LONG), now_ms=5)
    assert first.find("orders").version == 1
    assert first.find("orders").created_ms == 5
    assert first.with_next("orders", avro(LONG), now_ms=6) is first
    second = first.with_next("orders", avro(LONG, NULLABLE), now_ms=7)
    assert [each.version for each in second.versions] == [1, 2]
    assert second.find("orders", 1) == first.find("orders")
    with pytest.raises(NoSuchSchema, match="no version 3"):
        second.find("orders", 3)
    assert [each.version for each in second.cleared(before=2).versions] == [2]
    cleared = second.cleared()
    with pytest.raises(NoSuchSchema, match="no schema"):
        cleared.find("orders")
    again = cleared.with_next("orders", json_({"a": {"type": "integer"}}), now_ms=8)
    assert again.find("orders").version == 3
    stored = LogSchemas.decode(again.encode(), path="/schemas/x")
    assert stored == again


def test_a_version_has_to_follow_all_that_are_kept() -> None:
    """Records of each may be in the log, and the newest reads them all."""
    schemas = LogSchemas().with_next("orders", avro(LONG, NULLABLE), now_ms=1)
    schemas = schemas.with_next("orders", avro(LONG), now_ms=2)
    retyped = avro(LONG, {"name": "name", "type": ["null", "int"], "default": None})
    with pytest.raises(IncompatibleSchema, match=r"version 1.*was string and is int32") as caught:
        schemas.with_next("orders", retyped, now_ms=3)
    assert caught.value.version == 1
    assert not caught.value.retryable
    assert (
        schemas.cleared(before=2).with_next("orders", retyped, now_ms=3).find("orders").version == 3
    )


def test_versions_are_bounded() -> None:
    schemas = LogSchemas()
    for number in range(100):
        schemas = schemas.with_next("orders", avro(LONG, doc=str(number)), now_ms=1)
    with pytest.raises(TooManySchemas, match="clear"):
        schemas.with_next("orders", avro(LONG, doc="more"), now_ms=1)
    large = [avro(LONG, doc=letter * (250 << 10)) for letter in "abcd"]
    schemas = LogSchemas()
    for schema in large[:3]:
        schemas = schemas.with_next("orders", schema, now_ms=1)
    with pytest.raises(TooManySchemas):
        schemas.with_next("orders", large[3], now_ms=1)


@pytest.mark.parametrize(
    "change", [{"next_number": 1}, {"format": "xml"}, {"twice": True}], ids=str
)
def test_a_damaged_node_is_found(change: dict[str, Any]) -> None:
    from dlog.wire import schema_pb2 as pb

    node = pb.SchemasNode()
    stored = LogSchemas().with_next("orders", avro(LONG), now_ms=5).encode()
    node.ParseFromString(stored)
    node.next_number = change.get("next_number", node.next_number)
    node.schemas[0].format = change.get("format", "avro")
    if "twice" in change:
        node.schemas.append(node.schemas[0])
    with pytest.raises(DamagedMetadata):
        LogSchemas.decode(node.SerializeToString(), path="/schemas/x")
    with pytest.raises(DamagedMetadata):
        LogSchemas.decode(stored[:-3], path="/schemas/x")


@pytest.mark.parametrize(("form", "package"), [("avro", "fastavro"), ("json", "pyarrow")])
def test_a_library_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, form: str, package: str
) -> None:
    import sys

    value_module._parsed.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SchemaLibraryMissing, match=r"dlog-ledgers\[schema\]"):
        ALL[form].check()
