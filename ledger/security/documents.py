"""What operators set for a whole namespace: its grants, and its quotas.

Each is one value, in one node of the metadata store, whose ACLs say who may change it. `follow`
keeps up with nodes that change, these and others.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar

from ledger.errors import BadVersion, MetadataError, NodeExists, NoSuchNode
from ledger.log_events import now_ms
from ledger.metastore.port import MetadataStore, Watch
from ledger.security.access import ACCESS, Rules
from ledger.security.quotas import QUOTAS, Quotas

CHANGE_TRIES_MAX: Final = 10
REFRESH_S: Final = 30.0
RETRY_S: Final = 0.5


class Document(Protocol):
    """A frozen dataclass with these fields, of which `changed_by` and `changed_ms` do not count
    when two are compared. Made of nothing it says nothing."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def changed_by(self) -> str: ...
    @property
    def changed_ms(self) -> int: ...
    def encode(self) -> bytes: ...
    @classmethod
    def decode(cls, value: bytes) -> Self: ...


D = TypeVar("D", bound=Document)


async def read_document(store: MetadataStore, path: str, kind: type[D]) -> D:
    """Return what is at *path*; an empty one if nothing was ever stored.

    Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        return kind.decode((await store.get(path)).value)
    except NoSuchNode:
        return kind()


async def change_document(
    store: MetadataStore, path: str, kind: type[D], change: Callable[[D], D], *, by: str
) -> bool:
    """Put what *change* makes of what is at *path* in its place; return whether that differs.

    Of two at once neither is lost: *change* is called again. *by* is who changes it: bookies put it
    into their logs. Raises what *change* raises, `MetadataUnavailable`, `DamagedMetadata`, and
    `BadVersion` if others change it all the time."""
    await store.sync(path)
    for tries_left in reversed(range(CHANGE_TRIES_MAX)):
        try:
            node = await store.get(path)
        except NoSuchNode:
            node = None
        old = kind() if node is None else kind.decode(node.value)
        new = replace(change(old), changed_by=by, changed_ms=now_ms())
        if new == old:
            return False
        try:
            if node is None:
                await store.create(path, new.encode())
            else:
                await store.set(path, new.encode(), node.version)
        except (BadVersion, NodeExists, NoSuchNode):
            if not tries_left:
                raise
            continue
        return True
    raise AssertionError("the loop returns or raises")


async def read_rules(store: MetadataStore) -> Rules:
    """Raises as `read_document`."""
    return await read_document(store, ACCESS, Rules)


async def change_rules(store: MetadataStore, change: Callable[[Rules], Rules], *, by: str) -> bool:
    """Return whether *change* made a difference. Raises as `change_document`."""
    return await change_document(store, ACCESS, Rules, change, by=by)


async def read_quotas(store: MetadataStore) -> Quotas:
    """Raises as `read_document`."""
    return await read_document(store, QUOTAS, Quotas)


async def change_quotas(
    store: MetadataStore, change: Callable[[Quotas], Quotas], *, by: str
) -> bool:
    """Return whether *change* made a difference. Raises as `change_document`."""
    return await change_document(store, QUOTAS, Quotas, change, by=by)


async def follow(
    store: MetadataStore,
    paths: Sequence[str],
    changed: Callable[[Collection[str]], Awaitable[None]],
) -> None:
    """Call *changed* with those of *paths* that changed; at first with all of them, as one may have
    changed before it was watched, and every `REFRESH_S` in any case, then with none. While the
    store is out of reach it is called again. Until cancelled."""
    watches = {path: store.watch(path) for path in paths}
    changes = {path: _changed(watch) for path, watch in watches.items()}
    due: Collection[str] = tuple(paths)
    try:
        while True:
            await _until_done(changed, due)
            await asyncio.wait(
                changes.values(), timeout=REFRESH_S, return_when=asyncio.FIRST_COMPLETED
            )
            due = [path for path, change in changes.items() if change.done()]
            for path in due:
                changes[path].result()
                changes[path] = _changed(watches[path])
    finally:
        for change in changes.values():
            change.cancel()
        for watch in watches.values():
            watch.close()


async def _until_done(
    changed: Callable[[Collection[str]], Awaitable[None]], due: Collection[str]
) -> None:
    while True:
        try:
            await changed(due)
        except MetadataError:
            await asyncio.sleep(RETRY_S)
        else:
            return


def _changed(watch: Watch) -> "asyncio.Future[None]":
    return asyncio.ensure_future(watch.changed())
