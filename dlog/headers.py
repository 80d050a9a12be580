"""Headers of a record: values under names, beside its key, as Kafka and NATS have them.

Stored for each header, in the order in which they were given, all integers little endian:

    u8   bytes of the name, 1 to 255
    u32  bytes of the value
         the name, UTF-8
         the value

A record has up to 64. Where a name comes twice, or a value is null, a byte 0 stands before the
first header, and a value of 0xFFFFFFFF bytes is null: programs of before refuse the batch that
holds such a record (`dlog.recordbatch`, version 5). Headers are decoded when somebody looks at
them, so readers that do not look pay nothing.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dlog.errors import DamagedBatch, InvalidHeaders

HEADERS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255

PAIRED_RECORD: Final = "a record with a header name twice, or with a null header,"
"""What a cluster of a lower level refuses, for its error."""

Payload = bytes | bytearray | memoryview
HeadersGiven = Mapping[str, Payload | None] | Iterable[tuple[str, Payload | None]]
"""Headers as a caller gives them: values by name, or pairs, of which two may have one name."""
Pairs = tuple[tuple[str, bytes | None], ...]

_SIZES: Final = struct.Struct("<BI")
_PAIRED: Final = b"\0"
"""Stands first where a name comes twice or a value is null: no name has 0 bytes."""
_NULL: Final = 0xFFFFFFFF


class Headers(Mapping[str, bytes | None]):
    """The headers of one record, in the order in which they were given. Immutable.

    As a mapping it has the last value of each name, as Kafka's `lastHeader`; `pairs` has all of
    them. A value is None where it was given as None (Kafka's null).
    Access raises `DamagedBatch` if the stored bytes are no headers, which takes a broken or
    hostile writer: entries have checksums."""

    __slots__ = ("_named", "_pairs", "encoded")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._pairs: Pairs | None = None
        self._named: dict[str, bytes | None] | None = None

    def pairs(self) -> Pairs:
        """Return all headers in order, also those of one name."""
        if self._pairs is None:
            self._pairs = decode_headers(self.encoded)
        return self._pairs

    def __getitem__(self, name: str) -> bytes | None:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __eq__(self, other: object) -> bool:
        """Compare with the order of values of one name, but not with the order of names."""
        if isinstance(other, Headers) and (self._repeats() or other._repeats()):
            return self.pairs() == other.pairs()
        if isinstance(other, Mapping):
            return not self._repeats() and self._values() == dict(other.items())
        return NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._values().items()))

    def __repr__(self) -> str:
        return f"Headers({self.pairs() if self._repeats() else self._values()!r})"

    def _values(self) -> dict[str, bytes | None]:
        if self._named is None:
            self._named = dict(self.pairs())
        return self._named

    def _repeats(self) -> bool:
        return len(self.pairs()) != len(self._values())


NO_HEADERS: Final = Headers(b"")


def encode_headers(headers: HeadersGiven) -> bytes | None:
    """Return how *headers* are stored, None if there are none.

    Raises `TypeError` for a name that is no text or a value that is neither bytes nor None, and
    `InvalidHeaders` for too many headers and for names that are too long."""
    pairs = pairs_of(headers)
    if len(pairs) > HEADERS_MAX:
        raise InvalidHeaders(f"there are {len(pairs)}; give a record {HEADERS_MAX} at most")
    parts: list[bytes] = []
    names: set[bytes] = set()
    has_null = False
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"name of a header must be str, not {type(name).__name__}")
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"header {name!r} must be bytes or None, not {type(value).__name__}")
        try:
            named = name.encode()
        except UnicodeEncodeError as error:
            raise InvalidHeaders(f"name {name!r} is no text that UTF-8 has: {error}") from error
        if not 1 <= len(named) <= NAME_BYTES_MAX:
            reason = f"has {len(named)} bytes; use 1 to {NAME_BYTES_MAX}"
            raise InvalidHeaders(f"name {name!r} {reason}")
        if value is None:
            has_null = True
            parts += (_SIZES.pack(len(named), _NULL), named)
        else:
            copied = bytes(value)
            parts += (_SIZES.pack(len(named), len(copied)), named, copied)
        names.add(named)
    if has_null or len(names) != len(pairs):
        parts.insert(0, _PAIRED)
    return b"".join(parts) or None


def pairs_of(headers: HeadersGiven) -> list[tuple[str, Payload | None]]:
    """Return *headers* as pairs, in order. Raises `TypeError`."""
    if isinstance(headers, Headers):
        return list(headers.pairs())
    if isinstance(headers, Mapping):
        return list(headers.items())
    pairs: list[tuple[str, Payload | None]] = []
    for pair in headers:
        if type(pair) not in (tuple, list) or len(pair) != 2:
            raise TypeError(f"headers are a mapping, or pairs of name and value, not {pair!r}")
        pairs.append((pair[0], pair[1]))
    return pairs


def are_paired(encoded: bytes | None) -> bool:
    """Return whether a name comes twice in *encoded* headers, or a value is null."""
    return encoded is not None and encoded[:1] == _PAIRED


def decode_headers(encoded: bytes) -> Pairs:
    """Return the headers as pairs, in order. Raises `DamagedBatch`."""
    pairs: list[tuple[str, bytes | None]] = []
    is_paired = are_paired(encoded)
    at = len(_PAIRED) if is_paired else 0
    try:
        while at < len(encoded):
            name_bytes, value_bytes = _SIZES.unpack_from(encoded, at)
            start = at + _SIZES.size + name_bytes
            name = encoded[at + _SIZES.size : start].decode()
            if is_paired and value_bytes == _NULL:
                at, value = start, None
            else:
                at, value = start + value_bytes, encoded[start : start + value_bytes]
            pairs.append((name, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedBatch(f"its headers are none: {error}") from error
    names = {name for name, _ in pairs}
    needs_pairs = len(names) != len(pairs) or any(value is None for _, value in pairs)
    if at != len(encoded) or is_paired != needs_pairs or len(pairs) > HEADERS_MAX or "" in names:
        raise DamagedBatch(f"its headers are none: {encoded[:80].hex()}")
    return tuple(pairs)
