"""The port to the metadata store: a small tree of versioned nodes with compare-and-swap.

All implementations pass one contract suite (`tests/ledger/metastore`). Paths are absolute
inside the namespace (``/logs/flights``); the root path of the URI is added by the store.

A store keeps one *session* alive. Ephemeral nodes live as long as the session that made
them. No safety ever rests on an ephemeral node: a process that was paused may believe in a
session that ended long ago (docs/architecture.md, "Decisions").

Every call ends within the store's timeout, with `MetadataUnavailable` if there was no
answer; then the outcome of a write is unknown.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from ledger.errors import MetadataUnavailable, NodeExists, NoSuchNode
from ledger.metastore.ops import (
    ANY_VERSION,
    VALUE_BYTES_MAX,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    SetOp,
    Versioned,
    name_of,
)

if TYPE_CHECKING:
    from ledger.metastore.acl import AclRoles

__all__ = [
    "ANY_VERSION",
    "VALUE_BYTES_MAX",
    "CheckOp",
    "CreateOp",
    "DeleteOp",
    "MetadataStore",
    "NodeAcls",
    "Op",
    "Session",
    "SetOp",
    "Versioned",
    "Watch",
]
PUT_TRIES_MAX: Final = 100
LOOKS: Final = 3


class Session:
    """One life of the connection; ephemeral nodes belong to it."""

    def __init__(self, session_id: str) -> None:
        import asyncio  # long to import, and programs need this module's names for little things

        self.session_id = session_id
        self.lost = asyncio.Event()
        """Set iff this session has ended, or can no longer be proven alive.

        A local monotonic timer sets it when the store was out of reach for two thirds of
        the session's timeout, so an owner steps down before anybody else can step up.
        It is never cleared; the store then makes a new `Session`."""


class Watch(Protocol):
    """Reports changes of one node: its value, its existence, its list of children."""

    async def changed(self) -> None:
        """Return once something may have changed since the last return (or the start).

        Level triggered: many changes may become one; a return without a change is
        allowed. The caller reads again whatever it wants to know."""

    def close(self) -> None:
        """Stop watching. A waiting `changed` is cancelled."""


class NodeAcls(Protocol):
    """Who may touch nodes, in a store that keeps that for each of them. Ids are as in
    `ledger.metastore.acl`; none at all stand for everybody."""

    @property
    def uri(self) -> str:
        """That of the store."""

    @property
    def wanted_ids(self) -> tuple[str, ...]:
        """Who may touch a namespace that is made here, as the store was opened."""

    @property
    def roles(self) -> "AclRoles":
        """The roles that new nodes get their ids from; without any, from those above them."""

    async def ids(self, path: str) -> tuple[str, ...]:
        """Return who may touch the node. Raises `NoSuchNode`."""

    async def set_ids(self, path: str, ids: Sequence[str]) -> None:
        """Let *ids*, and nobody else, touch the node. Raises `NoSuchNode`, `MetadataDenied`."""

    async def is_among(self, ids: Sequence[str]) -> bool:
        """Return whether the store knows this process by one of *ids*."""


class MetadataStore(Protocol):
    """See the module's docstring. All methods may raise `MetadataUnavailable`, and
    `DamagedMetadata` if the store found itself damaged."""

    @property
    def uri(self) -> str:
        """The namespace's URI as it may be shown: without options, which can hold a password."""

    @property
    def acls(self) -> NodeAcls | None:
        """Who may touch which node; None: the store keeps none."""

    async def get(self, path: str) -> Versioned:
        """Return value and version. Raises `NoSuchNode`."""

    async def exists(self, path: str) -> int | None:
        """Return the version, or None if there is no such node."""

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node at version 0, and missing parents, empty. Return its path.

        With *sequential* a ten-digit number is appended to the path, larger than any
        before under the same parent, even after deletions. Raises `NodeExists`."""

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """Replace the value iff the node is at *version*; return the new version.

        Raises `NoSuchNode`, `BadVersion`."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children. Raises `NoSuchNode`, `BadVersion`, `NodeNotEmpty`."""

    async def children(self, path: str) -> list[str]:
        """Return the names (not paths) of the children, sorted. Raises `NoSuchNode`."""

    async def multi(self, ops: Sequence[Op]) -> None:
        """Do all of *ops* or none. Parents must exist. Raises what the first bad op raises."""

    async def sync(self, path: str = "/") -> None:
        """Return once reads from here see every write that was finished before the call."""

    async def verify(self) -> None:
        """Check all that is stored, as far as the checksums of the store reach.

        A pass that deletes what it finds nowhere begins with this. Unlike other calls it may take
        minutes. A store on servers leaves it to them, and is synced only. Raises
        `DamagedMetadata`."""

    def watch(self, path: str) -> Watch:
        """Watch *path*, which need not exist yet. Changes after this call are reported."""

    @property
    def session(self) -> Session:
        """The present session; a new object after each loss."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once. Idempotent."""


async def children_of(store: MetadataStore, path: str) -> list[str]:
    """Return the names of the node's children; none, if there is no such node.

    Raises `MetadataUnavailable`."""
    try:
        return await store.children(path)
    except NoSuchNode:
        return []


async def hidden_of(store: MetadataStore, parent: str, paths: Sequence[str]) -> Sequence[str]:
    """Return those of *paths*, children of *parent* that were not found, that are listed still, in
    several looks: the store hides them. The others were deleted. Raises `MetadataUnavailable`."""
    for _ in range(LOOKS):
        if not paths:
            break
        await store.sync(parent)
        listed = dict.fromkeys(await children_of(store, parent))
        paths = [
            path for path in paths if name_of(path) in listed and await store.exists(path) is None
        ]
    return paths


async def create_node(store: MetadataStore, path: str) -> None:
    """Let there be an empty node, if there is none. Raises `MetadataUnavailable`."""
    with suppress(NodeExists):
        await store.create(path)


async def put_node(store: MetadataStore, path: str, value: bytes) -> None:
    """Let the node have *value*, whether it exists or not. Raises `MetadataUnavailable`."""
    for _ in range(PUT_TRIES_MAX):
        with suppress(NoSuchNode):
            await store.set(path, value)
            return
        with suppress(NodeExists):
            await store.create(path, value)
            return
    raise MetadataUnavailable(store.uri, path, 0.0, "others change it all the time")
