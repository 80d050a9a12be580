"""Snapshots of a log in a store of them: what they are, whether they are whole, and fit the log.

Reading disturbs no replica: a file is there as a whole or not at all, and one that is removed
meanwhile is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dlog.aio.namespace_connection import connected
from dlog.aio.port import Ledgers
from dlog.aio.read.tails import END_GRACE_S, acknowledged_end, tail_of
from dlog.aio.store import ManifestNode, read_consumers
from dlog.errors import DamagedSnapshot, SnapshotTooNew
from dlog.manifest import Manifest
from dlog.protocol.snapshot import SnapshotHeader
from dlog.snapshot_store import SnapshotFile, SnapshotStore
from ledger.errors import RemoteError
from ledger.log_events import get_logger

SnapshotState = Literal["whole", "complete", "damaged", "newer", "ahead", "behind"]
"""complete: begins and ends as it was written, and was not read; newer: a later version of dlog
wrote it; ahead, behind: it is not of the records that the log has."""

OnRead = Callable[[int, int, int], object]
"""Called with the offset of the snapshot that is read, bytes done of it, and its bytes."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    offset: int
    path: str
    size_bytes: int
    state: SnapshotState
    reason: str
    """Why it cannot be used; empty: it can, or was not read."""
    header: SnapshotHeader | None
    """None if that is damaged, or newer."""

    @property
    def can_be_restored(self) -> bool:
        return self.state in ("whole", "complete")


@dataclass(frozen=True, slots=True)
class StoreReport:
    log: str
    uri: str = field(repr=False)
    """Of the store."""
    snapshots: tuple[SnapshotInfo, ...]
    """The newest first."""
    first_offset: int
    """Of the log."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, as sentences; empty: a replica without state can begin here."""
        found = [
            f"snapshot {each.offset} is {each.state}: {each.reason}"
            for each in self.snapshots
            if each.state in ("damaged", "newer", "ahead")
        ]
        if self.first_offset > 0 and not any(each.can_be_restored for each in self.snapshots):
            found.append(
                f"the log begins at offset {self.first_offset} and no snapshot can be restored: a "
                "new replica cannot begin"
            )
        return tuple(found)


async def check_store(
    log: str,
    snapshots: str,
    *,
    read: bool,
    on_read: OnRead = lambda _offset, _done, _total: None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> StoreReport:
    """Return what snapshots of *log* are in the store *snapshots*, a URI.

    With *read* each is read as a whole, else its beginning and its end. *on_read* may be
    called on a thread. Raises `InvalidName`, `NoSuchLog`, `SnapshotsUnusable`, `OSError`, what
    object storage raises, and what connecting raises."""
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, log)
        manifest, _ = await node.read()
        store = await SnapshotStore.open(snapshots, log, manifest.incarnation, create=False)
        consumers = await read_consumers(ledgers.store, log, manifest)
        # A list of objects may lack the newest; names of another store are not found in this one.
        files = await store.files(name for _, state in consumers for name in state.note.split())
        end = None
        if files:
            end = await end_below(ledgers, node, files[0].offset, manifest.incarnation)
        infos = [
            info
            for file in files
            if (info := await _inspect(store, file, on_read if read else None)) is not None
        ]
    fitted = tuple(_fitted(each, manifest, end) for each in infos)
    return StoreReport(log, store.uri, fitted, manifest.trim_offset)


async def end_below(
    ledgers: Ledgers, node: ManifestNode, offset: int, incarnation: str
) -> int | None:
    """Return where the log ends if that is certainly below *offset*; else None.

    Where nobody can tell, as its writer died or bookies are unavailable, a takeover decides it
    (`dlog.aio.replica`)."""
    try:
        end = (await tail_of(ledgers, node.log)).next_offset
        if offset > end:
            end = await acknowledged_end(
                ledgers, node, timeout_s=END_GRACE_S, incarnation=incarnation
            )
    except RemoteError as error:
        if not error.retryable:
            raise
        _log.warning("end_is_not_certain", log=node.log, error=str(error))
        return None
    return end if offset > end else None


async def _inspect(
    store: SnapshotStore, file: SnapshotFile, on_read: OnRead | None
) -> SnapshotInfo | None:
    header: SnapshotHeader | None = None
    state: SnapshotState = "complete" if on_read is None else "whole"
    reason = ""
    size_bytes = await store.size_bytes(file)
    if size_bytes is None:
        return None
    try:
        header = await store.glance(file)
        if on_read is not None:
            await store.check(file, lambda _, done, total: on_read(file.offset, done, total or 0))
    except FileNotFoundError:
        return None
    except DamagedSnapshot as error:
        state, reason = "damaged", error.reason
    except SnapshotTooNew as error:
        state, reason = "newer", str(error)
    return SnapshotInfo(file.offset, store.place(file), size_bytes, state, reason, header)


def _fitted(info: SnapshotInfo, manifest: Manifest, end: int | None) -> SnapshotInfo:
    """Return *info* with what the log says of it. *end* as of `end_below`, for the newest."""
    header = info.header
    if header is None or not info.can_be_restored:
        return info
    state: SnapshotState = info.state
    reason = ""
    if header.epoch > manifest.epoch:
        state = "ahead"
        reason = f"it has records of epoch {header.epoch}, and the log is in {manifest.epoch}"
    elif end is not None and info.offset > end:
        state, reason = "ahead", f"the log ends at offset {end}"
    elif info.offset < manifest.trim_offset:
        state, reason = "behind", f"the log begins at offset {manifest.trim_offset}"
    return SnapshotInfo(info.offset, info.path, info.size_bytes, state, reason, header)
