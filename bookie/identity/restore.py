"""A metadata store that was restored to an older moment: one event, which an operator accepts once.

The store has forgotten what happened since: ledgers, fragments, closes, deletions, starts of
bookies. The bookies have lost nothing. An operator's word is the node `/restored` with a random
token; each bookie honours it at its next start, once, before it answers anybody:

    new ledgers get ids above all that it ever saw
    it begins a limbo (`bookie.loss.limbo`) and takes no normal add to any ledger below these ids
    it believes the store's counts again (`bookie.collector.garbage`)
    its directories say that this restore is honoured

A process that slept through the restore must not answer as if nothing had happened. So the word is
taken only while no bookie is registered, and gives every cookie in the store the token of no life.

Invariants:
    the ids are above, and the limbo is durable, before the directories say that it is honoured
    data that are older than the restored store are refused as ever, and so are copies
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import urandom
from typing import Final, Protocol, TypeVar

from bookie.collector.store_memory import keep, recall
from bookie.disk.port import Directories
from bookie.errors import BookiesThere
from bookie.identity.cookie import Cookie, read_cookie, write_cookie
from bookie.storage.engine import BookieStorage
from ledger.errors import BadVersion, DamagedMetadata, NoSuchNode
from ledger.log_events import get_logger, now_ms
from ledger.manager import LedgerStore
from ledger.metastore.port import MetadataStore, children_of, put_node
from ledger.nodes import parse_node
from ledger.registry import AVAILABLE, COOKIES, READ_ONLY
from ledger.wire import metadata_pb2 as pb

PATH: Final = "/restored"
FORMAT_VERSION: Final = 1

T = TypeVar("T")
_log = get_logger(__name__)


class Blocking(Protocol):
    """Calls a function where blocking is allowed."""

    async def __call__(self, call: Callable[[], T], /) -> T: ...


@dataclass(frozen=True, slots=True)
class Restore:
    """An operator's word that the store is older than it was, and that this is to be so."""

    token: str = field(repr=False)
    """Random: another restore has another one."""
    accepted_ms: int
    reason: str
    below: int = 0
    """Ledgers with lower ids were there then; those that are made afterwards have higher ones."""

    def encode(self) -> bytes:
        node = pb.RestoreNode(
            version=FORMAT_VERSION,
            token=self.token,
            accepted_ms=self.accepted_ms,
            reason=self.reason,
            below=self.below,
        )
        return node.SerializeToString(deterministic=True)


async def read_restore(store: MetadataStore) -> Restore | None:
    """Return the last one that was accepted, None if there is none.

    Raises `DamagedMetadata`, and what the store raises."""
    await store.sync(PATH)
    try:
        found = await store.get(PATH)
    except NoSuchNode:
        return None
    node = pb.RestoreNode()
    parse_node(node, found.value, PATH, version=FORMAT_VERSION)
    return Restore(node.token, node.accepted_ms, node.reason, node.below)


async def registered_bookies(store: MetadataStore) -> list[str]:
    """Return the names of all bookies that run, as far as the store knows. Raises what the store
    raises."""
    await store.sync()
    return sorted({*(await children_of(store, AVAILABLE)), *(await children_of(store, READ_ONLY))})


async def accept_restore(
    ledgers: LedgerStore, reason: str, *, entropy: Callable[[int], bytes] = urandom
) -> Restore:
    """Let bookies start beside a store that is older than they are.

    It may be repeated: then it is another restore. Raises `BookiesThere` if bookies are
    registered, `DamagedMetadata`, and what the store raises."""
    store = ledgers.store
    there = await registered_bookies(store)
    if there:
        raise BookiesThere(there)
    vitals = await ledgers.vitals()
    restore = Restore(entropy(16).hex(), now_ms(), reason, vitals.next_id)
    await put_node(store, PATH, restore.encode())
    for bookie in await children_of(store, COOKIES):
        await _end_life(store, bookie, restore)
    return restore


def settle_restore(directories: Directories, restore: Restore) -> None:
    """Let the directories say that *restore* is honoured. Raises `OSError`, a `FileDamaged`."""
    for disk in directories.every():
        cookie = read_cookie(disk)
        assert cookie is not None, "every directory is stamped"
        write_cookie(disk, replace(cookie, restore=restore.token))


async def honour(
    ledgers: LedgerStore,
    storage: BookieStorage,
    directories: Directories,
    restore: Restore,
    *,
    blocking: Blocking = asyncio.to_thread,
) -> None:
    """Do what the module's docstring says, with a storage that has begun its limbo and does not
    serve yet. It may be repeated. *blocking* calls what waits for the disk.

    Raises `OSError`, a `FileDamaged`, `StorageFailed`, and what the
    store raises."""
    assert storage.limbo is not None, "it begins with a limbo"
    seen = await blocking(lambda: recall(directories.main))
    above = max(storage.highest_id + 1, seen.next_id if seen is not None else 0)
    floor = await ledgers.leave_ids_below(above)
    await blocking(lambda: storage.judged(lambda limbo: limbo.above(floor)))
    if seen is not None:
        settled = seen.settled_for(await ledgers.vitals())
        await blocking(lambda: keep(directories.main, settled))
    await blocking(lambda: settle_restore(directories, restore))
    _log.warning("restore_honoured", floor=floor, reason=restore.reason)


async def _end_life(store: MetadataStore, bookie: str, restore: Restore) -> None:
    """Let no living process be the one that the cookie in the store names."""
    path = f"{COOKIES}/{bookie}"
    while True:
        try:
            node = await store.get(path)
        except NoSuchNode:
            return
        try:
            cookie = Cookie.decode(node.value)
        except ValueError as error:
            raise DamagedMetadata(path, str(error)) from error
        if cookie.is_retired or cookie.token == restore.token:
            return
        before = cookie.tries or (cookie.token,)
        ended = replace(cookie, token=restore.token, tries=before, clean=False)
        with suppress(BadVersion):  # somebody was faster, or our own write whose reply was lost
            await store.set(path, ended.encode(), version=node.version)
            return
