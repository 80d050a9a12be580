"""Logs as a whole: create, list, describe, delete, truncate beside a living writer.

Each function connects for itself, to *uri* or to the configured namespace, unless it is given
a *client* to use.
"""

from dataclasses import dataclass

from dlog.aio.connecting import connected
from dlog.aio.dropping import drop
from dlog.aio.log import create
from dlog.aio.manifests import ManifestNode
from dlog.aio.port import Ledgers
from dlog.aio.sealing import seal
from dlog.aio.tails import LogTail, TailTracker, tail_of
from dlog.aio.trimming import Before, Keep, plan, truncate
from dlog.errors import NoSuchLog
from dlog.manifest import Manifest
from dlog.names import LOGS_PATH, check_name, name_of
from dlog.protocol.retention import TrimPlan
from dlog.settings import LogSettings
from ledger.clock import now_ms
from ledger.errors import NoSuchNode

__all__ = [
    "LogInfo",
    "LogTail",
    "TailTracker",
    "TrimPlan",
    "create_log",
    "delete_log",
    "list_logs",
    "log_info",
    "log_tail",
    "plan_truncation",
    "seal_log",
    "truncate_log",
]


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log's manifest and where it ends now."""

    name: str
    manifest: Manifest
    tail: LogTail

    @property
    def records(self) -> int:
        """How many records can be read."""
        return self.tail.next_offset - self.tail.first_offset


async def create_log(
    name: str,
    *,
    settings: LogSettings | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> None:
    """Create an empty log. Raises `InvalidName`, `LogExists`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        await create(ledgers, ManifestNode(ledgers.store, name), settings)


async def list_logs(
    *, prefix: str = "", uri: str | None = None, client: Ledgers | None = None
) -> list[str]:
    """Return the names of all logs that begin with *prefix*, sorted."""
    async with connected(uri, client) as ledgers:
        try:
            nodes = await ledgers.store.children(LOGS_PATH)
        except NoSuchNode:
            return []
    return sorted(name for name in map(name_of, nodes) if name.startswith(prefix))


async def log_info(name: str, *, uri: str | None = None, client: Ledgers | None = None) -> LogInfo:
    """Return what is known of a log. Raises `InvalidName`, `NoSuchLog`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        tail = await tail_of(ledgers, name)
        manifest, _ = await ManifestNode(ledgers.store, name).read()
    return LogInfo(name, manifest, tail)


async def log_tail(client: Ledgers, name: str) -> LogTail:
    """Return where the log begins and ends now; `TailTracker` is cheaper for many polls."""
    return await tail_of(client, name)


async def truncate_log(
    name: str,
    *,
    before: Before | None = None,
    keep_bytes: int | None = None,
    keep_age_s: float | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> int:
    """Remove the oldest records; return the first offset there is now.

    Say what stays by one of three: *before* is the first record to keep (offset, `DLSN`,
    `Timestamp` or `Txid`); *keep_bytes* keeps at least so many payload bytes, in whole
    segments; *keep_age_s* keeps everything from the first record on that is not older. A
    living writer is not disturbed; readers below get `Trimmed`. Asking for less than was
    removed before is no error. Raises `InvalidName`, `NoSuchLog`, `InvalidPosition`
    (beyond the end), ValueError (not one of the three), and what bookies raise."""
    check_name(name)
    keep = Keep.of(before, keep_bytes, keep_age_s)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest = await truncate(ledgers, node, keep, now_ms=now_ms)
    return manifest.trim_offset


async def plan_truncation(
    name: str,
    *,
    before: Before | None = None,
    keep_bytes: int | None = None,
    keep_age_s: float | None = None,
    uri: str | None = None,
    client: Ledgers | None = None,
) -> TrimPlan:
    """Return what `truncate_log` would remove now, and change nothing.

    To do just that, truncate before the plan's *trim_offset*. Raises as `truncate_log`."""
    check_name(name)
    keep = Keep.of(before, keep_bytes, keep_age_s)
    async with connected(uri, client) as ledgers:
        return await plan(ledgers, ManifestNode(ledgers.store, name), keep, now_ms=now_ms)


async def seal_log(name: str, *, uri: str | None = None, client: Ledgers | None = None) -> int:
    """End a log for good; return the offset after its last record.

    Everything in it stays readable, and retention and truncation go on. Readers that follow
    end there; nobody can open it to append (`LogSealed`). A living writer loses it as to a
    takeover: appends in flight end with `AppendOutcomeUnknown`, and what was acknowledged is
    kept. Sealing it again changes nothing. There is no way back. Raises `InvalidName`,
    `NoSuchLog`, `TakeoverFailed` if others open it all the time, and what recovery raises."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        manifest = await seal(ledgers, ManifestNode(ledgers.store, name), now_ms=now_ms)
    return manifest.sealed_end


async def delete_log(name: str, *, uri: str | None = None, client: Ledgers | None = None) -> None:
    """Delete a log and its ledgers; its writer and readers fail. Raises `NoSuchLog`."""
    check_name(name)
    async with connected(uri, client) as ledgers:
        node = ManifestNode(ledgers.store, name)
        manifest, _ = await node.read()
        if manifest.dropped:
            await drop(ledgers, node)
            raise NoSuchLog(name)
        await drop(ledgers, node)
