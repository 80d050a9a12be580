"""Running replicas in the metadata store: each reports itself, anybody lists them or requests a
snapshot of one.

`dlog.protocol.replica_record` has the nodes. They are ephemeral: what they say is for people, for
truncation, which spares what a replica without snapshots has not applied, and for requests.

Invariants:
    a replica reports at most what it has applied, never more
    a truncation that was decided before a replica without snapshots was listed is not done after
    a replica that is closed has no node, once its session of the metadata store answers
    a replica writes one requested snapshot at a time
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Final

from dlog.aio.namespace_connection import connected
from dlog.aio.port import Ledgers
from dlog.aio.read.tails import tail_of
from dlog.aio.store import ManifestNode
from dlog.errors import NoSuchLog, SnapshotRequestFailed, text_of
from dlog.protocol.replica_record import (
    REPLICAS_PATH,
    ReplicaRecord,
    SnapshotRequest,
    replica_ids,
    replica_path,
    replicas_path,
    request_path,
)
from ledger.delays import Backoff
from ledger.errors import (
    LogError,
    MetadataUnavailable,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
)
from ledger.log_events import get_logger, now_ms
from ledger.metastore.port import MetadataStore, Session, Watch, children_of
from ledger.process import this_process
from ledger.tasks import is_cancelled
from ledger.values import Duration, duration_s

STATUS_S: Final = 5.0
"""How often the offset is written that a replica has applied, while it changes."""
POLL_S: Final = 1.0
"""How soon a change of role, and how far a snapshot is, is written."""
UNREGISTER_S: Final = 1.0
"""How long `close` waits for the node to go; after that it is deleted in the background."""
SNAPSHOT_S: Final = 600.0
"""How long a requested snapshot may take."""
_ID_BYTES: Final = 8
_BACKOFF_S_MAX: Final = 30.0
_unregistering: Final[set[asyncio.Task[None]]] = set()  # asyncio itself keeps only weak references

_log = get_logger(__name__)


class ReplicaRegistration:
    """Of one replica, for as long as it runs. `start`, then `close`."""

    def __init__(
        self,
        node: ManifestNode,
        describe: Callable[[], ReplicaRecord],
        take_snapshot: Callable[[], Awaitable[int]],
    ) -> None:
        """*node* follows the replica's log. *take_snapshot* writes a snapshot, returns its offset.

        *describe* may raise: then this is not listed, and tries again."""
        assert node.followed is not None, "a replica is of one life of its log"
        self._node, self._store, self._incarnation = node, node.store, node.followed
        self._describe, self._take_snapshot = describe, take_snapshot
        self._session: Session | None = None
        self._id = ""
        self._written: ReplicaRecord | None = None
        """What the node has, without its time; None: there is no node."""
        self._is_held = False
        """Whether each truncation from now on sees the node."""
        self._written_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._may_be_requested = True
        """Whether the node of a request may have changed since it was read."""

    async def start(self) -> None:
        """Write the node, if the store lets us; keep it up to date from then on."""
        try:
            await self._write()
        except Exception as error:  # noqa: BLE001 - a replica also runs without being listed
            self._failed(error)
        self._running = asyncio.create_task(self._run(), name="registration of a replica")

    async def close(self) -> None:
        """Delete the node. Idempotent."""
        tasks = {task for task in (self._running, self._answering) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._session is None:
            return
        # The session of now: it may have made the node, while a call waited for a connection.
        work = _unregister(self._store, self._store.session, self._incarnation, self._id)
        unregistering = asyncio.create_task(work)
        _unregistering.add(unregistering)
        unregistering.add_done_callback(_unregistering.discard)
        self._session = None
        await asyncio.wait({unregistering}, timeout=UNREGISTER_S)

    async def _run(self) -> None:
        backoff = Backoff(POLL_S, _BACKOFF_S_MAX)
        while True:
            try:
                with closing(self._store.watch(self._request_path)) as watch:
                    while self._store.session is self._session:
                        await self._write()
                        await self._look_for_request()
                        backoff.reset()
                        self._may_be_requested |= await _changed(watch, POLL_S)
                await self._write()  # in another session
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round may pass
                self._failed(error)
                await asyncio.sleep(backoff.next())

    @property
    def _request_path(self) -> str:
        return request_path(self._incarnation, self._id)

    def _failed(self, error: Exception) -> None:
        _log.warning("replica_not_registered", log=self._node.log, error=text_of(error))

    async def _write(self) -> None:
        """Bring the node up to date if that is due."""
        session = self._store.session
        if session is not self._session:
            if self._id:
                # Its session may not have expired yet. Or this one made it, while a call waited.
                with suppress(NoSuchNode):
                    await self._store.delete(replica_path(self._incarnation, self._id))
            self._session, self._id = session, secrets.token_hex(_ID_BYTES)
            self._written, self._is_held, self._may_be_requested = None, False, True
        record, written = self._describe(), self._written
        if record == written:
            return
        now_s = self._loop.time()
        if (
            written is not None
            and record.phase is None
            and record == replace(written, applied=record.applied)
            and now_s - self._written_s < STATUS_S
        ):
            return
        path = replica_path(self._incarnation, self._id)
        value = replace(record, updated_ms=now_ms()).encode()
        self._written = None  # until the store has answered
        try:
            await self._store.set(path, value)
        except NoSuchNode:
            with suppress(NodeExists):  # a reply was lost; the next look writes it
                await self._store.create(path, value, ephemeral=True)
        if record.needed_offset is not None and not self._is_held:
            await self._node.touch()
            self._is_held = True
        self._written, self._written_s = record, now_s

    async def _look_for_request(self) -> None:
        if not self._may_be_requested or (self._answering and not self._answering.done()):
            return
        self._may_be_requested = False
        try:
            versioned = await self._store.get(self._request_path)
        except NoSuchNode:
            return
        request = SnapshotRequest.decode(versioned.value, path=self._request_path)
        if not request.is_done:
            self._answering = asyncio.create_task(
                self._answer(self._request_path, request), name="requested snapshot"
            )

    async def _answer(self, path: str, request: SnapshotRequest) -> None:
        """Write a snapshot and its outcome. The client may be gone by then, and its node."""
        _log.info("snapshot_requested", log=self._node.log, by=request.asked_by)
        with suppress(LogError):
            await self._store.set(path, replace(request, begun=True).encode())
        try:
            answer = replace(request, begun=True, offset=await self._take_snapshot())
        except Exception as error:  # noqa: BLE001 - the client learns it, whatever it is
            answer = replace(request, begun=True, error=text_of(error))
        with suppress(LogError):
            await self._store.set(path, answer.encode())


async def _changed(watch: Watch, within_s: float) -> bool:
    """Return whether *watch* reports a change before *within_s* have passed."""
    try:
        async with asyncio.timeout(within_s):
            await watch.changed()
    except TimeoutError:
        return False
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    return True


async def _unregister(
    store: MetadataStore, session: Session, incarnation: str, replica: str
) -> None:
    """Delete the node, however long the store is away, unless its session ends before."""
    backoff = Backoff(POLL_S, _BACKOFF_S_MAX)
    while not session.lost.is_set():
        try:
            with suppress(NoSuchNode):
                await store.delete(replica_path(incarnation, replica))
            with suppress(NoSuchNode, NodeNotEmpty):
                await store.delete(replicas_path(incarnation))
        except MetadataUnavailable:
            await asyncio.sleep(backoff.next())
        except LogError:  # the store was closed, which ends the session
            return
        else:
            return


# Looking.


@dataclass(frozen=True, slots=True)
class RegisteredReplica:
    id: str
    incarnation: str
    """Of its log."""
    record: ReplicaRecord
    end: int | None = None
    """Where its log ends; None: there is no log of that name any more."""

    @property
    def lag(self) -> int | None:
        """How many records it has still to apply, as it reported last."""
        return None if self.end is None else max(0, self.end - self.record.applied)


async def read_replicas(
    store: MetadataStore, incarnation: str, *, fresh: bool = True
) -> list[tuple[str, ReplicaRecord]]:
    """Return id and record of each replica of a log, the leader first. *fresh*: with all that was
    written before the call. Raises `DamagedMetadata`, `MetadataUnavailable`."""
    path = replicas_path(incarnation)
    if fresh:
        await store.sync(path)
    replicas: list[tuple[str, ReplicaRecord]] = []
    for replica in replica_ids(await children_of(store, path)):
        node = replica_path(incarnation, replica)
        try:
            versioned = await store.get(node)
        except NoSuchNode:
            continue  # it went since it was listed
        replicas.append((replica, ReplicaRecord.decode(versioned.value, path=node)))
    return sorted(replicas, key=lambda each: (each[1].role != "leader", each[1].candidate))


async def list_replicas(
    log: str | None = None, *, uri: str | None = None, client: Ledgers | None = None
) -> list[RegisteredReplica]:
    """Return the running replicas of *log*, or of all logs. Raises `InvalidName`, `NoSuchLog`,
    `DamagedMetadata`, and what connecting raises."""
    async with connected(uri, client) as ledgers:
        if log is None:
            await ledgers.store.sync(REPLICAS_PATH)
            incarnations = await children_of(ledgers.store, REPLICAS_PATH)
        else:
            manifest, _ = await ManifestNode(ledgers.store, log).read()
            incarnations = [manifest.incarnation]
        replicas: list[RegisteredReplica] = []
        for incarnation in incarnations:
            records = await read_replicas(ledgers.store, incarnation)
            end = await _end(ledgers, records[0][1].log, incarnation) if records else None
            replicas += [
                RegisteredReplica(replica, incarnation, each, end) for replica, each in records
            ]
    return sorted(replicas, key=lambda each: each.record.log)


async def _end(ledgers: Ledgers, log: str, incarnation: str) -> int | None:
    """Return where *log* ends; None if it was deleted, or renamed since a replica read its name."""
    with suppress(NoSuchLog):
        manifest, _ = await ManifestNode(ledgers.store, log).read()
        if manifest.incarnation == incarnation:
            return (await tail_of(ledgers, log)).next_offset
    return None


OnRequest = Callable[[ReplicaRecord], object]
"""Called with what the replica reports while it works."""


async def request_snapshot(
    replica: RegisteredReplica,
    store: MetadataStore,
    *,
    timeout_s: Duration = SNAPSHOT_S,
    on_progress: OnRequest = lambda _: None,
) -> int:
    """Let *replica* write a snapshot now; return its offset.

    If nothing was applied since the last snapshot that one is as good, and its offset is returned.
    Cancelling ends the waiting, not the snapshot. Raises `SnapshotRequestFailed`,
    `MetadataDenied`, `MetadataUnavailable`."""
    wait_s = duration_s(timeout_s, "timeout_s")
    record = replica.record
    path = request_path(replica.incarnation, replica.id)
    request = SnapshotRequest(asked_by=this_process(), asked_ms=now_ms())
    with closing(store.watch(path)) as watch:
        try:
            await store.create(path, request.encode(), ephemeral=True)
        except NodeExists:
            raise SnapshotRequestFailed(
                record.log, record.candidate, "another client waits for its snapshot already"
            ) from None
        try:
            async with asyncio.timeout(wait_s):
                while not request.is_done:
                    await _changed(watch, POLL_S)
                    request = await _answered(store, path, record)
                    on_progress(await _reported(store, replica))
        except TimeoutError:
            done = "it was begun, and may still be written" if request.begun else "it did not begin"
            reason = f"no answer within {wait_s:g} s; {done}"
            raise SnapshotRequestFailed(record.log, record.candidate, reason) from None
        finally:
            with suppress(LogError):
                await store.delete(path)
    if request.offset is None:
        raise SnapshotRequestFailed(record.log, record.candidate, request.error)
    return request.offset


async def _answered(store: MetadataStore, path: str, record: ReplicaRecord) -> SnapshotRequest:
    try:
        return SnapshotRequest.decode((await store.get(path)).value, path=path)
    except NoSuchNode:  # our session was lost
        raise SnapshotRequestFailed(record.log, record.candidate, "the request is gone") from None


async def _reported(store: MetadataStore, replica: RegisteredReplica) -> ReplicaRecord:
    path = replica_path(replica.incarnation, replica.id)
    try:
        return ReplicaRecord.decode((await store.get(path)).value, path=path)
    except NoSuchNode:
        record = replica.record
        reason = "the replica was closed, or lost its session of the metadata store"
        raise SnapshotRequestFailed(record.log, record.candidate, reason) from None
