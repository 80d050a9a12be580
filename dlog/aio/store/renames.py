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

from dlog.wire import log_pb2 as pb
from ledger.errors import DamagedMetadata, NodeExists, NoSuchNode
from ledger.metastore.ops import CreateOp, Op, SetOp
from ledger.metastore.port import MetadataStore

RENAMED_PATH: Final = "/renamed"
FORMAT_VERSION: Final = 1


async def newest_name(store: MetadataStore, incarnation: str) -> str | None:
    """Return the name of a log that was renamed; None if it never was, or is deleted."""
    path = _path(incarnation)
    await store.sync(path)
    try:
        value = (await store.get(path)).value
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


async def count_of_renames(store: MetadataStore) -> int | None:
    """Return a value that every rename changes."""
    await store.sync(RENAMED_PATH)
    return await store.exists(RENAMED_PATH)


async def remembering(
    store: MetadataStore, incarnation: str, name: str, *, now_ms: int
) -> tuple[Op, ...]:
    """Return what a rename's transaction does besides: count it, tell the new name.

    Of two at once the second fails with `NodeExists` or `BadVersion`."""
    if await store.exists(RENAMED_PATH) is None:
        with suppress(NodeExists):
            await store.create(RENAMED_PATH)
    node = pb.RenamedNode(version=FORMAT_VERSION, name=name, renamed_ms=now_ms)
    value = node.SerializeToString(deterministic=True)
    path = _path(incarnation)
    version = await store.exists(path)
    told: Op = CreateOp(path, value) if version is None else SetOp(path, value, version)
    return SetOp(RENAMED_PATH, b""), told


async def forget_rename(store: MetadataStore, incarnation: str) -> None:
    """Forget the names of a log that is deleted."""
    with suppress(NoSuchNode):
        await store.delete(_path(incarnation))


async def renamed_incarnations(store: MetadataStore) -> list[str]:
    """Return the incarnations that are remembered."""
    try:
        return await store.children(RENAMED_PATH)
    except NoSuchNode:
        return []


def _path(incarnation: str) -> str:
    return f"{RENAMED_PATH}/{incarnation}"
