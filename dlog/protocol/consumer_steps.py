"""Named consumers in the metadata store, as steps: nodes below their log's manifest, their locks.

    /logs/<log>/consumers                its version counts the consumers that were deleted
    /logs/<log>/consumers/<name>         state, changed by compare-and-swap
    /logs/<log>/consumers/<name>/lock    ephemeral; who is in use exclusively. A hint: the epoch
                                         in the state is what keeps others from committing

Nodes are created in one transaction with a check of their log's manifest, so a log that is being
deleted never gets a new one, and no node appears below a log that is gone. A node that is deleted
and created again begins at version 0 again, as a manifest's does, so each change checks in one
transaction that the log has had its name, and no consumer of it was deleted, ever since the state
was read.

Every change is a compare-and-swap of the whole `ConsumerState`, whose functions decide alone.

Invariants:
    a commit moves the position forward or nowhere; only a reset moves it back
    the epoch grows with each exclusive open, with each end of exclusiveness and with each
        reset; a handle commits only in the epoch it was opened with

So at most one handle of an exclusive consumer moves its position, whatever became of its lock
(which only spares others the wait), and no handle undoes a reset that it does not know of.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

from google.protobuf.message import DecodeError

from dlog.errors import ConsumerBusy, ConsumerFenced, NoSuchConsumer, NoSuchLog, TooManyConsumers
from dlog.manifest import Manifest
from dlog.names import check_name, name_of, node_of, path_of
from dlog.protocol.actions import Children, Delete, Exists, Get, Sync, Transact
from dlog.protocol.manifest_steps import CONFLICTS_MAX, LOST_REPLIES_MAX, ManifestSteps
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
from ledger.protocol.procedure import Action, Steps, Wait

FORMAT_VERSION: Final = 1
CONSUMERS_MAX: Final = 1000
"""Consumers of one log: each is read when the slowest is asked for."""
UNLOCK_RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    incarnation: str
    """Random: a consumer that was deleted and re-created is another one."""
    log_incarnation: str
    """Of the log: one that was deleted and re-created has other records."""
    position: int
    """Every record below this offset was processed."""
    epoch: int = 1
    exclusive: bool = False
    owner: str = ""
    """Who opened or reset it last; for people."""
    updated_ms: int = 0
    """When it changed last; for people."""
    note: str = ""
    """Committed with the position: by a store, the names of the snapshots that it keeps."""

    def opened(self, *, exclusive: bool, owner: str, now_ms: int) -> Self:
        """Return the state once a process opened it; the same one if nothing changes.

        Requires that nobody else holds the lock if either is *exclusive*."""
        if not exclusive and not self.exclusive:
            return self
        return replace(
            self, epoch=self.epoch + 1, exclusive=exclusive, owner=owner, updated_ms=now_ms
        )

    def committed(self, offset: int, *, by: Self, name: str, now_ms: int, note: str = "") -> Self:
        """Return the state with everything below *offset* processed, as a handle reports it.

        *by* is the state it was opened with. Raises `ConsumerFenced`."""
        if (by.incarnation, by.epoch) != (self.incarnation, self.epoch):
            raise ConsumerFenced(name, self.owner)
        if offset <= self.position:
            return self
        return replace(self, position=offset, updated_ms=now_ms, note=note)

    def was_reset(self, offset: int, *, owner: str, now_ms: int) -> Self:
        """Return the state that begins again at *offset*; no open handle may commit any more."""
        return replace(self, position=offset, epoch=self.epoch + 1, owner=owner, updated_ms=now_ms)


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
        note=state.note,
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
        note=node.note,
    )


def consumers_path(log: str) -> str:
    """Return the parent of the consumers of *log*. Raises `InvalidName`."""
    return f"{path_of(log)}/consumers"


@dataclass(frozen=True, slots=True)
class AwaitChange(Action[bool]):
    """Wait until the node that is watched may have changed since it was looked at last. Answer:
    whether it may; False once it has been watched for *within_s*."""

    within_s: float


class ConsumerSteps:
    """One consumer's node. Raises `InvalidName` if there can be no such log or consumer.

    Knows what it saw when it was read to be edited, and nothing else."""

    def __init__(self, log: str, name: str, *, token: str) -> None:
        """*token*, random, marks this one's own lock, so that a lost reply does not lock it out."""
        self.log, self.name = log, check_name(name)
        self.path = f"{consumers_path(log)}/{node_of(name)}"
        self.lock_path = f"{self.path}/lock"
        self._parent = consumers_path(log)
        self._manifests = ManifestSteps(log)
        self._token = token
        self._seen: Manifest | None = None
        """The log's, read before the state that is to be edited was."""
        self._deletions = 0
        """How many consumers of the log had been deleted then."""

    def read(self) -> Steps[Stored]:
        """Return state and version, as of now. Raises `NoSuchConsumer`, `DamagedMetadata`."""
        yield from Sync(self.path)
        return (yield from self._get())

    def _get(self) -> Steps[Stored]:
        try:
            found = yield from Get(self.path)
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        return decode(found.value, path=self.path), found.version

    def _read_counted(self) -> Steps[Stored]:
        """As `read`; note before how many consumers had been deleted."""
        yield from Sync(self.path)
        self._deletions = (yield from Exists(self._parent)) or 0
        return (yield from self._get())

    def read_to_edit(self) -> Steps[Stored]:
        """As `read`, for an `edit` that follows. Raises `NoSuchLog` too."""
        for attempt in range(1, CONFLICTS_MAX + 1):
            self._seen, version = yield from self._manifests.read()
            try:
                yield from self._manifests.check_mark(self._seen.life, version)
            except BadVersion:  # the log was renamed
                if attempt == CONFLICTS_MAX:
                    raise
            else:
                return (yield from self._read_counted())
        raise AssertionError("unreachable")

    def create(self, state: ConsumerState) -> Steps[None]:
        """Create it unless it is there. Raises `NoSuchLog`, `TooManyConsumers`, `BadVersion`."""
        if len((yield from consumer_names(self.log))) >= CONSUMERS_MAX:
            raise TooManyConsumers(self.log, CONSUMERS_MAX)
        manifests = ManifestSteps(self.log)
        for attempt in range(1, CONFLICTS_MAX + 1):
            manifest, version = yield from manifests.read()
            if manifest.dropped or manifest.incarnation != state.log_incarnation:
                raise NoSuchLog(self.log)
            try:
                guard = yield from manifests.guard(manifest.life, version)
                for made in (
                    CreateOp(self._parent),
                    CreateOp(self.path, encode(state)),
                ):
                    with suppress(NodeExists):
                        yield from Transact((*guard, made))
                return
            except (BadVersion, NoSuchNode):  # the log rolled, or is gone: look again
                if attempt == CONFLICTS_MAX:
                    raise
        raise AssertionError("unreachable")

    def edit(self, change: Change, known: Stored) -> Steps[Stored]:
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
                yield from Transact((*self._guard(wanted), swap))
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
            stored, version = yield from self._read_counted()
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

    def delete(self) -> Steps[None]:
        """Delete it. Raises `NoSuchConsumer`, and `ConsumerBusy` while its lock is held."""
        try:
            yield from Transact((SetOp(self._parent, b""), DeleteOp(self.path)))
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        except NodeNotEmpty:
            holder = (yield from self.owner()) or ""
            raise ConsumerBusy(self.log, self.name, holder) from None

    def owner(self) -> Steps[str | None]:
        """Return who holds the lock, or None."""
        try:
            value = (yield from Get(self.lock_path)).value
        except NoSuchNode:
            return None
        return value.decode(errors="replace").partition(" ")[2]

    def lock(self, owner: str, *, wait_s: float) -> Steps[None]:
        """Take the lock. Raises `ConsumerBusy` if another one has it for *wait_s* more.

        Requires that the lock's node is watched from before."""
        value = f"{self._token} {owner}".encode()
        while not (yield from self._try_lock(value)):
            holder = yield from self.owner()
            if holder is not None and not (yield from AwaitChange(within_s=wait_s)):
                raise ConsumerBusy(self.log, self.name, holder)

    def _try_lock(self, value: bytes) -> Steps[bool]:
        made = CreateOp(self.lock_path, value, ephemeral=True)
        try:
            yield from Transact((CheckOp(self.path), made))
        except NoSuchNode:
            raise NoSuchConsumer(self.log, self.name) from None
        except NodeExists:
            with suppress(NoSuchNode):
                return (yield from Get(self.lock_path)).value == value
            return False
        return True

    def unlock(self, *, session_lost: Callable[[], bool]) -> Steps[None]:
        """Let the lock go if it is ours, for certain, unless the session's end takes it along."""
        while not session_lost():
            try:
                yield from self._unlock()
            except MetadataUnavailable:
                yield from Wait(UNLOCK_RETRY_S)
            except LogError:
                return
            else:
                return

    def _unlock(self) -> Steps[None]:
        yield from Sync(self.lock_path)  # the lock may be on its way still
        with suppress(NoSuchNode):
            if (yield from Get(self.lock_path)).value.startswith(self._token.encode()):
                yield from Delete(self.lock_path)


def consumer_names(log: str) -> Steps[list[str]]:
    """Return the names of the consumers of *log*, sorted."""
    path = consumers_path(log)
    yield from Sync(path)
    try:
        return sorted(map(name_of, (yield from Children(path))))
    except NoSuchNode:
        return []


def delete_consumers(log: str, own: CheckOp) -> Steps[None]:
    """Delete all consumers of *log*, in use or not. Requires that no new ones can be created.

    *own* fails once another log has the name: its consumers are left alone."""
    path = consumers_path(log)
    for name in (yield from consumer_names(log)):
        node = f"{path}/{node_of(name)}"
        for attempt in range(1, CONFLICTS_MAX + 1):
            with suppress(NoSuchNode):
                yield from Transact((own, DeleteOp(f"{node}/lock")))
            try:
                yield from Transact((own, DeleteOp(node)))
            except NoSuchNode:
                pass
            except NodeNotEmpty:  # locked again
                if attempt == CONFLICTS_MAX:
                    raise
                continue
            break
    with suppress(NoSuchNode):
        yield from Transact((own, DeleteOp(path)))
