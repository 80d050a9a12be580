"""Headers of a record: values under names, beside its key, as Kafka and NATS have them.

Stored for each header, in the order in which they were given, all integers little endian:

    u8   bytes of the name, 1 to 255
    u32  bytes of the value
         the name, UTF-8
         the value

A record has 64 at most, no two of one name. A reader takes them apart when somebody looks at
them, so they cost those nothing who do not.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from dlog.errors import DamagedBatch, InvalidHeaders

HEADERS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255

_SIZES: Final = struct.Struct("<BI")


class Headers(Mapping[str, bytes]):
    """The headers of one record, in the order in which they were given. Immutable.

    Looking at them raises `DamagedBatch` if what is stored is no headers, which takes a broken
    or hostile writer: entries have checksums."""

    __slots__ = ("_decoded", "encoded")

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._decoded: dict[str, bytes] | None = None

    def __getitem__(self, name: str) -> bytes:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())

    def __hash__(self) -> int:
        return hash(frozenset(self._values().items()))

    def __repr__(self) -> str:
        return f"Headers({self._values()!r})"

    def _values(self) -> dict[str, bytes]:
        if self._decoded is None:
            self._decoded = decode_headers(self.encoded)
        return self._decoded


NO_HEADERS: Final = Headers(b"")


def encode_headers(headers: Mapping[str, bytes | bytearray | memoryview]) -> bytes | None:
    """Return how *headers* are stored, None if there are none.

    Raises `TypeError` for what is no text or no bytes, `InvalidHeaders` for what is too many or
    too long."""
    if len(headers) > HEADERS_MAX:
        raise InvalidHeaders(f"there are {len(headers)}; give a record {HEADERS_MAX} at most")
    parts: list[bytes] = []
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"name of a header must be str, not {type(name).__name__}")
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"header {name!r} must be bytes, not {type(value).__name__}")
        try:
            named, copied = name.encode(), bytes(value)
        except UnicodeEncodeError as error:
            raise InvalidHeaders(f"name {name!r} is no text that UTF-8 has: {error}") from error
        if not 1 <= len(named) <= NAME_BYTES_MAX:
            reason = f"has {len(named)} bytes; use 1 to {NAME_BYTES_MAX}"
            raise InvalidHeaders(f"name {name!r} {reason}")
        parts += (_SIZES.pack(len(named), len(copied)), named, copied)
    return b"".join(parts) or None


def decode_headers(encoded: bytes) -> dict[str, bytes]:
    """Return the headers by name. Raises `DamagedBatch`."""
    headers: dict[str, bytes] = {}
    at = count = 0
    try:
        while at < len(encoded):
            name_bytes, value_bytes = _SIZES.unpack_from(encoded, at)
            start = at + _SIZES.size + name_bytes
            name = encoded[at + _SIZES.size : start].decode()
            at, count = start + value_bytes, count + 1
            headers[name] = encoded[start:at]
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedBatch(f"its headers are none: {error}") from error
    if at != len(encoded) or len(headers) != count or count > HEADERS_MAX or "" in headers:
        raise DamagedBatch(f"its headers are none: {encoded[:80].hex()}")
    return headers
