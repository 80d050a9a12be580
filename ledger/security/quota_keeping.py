"""The quotas of a namespace in its metadata store, whose ACLs say who may change them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ledger.clock import now_ms
from ledger.errors import BadVersion, NodeExists, NoSuchNode
from ledger.metastore.port import MetadataStore
from ledger.security.quotas import QUOTAS, Quotas

CHANGE_TRIES_MAX: Final = 10


async def read_quotas(store: MetadataStore) -> Quotas:
    """Return the quotas; none if none were ever stored.

    Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        return Quotas.decode((await store.get(QUOTAS)).value)
    except NoSuchNode:
        return Quotas()


async def change_quotas(
    store: MetadataStore, change: Callable[[Quotas], Quotas], *, by: str
) -> bool:
    """Put what *change* makes of the quotas in their place; return whether that differs.

    Of two at once neither is lost: *change* is called again. Raises what *change* raises,
    `MetadataUnavailable`, `DamagedMetadata`, and `BadVersion` if others change them all the
    time."""
    await store.sync(QUOTAS)
    for tries_left in reversed(range(CHANGE_TRIES_MAX)):
        try:
            node = await store.get(QUOTAS)
        except NoSuchNode:
            node = None
        old = Quotas() if node is None else Quotas.decode(node.value)
        new = replace(change(old), changed_by=by, changed_ms=now_ms())
        if new == old:
            return False
        try:
            if node is None:
                await store.create(QUOTAS, new.encode())
            else:
                await store.set(QUOTAS, new.encode(), node.version)
        except (BadVersion, NodeExists, NoSuchNode):
            if not tries_left:
                raise
            continue
        return True
    raise AssertionError("the loop returns or raises")
