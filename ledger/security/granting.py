"""The grants of a namespace in its metadata store, whose ACLs say who may change them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ledger.clock import now_ms
from ledger.errors import BadVersion, NodeExists, NoSuchNode
from ledger.metastore.port import MetadataStore
from ledger.security.access import ACCESS, Rules

CHANGE_TRIES_MAX: Final = 10


async def read_rules(store: MetadataStore) -> Rules:
    """Return the grants; none if none were ever stored.

    Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        return Rules.decode((await store.get(ACCESS)).value)
    except NoSuchNode:
        return Rules()


async def change_rules(store: MetadataStore, change: Callable[[Rules], Rules], *, by: str) -> bool:
    """Put what *change* makes of the grants in their place; return whether that differs.

    Of two at once neither is lost: *change* is called again. *by* is who changes them: bookies
    put it into their logs. Raises what *change* raises, `MetadataUnavailable`, `DamagedMetadata`,
    and `BadVersion` if others change them all the time."""
    await store.sync(ACCESS)
    for tries_left in reversed(range(CHANGE_TRIES_MAX)):
        try:
            node = await store.get(ACCESS)
        except NoSuchNode:
            node = None
        old = Rules() if node is None else Rules.decode(node.value)
        new = replace(change(old), changed_by=by, changed_ms=now_ms())
        if new == old:
            return False
        try:
            if node is None:
                await store.create(ACCESS, new.encode())
            else:
                await store.set(ACCESS, new.encode(), node.version)
        except (BadVersion, NodeExists, NoSuchNode):
            if not tries_left:
                raise
            continue
        return True
    raise AssertionError("the loop returns or raises")
