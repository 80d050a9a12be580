"""The grants of a namespace in its metadata store, whose ACLs say who may change them."""

from collections.abc import Callable
from typing import Final

from ledger.errors import BadVersion, NodeExists, NoSuchNode
from ledger.log_events import get_logger
from ledger.metastore.port import MetadataStore
from ledger.security.access import ACCESS, Rules

CHANGE_TRIES_MAX: Final = 10

_log = get_logger(__name__)


async def read_rules(store: MetadataStore) -> Rules:
    """Return the grants; none if none were ever stored.

    Raises `MetadataUnavailable`, `DamagedMetadata`."""
    try:
        return Rules.decode((await store.get(ACCESS)).value)
    except NoSuchNode:
        return Rules()


async def change_rules(store: MetadataStore, change: Callable[[Rules], Rules], *, by: str) -> bool:
    """Put what *change* makes of the grants in their place; return whether that differs.

    Of two at once neither is lost: *change* is called again. *by* is who changes them, for the
    log. Raises what *change* raises, `MetadataUnavailable`, `DamagedMetadata`, and `BadVersion` if
    others change them all the time."""
    await store.sync(ACCESS)
    for tries_left in reversed(range(CHANGE_TRIES_MAX)):
        try:
            node = await store.get(ACCESS)
        except NoSuchNode:
            node = None
        old = Rules() if node is None else Rules.decode(node.value)
        new = change(old)
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
        _log.info(
            "access_changed",
            by=by,
            granted=[str(each) for each in new.grants if each not in old.grants],
            revoked=[str(each) for each in old.grants if each not in new.grants],
        )
        return True
    raise AssertionError("the loop returns or raises")
