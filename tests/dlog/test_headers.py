import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedBatch, InvalidHeaders
from dlog.headers import (
    HEADERS_MAX,
    NO_HEADERS,
    Headers,
    HeadersGiven,
    are_paired,
    decode_headers,
    encode_headers,
)
from ledger.errors import CallerError

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
MAPPINGS = st.dictionaries(NAMES, st.binary(max_size=20), max_size=8)
PAIRS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=20)), max_size=8)


@given(headers=MAPPINGS)
def test_headers_come_back_in_the_order_in_which_they_were_given(headers: dict[str, bytes]) -> None:
    seen = Headers(encode_headers(headers) or b"")
    assert seen == headers
    assert list(seen) == list(headers)
    assert pickle.loads(pickle.dumps(seen)) == headers
    assert hash(seen) == hash(Headers(encode_headers(headers) or b""))


@given(pairs=PAIRS)
def test_a_name_may_come_twice_and_a_value_be_null(pairs: list[tuple[str, bytes | None]]) -> None:
    headers = Headers(encode_headers(pairs) or b"")
    assert headers.pairs() == tuple(pairs)
    assert dict(headers) == dict(pairs)  # the last one of a name, as Kafka's lastHeader
    assert len(headers) == len(dict(pairs))
    again = Headers(encode_headers(headers) or b"")
    assert (again, hash(again)) == (headers, hash(headers))
    needs_pairs = len(dict(pairs)) != len(pairs) or None in dict(pairs).values()
    assert are_paired(headers.encoded) == needs_pairs


def test_headers_that_differ_in_a_value_of_a_repeated_name_are_not_equal() -> None:
    headers = Headers(encode_headers([("a", b"1"), ("a", b"2")]) or b"")
    assert headers != Headers(encode_headers([("a", b"0"), ("a", b"2")]) or b"")
    once = Headers(encode_headers([("a", b"2")]) or b"")
    assert headers != once
    assert once != headers
    assert headers != {"a": b"2"}
    assert repr(headers) == "Headers((('a', b'1'), ('a', b'2')))"


def test_the_bounds_themselves_are_allowed() -> None:
    headers = {f"{i:0255}": bytes(1000) for i in range(HEADERS_MAX)}
    assert Headers(encode_headers(headers) or b"") == headers


def test_no_headers_take_no_bytes() -> None:
    assert encode_headers({}) is None
    assert dict(NO_HEADERS) == {}


def test_values_that_can_change_are_copied() -> None:
    value = bytearray(b"before")
    given: dict[str, bytearray | memoryview] = {"a": value, "b": memoryview(b"xxyy").cast("H")}
    encoded = encode_headers(given)
    value[:] = b"after!"
    assert dict(Headers(encoded or b"")) == {"a": b"before", "b": b"xxyy"}


@pytest.mark.parametrize(
    ("headers", "error", "reason"),
    [
        ({str(i): b"" for i in range(HEADERS_MAX + 1)}, InvalidHeaders, "65; give a record 64 at"),
        ({"": b""}, InvalidHeaders, "0 bytes; use 1 to 255"),
        ({"ä" * 128: b""}, InvalidHeaders, "256 bytes; use 1 to 255"),
        ({"\ud800": b""}, InvalidHeaders, "surrogates not allowed"),
        ({b"name": b""}, TypeError, "must be str, not bytes"),
        ({"a": "text"}, TypeError, "header 'a' must be bytes or None, not str"),
        ([("a", b"")] * (HEADERS_MAX + 1), InvalidHeaders, "65; give a record 64 at"),
        (["ab"], TypeError, "pairs of name and value, not 'ab'"),
        ([("a", b"", b"")], TypeError, "pairs of name and value, not"),
    ],
)
def test_what_is_no_header_is_refused(
    headers: HeadersGiven, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        encode_headers(headers)


def test_headers_that_are_refused_are_a_value_out_of_range_and_an_error_of_ours() -> None:
    assert issubclass(InvalidHeaders, ValueError)
    assert issubclass(InvalidHeaders, CallerError)
    assert not InvalidHeaders("x").retryable


ONE = b"\x01\x02\0\0\0abc"


@pytest.mark.parametrize(
    "encoded",
    [
        *(ONE[:size] for size in range(1, len(ONE))),
        ONE + b"\0",
        ONE + ONE,  # the same name twice, without what says so
        b"\0",  # which says so of nothing
        b"\0" + ONE,
        b"\x01\xff\xff\xff\xffa",  # a null, without what says so
        b"\0\0\0\0\0",  # a name of no bytes
        b"\x01\0\0\0\0\xff",  # no UTF-8
        b"\x01\xff\xff\xff\x7fa",  # more than there is
        b"\0\x01\xff\xff\xff\xff",  # a null of a name that is not there
        b"".join(b"\x01\0\0\0\0%c" % (32 + i) for i in range(HEADERS_MAX + 1)),
    ],
)
def test_bytes_that_are_no_headers_are_damage(encoded: bytes) -> None:
    with pytest.raises(DamagedBatch):
        Headers(encoded).get("a")


NULL = b"\0\x01\xff\xff\xff\xffa"


@given(
    encoded=st.binary(max_size=40)
    | st.builds(bytes.__add__, st.sampled_from([ONE, NULL, NULL + ONE]), st.binary(max_size=4))
)
def test_any_bytes_are_headers_or_damage(encoded: bytes) -> None:
    try:
        headers = decode_headers(encoded)
    except DamagedBatch:
        return
    assert (encode_headers(headers) or b"") == encoded
