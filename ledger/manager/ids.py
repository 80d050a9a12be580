"""New ledger ids: unique in the namespace and never given out twice (rule 6).

A crash may waste ids; it can never repeat one, because the counter moves in the metadata
store before an id is used.
"""

from google.protobuf.message import DecodeError

from ledger.errors import BadVersion, DamagedMetadata, NodeExists, NoSuchNode
from ledger.ids import LedgerId
from ledger.metastore.port import MetadataStore
from ledger.wire import metadata_pb2 as pb

ID_BLOCK_PATH = "/idgen"
SEQUENCE_PATH = "/idgen/id-"
BLOCK_SIZE = 64
"""Ids taken by one compare-and-swap; what a process does not use of them is wasted."""
TRIES_MAX = 1000


class BlockIds:
    """63-bit ids in blocks, from a counter that is moved by compare-and-swap."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0

    async def take(self) -> LedgerId:
        while self._next == self._end:
            start = await self._take_block()
            if self._next == self._end:  # else a concurrent call brought one; this is wasted
                self._next, self._end = start, start + BLOCK_SIZE
        self._next += 1
        return LedgerId(self._next - 1)

    async def _take_block(self) -> int:
        for _ in range(TRIES_MAX):
            try:
                node = await self._store.get(ID_BLOCK_PATH)
                start = _decode(node.value)
                await self._store.set(ID_BLOCK_PATH, _encode(start + BLOCK_SIZE), node.version)
            except NoSuchNode:
                try:
                    await self._store.create(ID_BLOCK_PATH, _encode(0))
                except NodeExists:
                    continue
            except BadVersion:
                continue
            else:
                return start
        raise DamagedMetadata(ID_BLOCK_PATH, f"changed under us {TRIES_MAX} times in a row")


class SequentialIds:
    """Ten-digit ids from sequential nodes, which are removed at once: their numbers stay used."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def take(self) -> LedgerId:
        path = await self._store.create(SEQUENCE_PATH, ephemeral=True, sequential=True)
        await self._store.delete(path)
        return LedgerId(int(path[-10:]))


def _encode(next_id: int) -> bytes:
    return pb.IdBlockNode(version=1, next=next_id).SerializeToString(deterministic=True)


def _decode(value: bytes) -> int:
    try:
        node = pb.IdBlockNode.FromString(value)
    except DecodeError as error:
        raise DamagedMetadata(ID_BLOCK_PATH, str(error)) from error
    if node.version != 1 or node.next < 0:
        raise DamagedMetadata(ID_BLOCK_PATH, f"version {node.version}, next {node.next}")
    return node.next
