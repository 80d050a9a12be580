"""Connections that commands need, with the timeouts of the configuration, and their end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dlog.config import load, resolve_uri
from ledger.errors import CallerError
from ledger.metastore.uri import FileUri, parse_uri

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.metastore.port import MetadataStore


class NoNamespace(CallerError):
    def __init__(self, uri: str) -> None:
        super().__init__(
            f"there is no namespace at {uri}: check --uri and DLOG_URI, or start a cluster "
            "there with 'dlog up'"
        )
        self.uri = uri


def check_there(uri: str | None) -> None:
    """Raise `NoNamespace` for an embedded store with nothing in its directory."""
    resolved = resolve_uri(uri)
    parsed = parse_uri(resolved)
    if isinstance(parsed, FileUri):
        from ledger.metastore.sqlite_files import holds_a_store

        if not holds_a_store(parsed.directory):
            raise NoNamespace(resolved)


@asynccontextmanager
async def opened_store(uri: str | None) -> "AsyncIterator[MetadataStore]":
    from ledger.metastore import open_store

    settings = load()
    store = await open_store(
        resolve_uri(uri),
        session_timeout_s=settings.session_timeout_s,
        timeout_s=settings.timeout_s,
        tls=settings.secured,
    )
    try:
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
