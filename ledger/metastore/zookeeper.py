"""The store for clusters: ZooKeeper, through kazoo.

Here the operations and their errors; the session is `zookeeper_keeper`'s, the connection
`zookeeper_link`'s. Each call has a timeout. Reads are repeated after a disconnection, writes are
not: whether they happened is the caller's to find out (rule 3 of the protocol).
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Final, Self, assert_never

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL

from ledger.errors import (
    BadVersion,
    HandleClosed,
    InvalidPath,
    LogError,
    MetadataDenied,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.metastore.acl import AclRoles, acl_of, ids_of
from ledger.metastore.ops import ROOT, check_new, check_ops, check_path, check_value, parent_of
from ledger.metastore.port import (
    ANY_VERSION,
    CheckOp,
    CreateOp,
    DeleteOp,
    Op,
    Session,
    SetOp,
    Versioned,
    Watch,
)
from ledger.metastore.uri import ZooKeeperUri, without_secrets
from ledger.metastore.zookeeper_keeper import ZooKeeperKeeper
from ledger.metastore.zookeeper_link import AsyncCall, AsyncResult, new_ids

_RETRY_S: Final = 0.05
_DISCONNECTED: Final = (
    kazoo.ConnectionLoss,
    kazoo.ConnectionClosedError,
    kazoo.SessionExpiredError,
    kazoo.SessionMovedError,
)
_NOT_TO_BLAME: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
"""What a failed transaction says of the operations that were in order."""


class ZooKeeperStore:
    """Implements `ledger.metastore.MetadataStore`. Made by `open`."""

    def __init__(
        self, uri: str, parsed: ZooKeeperUri, *, session_timeout_s: float, timeout_s: float
    ) -> None:
        self._parsed = parsed
        self._shown = without_secrets(uri)
        self._timeout_s = timeout_s
        self._keeper = ZooKeeperKeeper(parsed, session_timeout_s)
        self._closed = False

    @classmethod
    async def open(
        cls, uri: str, parsed: ZooKeeperUri, *, session_timeout_s: float, timeout_s: float
    ) -> Self:
        store = cls(uri, parsed, session_timeout_s=session_timeout_s, timeout_s=timeout_s)
        connected = False
        try:
            await store._connect()
            connected = True
        finally:
            if not connected:
                await store.close()
        return store

    async def _connect(self) -> None:
        self._keeper.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._keeper.ready.wait()
        except TimeoutError as error:
            raise self._unavailable("connect") from error
        if self._keeper.denied:
            raise MetadataDenied(self._shown, "connect", self._keeper.denied)

    @property
    def uri(self) -> str:
        return self._shown

    @property
    def acls(self) -> Self:
        return self

    @property
    def wanted_ids(self) -> tuple[str, ...]:
        """Who may touch a namespace that is made here, as this was opened; empty: everybody."""
        return new_ids(self._parsed)

    @property
    def session(self) -> Session:
        return self._keeper.session

    async def get(self, path: str) -> Versioned:
        node = self._node(path)
        found = await self._read("get", path, lambda client: client.get_async(node))
        assert isinstance(found, tuple), "kazoo returns value and stat"
        value, stat = found
        return Versioned(value or b"", stat.version)

    async def exists(self, path: str) -> int | None:
        node = self._node(path)
        stat = await self._read("exists", path, lambda client: client.exists_async(node))
        return stat.version if isinstance(stat, ZnodeStat) else None

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        check_new(path, value, sequential=sequential)
        node, acl = self._keeper.root + path, self._acl(path)
        made = await self._call(
            "create",
            path,
            lambda client: client.create_async(
                node, value, acl, ephemeral=ephemeral, sequence=sequential, makepath=True
            ),
            within=self.session if ephemeral else None,
        )
        return self._keeper.in_namespace(str(made))

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        node = self._node(path)
        check_value(path, value)
        stat = await self._call(
            "set", path, lambda client: client.set_async(node, value, version), version
        )
        assert isinstance(stat, ZnodeStat), "kazoo returns the new stat"
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        node = self._node(path)
        if path == ROOT:
            raise InvalidPath(path, "the root cannot be deleted")
        await self._call("delete", path, lambda client: client.delete_async(node, version), version)

    async def children(self, path: str) -> list[str]:
        node = self._node(path)
        try:
            found = await self._read(
                "children", path, lambda client: client.get_children_async(node)
            )
        except NoSuchNode:
            if path != ROOT:
                raise
            return []  # the first node that is made will make it
        assert isinstance(found, list), "kazoo returns the names"
        return sorted(found)

    async def multi(self, ops: Sequence[Op]) -> None:
        ops = tuple(ops)
        check_ops(ops)
        ephemeral = any(isinstance(op, CreateOp) and op.ephemeral for op in ops)
        results = await self._call(
            "multi",
            ROOT,
            lambda client: self._transaction(client, ops),
            within=self.session if ephemeral else None,
        )
        # A transaction that failed does not raise: its errors are among its results.
        assert isinstance(results, list), "kazoo returns one result for each operation"
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _NOT_TO_BLAME):
                version = ANY_VERSION if isinstance(op, CreateOp) else op.version
                parent_missing = isinstance(op, CreateOp) and isinstance(result, kazoo.NoNodeError)
                path = parent_of(op.path) if parent_missing else op.path
                raise self._explained(result, "multi", path, version) from result

    async def ids(self, path: str) -> tuple[str, ...]:
        """Return who may touch the node, as `ledger.metastore.acl.ids_of`. Raises `NoSuchNode`."""
        node = self._node(path)
        found = await self._read("getAcl", path, lambda client: client.get_acls_async(node))
        assert isinstance(found, tuple), "kazoo returns ACL and stat"
        return ids_of(found[0])

    async def set_ids(self, path: str, ids: Sequence[str]) -> None:
        """Let *ids* alone touch the node; nothing is done if that is the server's own root, which
        others use too. Raises `NoSuchNode`, `MetadataDenied`."""
        node, acl = self._node(path), acl_of(ids)
        if node != ROOT:
            await self._call("setAcl", path, lambda client: client.set_acls_async(node, acl))

    async def is_among(self, ids: Sequence[str]) -> bool:
        """Return whether who is connected here might still change what *ids* alone may change."""
        node, acl = self._keeper.root + f"/probe-{uuid.uuid4().hex}", acl_of(ids)
        await self._call(
            "create",
            ROOT,
            lambda client: client.create_async(node, b"", acl, ephemeral=True, makepath=True),
        )
        try:
            await self._call("setAcl", ROOT, lambda client: client.set_acls_async(node, acl))
        except MetadataDenied:
            return False
        finally:
            await self._call("delete", ROOT, lambda client: client.delete_async(node))
        return True

    @property
    def roles(self) -> AclRoles:
        """Who has which role in the namespace, as it was not long ago."""
        return self._keeper.roles

    async def sync(self, path: str = "/") -> None:
        node = self._node(path)
        await self._read("sync", path, lambda client: client.sync_async(node))

    async def verify(self) -> None:
        await self.sync()  # what servers store they check themselves

    def watch(self, path: str) -> Watch:
        self._check_open()
        return self._keeper.watch(check_path(path))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._keeper.close(timeout_s=self._timeout_s)

    async def _read(self, operation: str, path: str, start: AsyncCall) -> object:
        return await self._call(operation, path, start, again=True)

    async def _call(
        self,
        operation: str,
        path: str,
        start: AsyncCall,
        version: int = ANY_VERSION,
        *,
        again: bool = False,
        within: Session | None = None,
    ) -> object:
        """Return the server's answer.

        Repeat the call after a disconnection iff *again*. Do it in the session *within* or not
        at all: an ephemeral node must not get into a session that its maker does not know."""
        self._check_open()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    await self._keeper.ready.wait()
                    if within is not None and (within is not self.session or within.lost.is_set()):
                        raise self._unavailable(operation, "the session was lost")
                    try:
                        return await self._keeper.link.call(start)
                    except _DISCONNECTED:
                        if not again:
                            raise
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError as error:
            raise self._unavailable(operation) from error
        except kazoo.KazooException as error:
            raise self._explained(error, operation, path, version) from error

    def _transaction(self, client: KazooClient, ops: Sequence[Op]) -> AsyncResult:
        transaction = client.transaction()
        for op in ops:
            node = self._keeper.on_server(op.path)
            match op:
                case CheckOp():
                    transaction.check(node, op.version)
                case CreateOp():
                    acl = self._acl(op.path)
                    transaction.create(node, op.value, acl, ephemeral=op.ephemeral)
                case SetOp():
                    transaction.set_data(node, op.value, op.version)
                case DeleteOp():
                    transaction.delete(node, op.version)
                case _:
                    assert_never(op)
        result: AsyncResult = transaction.commit_async()
        return result

    def _explained(self, error: Exception, operation: str, path: str, version: int) -> LogError:
        """Return what kazoo's *error* means to a caller of the port."""
        match error:
            case kazoo.NoNodeError():
                return NoSuchNode(path)
            case kazoo.NodeExistsError():
                return NodeExists(path)
            case kazoo.NotEmptyError():
                return NodeNotEmpty(path)
            case kazoo.BadVersionError():
                return BadVersion(path, version)
            case kazoo.NoChildrenForEphemeralsError():
                return InvalidPath(path, "a node above it is ephemeral")
            case kazoo.NoAuthError() | kazoo.AuthFailedError():
                return MetadataDenied(self._shown, f"{operation} {path}", type(error).__name__)
            case _:
                reason = f"{type(error).__name__} {error}".rstrip()
                return self._unavailable(operation, reason)

    def _unavailable(self, operation: str, reason: str = "") -> MetadataUnavailable:
        return MetadataUnavailable(self._shown, operation, self._timeout_s, reason)

    def _acl(self, path: str) -> list[ACL] | None:
        """Return the ACL of a node that is made; None: that of all nodes."""
        roles = self._keeper.roles
        return roles.acl_at(path) if roles.keep_rights else None

    def _node(self, path: str) -> str:
        return self._keeper.on_server(check_path(path))

    def _check_open(self) -> None:
        if self._closed:
            raise HandleClosed(f"metadata store {self._shown}")
