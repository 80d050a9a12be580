"""What is asked of a metadata store, as plain values: no I/O, so that pure code may use them."""

from dataclasses import dataclass
from typing import Final

ANY_VERSION: Final = -1
"""Given as the expected version: do not compare."""

VALUE_BYTES_MAX: Final = 1_000_000
"""Largest value of a node; ZooKeeper's own limit is 1 MiB with its framing."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """Value of a node and the version that a compare-and-swap must name."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class CheckOp:
    """Requires that the node exists at *version* (`ANY_VERSION`: that it exists)."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CreateOp:
    path: str
    value: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetOp:
    """Raises the version by one, as every `set` does."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class DeleteOp:
    path: str
    version: int = ANY_VERSION


Op = CheckOp | CreateOp | SetOp | DeleteOp
