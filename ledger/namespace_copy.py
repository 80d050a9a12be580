"""Copies a namespace to another metadata store, such as another ZooKeeper, while nothing uses it.

Values are copied, and the counts that must never go back, wherever a store keeps them: the ids that
were given out, and deletions, which are versions of nodes; so is whether owner nodes stay. Other
versions only serve compare-and-swaps of processes, and all processes are started again. Nodes of
sessions are left out: whoever made them makes them again.

The node that makes a namespace of the target is written last, so a copy that was interrupted is
none: empty the target, and begin again.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from ledger.cluster import open_namespace
from ledger.errors import NodeExists, SourceInUse, TargetNotEmpty
from ledger.ledger_owner import OWNERS_PATH
from ledger.manager import LedgerStore
from ledger.manager.ledger_store import DELETIONS
from ledger.metastore.ops import INSTANCE, ROOT
from ledger.metastore.port import MetadataStore, SetOp, children_of
from ledger.registry import AVAILABLE, READ_ONLY
from ledger.repair_marks import LOCKS

_OF_SESSIONS: Final = (AVAILABLE, READ_ONLY, LOCKS, "/underreplicated/workers")
"""Their nodes live as long as the sessions that made them."""
_SETS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Copied:
    instance: str
    nodes: int
    left_out: int
    """Nodes of sessions."""


async def copy_namespace(source: MetadataStore, target: MetadataStore) -> Copied:
    """Copy all of *source* into *target*, which must be empty.

    Requires that nothing uses *source*, also afterwards. Raises `SourceInUse` if bookies are
    registered there, `TargetNotEmpty`, `NoNamespace`, and what the stores raise."""
    await source.sync()
    await target.sync()
    there = [*await children_of(source, AVAILABLE), *await children_of(source, READ_ONLY)]
    if there:
        raise SourceInUse(source.uri, sorted(there))
    if names := await children_of(target, ROOT):
        raise TargetNotEmpty(target.uri, names)
    namespace = await open_namespace(source)
    nodes, left_out = 0, 0
    async for path in _paths(source, ROOT):
        if path == INSTANCE:
            continue
        if _is_of_session(path):
            left_out += 1
            continue
        node = await source.get(path)
        await _put(target, path, node.value, node.version)
        nodes += 1
    vitals = await LedgerStore(source, namespace.layout).vitals()
    ids = LedgerStore(target, namespace.layout)
    while await ids.leave_ids_below(vitals.next_id) < vitals.next_id:
        continue  # it leaves out so many at a time
    await target.create(INSTANCE, (await source.get(INSTANCE)).value)
    return Copied(namespace.instance, nodes + 1, left_out)


async def _paths(store: MetadataStore, path: str) -> AsyncIterator[str]:
    """Yield all below *path*, each before what is below it."""
    for name in await children_of(store, path):
        below = f"{path.rstrip('/')}/{name}"
        yield below
        async for found in _paths(store, below):
            yield found


def _is_of_session(path: str) -> bool:
    parts = path.split("/")
    if parts[1] == "leaders":
        return len(parts) > len(("", "leaders", "log"))
    if "consumers" in parts and parts[-1] == "lock":
        return True
    return any(path.startswith(f"{root}/") for root in _OF_SESSIONS)


def _counts(path: str) -> bool:
    """Whether the version of the node is what it says."""
    return path in (DELETIONS, OWNERS_PATH) or (
        path.startswith("/logs/") and path.endswith("/consumers")
    )


async def _put(store: MetadataStore, path: str, value: bytes, version: int) -> None:
    try:
        await store.create(path, value)
    except NodeExists:  # its reply was lost
        await store.set(path, value)
    if not _counts(path):
        return
    now = (await store.get(path)).version
    for at in range(now, version, _SETS_AT_ONCE):
        await store.multi([SetOp(path, value)] * min(_SETS_AT_ONCE, version - at))
