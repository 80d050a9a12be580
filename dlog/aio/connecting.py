"""From a namespace's URI to a client of its ledgers."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from dlog.aio.port import Ledgers
from dlog.config import load, resolve_uri
from dlog.errors import ForkedAfterConnecting

_processes: Final[set[int]] = set()
"""Which process has connected: this one, or one that it was forked from."""


async def connect(uri: str | None, *, given: Mapping[str, str] | None = None) -> Ledgers:
    """Connect to the namespace at *uri*, or the configured one. The caller closes it. *given*:
    settings that come before those of the process, see `dlog.config.load`.

    Raises `InvalidUri`, `InvalidConfig`, `NoNamespace`, `MetadataUnavailable`,
    `NamespaceMismatch`, and `ForkedAfterConnecting`: a child would wait for answers that
    never come."""
    if _processes and os.getpid() not in _processes:
        raise ForkedAfterConnecting
    _processes.add(os.getpid())
    # Here, because it takes a quarter of a second and plain values need none of it.
    from ledger.client import ClientConfig, LedgerClient

    found = resolve_uri(uri)
    settings = load(given)
    config = ClientConfig(
        session_timeout_s=settings.session_timeout_s,
        metadata_timeout_s=settings.timeout_s,
        bookie_timeout_s=settings.bookie_timeout_s,
        tls=settings.secured,
    )
    return await LedgerClient.connect(found, config)


@asynccontextmanager
async def connected(uri: str | None, client: Ledgers | None) -> AsyncIterator[Ledgers]:
    """Use *client*, or connect as `connect` and close at the end."""
    if client is not None:
        yield client
        return
    ledgers = await connect(uri)
    try:
        yield ledgers
    finally:
        await ledgers.close()
