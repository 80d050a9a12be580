"""What is asked of a metadata store, as plain values, and what every store accepts of it.

No I/O, so that pure code may use them. Paths and sizes are checked before anything is sent. A path
is absolute inside the namespace: ``/`` or ``/a/b``, no empty, ``.`` or ``..`` part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from ledger.errors import InvalidPath, ValueTooLarge

ANY_VERSION: Final = -1
"""Given as the expected version: do not compare."""
VALUE_BYTES_MAX: Final = 1_000_000
"""Largest value of a node; ZooKeeper's own limit is 1 MiB with its framing."""
ROOT: Final = "/"
INSTANCE: Final = "/instance"
"""Of every namespace: which one it is. On ZooKeeper its ACL is that of all nodes."""


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


def check_path(path: str) -> str:
    """Return *path* if it is one. Raises `InvalidPath`."""
    if path == ROOT:
        return path
    if not path.startswith("/"):
        raise InvalidPath(path, "it must begin with /")
    for part in path[1:].split("/"):
        if part in ("", ".", ".."):
            raise InvalidPath(path, f"a part of it is {part!r}")
        if not part.isprintable():
            raise InvalidPath(path, "it holds an unprintable character")
    return path


def check_new(path: str, value: bytes, *, sequential: bool = False) -> None:
    """Check path and value of a node to create. A sequential path may end in ``/``."""
    check_path(path + "0" if sequential else path)
    if path == ROOT and not sequential:
        raise InvalidPath(path, "the root is always there")
    check_value(path, value)


def check_value(path: str, value: bytes) -> None:
    """Raises `ValueTooLarge`: a server would drop the connection, and not say why."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(path, len(value), VALUE_BYTES_MAX)


def check_ops(ops: Sequence[Op]) -> None:
    """Check all of a `multi`, which travels as one packet: its values count together."""
    size_bytes = 0
    for op in ops:
        check_path(op.path)
        match op:
            case CreateOp(path, value):
                check_new(path, value)
            case SetOp(path, value):
                check_value(path, value)
            case CheckOp() | DeleteOp():
                continue
            case _:
                assert_never(op)
        size_bytes += len(value)
        if size_bytes > VALUE_BYTES_MAX:
            raise ValueTooLarge(path, size_bytes, VALUE_BYTES_MAX)


def parent_of(path: str) -> str:
    """Return the path above *path*, which must not be the root."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def numbered(path: str, number: int) -> str:
    """Return the path of a sequential node, as ZooKeeper writes it."""
    return f"{path}{number:010d}"
