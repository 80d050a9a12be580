"""Writes snapshots of a replica when its policy says so, keeps some, and truncates behind them.

The store is registered with the log as a consumer, whose position is the oldest snapshot that is
kept: what lies below it is not needed here. So retention that waits for consumers waits for it, and
one that truncates takes nothing that another store, or any other consumer, has still to read.

The names of the snapshots that are kept are committed with that position, before others are deleted
and the log is truncated. So a replica finds one that it can continue from, whatever a list of the
store lacks.

Invariants:
    one snapshot is under way at a time; a failure is logged, and tried again when the next is due
    no snapshot is deleted that is noted, and none is noted that was not read as a whole
    the log is truncated only below a snapshot that was just read as a whole
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, Protocol, TypeVar

from dlog import metrics
from dlog.aio.maintain.snapshot_check import end_below
from dlog.aio.port import Ledgers
from dlog.aio.read.consumer import open_state
from dlog.aio.replica_registry import read_replicas
from dlog.aio.store import ConsumerNode, ManifestNode, delete_listed, read_consumers
from dlog.errors import DamagedSnapshot, LogClosed, NoSuchConsumer, SnapshotAhead
from dlog.position import Start
from dlog.protocol.consumer_steps import Stored
from dlog.protocol.edits import trim
from dlog.protocol.replicated_state import ReplicatedState
from dlog.protocol.snapshot import (
    SnapshotHeader,
    SnapshotPhase,
    SnapshotPolicy,
    read_snapshot,
)
from dlog.snapshot_store import SnapshotFile, SnapshotStore
from ledger.errors import BadVersion
from ledger.log_events import get_logger, now_ms
from ledger.process import this_process

PROGRESS_S: Final = 10.0
"""How often the log says how far a large snapshot is."""
CONSUMER_PREFIX: Final = "snapshots-"
"""Names of the consumers that stores are registered as; the id of the store follows."""
RESTORES_MAX: Final = 3
"""Snapshots that are tried one after the other, if each is damaged while it is restored."""

TRUNCATIONS_MAX: Final = 8
"""Attempts of one, while the manifest changes."""

R = TypeVar("R")


class OnState(Protocol):
    """Does *work* with the state between two commands."""

    async def __call__(self, work: Callable[[], R], /) -> R: ...


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far the snapshot is that is being written, checked or restored."""

    phase: SnapshotPhase
    done_bytes: int
    total_bytes: int | None
    """None: not known yet, as while it is written."""


class SnapshotKeeper:
    """Made and owned by `dlog.aio.replica`."""

    def __init__(
        self,
        store: SnapshotStore,
        policy: SnapshotPolicy,
        ledgers: Ledgers,
        node: ManifestNode,
        state: ReplicatedState[Any],
        on_state: OnState,
    ) -> None:
        self.progress: SnapshotProgress | None = None
        """None: no snapshot is under way."""
        self.newest = 0
        """Offset of the newest snapshot that this replica wrote, restored or found; 0: none."""
        self._reported_s = 0.0
        self._store, self._policy = store, policy
        self._ledgers, self._node = ledgers, node
        self._state, self._on_state = state, on_state
        self._offset = 0
        """Of the newest snapshot that is known of."""
        self._bytes = 0
        """Of the commands that were applied since then."""
        self._since_s = time.monotonic()
        self._leads = False
        self._is_closed = False
        self._writing: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Set while something was applied, and its snapshot is due by time alone."""

    @property
    def uri(self) -> str:
        """Of the store."""
        return self._store.uri

    async def restore_newest(self) -> bool:
        """Continue the state from the newest whole snapshot that is further; return whether there
        was one. Raises `SnapshotTooNew`, `SnapshotAhead`, `OSError`, what bookies and metadata
        store raise, and what the state machine raises; `DamagedSnapshot` if one was damaged while
        it was restored and none before it is whole."""
        with self._under_way():
            return await self._restore_newest()

    async def _restore_newest(self) -> bool:
        damage: DamagedSnapshot | None = None
        noted = await self._noted()
        for _ in range(RESTORES_MAX):
            opened = await self._store.open_newest(self._state.offset, noted, self._advance)
            if opened is None:
                before, noted = noted, await self._noted()
                if noted == before:
                    break
                continue  # others took the place of what was noted
            file, header, source = opened
            with source:
                await self._check_reached(header)
                try:
                    await self._on_state(partial(self._restore, file, source))
                except DamagedSnapshot as error:  # since it was checked: now it is passed over
                    damage = error
                else:
                    return True
        if damage is not None:
            raise damage
        return False

    async def _check_reached(self, header: SnapshotHeader) -> None:
        """Raises `SnapshotAhead` if the log certainly ends below *header*."""
        manifest, _ = await self._node.read()
        if header.epoch > manifest.epoch:
            raise SnapshotAhead(
                self._node.log, f"records of epoch {header.epoch}", f"in epoch {manifest.epoch}"
            )
        incarnation = self._store.incarnation
        end = await end_below(self._ledgers, self._node, header.offset, incarnation)
        if end is not None:
            records = f"the records below offset {header.offset}"
            raise SnapshotAhead(self._node.log, records, f"which ends at {end}")

    def _restore(self, file: SnapshotFile, source: BinaryIO) -> None:
        source.seek(0)
        size_bytes = os.fstat(source.fileno()).st_size
        header, table, state = read_snapshot(source, size_bytes, self._advance)
        self._state.restore(header, table, state)
        self.newest = file.offset
        self._restart(file.offset)
        metrics.REPLICA_SNAPSHOTS.add("restored")
        _log.info(
            "snapshot_restored", log=header.log, offset=file.offset, path=self._store.place(file)
        )

    async def register(self) -> None:
        """Let the log know that this store needs all it has. Names of files say nothing of what it
        does not need: that is said once snapshots were read as a whole, with the next one.

        Truncations that were decided before, and do not know of it, fail from then on."""
        await self._consumer("start")
        await self._node.touch()

    def applied(self, command_bytes: int, *, leads: bool) -> None:
        """Count what was applied, and begin a snapshot if one is due."""
        self._bytes += command_bytes
        self._leads = leads
        self._write_if_due()

    def _write_if_due(self) -> None:
        if self._writing is not None or self._is_closed:
            return
        since_s = time.monotonic() - self._since_s
        records = self._state.offset - self._offset
        if self._policy.is_due(
            records=records, command_bytes=self._bytes, since_s=since_s, leads=self._leads
        ):
            self._writing = asyncio.create_task(self._write(), name=f"snapshot of {self._node.log}")
            self._writing.add_done_callback(self._written)
        elif records > 0 and self._timer is None:
            after_s = self._policy.after_s(leads=self._leads)
            if after_s is not None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(max(after_s - since_s, 0.0), self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._write_if_due()

    async def write(self) -> int:
        """Write a snapshot now, unless the newest is of the same state; return its offset. Raises
        what `SnapshotStore.write` raises, and `LogClosed`."""
        while self._writing is not None:
            await asyncio.wait({self._writing})
        if self._is_closed:
            raise LogClosed(self._node.log)
        writing = asyncio.create_task(self._take(), name="snapshot on demand")
        self._writing = writing
        writing.add_done_callback(self._written)
        return await asyncio.shield(writing)

    async def close(self) -> None:
        """Wait for the snapshot that is under way, if there is one; begin no other."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        while self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        try:
            newest = await self._store.newest_whole(self._offset)
            if newest is not None:
                self._bytes = 0
                self.newest = newest.offset
                self._restart(newest.offset)  # another replica wrote it
            else:
                await self._take()
        except Exception as error:  # noqa: BLE001 - the log has everything; the next one is tried
            metrics.REPLICA_SNAPSHOTS.add("failed")
            _log.warning("snapshot_failed", log=self._node.log, error=repr(error))
            self._bytes = 0
            self._restart(self._state.offset)

    def _written(self, writing: asyncio.Task[Any]) -> None:
        if self._writing is writing:
            self._writing = None
        if writing.cancelled():
            return
        writing.exception()  # whoever asked for it may have gone
        self._write_if_due()  # enough may have been applied meanwhile

    async def _take(self) -> int:
        """Write a snapshot unless there is a whole one that is as new; return its offset."""
        capture = partial(self._state.capture, self._store.incarnation, now_ms=now_ms())
        captured = await self._on_state(capture)
        self._bytes = 0
        file = await self._store.newest_whole(captured.header.offset - 1)
        if file is None:
            with self._under_way():
                file = await self._store.write(
                    captured.header, captured.table, captured.write_state, self._advance
                )
            place = self._store.place(file)
            metrics.REPLICA_SNAPSHOTS.add("written")
            _log.info("snapshot_written", log=self._node.log, offset=file.offset, path=place)
        self.newest = file.offset
        self._restart(file.offset)
        kept, surplus = await self._store.sort_out(self._policy.keep, file)
        if kept:  # else all were damaged since they were written
            await self._commit(kept)
        await self._store.delete(surplus)
        if self._policy.truncate and len(kept) == self._policy.keep:
            await self._truncate(kept[-1])
        return file.offset

    async def _truncate(self, oldest: SnapshotFile) -> None:
        """Truncate the log below *oldest*, or less if a consumer needs more, or a running replica
        without snapshots.

        Consumers go with a log that gets another name, and each of them, and each replica, touches
        the manifest once it is listed. So if that changed since they were listed, they are listed
        again; if it changes all the time, the next snapshot truncates."""
        for _ in range(TRUNCATIONS_MAX):
            with suppress(BadVersion):
                await self._truncate_below(oldest.offset)
                return
        _log.info("truncation_postponed", log=self._node.log, offset=oldest.offset)

    async def _truncate_below(self, oldest: int) -> None:
        """Raises `BadVersion` if the manifest changed meanwhile."""
        seen, version = await self._node.read()
        consumers = await read_consumers(self._ledgers.store, self._node.log, seen)
        target = min([oldest, *(state.position for _, state in consumers)])
        replicas = await read_replicas(self._ledgers.store, self._store.incarnation)
        for _, replica in replicas:
            needed = replica.needed_offset
            if needed is not None and needed < target:
                target = needed
                _log.info(
                    "truncation_waits_for_replica",
                    log=self._node.log,
                    replica=replica.candidate,
                    offset=needed,
                )
        manifest = trim(self._node.log, target, incarnation=self._store.incarnation)(seen)
        if manifest != seen:
            await self._node.write(manifest, version)
        await delete_listed(self._ledgers, self._node, manifest)

    async def _commit(self, kept: Sequence[SnapshotFile]) -> None:
        """Note that the store has *kept*, newest first, and needs nothing below them."""
        position, note = kept[-1].offset, " ".join(file.name for file in kept)
        node, stored = await self._consumer(position)
        opened, name = stored[0], node.name
        await node.edit(
            lambda state: state.committed(
                position, by=opened, name=name, now_ms=now_ms(), note=note
            ),
            stored,
        )

    async def _noted(self) -> list[str]:
        """Return the names of the snapshots that the store has for certain, unless others took
        their place since."""
        try:
            state, _ = await (await self._consumer_node()).read()
        except NoSuchConsumer:
            return []
        return state.note.split()

    async def _consumer_node(self) -> ConsumerNode:
        name = CONSUMER_PREFIX + await self._store.identity()
        return ConsumerNode(self._ledgers.store, self._node.log, name)

    async def _consumer(self, start: Start) -> tuple[ConsumerNode, Stored]:
        """Return the consumer that this store is, which begins at *start* if it is new."""
        node = await self._consumer_node()
        stored = await open_state(
            self._ledgers,
            self._node,
            node,
            start,
            exclusive=False,
            wait_s=0.0,
            owner=this_process(),
        )
        return node, stored

    def _restart(self, offset: int) -> None:
        """Count from the snapshot at *offset* on."""
        self._offset, self._since_s = offset, time.monotonic()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self._reported_s = time.monotonic()
        try:
            yield
        finally:
            self.progress = None

    def _advance(self, phase: SnapshotPhase, done_bytes: int, total_bytes: int | None) -> None:
        """Called on the thread that works."""
        before = self.progress
        begun_bytes = before.done_bytes if before is not None and before.phase == phase else 0
        self.progress = SnapshotProgress(phase, done_bytes, total_bytes)
        if done_bytes > begun_bytes:  # else this is another file
            metrics.REPLICA_SNAPSHOT_BYTES.add(phase, by=done_bytes - begun_bytes)
        now_s = time.monotonic()
        if now_s - self._reported_s >= PROGRESS_S:
            self._reported_s = now_s
            _log.info(
                "snapshot_progress",
                log=self._node.log,
                phase=phase,
                done_bytes=done_bytes,
                total_bytes=total_bytes,
            )
