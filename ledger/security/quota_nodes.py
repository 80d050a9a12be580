"""The quotas of a namespace in its metadata store."""

from collections.abc import Callable

from ledger.metastore.port import MetadataStore
from ledger.security.documents import change_document, read_document
from ledger.security.quotas import QUOTAS, Quotas


async def read_quotas(store: MetadataStore) -> Quotas:
    """Raises as `read_document`."""
    return await read_document(store, QUOTAS, Quotas)


async def change_quotas(
    store: MetadataStore, change: Callable[[Quotas], Quotas], *, by: str
) -> bool:
    """Return whether *change* made a difference. Raises as `change_document`."""
    return await change_document(store, QUOTAS, Quotas, change, by=by)
