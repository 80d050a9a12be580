"""What the metadata store remembers of logs that were renamed.

    /renamed                 its version counts the renames of the namespace
    /renamed/<incarnation>   the newest name of the log that was made with it; goes with the log

A rename is one transaction, so at any time a log has exactly one name. But who reads one name
after the other may miss a log that moves from a name not read yet to one read already: a
scan of all names is whole only if the count was the same before and after it.
"""

from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from dlog.protocol.procedure import Steps, create, delete, exists, get, sync
from dlog.wire import log_pb2 as pb
from ledger.errors import DamagedMetadata, NodeExists, NoSuchNode
from ledger.metastore.ops import CreateOp, Op, SetOp

RENAMED_PATH: Final = "/renamed"
FORMAT_VERSION: Final = 1


def newest_name(incarnation: str) -> Steps[str | None]:
    """Return the name of a log that was renamed; None if it never was, or is deleted."""
    path = _path(incarnation)
    yield from sync(path)
    try:
        value = (yield from get(path)).value
    except NoSuchNode:
        return None
    try:
        node = pb.RenamedNode.FromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
    if node.version != FORMAT_VERSION:
        raise DamagedMetadata(
            path, f"format version {node.version}, this program knows {FORMAT_VERSION}"
        )
    return node.name


def remembering(incarnation: str, name: str, *, now_ms: int) -> Steps[tuple[Op, ...]]:
    """Return what else a rename's transaction does: count it, remember the new name.

    Of two at once the second fails with `NodeExists` or `BadVersion`."""
    if (yield from exists(RENAMED_PATH)) is None:
        with suppress(NodeExists):
            yield from create(RENAMED_PATH)
    node = pb.RenamedNode(version=FORMAT_VERSION, name=name, renamed_ms=now_ms)
    value = node.SerializeToString(deterministic=True)
    path = _path(incarnation)
    version = yield from exists(path)
    newest: Op = CreateOp(path, value) if version is None else SetOp(path, value, version)
    return SetOp(RENAMED_PATH, b""), newest


def forget_rename(incarnation: str) -> Steps[None]:
    """Forget the names of a log that is deleted."""
    with suppress(NoSuchNode):
        yield from delete(_path(incarnation))


def _path(incarnation: str) -> str:
    return f"{RENAMED_PATH}/{incarnation}"
