"""Asks the metadata store what it remembers of logs that were renamed (`protocol.renames`)."""

from dlog.aio.procedures import run_on_store
from dlog.protocol import renames
from dlog.protocol.renames import RENAMED_PATH
from ledger.metastore.port import MetadataStore


async def newest_name(store: MetadataStore, incarnation: str) -> str | None:
    """Return the name of a log that was renamed; None if it never was, or is deleted."""
    return await run_on_store(renames.newest_name(incarnation), store)


async def count_of_renames(store: MetadataStore) -> int | None:
    """Return a value that every rename changes."""
    await store.sync(RENAMED_PATH)
    return await store.exists(RENAMED_PATH)
