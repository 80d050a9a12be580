"""Frames of Kafka's protocol: requests as kio's entities, responses of any version from plain
values.

A handler returns a mapping of field names to plain values, nested ones as mappings in sequences.
Each version of a response has some of these fields: what it lacks is left out, and what the mapping
lacks has its default.
"""

import dataclasses
import io
import struct
import types
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from dlog.kafka.request_reader import read_client_id, read_entity
from ledger.errors import BadMessage

FRAME_HEADER_BYTES: Final = 4
REQUEST_HEADER_BYTES_MIN: Final = 8
PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_CONFIGS: Final = 32
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
OFFSET_DELETE: Final = 47
DESCRIBE_CLUSTER: Final = 60

API_NAMES: Final = {
    PRODUCE: "Produce",
    FETCH: "Fetch",
    LIST_OFFSETS: "ListOffsets",
    METADATA: "Metadata",
    OFFSET_COMMIT: "OffsetCommit",
    OFFSET_FETCH: "OffsetFetch",
    FIND_COORDINATOR: "FindCoordinator",
    JOIN_GROUP: "JoinGroup",
    HEARTBEAT: "Heartbeat",
    LEAVE_GROUP: "LeaveGroup",
    SYNC_GROUP: "SyncGroup",
    DESCRIBE_GROUPS: "DescribeGroups",
    LIST_GROUPS: "ListGroups",
    SASL_HANDSHAKE: "SaslHandshake",
    API_VERSIONS: "ApiVersions",
    CREATE_TOPICS: "CreateTopics",
    DELETE_TOPICS: "DeleteTopics",
    DELETE_RECORDS: "DeleteRecords",
    INIT_PRODUCER_ID: "InitProducerId",
    OFFSET_FOR_LEADER_EPOCH: "OffsetForLeaderEpoch",
    DESCRIBE_CONFIGS: "DescribeConfigs",
    SASL_AUTHENTICATE: "SaslAuthenticate",
    CREATE_PARTITIONS: "CreatePartitions",
    DELETE_GROUPS: "DeleteGroups",
    INCREMENTAL_ALTER_CONFIGS: "IncrementalAlterConfigs",
    OFFSET_DELETE: "OffsetDelete",
    DESCRIBE_CLUSTER: "DescribeCluster",
}

Values = Mapping[str, Any]
"""Of an entity, by field."""
Entity = Any
"""A frozen dataclass of kio's; which fields it has depends on its version."""
_API_VERSIONS_FALLBACK: Final = 0
_request_head: Final = struct.Struct(">hhi")
_size: Final = struct.Struct(">i")


class BadRequest(BadMessage):
    """A frame is no request that this gateway can read; its connection is closed."""

    def __init__(self, reason: str) -> None:
        super().__init__("of a Kafka client", reason)


class WireRequest(NamedTuple):
    api: int
    version: int
    correlation_id: int
    client_id: str
    body: Entity


class VersionRange(NamedTuple):
    lowest: int
    highest: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest


def decode_request(frame: bytes, offered: Mapping[int, VersionRange]) -> WireRequest:
    """Return the request in *frame*.

    ApiVersions of a version that is too new has no body here; `encode_versions` answers it. Bytes
    behind a request are ignored, as brokers do: librdkafka sends some behind Metadata. Raises
    `BadRequest`."""
    if len(frame) < REQUEST_HEADER_BYTES_MIN:
        raise BadRequest(f"{len(frame)} bytes are shorter than the header of any request")
    api, version, correlation_id = _request_head.unpack_from(frame)
    if api not in offered:
        raise BadRequest(f"API {api} is not among those that are offered")
    if version not in offered[api]:
        if api == API_VERSIONS:
            return WireRequest(api, version, correlation_id, "", None)
        lowest, highest = offered[api]
        raise BadRequest(f"version {version} of API {api}, offered are {lowest} to {highest}")
    kind: Any = load_request_schema(api, version)
    flexible = bool(kind.__header_schema__.__flexible__)
    try:
        client_id, offset = read_client_id(frame, REQUEST_HEADER_BYTES_MIN, flexible=flexible)
        body = read_entity(kind, frame, offset)
    except (ValueError, IndexError, OverflowError, struct.error) as error:
        raise BadRequest(f"API {api} version {version}: {error}") from None
    return WireRequest(api, version, correlation_id, client_id, body)


def encode_response(request: WireRequest, values: Values) -> bytes:
    """Return the frame that answers *request* with *values*."""
    return _encoded(request.api, request.version, request.correlation_id, values)


def encode_versions(request: WireRequest, offered: Mapping[int, VersionRange]) -> bytes:
    """Return the answer to ApiVersions; to a version that is too new UNSUPPORTED_VERSION in
    version 0, which every client reads, and from which it learns the version to use (KIP-511)."""
    refused = request.version not in offered[API_VERSIONS]
    keys = [
        {"api_key": api, "min_version": lowest, "max_version": highest}
        for api, (lowest, highest) in sorted(offered.items())
    ]
    code = ErrorCode.unsupported_version if refused else ErrorCode.none
    version = _API_VERSIONS_FALLBACK if refused else request.version
    values = {"error_code": code, "api_keys": keys}
    return _encoded(API_VERSIONS, version, request.correlation_id, values)


def _encoded(api: int, version: int, correlation_id: int, values: Values) -> bytes:
    kind, head_kind, write_head, write_body = _writers(api, version)
    out = io.BytesIO()
    out.write(bytes(FRAME_HEADER_BYTES))
    write_head(out, head_kind(correlation_id=correlation_id))
    write_body(out, entity_of(kind, values))
    size = out.tell() - FRAME_HEADER_BYTES
    out.seek(0)
    out.write(_size.pack(size))
    return out.getvalue()


@cache
def _writers(api: int, version: int) -> tuple[Any, Any, Callable[..., Any], Callable[..., Any]]:
    kind: Any = load_response_schema(api, version)
    head = kind.__header_schema__
    return kind, head, entity_writer(head), entity_writer(kind)


def entity_of(kind: Any, values: Values) -> Entity:
    """Return an entity of *kind* with what *values* has of its fields."""
    fields = {}
    for name, convert, default in _plan(kind):
        if name in values:
            value = values[name]
            fields[name] = value if convert is None or value is None else convert(value)
        elif default is not dataclasses.MISSING:
            fields[name] = default
    return kind(**fields)


@cache
def _plan(kind: Any) -> tuple[tuple[str, Callable[[Any], Any] | None, Any], ...]:
    """Return each field of *kind* with what converts its plain value, and its default."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, _converter(hints[field.name], field), _default(hints[field.name], field))
        for field in dataclasses.fields(kind)
    )


def _converter(hint: Any, field: dataclasses.Field[Any]) -> Callable[[Any], Any] | None:
    wanted, _ = _unwrapped(hint)
    if typing.get_origin(wanted) is tuple:
        inner = typing.get_args(wanted)[0]
        if dataclasses.is_dataclass(inner):
            return lambda values: tuple(entity_of(inner, each) for each in values)
        return tuple
    if dataclasses.is_dataclass(wanted):
        nested: Any = wanted
        return lambda values: entity_of(nested, values)
    if field.metadata.get("kafka_type", "").startswith("timedelta"):
        return lambda milliseconds: timedelta(milliseconds=milliseconds)
    return None


def _default(hint: Any, field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
        return dataclasses.MISSING
    wanted, optional = _unwrapped(hint)
    if optional:
        return None
    kafka_type = field.metadata.get("kafka_type", "")
    if kafka_type.startswith("timedelta"):
        return timedelta(0)
    if typing.get_origin(wanted) is tuple:
        return ()
    return _DEFAULTS.get(kafka_type, 0)


_DEFAULTS: Final[dict[str, object]] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "error_code": ErrorCode.none,
}


def _unwrapped(hint: Any) -> tuple[Any, bool]:
    """Return *hint* without None, and whether None was allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(hint) if each is not type(None)]
        return kinds[0], True
    return hint, False
