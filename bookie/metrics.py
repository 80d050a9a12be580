"""The metrics of a bookie: each is declared here, and counted by the object that it is about.

What is read here is read from another thread, without a lock and without asking a disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import ledger.metrics
from bookie.collector.collection import LogState
from bookie.collector.collector import Collector
from bookie.disk.port import DiskUsage
from bookie.identity.registration import Registrar
from bookie.index.ledger_cache import LedgerCache
from bookie.server.core import BookieCore
from bookie.server.listener import BookieServer
from bookie.server.read_only import ReadOnlyKeeper
from bookie.server.service import BookieService
from bookie.storage.engine import BookieStorage
from bookie.storage.memtable import Memory
from ledger.metering.declaration import Buckets, Exposed, MetricRegistry, Readiness
from ledger.process import own_version
from ledger.requests import Status


@dataclass(frozen=True, slots=True)
class Running:
    """A bookie that serves."""

    server: BookieServer
    service: BookieService
    storage: BookieStorage
    keeper: ReadOnlyKeeper
    collector: Collector
    registrar: Registrar

    @property
    def core(self) -> BookieCore:
        return self.service.core

    @property
    def memory(self) -> Memory:
        return self.storage.holdings.memory

    @property
    def index_caches(self) -> list[LedgerCache]:
        return [each.index.cache for each in self.storage.ledger_directories]

    @property
    def logs(self) -> list[LogState]:
        """The entry logs as the last run of the collector found them."""
        return [log for directory in self.collector.status().logs for log in directory]

    @property
    def usage(self) -> list[tuple[str, DiskUsage]]:
        """Of each directory that answered."""
        return [(each.path, each.usage) for each in self.keeper.measured if each.usage is not None]

    def readiness(self) -> Readiness:
        """Ready once clients find it; also if it is read-only, for then it serves reads."""
        trouble = self.registrar.trouble
        if trouble:
            return Readiness(ready=False, state="not registered", reasons=(trouble,))
        reasons = self.keeper.reasons
        state = "read-only" if self.storage.read_only else "writable"
        return Readiness(ready=True, state=state, reasons=reasons)


REPLAYING: Final = Readiness(ready=False, state="replaying", reasons=("it reads its journals",))

METRICS: Final[MetricRegistry[Running]] = MetricRegistry()

# What is asked of it.

METRICS.counter(
    "dlog_bookie_adds_total",
    "Runs of entries that clients asked to add, by status of the reply.",
    lambda bookie: _by_status(bookie.core.adds),
    "status",
)
METRICS.counter(
    "dlog_bookie_added_entries_total",
    "Entries that were accepted, including those of recovery.",
    lambda bookie: bookie.core.added_entries,
)
METRICS.counter(
    "dlog_bookie_added_bytes_total",
    "Bytes of entries that were accepted.",
    lambda bookie: bookie.core.added_bytes,
)
METRICS.counter(
    "dlog_bookie_recovery_entries_total",
    "Entries that were accepted from recovery or repair of a ledger.",
    lambda bookie: bookie.core.recovery_entries,
)
METRICS.gauge(
    "dlog_bookie_unsynced_bytes",
    "Bytes of entries that are accepted but not durable yet.",
    lambda bookie: bookie.core.queued_bytes,
)
METRICS.gauge(
    "dlog_bookie_connections",
    "Connections of clients and operators.",
    lambda bookie: len(bookie.server.connections),
)
METRICS.counter(
    "dlog_bookie_refusals_total",
    "Connections that were refused or closed, and messages that were invalid.",
    lambda bookie: bookie.server.refusals,
)
METRICS.counter(
    "dlog_bookie_closed_connections_total",
    "Connections that were refused or closed, by reason: full, address or pending (too many: of "
    "all, of one address, without a handshake), writers, unknown (its identity, or the bookie that "
    "it means), handshake, slow, idle or stalled (too late), expired, invalid.",
    lambda bookie: {
        str(reason): count for reason, count in list(bookie.server.closed_connections.items())
    },
    "reason",
)
METRICS.gauge(
    "dlog_bookie_pending_handshakes",
    "Connections that have not completed their handshake yet.",
    lambda bookie: bookie.server.places.pending_handshakes,
)
METRICS.gauge(
    "dlog_bookie_unsent_bytes",
    "Bytes of replies that clients have not received yet.",
    lambda bookie: bookie.server.backlog.unsent_bytes,
)
METRICS.counter(
    "dlog_bookie_denied_total",
    "Requests that were denied for lack of a grant, by action.",
    lambda bookie: _denied(bookie.server),
    "action",
)
METRICS.gauge(
    "dlog_bookie_grants",
    "Grants of access that are in force; 0 also where clients need no identity.",
    lambda bookie: 0 if bookie.server.guard is None else bookie.server.guard.grants,
)
METRICS.counter(
    "dlog_bookie_delayed_seconds_total",
    "Time for which clients were delayed, by the quota that caused it.",
    lambda bookie: _delayed(bookie.server),
    "quota",
)
METRICS.gauge(
    "dlog_bookie_add_streams",
    "Streams of adds that clients have open.",
    lambda bookie: bookie.service.streams,
)
METRICS.counter(
    "dlog_bookie_reads_total",
    "Reads, by status of the reply.",
    # An alert is to see the first one, too.
    lambda bookie: {"io_error": 0} | _by_status(bookie.service.reads),
    "status",
)
METRICS.counter(
    "dlog_bookie_damaged_reads_total",
    "Reads that met an entry which the disk did not return whole. If more was requested, the "
    "entries before the damage are returned and the read counts as answered.",
    lambda bookie: bookie.storage.holdings.damaged_reads,
)
METRICS.counter(
    "dlog_bookie_read_entries_total",
    "Entries that were returned to readers.",
    lambda bookie: bookie.service.read_entries,
)
METRICS.counter(
    "dlog_bookie_read_bytes_total",
    "Bytes of entries that were returned to readers.",
    lambda bookie: bookie.service.read_bytes,
)
METRICS.gauge(
    "dlog_bookie_waiting_reads",
    "Reads that wait for something to be confirmed (long polls).",
    lambda bookie: bookie.core.waiting_reads,
)
METRICS.gauge(
    "dlog_bookie_disk_reads",
    "Reads that are at a disk, or queue for it.",
    lambda bookie: bookie.core.disk_reads,
)
METRICS.counter(
    "dlog_bookie_fences_total",
    "Requests that fenced a ledger.",
    lambda bookie: bookie.core.fences,
)

# Journals.

METRICS.counter(
    "dlog_bookie_journal_groups_total",
    "Groups that a journal made durable, by journal.",
    lambda bookie: {
        str(at): sum(writer.counts.records.counts)
        for at, writer in enumerate(bookie.storage.journal_writers)
    },
    "journal",
)
METRICS.histogram(
    "dlog_bookie_journal_group_records",
    "Records of each group, of all journals.",
    lambda bookie: _sum([each.counts.records for each in bookie.storage.journal_writers]),
)
METRICS.histogram(
    "dlog_bookie_journal_group_bytes",
    "Bytes of each group, of all journals.",
    lambda bookie: _sum([each.counts.bytes for each in bookie.storage.journal_writers]),
)
METRICS.histogram(
    "dlog_bookie_journal_sync_seconds",
    "Time that the disk took to write and sync a group, of all journals.",
    lambda bookie: _sum([each.counts.sync_s for each in bookie.storage.journal_writers]),
)
METRICS.gauge(
    "dlog_bookie_journal_queued_bytes",
    "Bytes that queue for a journal or are being written to it, by journal.",
    lambda bookie: {
        str(at): writer.queued_bytes for at, writer in enumerate(bookie.storage.journal_writers)
    },
    "journal",
)
METRICS.gauge(
    "dlog_bookie_journal_full",
    "1 for a journal whose disk has no space beyond what was preallocated.",
    lambda bookie: {
        str(at): int(writer.is_full) for at, writer in enumerate(bookie.storage.journal_writers)
    },
    "journal",
)

# Memory and checkpoints.

METRICS.gauge(
    "dlog_bookie_memtable_bytes",
    "Bytes in memory: of new entries (active), being written by a checkpoint (flushing), and "
    "written by the last one (recent).",
    lambda bookie: {
        "active": bookie.memory.active.size_bytes,
        "flushing": flushing.size_bytes if (flushing := bookie.memory.flushing) else 0,
        "recent": bookie.memory.recent.size_bytes,
    },
    "memtable",
)
METRICS.histogram(
    "dlog_bookie_checkpoint_seconds",
    "Duration of each checkpoint.",
    lambda bookie: bookie.storage.keeper.seconds,
)
METRICS.counter(
    "dlog_bookie_checkpoint_bytes_total",
    "Bytes that checkpoints moved to entry logs, as they were counted in memory.",
    lambda bookie: bookie.storage.keeper.written_bytes,
)
METRICS.gauge(
    "dlog_bookie_ledgers",
    "Ledgers that the bookie stores.",
    lambda bookie: bookie.storage.holdings.ledgers.known,
)
METRICS.counter(
    "dlog_bookie_index_hits_total",
    "Index pages that were in memory when they were needed.",
    lambda bookie: sum(cache.hits for cache in bookie.index_caches),
)
METRICS.counter(
    "dlog_bookie_index_misses_total",
    "Index pages that had to be read from disk.",
    lambda bookie: sum(cache.misses for cache in bookie.index_caches),
)
METRICS.counter(
    "dlog_bookie_read_ahead_hits_total",
    "Disk reads that were answered from entries read ahead.",
    lambda bookie: bookie.storage.holdings.read_cache.hits,
)
METRICS.counter(
    "dlog_bookie_read_ahead_misses_total",
    "Reads that went to the disk.",
    lambda bookie: bookie.storage.holdings.read_cache.misses,
)
METRICS.gauge(
    "dlog_bookie_read_ahead_bytes",
    "Bytes in memory that were read ahead.",
    lambda bookie: bookie.storage.holdings.read_cache.size_bytes,
)

# Disks.

METRICS.gauge(
    "dlog_bookie_disk_free_bytes",
    "Free space, by directory.",
    lambda bookie: {path: usage.free_bytes for path, usage in bookie.usage},
    "directory",
)
METRICS.gauge(
    "dlog_bookie_disk_total_bytes",
    "Size of the file system of a directory.",
    lambda bookie: {path: usage.total_bytes for path, usage in bookie.usage},
    "directory",
)
METRICS.gauge(
    "dlog_bookie_read_only",
    "1 while the bookie refuses new entries.",
    lambda bookie: int(bookie.storage.read_only),
)
METRICS.gauge(
    "dlog_bookie_read_only_reason",
    "1 for each kind of reason for that: an operator, a full disk, the storage itself.",
    lambda bookie: {kind: int(is_so) for kind, is_so in bookie.keeper.kinds.items()},
    "reason",
)
METRICS.gauge(
    "dlog_bookie_in_doubt",
    "1 while the bookie may have lost data and that is not settled (limbo).",
    lambda bookie: int(bool(bookie.storage.doubts)),
)
METRICS.gauge(
    "dlog_bookie_registered",
    "1 while the bookie is registered in the metadata store, where clients find it.",
    lambda bookie: int(not bookie.registrar.trouble),
)
METRICS.gauge(
    "dlog_bookie_info",
    "1, with the name of the bookie and the version of its program.",
    lambda bookie: _info(bookie.service.info.bookie),
    "bookie",
    "version",
)

# Garbage collection and compaction.

METRICS.gauge(
    "dlog_bookie_entry_log_bytes",
    "Bytes of finished entry logs, as of the collector's last run: live, or of deleted ledgers "
    "(dead).",
    lambda bookie: {
        "live": sum(log.live_bytes for log in bookie.logs),
        "dead": sum(log.size_bytes - log.live_bytes for log in bookie.logs),
    },
    "state",
)
METRICS.gauge(
    "dlog_bookie_entry_logs",
    "Finished entry logs, as of the collector's last run.",
    lambda bookie: len(bookie.logs),
)
METRICS.counter(
    "dlog_bookie_collector_runs_total",
    "Garbage collections (gc) and compactions (minor, major).",
    lambda bookie: bookie.collector.totals.runs,
    "kind",
)
METRICS.counter(
    "dlog_bookie_collector_failures_total",
    "Those that failed, or kept possible garbage.",
    lambda bookie: bookie.collector.totals.failures,
    "kind",
)
METRICS.counter(
    "dlog_bookie_deleted_ledgers_total",
    "Ledgers that were deleted from the cluster and then from this bookie.",
    lambda bookie: bookie.collector.totals.ledgers,
)
METRICS.counter(
    "dlog_bookie_evicted_ledgers_total",
    "Ledgers that repair had moved to other bookies and that were evicted from this one.",
    lambda bookie: bookie.collector.totals.evicted,
)
METRICS.counter(
    "dlog_bookie_freed_bytes_total",
    "Bytes of entry logs that were freed.",
    lambda bookie: bookie.collector.totals.freed_bytes,
)
METRICS.counter(
    "dlog_bookie_compacted_bytes_total",
    "Live bytes that compaction rewrote.",
    lambda bookie: bookie.collector.totals.moved_bytes,
)
METRICS.gauge(
    "dlog_bookie_garbage_waiting",
    "Ledgers that may be garbage and await an operator's confirmation.",
    lambda bookie: bookie.collector.status().waiting,
)


def expose(
    exposed: Exposed,
    server: BookieServer,
    service: BookieService,
    storage: BookieStorage,
    keeper: ReadOnlyKeeper,
    collector: Collector,
    registrar: Registrar,
) -> None:
    """Let *exposed* show a bookie that serves, and how ready it is, from now on."""
    running = Running(server, service, storage, keeper, collector, registrar)
    exposed.add(METRICS, running)
    exposed.add(ledger.metrics.METRICS)
    exposed.readiness = running.readiness


def _info(bookie: str) -> dict[tuple[str, ...], int | float]:
    return {(bookie, own_version()): 1}


def _denied(server: BookieServer) -> dict[str, int]:
    counts = {} if server.guard is None else dict(server.guard.denied)
    return {action.name.lower(): count for action, count in counts.items()}


def _delayed(server: BookieServer) -> dict[str, float]:
    treasury = None if server.delays is None else server.delays.treasury
    found = {} if treasury is None else dict(treasury.delayed_ns)
    return {quota: delayed_ns / 1e9 for quota, delayed_ns in found.items()}


def _by_status(counts: Mapping[Status, int]) -> dict[str, int]:
    return {status.name.lower(): count for status, count in list(counts.items())}


def _sum(parts: list[Buckets]) -> Buckets:
    total = Buckets(parts[0].bounds)
    for part in parts:
        total.counts = [a + b for a, b in zip(total.counts, list(part.counts), strict=True)]
        total.total += part.total
    return total
