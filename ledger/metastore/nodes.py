"""What is done with nodes of any metadata store, whatever is in them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ledger.errors import MetadataUnavailable, NodeExists, NoSuchNode
from ledger.metastore.paths import name_of
from ledger.metastore.port import MetadataStore

PUT_TRIES_MAX: Final = 100
LOOKS: Final = 3


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
