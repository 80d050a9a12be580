"""What callers append, as the columns that formats need."""

import operator
from collections.abc import Iterable
from itertools import repeat
from typing import Final

Payload = bytes | bytearray | memoryview

_TIMESTAMP_MS_MAX: Final = 2**62


def checked(
    payload: Payload, key: Payload | None, txid: int | None, timestamp_ms: int | None
) -> tuple[bytes, bytes | None, int | None, int | None]:
    """Return the columns of one record, of the types that formats need, copied if mutable.

    Raises `TypeError`, `ValueError`."""
    if type(payload) is not bytes:
        payload = as_bytes(payload, "payload")
    if key is not None and type(key) is not bytes:
        key = as_bytes(key, "key")
    if txid is not None and type(txid) is not int:
        txid = operator.index(txid)
    if timestamp_ms is not None:
        timestamp_ms = operator.index(timestamp_ms)
        if not -_TIMESTAMP_MS_MAX <= timestamp_ms <= _TIMESTAMP_MS_MAX:
            raise ValueError(f"timestamp_ms={timestamp_ms} is no time in milliseconds")
    return payload, key, txid, timestamp_ms


Columns = tuple[
    list[bytes], list[bytes | None] | None, list[int | None] | None, list[int | None] | None
]


def checked_many(
    payloads: Iterable[Payload],
    keys: Iterable[Payload | None] | None,
    txids: Iterable[int | None] | None,
    timestamps_ms: Iterable[int | None] | None,
) -> Columns:
    """As `checked`, for many records."""
    values = [p if type(p) is bytes else as_bytes(p, "payload") for p in payloads]
    if not values:
        raise ValueError("append one record or more")
    given = [None if c is None else list(c) for c in (keys, txids, timestamps_ms)]
    for name, column in zip(("keys", "txids", "timestamps_ms"), given, strict=True):
        if column is not None and len(column) != len(values):
            raise ValueError(f"{len(column)} {name} for {len(values)} records")
    if not any(given):
        return values, None, None, None
    rows = zip(*(c or repeat(None, len(values)) for c in given), strict=True)
    checked_rows = [checked(b"", *row)[1:] for row in rows]
    columns = [list(column) for column in zip(*checked_rows, strict=True)]
    used = [c if any(v is not None for v in c) else None for c in columns]
    return values, *used  # type: ignore[return-value] # by column


def as_bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} must be bytes, not {type(value).__name__}")
    return bytes(value)
