"""Named consumers in the metadata store: nodes below their log's manifest, and their locks.

    /logs/<log>/consumers                its version counts the consumers that were deleted
    /logs/<log>/consumers/<name>         state, changed by compare-and-swap
    /logs/<log>/consumers/<name>/lock    ephemeral; who is in use exclusively. A hint: the epoch
                                         in the state is what keeps others from committing

Nodes are made in one transaction with a check of their log's manifest, so a log that is being
deleted never gets a new one, and no node appears below a log that is gone. A node that is deleted
and made again begins anew at version 0, as a manifest's does, so each change checks in one
transaction that the log has had its name, and no consumer of it was deleted, ever since the state
was read.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from dlog.aio.cancelling import is_cancelled
from dlog.aio.store.manifests import CONFLICTS_MAX, LOST_REPLIES_MAX, ManifestNode
from dlog.errors import ConsumerBusy, NoSuchConsumer, NoSuchLog, TooManyConsumers
from dlog.manifest import Manifest
from dlog.names import check_name, name_of, node_of, path_of
from dlog.protocol.consuming import ConsumerState
from dlog.wire import consumer_pb2 as pb
from ledger.errors import (
    BadVersion,
    DamagedMetadata,
    LogError,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.metastore.ops import CheckOp, CreateOp, DeleteOp, Op, SetOp
from ledger.metastore.port import MetadataStore, Session

FORMAT_VERSION: Final = 1
CONSUMERS_MAX: Final = 1000
"""Consumers of one log: each is read when the slowest is asked for."""

UNLOCK_S: Final = 1.0
"""How long letting a lock go keeps its caller waiting."""
UNLOCK_RETRY_S: Final = 0.5

_unlocking: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references

Change = Callable[[ConsumerState], ConsumerState]
Stored = tuple[ConsumerState, int]
"""A state and the version of its node."""


def encode(state: ConsumerState) -> bytes:
    return pb.ConsumerNode(
        version=FORMAT_VERSION,
        incarnation=state.incarnation,
        log_incarnation=state.log_incarnation,
        position=state.position,
        epoch=state.epoch,
        exclusive=state.exclusive,
        owner=state.owner,
        updated_ms=state.updated_ms,
    ).SerializeToString(deterministic=True)


def decode(value: bytes, *, path: str) -> ConsumerState:
    """Return what *value*, read at *path*, says. Raises `DamagedMetadata`."""
    try:
        node = pb.ConsumerNode.FromString(value)
    except DecodeError as error:
        raise DamagedMetadata(path, str(error)) from error
    if node.version != FORMAT_VERSION:
        raise DamagedMetadata(
            path, f"format version {node.version}, this program knows {FORMAT_VERSION}"
        )
    return ConsumerState(
        incarnation=node.incarnation,
        log_incarnation=node.log_incarnation,
        position=node.position,
        epoch=node.epoch,
        exclusive=node.exclusive,
        owner=node.owner,
        updated_ms=node.updated_ms,
    )


def consumers_path(log: str) -> str:
    """Return the parent of the consumers of *log*. Raises `InvalidName`."""
    return f"{path_of(log)}/consumers"


class ConsumerNode:
    """One consumer's node. Raises `InvalidName` if there can be no such log or consumer."""

    def __init__(self, store: MetadataStore, log: str, name: str) -> None:
        self.log, self.name = log, check_name(name)
        self.path = f"{consumers_path(log)}/{node_of(name)}"
        self._lock_path = f"{self.path}/lock"
        self._parent = consumers_path(log)
        self._store = store
        self._manifests = ManifestNode(store, log)
        self._seen: Manifest | None = None
        """The log's, read before the state that is to be edited was."""
        self._deletions = 0
        """How many consumers of the log had been deleted then."""
        self._token = secrets.token_hex(8)
        """Marks this one's own lock, so that a lost reply does not lock it out."""

    async def read(self) -> Stored:
        """Return state and version, as of now. Raises `NoSuchConsumer`, `DamagedMetadata`."""
        await self._store.sync(self.path)
        return await self._get()

    async def _get(self) -> Stored:
        try:
            found = await self._store.get(self.path)
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        return decode(found.value, path=self.path), found.version

    async def _read_counted(self) -> Stored:
        """As `read`; note before how many consumers had been deleted."""
        await self._store.sync(self.path)
        self._deletions = await self._store.exists(self._parent) or 0
        return await self._get()

    async def read_to_edit(self) -> Stored:
        """As `read`, for an `edit` that follows. Raises `NoSuchLog` too."""
        for attempt in range(1, CONFLICTS_MAX + 1):
            self._seen, version = await self._manifests.read()
            try:
                await self._manifests.mark(self._seen.life, version)
            except BadVersion:  # the log was renamed, or rolled before it was marked
                if attempt == CONFLICTS_MAX:
                    raise
            else:
                return await self._read_counted()
        raise AssertionError("unreachable")

    async def create(self, state: ConsumerState) -> None:
        """Create it unless it is there. Raises `NoSuchLog`, `TooManyConsumers`, `BadVersion`."""
        if len(await consumer_names(self._store, self.log)) >= CONSUMERS_MAX:
            raise TooManyConsumers(self.log, CONSUMERS_MAX)
        manifests = ManifestNode(self._store, self.log)
        for attempt in range(1, CONFLICTS_MAX + 1):
            manifest, version = await manifests.read()
            if manifest.dropped or manifest.incarnation != state.log_incarnation:
                raise NoSuchLog(self.log)
            try:
                guard = await manifests.guard(manifest.life, version)
                for made in (
                    CreateOp(self._parent),
                    CreateOp(self.path, encode(state)),
                ):
                    with suppress(NodeExists):
                        await self._store.multi([*guard, made])
                return
            except (BadVersion, NoSuchNode):  # the log rolled, or is gone: look again
                if attempt == CONFLICTS_MAX:
                    raise
        raise AssertionError("unreachable")

    async def edit(self, change: Change, known: Stored) -> Stored:
        """Apply *change*, first to what was *known*, until it is stored; return that.

        Requires `read_to_edit` before. *change* is safe to repeat, so a lost reply is no
        trouble. Raises what it raises, `NoSuchConsumer` also if the log was renamed or another
        one has its name, and `MetadataUnavailable` or `BadVersion` after several attempts."""
        state, version = known
        conflicts = lost = 0
        while True:
            wanted = change(state)
            if wanted == state:
                return state, version
            try:
                swap = SetOp(self.path, encode(wanted), version)
                await self._store.multi([*self._guard(wanted), swap])
                return wanted, version + 1
            except NoSuchNode:
                raise NoSuchConsumer(self.log, self.name) from None
            except BadVersion:
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise
            except MetadataUnavailable:
                lost += 1
                if lost == LOST_REPLIES_MAX:
                    raise
            stored, version = await self._read_counted()
            if stored == wanted:
                return stored, version
            state = stored

    def _guard(self, wanted: ConsumerState) -> tuple[Op, ...]:
        """Return what makes a transaction fail unless log and consumer are those that were seen."""
        assert self._seen is not None, "an edit follows `read_to_edit`"
        if wanted.log_incarnation != self._seen.incarnation:
            raise NoSuchConsumer(self.log, self.name)
        return (
            CheckOp(self._manifests.mark_of(self._seen.life)),
            CheckOp(self._parent, self._deletions),
        )

    async def delete(self) -> None:
        """Delete it. Raises `NoSuchConsumer`, and `ConsumerBusy` while its lock is held."""
        try:
            await self._store.multi([SetOp(self._parent, b""), DeleteOp(self.path)])
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        except NodeNotEmpty:
            raise ConsumerBusy(self.log, self.name, await self.owner() or "") from None

    async def owner(self) -> str | None:
        """Return who holds the lock, or None."""
        try:
            value = (await self._store.get(self._lock_path)).value
        except NoSuchNode:
            return None
        return value.decode(errors="replace").partition(" ")[2]

    async def lock(self, owner: str, *, wait_s: float) -> None:
        """Take the lock. Raises `ConsumerBusy` if another one has it for *wait_s* more."""
        value = f"{self._token} {owner}".encode()
        deadline = asyncio.get_running_loop().time() + wait_s
        watch = self._store.watch(self._lock_path)
        try:
            while not await self._try_lock(value):
                holder = await self.owner()
                if holder is None:
                    continue
                try:
                    async with asyncio.timeout_at(deadline):
                        await watch.changed()
                except TimeoutError:
                    raise ConsumerBusy(self.log, self.name, holder) from None
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
        finally:
            watch.close()

    async def unlock(self) -> None:
        """Let the lock go if it is ours, for certain: after `UNLOCK_S` in the background.

        Left behind by a session that lives on it would keep everybody out for as long."""
        task = asyncio.create_task(self._until_unlocked(self._store.session))
        _unlocking.add(task)
        task.add_done_callback(_unlocking.discard)
        await asyncio.wait({task}, timeout=UNLOCK_S)

    async def _until_unlocked(self, session: Session) -> None:
        while not session.lost.is_set():  # whose end takes the lock along
            try:
                await self._unlock()
            except MetadataUnavailable:
                await asyncio.sleep(UNLOCK_RETRY_S)
            except LogError:
                return
            else:
                return

    async def _unlock(self) -> None:
        await self._store.sync(self._lock_path)  # the lock may be on its way still
        with suppress(NoSuchNode):
            if (await self._store.get(self._lock_path)).value.startswith(self._token.encode()):
                await self._store.delete(self._lock_path)

    async def _try_lock(self, value: bytes) -> bool:
        ops: list[Op] = [CheckOp(self.path), CreateOp(self._lock_path, value, ephemeral=True)]
        try:
            await self._store.multi(ops)
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        except NodeExists:
            with suppress(NoSuchNode):
                return (await self._store.get(self._lock_path)).value == value
            return False
        return True


async def consumer_names(store: MetadataStore, log: str) -> list[str]:
    """Return the names of the consumers of *log*, sorted."""
    path = consumers_path(log)
    await store.sync(path)
    try:
        return sorted(map(name_of, await store.children(path)))
    except NoSuchNode:
        return []


async def read_consumers(
    store: MetadataStore, log: str, manifest: Manifest
) -> list[tuple[str, ConsumerState]]:
    """Return name and state of each consumer of this life of *log*, by name."""
    found: list[tuple[str, ConsumerState]] = []
    for name in await consumer_names(store, log):
        with suppress(NoSuchConsumer):  # deleted meanwhile
            state, _ = await ConsumerNode(store, log, name).read()
            if state.log_incarnation == manifest.incarnation:
                found.append((name, state))
    return found


async def delete_consumers(store: MetadataStore, log: str, own: CheckOp) -> None:
    """Delete all consumers of *log*, in use or not. Requires that no new ones can be made.

    *own* fails once another log has the name: its consumers are left alone."""
    path = consumers_path(log)
    for name in await consumer_names(store, log):
        node = f"{path}/{node_of(name)}"
        for attempt in range(1, CONFLICTS_MAX + 1):
            with suppress(NoSuchNode):
                await store.multi([own, DeleteOp(f"{node}/lock")])
            try:
                await store.multi([own, DeleteOp(node)])
            except NoSuchNode:
                pass
            except NodeNotEmpty:  # locked again
                if attempt == CONFLICTS_MAX:
                    raise
                continue
            break
    with suppress(NoSuchNode):
        await store.multi([own, DeleteOp(path)])
