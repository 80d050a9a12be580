"""Paths and sizes that every store accepts, checked before anything is sent.

A path is absolute inside the namespace: ``/`` or ``/a/b``, no empty, ``.`` or ``..`` part.
"""

from collections.abc import Sequence
from typing import Final, assert_never

from ledger.errors import InvalidPath, ValueTooLarge
from ledger.metastore.ops import VALUE_BYTES_MAX, CheckOp, CreateOp, DeleteOp, Op, SetOp

ROOT: Final = "/"
INSTANCE: Final = "/instance"
"""Of every namespace: which one it is. On ZooKeeper its ACL is that of all nodes."""


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
