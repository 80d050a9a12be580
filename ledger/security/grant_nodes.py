"""The grants of a namespace in its metadata store."""

from collections.abc import Callable

from ledger.metastore.port import MetadataStore
from ledger.security.access import ACCESS, Rules
from ledger.security.documents import change_document, read_document


async def read_rules(store: MetadataStore) -> Rules:
    """Raises as `read_document`."""
    return await read_document(store, ACCESS, Rules)


async def change_rules(store: MetadataStore, change: Callable[[Rules], Rules], *, by: str) -> bool:
    """Return whether *change* made a difference. Raises as `change_document`."""
    return await change_document(store, ACCESS, Rules, change, by=by)
