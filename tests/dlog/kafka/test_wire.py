"""Requests that are read, responses of every version that is offered, and what is refused."""

import dataclasses
import datetime
import io
import struct
import types
import typing
import uuid
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from dlog.kafka.gateway import OFFERED
from dlog.kafka.request_reader import read_entity
from dlog.kafka.wire import (
    API_VERSIONS,
    FETCH,
    HEARTBEAT,
    METADATA,
    PRODUCE,
    BadRequest,
    VersionRange,
    WireRequest,
    decode_request,
    encode_response,
    encode_versions,
    entity_of,
)

EVERY = [
    (api, version)
    for api, (lowest, highest) in sorted(OFFERED.items())
    for version in range(lowest, highest + 1)
]


def request_frame(api: int, version: int, values: dict[str, Any], correlation_id: int = 7) -> bytes:
    kind: Any = load_request_schema(api, version)
    head = kind.__header_schema__
    out = io.BytesIO()
    given_head = {
        "request_api_key": api,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": "tester",
    }
    entity_writer(head)(out, entity_of(head, given_head))
    entity_writer(kind)(out, entity_of(kind, values))
    return out.getvalue()


def response_in(frame: bytes, api: int, version: int) -> tuple[int, Any]:
    """Return correlation id and entity of the response in *frame*."""
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    kind: Any = load_response_schema(api, version)
    head, read = entity_reader(kind.__header_schema__)(frame, 4)
    body, end = entity_reader(kind)(frame, 4 + read)
    assert 4 + read + end == len(frame)
    return head.correlation_id, body


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_request_of_each_offered_version_is_read(api: int, version: int) -> None:
    request = decode_request(request_frame(api, version, {}), OFFERED)
    assert (request.api, request.version, request.correlation_id) == (api, version, 7)
    assert request.client_id == "tester"


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_response_of_each_offered_version_is_made_of_defaults(api: int, version: int) -> None:
    request = WireRequest(api, version, 9, "", None)
    correlation_id, _ = response_in(encode_response(request, {}), api, version)
    assert correlation_id == 9


def test_a_response_has_the_fields_of_its_version_and_leaves_out_others() -> None:
    values = {
        "brokers": [{"node_id": 3, "host": "h", "port": 1}],
        "cluster_id": "c",
        "topics": [{"name": "t", "partitions": [{"leader_id": 3, "leader_epoch": 5}]}],
    }
    _, old = response_in(encode_response(WireRequest(METADATA, 0, 1, "", None), values), 3, 0)
    _, new = response_in(encode_response(WireRequest(METADATA, 12, 1, "", None), values), 3, 12)
    assert not hasattr(old, "cluster_id")
    assert new.cluster_id == "c"
    assert new.topics[0].partitions[0].leader_epoch == 5
    assert old.topics[0].partitions[0].leader_id == 3


def test_versions_that_are_too_new_are_answered_in_the_oldest_version() -> None:
    frame = struct.pack(">hhih", API_VERSIONS, 99, 5, -1)
    request = decode_request(frame, OFFERED)
    correlation_id, versions = response_in(encode_versions(request, OFFERED), API_VERSIONS, 0)
    assert correlation_id == 5
    assert versions.error_code is ErrorCode.unsupported_version
    assert {each.api_key: each.max_version for each in versions.api_keys}[API_VERSIONS] == 4


def test_versions_are_answered_in_the_version_of_the_request() -> None:
    request = decode_request(request_frame(API_VERSIONS, 3, {}), OFFERED)
    _, versions = response_in(encode_versions(request, OFFERED), API_VERSIONS, 3)
    assert versions.error_code is ErrorCode.none
    assert {each.api_key for each in versions.api_keys} == set(OFFERED)


def test_bytes_behind_a_request_are_ignored() -> None:
    request = decode_request(request_frame(METADATA, 12, {"topics": None}) + b"\0\0\0", OFFERED)
    assert request.body.topics is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "shorter than the header"),
        (struct.pack(">hhi", 999, 0, 1), "not among those that are offered"),
        (struct.pack(">hhi", PRODUCE, 2, 1), "offered are 3 to"),
        (request_frame(METADATA, 12, {"topics": [{"name": "topic"}]})[:-9], "more than there are"),
        (struct.pack(">hhihi", FETCH, 4, 1, -1, -1) + b"\0" * 13 + b"\x7f" * 4, "elements in"),
        (b"GET / HTTP/1.1\r\n\r\n", "not among those that are offered"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(frame: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        decode_request(frame, OFFERED)


def filled(kind: Any) -> Any:
    """Return an entity of *kind* with something in every field."""
    hints = typing.get_type_hints(kind)
    values = {}
    for number, field in enumerate(dataclasses.fields(kind)):
        hint = hints[field.name]
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            hint = next(each for each in typing.get_args(hint) if each is not type(None))
        values[field.name] = something(hint, field.metadata.get("kafka_type", ""), number)
    return kind(**values)


def something(hint: Any, kafka_type: str, number: int) -> Any:
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        return tuple(something(inner, kafka_type, number + each) for each in range(3))
    if dataclasses.is_dataclass(hint):
        return filled(hint)
    made: dict[str, Any] = {
        "string": f"text {number}",
        "bytes": bytes(range(number)),
        "records": b"x" * 200,
        "uuid": uuid.UUID(int=number + 1),
        "bool": number % 2 == 0,
        "timedelta_i32": datetime.timedelta(milliseconds=number),
        "timedelta_i64": datetime.timedelta(milliseconds=number),
        "error_code": ErrorCode.none,
    }
    return made.get(kafka_type, number)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_request_says_what_kio_reads_in_it(api: int, version: int) -> None:
    kind: Any = load_request_schema(api, version)
    out = io.BytesIO()
    entity_writer(kind)(out, filled(kind))
    data = out.getvalue()
    assert read_entity(kind, data, 0) == entity_reader(kind)(data, 0)[0] == filled(kind)


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_a_request_that_is_cut_off_is_refused(api: int, version: int) -> None:
    kind: Any = load_request_schema(api, version)
    out = io.BytesIO()
    entity_writer(kind)(out, filled(kind))
    frame = request_frame(api, version, {})
    head = frame[: len(frame) - len(body_of(kind))]
    for size in range(len(out.getvalue())):
        with pytest.raises(BadRequest):
            decode_request(head + out.getvalue()[:size], OFFERED)


def body_of(kind: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(kind)(out, entity_of(kind, {}))
    return out.getvalue()


def test_a_field_that_only_newer_clients_know_is_passed_over() -> None:
    frame = request_frame(HEARTBEAT, 4, {"group_id": "g"})
    assert frame[-1] == 0, "it has no tagged field"
    known = decode_request(frame[:-1] + b"\x01\x63\x03new", OFFERED)
    assert known.body.group_id == "g"


def test_an_array_that_says_it_is_huge_takes_no_memory() -> None:
    head = struct.pack(">hhih", METADATA, 1, 1, -1)
    for count in (0x7FFF_FFFF, 5, -2):
        with pytest.raises(BadRequest, match=r"elements in|more than there are"):
            decode_request(head + struct.pack(">i", count) + b"\0" * 4, OFFERED)


def test_a_request_of_very_many_elements_is_refused() -> None:
    head = struct.pack(">hhih", METADATA, 1, 1, -1)
    with pytest.raises(BadRequest, match="more than 200000 elements"):
        decode_request(head + struct.pack(">i", 300_000) + b"\0\0" * 300_000, OFFERED)


@settings(max_examples=300)
@given(st.sampled_from(EVERY), st.binary(max_size=200))
def test_no_bytes_raise_anything_else(which: tuple[int, int], body: bytes) -> None:
    frame = struct.pack(">hhi", *which, 1) + body
    with suppress(BadRequest):
        decode_request(frame, {which[0]: VersionRange(which[1], which[1])})
