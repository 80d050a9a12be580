"""Connections that commands need, with the timeouts of the configuration, and their end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dlog.config import load, local_cluster_named, resolve_uri

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.metastore.port import MetadataStore


def check_there(uri: str | None) -> None:
    """Raise `NoNamespace` for an embedded store with nothing in its directory."""
    from ledger.metastore import check_store_there

    resolved = resolve_uri(uri)
    with local_cluster_named(resolved):
        check_store_there(resolved)


@asynccontextmanager
async def opened_store(uri: str | None, *, made: bool = True) -> "AsyncIterator[MetadataStore]":
    """Open the store, and check that there is a namespace unless *made* is False."""
    from ledger.cluster import open_namespace
    from ledger.metastore import open_store

    settings = load()
    store = await open_store(
        resolve_uri(uri),
        session_timeout_s=settings.session_timeout_s,
        timeout_s=settings.timeout_s,
        tls=settings.secured,
    )
    try:
        if made:
            await open_namespace(store)
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def connected(uri: str | None) -> "AsyncIterator[LedgerClient]":
    from ledger.client import ClientConfig, LedgerClient

    settings = load()
    config = ClientConfig(
        session_timeout_s=settings.session_timeout_s,
        metadata_timeout_s=settings.timeout_s,
        bookie_timeout_s=settings.bookie_timeout_s,
        tls=settings.secured,
    )
    client = await LedgerClient.connect(resolve_uri(uri), config)
    try:
        yield client
    finally:
        await client.close()
