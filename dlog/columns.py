"""Records as a caller gives them, and as the parallel columns that an entry is encoded from."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Self, cast

from dlog.headers import HeadersGiven, Payload, encode_headers
from dlog.position import timestamp_error
from ledger.errors import InvalidValue

Row = tuple[bytes, bytes | None, int | None, int | None, bytes | None]
"""One record: payload, key, txid, timestamp, headers as `Columns` have them."""


@dataclass(slots=True)
class Columns:
    """Records, column by column; one that no record needs is None, the others are as long as
    *values*. What is given to somebody else is not changed any more."""

    values: list[bytes]
    keys: list[bytes | None] | None = None
    txids: list[int | None] | None = None
    timestamps_ms: list[int | None] | None = None
    """Where it is None, or a record's is, the record has the time at which it is appended."""
    headers: list[bytes | None] | None = None
    """Encoded, see `dlog.headers`."""

    @property
    def count(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, records: "list[bytes | Row]") -> Self:
        """Return *records*, one at least; `bytes` are payloads alone."""
        if tuple not in set(map(type, records)):
            return cls(cast("list[bytes]", records))
        rows = [each if isinstance(each, tuple) else (each, *repeat(None, 4)) for each in records]
        values, *optional = map(list, zip(*rows, strict=True))
        return cls(values, *(c if any(v is not None for v in c) else None for c in optional))


def size_of(record: bytes | Row) -> int:
    """Return the bytes of a record."""
    if not isinstance(record, tuple):
        return len(record)
    payload, key, _, _, headers = record
    return len(payload) + len(key or b"") + len(headers or b"")


def total_bytes(records: Sequence[bytes | Row]) -> int:
    """Return the bytes of all records together."""
    return sum(map(size_of if tuple in set(map(type, records)) else len, records))


def checked(
    payload: Payload,
    key: Payload | None,
    txid: int | None,
    timestamp_ms: int | None,
    headers: HeadersGiven | None,
) -> Row:
    """Return one record, of the types that formats need, copied if mutable.

    Raises `TypeError`, `ValueError`."""
    if type(payload) is not bytes:
        payload = as_bytes(payload, "payload")
    if key is not None and type(key) is not bytes:
        key = as_bytes(key, "key")
    if txid is not None and type(txid) is not int:
        txid = operator.index(txid)
    if timestamp_ms is not None:
        timestamp_ms = operator.index(timestamp_ms)
        if (reason := timestamp_error(timestamp_ms)) is not None:
            raise InvalidValue("timestamp_ms", timestamp_ms, reason)
    encoded = None if headers is None else encode_headers(headers)
    return payload, key, txid, timestamp_ms, encoded


def checked_many(
    payloads: Iterable[Payload],
    keys: Iterable[Payload | None] | None,
    txids: Iterable[int | None] | None,
    timestamps_ms: Iterable[int | None] | None,
    headers: Iterable[HeadersGiven | None] | None,
) -> list[bytes | Row]:
    """As `checked`, for many records; `bytes` are payloads alone."""
    values = [p if type(p) is bytes else as_bytes(p, "payload") for p in payloads]
    if not values:
        raise ValueError("append one record or more")
    given = [None if c is None else list(c) for c in (keys, txids, timestamps_ms, headers)]
    for name, column in zip(("keys", "txids", "timestamps_ms", "headers"), given, strict=True):
        if column is not None and len(column) != len(values):
            raise ValueError(f"{len(column)} {name} for {len(values)} records")
    if not any(given):
        return [*values]
    rows = zip(values, *(c or repeat(None, len(values)) for c in given), strict=True)
    return [checked(*row) for row in rows]


def as_bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    return bytes(value)
