"""Metadata stores: one port, three implementations, chosen by the namespace's URI."""

from dataclasses import replace
from typing import assert_never

from ledger.errors import InvalidValue, NoNamespace
from ledger.metastore.port import (
    ANY_VERSION,
    VALUE_BYTES_MAX,
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataStore,
    Op,
    Session,
    SetOp,
    Versioned,
    Watch,
)
from ledger.metastore.uri import FileUri, MemoryUri, ZooKeeperUri, parse_uri, secured
from ledger.security.settings import OFF, TlsSettings

__all__ = [
    "ANY_VERSION",
    "VALUE_BYTES_MAX",
    "CheckOp",
    "CreateOp",
    "DeleteOp",
    "MetadataStore",
    "Op",
    "Session",
    "SetOp",
    "Versioned",
    "Watch",
    "check_store_there",
    "open_store",
]


def check_store_there(uri: str) -> None:
    """Raise `NoNamespace` for an embedded store with nothing in its directory, which opening it
    would make: a mistyped path must not become a directory. Raises `InvalidUri`."""
    parsed = parse_uri(uri)
    if isinstance(parsed, FileUri):
        from ledger.metastore.sqlite_files import holds_a_store

        if not holds_a_store(parsed.directory):
            raise NoNamespace(uri)


async def open_store(
    uri: str,
    *,
    session_timeout_s: float = 10.0,
    timeout_s: float = 10.0,
    tls: TlsSettings = OFF,
    ids: tuple[str, ...] = (),
) -> MetadataStore:
    """Connect to the store of *uri* and begin a session.

    Ephemeral nodes outlive a process that has stopped by *session_timeout_s* at most; one
    call takes *timeout_s* at most. Connections of ZooKeeper are secured as the URI says, else as
    *tls* does if it is required. If this process makes a namespace there, *ids* may touch it, and
    the user in the URI; see `ledger.metastore.acl`. Raises `InvalidUri`, `MetadataUnavailable`,
    and `InvalidValue` for *ids* of a store that has none."""
    parsed = parse_uri(uri)
    if ids and not isinstance(parsed, ZooKeeperUri):
        raise InvalidValue("acl", ids[0], "only ZooKeeper (zk://...) knows whom to let in")
    match parsed:
        case FileUri():
            from ledger.metastore.sqlite import SqliteStore

            return await SqliteStore.open(
                uri, parsed, session_timeout_s=session_timeout_s, timeout_s=timeout_s
            )
        case ZooKeeperUri():
            from ledger.metastore.zookeeper import ZooKeeperStore

            return await ZooKeeperStore.open(
                uri,
                replace(secured(parsed, tls), ids=ids),
                session_timeout_s=session_timeout_s,
                timeout_s=timeout_s,
            )
        case MemoryUri():
            from ledger.metastore.memory import MemoryStore

            return MemoryStore(uri, parsed.name, timeout_s=timeout_s)
        case _:
            assert_never(parsed)
