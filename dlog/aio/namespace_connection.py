"""From a namespace's URI to a client of its ledgers."""

import asyncio
import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from dlog.aio.port import Ledgers
from dlog.config import load, local_cluster_named, resolve_uri
from dlog.errors import ForkedAfterConnecting
from ledger.security.settings import TlsSettings

if TYPE_CHECKING:
    from ledger.client import LedgerClient

_processes: Final[set[int]] = set()
"""Which process has connected: this one, or one that it was forked from."""
_connections: "Final[WeakKeyDictionary[AbstractEventLoop, dict[_Way, _Connection]]]" = (
    WeakKeyDictionary()
)
"""Those that handles of an event loop share."""


async def connect(
    uri: str | None, *, given: Mapping[str, str] | None = None, alone: bool = False
) -> Ledgers:
    """Connect to the namespace at *uri*, or the configured one. The caller closes it. *given*:
    settings that come before those of the process, see `dlog.config.load`.

    Handles of one event loop that go the same way share a session of the metadata store and
    connections to bookies, until the last one is closed. *alone*: with a session of its own, whose
    end lets go what is held in it.

    Raises `InvalidUri`, `InvalidConfig`, `NoNamespace`, `MetadataUnavailable`,
    `NamespaceMismatch`, and `ForkedAfterConnecting`: a child would wait for answers that
    never come."""
    if _processes and os.getpid() not in _processes:
        raise ForkedAfterConnecting
    _processes.add(os.getpid())
    settings = load(given)
    way = _Way(
        resolve_uri(uri),
        settings.session_timeout_s,
        settings.timeout_s,
        settings.bookie_timeout_s,
        settings.secured,
    )
    if alone:
        return await way.connect()
    connections = _connections.setdefault(asyncio.get_running_loop(), {})
    connection = connections.get(way)
    if connection is None or connection.has_failed:
        connection = connections[way] = _Connection(way)
    return await connection.use()


@dataclass(frozen=True, slots=True)
class _Way:
    """Where to, and how."""

    uri: str = field(repr=False)
    session_timeout_s: float
    timeout_s: float
    bookie_timeout_s: float
    tls: TlsSettings

    async def connect(self) -> "LedgerClient":
        # Here, because it takes a quarter of a second and plain values need none of it.
        from ledger.client import ClientConfig, LedgerClient

        config = ClientConfig(
            session_timeout_s=self.session_timeout_s,
            metadata_timeout_s=self.timeout_s,
            bookie_timeout_s=self.bookie_timeout_s,
            tls=self.tls,
        )
        with local_cluster_named(self.uri):
            return await LedgerClient.connect(self.uri, config)


class _Connection:
    """Is there as long as somebody uses it, or waits for it. Belongs to the running event loop."""

    def __init__(self, way: _Way) -> None:
        self._way = way
        self._users = 0
        self._client = asyncio.create_task(way.connect())

    @property
    def has_failed(self) -> bool:
        client = self._client
        return client.done() and (client.cancelled() or client.exception() is not None)

    async def use(self) -> "LedgerClient":
        """Return a client for one handle. Raises what connecting raises."""
        self._users += 1
        try:
            client = await asyncio.shield(self._client)
        except BaseException:
            await self._leave()
            raise
        is_closed = False

        async def close() -> None:
            nonlocal is_closed
            if not is_closed:
                is_closed = True
                await self._leave()

        return client.shared(close)

    async def _leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        connections = _connections[asyncio.get_running_loop()]
        if connections.get(self._way) is self:
            del connections[self._way]
        self._client.cancel()
        await asyncio.wait([self._client])
        if not self._client.cancelled() and self._client.exception() is None:
            await self._client.result().close()


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
