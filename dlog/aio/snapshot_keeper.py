"""Writes snapshots of a replica when its policy says so, keeps some, and truncates behind them.

The store is registered with the log as a consumer, whose position is the oldest snapshot that is
kept: what lies below it is not needed here. So retention that waits for consumers waits for it, and
one that truncates takes nothing that another store, or any other consumer, has still to read.

Invariants:
    one snapshot is under way at a time; a failure is logged, and tried again when the next is due
    the log is truncated only below a snapshot that was just read as a whole
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from dlog import metrics
from dlog.aio.maintain.trim import Keep, truncate
from dlog.aio.port import Ledgers
from dlog.aio.read.consumer import open_state
from dlog.aio.store import ConsumerNode, ManifestNode, read_consumers
from dlog.protocol.replicated_state import ReplicatedState
from dlog.protocol.snapshot import SnapshotPolicy, read_snapshot
from dlog.snapshot_store import SnapshotFile, SnapshotStore
from ledger.log_events import get_logger, now_ms
from ledger.process import this_process

CONSUMER_PREFIX: Final = "snapshots-"
"""Names of the consumers that stores are registered as; the id of the store follows."""

R = TypeVar("R")


class OnState(Protocol):
    """Does *work* with the state between two commands."""

    async def __call__(self, work: Callable[[], R], /) -> R: ...


_log = get_logger(__name__)


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
        self._writing: asyncio.Task[None] | None = None

    async def restore_newest(self) -> bool:
        """Continue the state from the newest whole snapshot that is further; return whether there
        was one. Raises `SnapshotTooNew`, `OSError`, and what the state machine raises."""
        file = await asyncio.to_thread(self._store.newest_whole, self._state.offset)
        if file is not None:
            await self._on_state(partial(self._restore, file))
        return file is not None

    def _restore(self, file: SnapshotFile) -> None:
        with file.path.open("rb") as source:
            header, table, state = read_snapshot(source, file.path.stat().st_size)
            self._state.restore(header, table, state)
        self._restart(file.offset)
        metrics.REPLICA_SNAPSHOTS.add("restored")
        _log.info("snapshot_restored", log=header.log, offset=file.offset, path=file.path)

    async def register(self) -> None:
        """Let the log know what this store needs of it."""
        files = await asyncio.to_thread(self._store.files)
        manifest, _ = await self._node.read()
        oldest = files[-1].offset if files else 0
        await self._commit(max(oldest, manifest.trim_offset))

    def applied(self, command_bytes: int, *, leads: bool) -> None:
        """Count what was applied, and begin a snapshot if one is due."""
        self._bytes += command_bytes
        self._leads = leads
        self._write_if_due()

    def _write_if_due(self) -> None:
        since_s = time.monotonic() - self._since_s
        records = self._state.offset - self._offset
        if self._writing is None and self._policy.is_due(
            records=records, command_bytes=self._bytes, since_s=since_s, leads=self._leads
        ):
            self._writing = asyncio.create_task(self._write(), name=f"snapshot of {self._node.log}")
            self._writing.add_done_callback(self._written)

    async def write(self) -> int:
        """Write a snapshot now, unless the newest is of the same state; return its offset. Raises
        what `SnapshotStore.write` raises."""
        while self._writing is not None:
            await asyncio.wait({self._writing})
        writing = self._writing = asyncio.create_task(self._take(), name="snapshot on demand")
        writing.add_done_callback(self._written)
        await asyncio.shield(writing)
        return self._offset

    async def close(self) -> None:
        """Wait for the snapshot that is under way, if there is one; begin no other."""
        self._is_closed = True
        if self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        try:
            files = await asyncio.to_thread(self._store.files)
            if files and files[0].offset > self._offset:
                self._bytes = 0
                self._restart(files[0].offset)  # another replica wrote it
            else:
                await self._take()
        except Exception as error:  # noqa: BLE001 - the log has everything; the next one is tried
            metrics.REPLICA_SNAPSHOTS.add("failed")
            _log.warning("snapshot_failed", log=self._node.log, error=repr(error))
            self._bytes = 0
            self._restart(self._state.offset)

    def _written(self, writing: asyncio.Task[None]) -> None:
        if self._writing is writing:
            self._writing = None
        if writing.cancelled():
            return
        writing.exception()  # whoever asked for it may have gone
        if not self._is_closed:
            self._write_if_due()  # enough may have been applied meanwhile

    async def _take(self) -> None:
        capture = partial(self._state.capture, self._store.incarnation, now_ms=now_ms())
        captured = await self._on_state(capture)
        self._bytes = 0
        file = None
        if captured.header.offset > self._offset:
            write = partial(
                self._store.write, captured.header, captured.table, captured.write_state
            )
            file = await asyncio.to_thread(write)
            self._restart(file.offset)
            metrics.REPLICA_SNAPSHOTS.add("written")
            _log.info("snapshot_written", log=self._node.log, offset=file.offset, path=file.path)
        kept = await asyncio.to_thread(self._store.keep_newest, self._policy.keep, file)
        if not kept:
            return  # all were damaged since they were written
        await self._commit(kept[-1].offset)
        if self._policy.truncate and len(kept) == self._policy.keep:
            await self._truncate(kept[-1])

    async def _truncate(self, oldest: SnapshotFile) -> None:
        """Truncate the log below *oldest*, or less if somebody needs more."""
        manifest, _ = await self._node.read()
        consumers = await read_consumers(self._ledgers.store, self._node.log, manifest)
        target = min([oldest.offset, *(state.position for _, state in consumers)])
        if target > manifest.trim_offset:
            keep = Keep(before=target)
            incarnation = self._store.incarnation
            await truncate(self._ledgers, self._node, keep, now_ms=now_ms, incarnation=incarnation)

    async def _commit(self, position: int) -> None:
        name = CONSUMER_PREFIX + await asyncio.to_thread(self._store.identity)
        node = ConsumerNode(self._ledgers.store, self._node.log, name)
        owner = this_process()
        stored = await open_state(
            self._ledgers, self._node, node, position, exclusive=False, wait_s=0.0, owner=owner
        )
        opened = stored[0]
        await node.edit(
            lambda state: state.committed(position, by=opened, name=name, now_ms=now_ms()), stored
        )

    def _restart(self, offset: int) -> None:
        """Count from the snapshot at *offset* on."""
        self._offset, self._since_s = offset, time.monotonic()
