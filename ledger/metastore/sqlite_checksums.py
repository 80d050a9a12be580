"""Checksums over what the embedded store holds: of each row, of all together, of every commit.

    total   sum of the digests of all rows modulo 2^128: a commit adds and takes away what it
            changed, a look at everything adds up again
    chain   digest over the chain of the commit before, the generation and the total: who
            knows the chain of a generation knows all that was ever committed up to it
    names   of a node: sum of the digests of its children's names modulo 2^128. With their number
            it proves what an index says of them, and what no index finds

Against accidents, not against malice: who may write the files may also write fitting checksums.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)
_GENERATION_BYTES: Final = 8


def digest_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def row_digest(table: str, row: tuple[object, ...]) -> bytes:
    """Return the digest of a row; of values of other types, too, as damage may bring."""
    # repr distinguishes types and is the same for ever for str, int, float, bytes and None.
    return digest_of(repr((table, row)).encode("utf-8", "backslashreplace"))


def node_digest(row: tuple[object, ...], value: object) -> bytes:
    """Return the digest of a node: *row* is all of it but its value."""
    said = value if isinstance(value, bytes) else repr(value).encode("utf-8", "backslashreplace")
    return digest_of(row_digest("node", (*row, type(value).__name__)) + said)


def name_digest(name: object) -> bytes:
    """Return the digest of a child's name; of another type, too, as damage may bring."""
    return digest_of(repr(name).encode("utf-8", "backslashreplace"))


def names_total(names: Iterable[object]) -> bytes:
    """Return the sum of the digests of *names*."""
    return _bytes(sum(_int(name_digest(name)) for name in names))


def added(total: bytes, digest: bytes) -> bytes:
    return _bytes(_int(total) + _int(digest))


def taken(total: bytes, digest: bytes) -> bytes:
    return _bytes(_int(total) - _int(digest))


def next_chain(before: bytes, generation: int, total: bytes) -> bytes:
    return digest_of(before + generation.to_bytes(_GENERATION_BYTES, "little") + total)


EMPTY_TOTAL: Final = bytes(DIGEST_BYTES)


def _int(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _bytes(total: int) -> bytes:
    return (total % _MODULUS).to_bytes(DIGEST_BYTES, "little")
