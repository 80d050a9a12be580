"""New ledger ids: unique in the namespace and never given out twice (rule 6).

A crash may waste ids; it can never repeat one, because the counter moves in the metadata
store before an id is used. A counter that is not there is only made if no ledger is there.
"""

import contextlib

from google.protobuf.message import DecodeError

from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    MetadataUnavailable,
    NodeExists,
    NoSuchNode,
)
from ledger.ids import LedgerId
from ledger.manager.layout import LEDGERS
from ledger.metastore.port import MetadataStore
from ledger.wire import metadata_pb2 as pb

ID_BLOCK_PATH = "/idgen"
SEQUENCE_PATH = "/idgen/id-"
BLOCK_SIZE = 64
"""Ids taken by one compare-and-swap; what a process does not use of them is wasted."""
TRIES_MAX = 1000
LEAP_MAX = 1 << 40
SEQUENTIAL_LEAP_MAX = 100_000
"""How far ids are left out at once; beyond that, bookies refuse what has the id of another."""


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

    def leave(self) -> None:
        """Take the next id from a new block."""
        self._next = self._end

    async def peek(self) -> int:
        """Return an id such that none was given out yet from there on, to anybody."""
        return await _counted(self._store)

    async def leave_below(self, above: int) -> int:
        """Give out no id below *above* any more, or below another that is no higher; return it.

        No farther than `LEAP_MAX`: what was taken in without the store may have any id."""
        for _ in range(TRIES_MAX):
            try:
                node = await self._store.get(ID_BLOCK_PATH)
            except NoSuchNode:
                await make_counter(self._store)
                continue
            now = _decode(node.value)
            if now >= above:
                return now
            to = min(above, now + LEAP_MAX)
            with contextlib.suppress(BadVersion):
                await self._store.set(ID_BLOCK_PATH, _encode(to), node.version)
                return to
        raise DamagedMetadata(ID_BLOCK_PATH, f"changed under us {TRIES_MAX} times in a row")

    async def _take_block(self) -> int:
        for _ in range(TRIES_MAX):
            try:
                node = await self._store.get(ID_BLOCK_PATH)
                start = _decode(node.value)
                await self._store.set(ID_BLOCK_PATH, _encode(start + BLOCK_SIZE), node.version)
            except NoSuchNode:
                await make_counter(self._store)
            except BadVersion:
                continue
            else:
                return start
        raise DamagedMetadata(ID_BLOCK_PATH, f"changed under us {TRIES_MAX} times in a row")


class SequentialIds:
    """Ten-digit ids from sequential nodes, which are removed at once: their numbers stay used."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._counter_seen = False

    async def take(self) -> LedgerId:
        if not self._counter_seen:
            if await self._store.exists(ID_BLOCK_PATH) is None:
                await make_counter(self._store)
            self._counter_seen = True
        path = await self._store.create(SEQUENCE_PATH, ephemeral=True, sequential=True)
        with contextlib.suppress(MetadataUnavailable, NoSuchNode):  # else it goes with the session
            await self._store.delete(path)
        number = int(path.removeprefix(SEQUENCE_PATH))
        if number < 0:  # ZooKeeper counts in 32 bits, and goes round
            raise DamagedMetadata(ID_BLOCK_PATH, "all ids of this layout were used")
        return LedgerId(number)

    def leave(self) -> None:
        """There are no blocks to leave."""

    async def leave_below(self, above: int) -> int:
        """As of `BlockIds`; takes one id after the other."""
        last = await self.take()
        for _ in range(SEQUENTIAL_LEAP_MAX):
            if last + 1 >= above:
                break
            last = await self.take()
        return last + 1

    async def peek(self) -> int:
        """Return an id such that none was given out yet from there on, to anybody. Wastes one."""
        made = await self._store.exists(ID_BLOCK_PATH) is not None
        return await self.take() + 1 if made else 0


async def _counted(store: MetadataStore) -> int:
    try:
        return _decode((await store.get(ID_BLOCK_PATH)).value)
    except NoSuchNode:
        return 0


async def make_counter(store: MetadataStore) -> None:
    """Let there be a counter, if there is none. Raises `DamagedMetadata` if it was lost."""
    try:
        made_before = bool(await store.children(LEDGERS))
    except NoSuchNode:
        made_before = False
    # A counter is older than every ledger: look again, for another client made it meanwhile.
    if made_before and await store.exists(ID_BLOCK_PATH) is not None:
        return
    if made_before:
        reason = "it is missing, but there are ledgers: ids could be given out twice"
        raise DamagedMetadata(ID_BLOCK_PATH, reason)
    with contextlib.suppress(NodeExists):
        await store.create(ID_BLOCK_PATH, _encode(0))


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
