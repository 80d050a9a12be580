"""Namespaces for tests: nothing that is tested makes one by itself."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ledger.cluster import make_namespace
from ledger.feature_level import IDENTITIES
from ledger.metastore import open_store
from ledger.metastore.port import MetadataStore
from tests.waiting import PATIENCE_S, SESSION_S

LEVEL: Final = IDENTITIES - 1
"""Above it bookies refuse who does not say which one is meant, as peers made by hand do not."""


async def made(uri: str, *, level: int = LEVEL) -> str:
    """Make the namespace *uri* if it is not there; return *uri*. One in memory is for the running
    event loop."""
    store = await open_store(uri, session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)
    try:
        await make_namespace(store, level=level)
    finally:
        await store.close()
    return uri


async def opened(uri: str) -> MetadataStore:
    """Return a store of the namespace *uri*, which is made if it is not there."""
    await made(uri)
    return await open_store(uri, session_timeout_s=SESSION_S, timeout_s=PATIENCE_S)


def make(uri: str) -> str:
    """Do what `made` does, for a test that is no coroutine, or a process that it starts."""
    with ThreadPoolExecutor(1) as thread:  # there may be an event loop on this one
        return thread.submit(lambda: asyncio.run(made(uri))).result()
